/* fabric, inside. */
#ifndef AZ_COMM_FABRIC_PRIV_H
#define AZ_COMM_FABRIC_PRIV_H

#include "comm/backend.h"
#include "comm/comm_priv.h"
#include "comm/fabric.h"

struct az_fabric {
    az_comm *comm;
    az_dev *dev;
    const az_nccl_backend *nccl; /* NULL where it is not needed */
    /* The node's ranks by their number in it, so that rank j is lane j; NULL where there is one. */
    az_nccl *node;
    /* All ranks, those with a position first and in its order; NULL where MPI goes between nodes.
     */
    az_nccl *all;
    int n_nodes, n_lanes, n_positions;
    int number, lane; /* of this rank's node; of this rank, or -1 */
    bool even;        /* every rank has a lane */
    bool direct;
    size_t *begins; /* [n_positions + 1] scratch: where parts begin, in bytes */
    /* Messages through the host: of each of n_nodes parts `slot` bytes at a time. Of two pieces, as
     * one is on its way between host and device while the other is on the network. */
    size_t slot;
    char *stage[2]; /* [n_nodes][slot] pinned */
    char *sum[2];   /* [slot] pinned */
    az_event *out[2];
    size_t *counts, *offsets; /* [n_nodes] scratch */
    int64_t *elements;        /* [n_nodes] scratch */
    az_beat beat;             /* looks for failures in NCCL's background */
    az_fabric_stats stats;
};

/* The part of az_fabric_gather with AZ_GATHER_ALL that goes between nodes. */
void az_fabric_gather_between(az_fabric *fabric, char *whole, size_t bytes);
/* This rank has a lane, and MPI goes between nodes. */
static inline bool az_fabric_stages(const az_fabric *fabric)
{
    return fabric->n_nodes > 1 && fabric->all == NULL && fabric->lane >= 0;
}

#endif
