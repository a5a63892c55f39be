/* comm, inside: the communicator. */
#ifndef AZ_COMM_PRIV_H
#define AZ_COMM_PRIV_H

#include <mpi.h>

#include "comm/comm.h"
#include "comm/watch_priv.h"

/* alone: one process without MPI; its communicators are then not used. */
struct az_comm {
    bool alone, started_mpi;
    MPI_Comm world, node;
    MPI_Comm lane; /* MPI_COMM_NULL without one */
    int rank, size, node_rank, node_size;
    az_topology topology;
    int *node_ranks; /* of topology */
    int node_number, lane_number;
    size_t limit;           /* most bytes in one MPI call */
    int *counts, *offsets;  /* [size] scratch */
    MPI_Request poll;       /* the exchange of az_comm_poll under way */
    unsigned asked, answer; /* its buffers: this rank's reasons, all ranks' */
    bool polling;
    az_watch *watch;
};

/* Nodes and lanes, after world and node are there. On failure of any rank all fail. Collective. */
az_err az_comm_find_topology(az_comm *comm);

#endif
