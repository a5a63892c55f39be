/* comm: ranks, agreement, collectives. The only module that knows MPI.
 *
 * Counts are size_t or int64_t; a message longer than the limit of one MPI call is sent in pieces.
 * A broken transport ends the job (MPI_Abort); everything else is an az_err that is the same on all
 * ranks. */
#ifndef AZ_COMM_COMM_H
#define AZ_COMM_COMM_H

#include "base/base.h"

typedef struct az_comm az_comm;

/* Start MPI (once a process) and take the world. Refuses N singletons under SLURM_NTASKS > 1 (each
 * would believe itself alone) and an MPI that does not allow threads beside it. Collective over all
 * processes. */
az_err az_comm_init(az_comm **out_comm, int *argc, char ***argv);
/* A communicator of this process alone, for tests and commands that are not parallel; needs no MPI.
 */
az_err az_comm_create_self(az_comm **out_comm);
/* Ends MPI if it was started here. Collective. */
void az_comm_fini(az_comm *opt_comm);

int az_comm_rank(const az_comm *comm);
int az_comm_size(const az_comm *comm);
/* Ranks on this node, and this rank's number among them. */
int az_comm_node_size(const az_comm *comm);
int az_comm_node_rank(const az_comm *comm);
/* Where ranks are. Nodes are numbered by their lowest rank. A node's rank j (among its own) is its
 * lane j if the smallest node has so many ranks, else it has none. What is cut over the job is cut
 * by position = lane * n_nodes + node: so every node holds the same share, however many ranks it
 * has, and what the ranks of a lane hold lies together. */
typedef struct {
    int n_ranks, n_nodes, n_lanes;
    const int *node_ranks; /* [n_nodes] ranks on each */
} az_topology;
const az_topology *az_comm_get_topology(const az_comm *comm);
/* This rank's node, lane and position; without a lane -1. Local. */
int az_comm_node(const az_comm *comm);
int az_comm_lane(const az_comm *comm);
int az_comm_position(const az_comm *comm);
/* n_lanes * n_nodes. */
int az_comm_n_positions(const az_comm *comm);
/* Copy the world's MPI_Comm to *out_mpi_comm, for the one library that takes it: parallel HDF5.
 * Local. */
void az_comm_get_mpi(const az_comm *comm, void *out_mpi_comm);
/* Whether there is an MPI behind it; without one there is a single rank. Local. */
bool az_comm_has_mpi(const az_comm *comm);
/* Make an MPI_Info of n hints "name=value" for the same library, or MPI_INFO_NULL of none; what is
 * no hint is refused. Local. */
az_err az_comm_create_info(void *out_mpi_info, const az_comm *comm, const char *const *hints,
                           int n);
void az_comm_destroy_info(void *mpi_info);
/* Version line of the MPI library. */
const char *az_comm_library(void);

/* One code for all: the lowest failing rank's code and message become everyone's. Collective. */
az_err az_comm_agree(az_comm *comm, az_err err);
/* Whether any rank was asked to stop (base/stop.h): what the ranks handed on in the call before, so
 * that all get the same answer in the same call. The exchange runs while they go on; it costs no
 * waiting of its own where ranks go in step. Reasons as bits, 0: go on. Collective. */
unsigned az_comm_poll(az_comm *comm);
/* Collectives. Buffers do not overlap. */
void az_comm_barrier(az_comm *comm);
void az_comm_node_barrier(az_comm *comm); /* of each node's ranks */
void az_comm_bcast(az_comm *comm, void *buffer, size_t bytes, int root);
/* Every rank gives bytes bytes; recv holds size * bytes. send may be recv + rank * bytes. */
void az_comm_allgather(az_comm *comm, const void *send, size_t bytes, void *recv);
/* Rank i gives counts[i] bytes that land at offsets[i] of recv. */
void az_comm_allgatherv(az_comm *comm, const void *send, void *recv, const size_t *counts,
                        const size_t *offsets);
/* The same over this rank's lane, one rank a node: node i gives counts[i] bytes that land at
 * offsets[i]. Ranks without a lane do nothing. Collective over the lane. */
void az_comm_lane_allgatherv(az_comm *comm, const void *send, void *recv, const size_t *counts,
                             const size_t *offsets);
/* Integer sums over this rank's lane: recv (counts[node] values) = sum over its ranks of this
 * node's part of send (all counts [n_nodes] together). Ranks without a lane do nothing. Collective
 * over the lane. */
void az_comm_lane_reduce_scatter_i64(az_comm *comm, const int64_t *send, int64_t *recv,
                                     const int64_t *counts);
void az_comm_sum_i64(az_comm *comm, int64_t *values, size_t n);
void az_comm_node_sum_i64(az_comm *comm, int64_t *values, size_t n); /* over each node's ranks */
void az_comm_max_i64(az_comm *comm, int64_t *values, size_t n);
void az_comm_sum_f64(az_comm *comm, double *values, size_t n); /* for reports only: not exact */
void az_comm_max_f64(az_comm *comm, double *values, size_t n);

#endif
