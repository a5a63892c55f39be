/* fabric: data in the memory of GPUs that lies in parts over ranks, brought together, and sums of
 * what they hold.
 *
 * Parts are those of positions (comm.h): what the ranks of a lane hold lies together, so a whole is
 * its lanes' stretches one behind the other, and a stretch its nodes' parts. Within a node NCCL
 * moves data between GPUs. Between nodes, by choice (comm.internode):
 *
 *   mpi    MPI over each lane, from and to pinned memory of the host, in pieces, two of which are
 *          under way; straight from the GPU's memory where the MPI can do that and is let
 *   nccl   one NCCL communicator over all nodes
 *
 * All NCCL calls of a job go into the gather queue, in program order, so that no two ranks run two
 * collectives crosswise; a caller orders that queue with others by events. On one rank nothing is
 * there to do, and NCCL is not needed. */
#ifndef AZ_COMM_FABRIC_H
#define AZ_COMM_FABRIC_H

#include "comm/comm.h"
#include "dev/dev.h"

typedef struct az_fabric az_fabric;

typedef enum { AZ_INTERNODE_AUTO, AZ_INTERNODE_MPI, AZ_INTERNODE_NCCL } az_internode;

typedef struct {
    az_internode internode; /* auto: mpi */
    bool direct;            /* MPI may be given device memory, if it says that it can take it */
} az_fabric_options;

/* Bytes of a piece of a message between nodes that goes through the host. */
#define AZ_FABRIC_PIECE ((size_t)4 << 20)

/* Communicators and pinned buffers, each used once, so that what they need is taken now. Fails with
 * AZ_EENV where there are several ranks and the backend has no NCCL. dev: a GPU. Collective. */
az_err az_fabric_create(az_fabric **out_fabric, az_dev *dev, const az_fabric_options *options,
                        az_comm *comm);
void az_fabric_destroy(az_fabric *opt_fabric);
/* Pinned bytes of the host that create takes. Pure. */
size_t az_fabric_measure(const az_topology *topology, const az_fabric_options *options);
bool az_fabric_uses_nccl_between_nodes(const az_fabric *fabric);

/* How far a gather goes: the stretches of this node's lanes, which are whole; or all parts. */
typedef enum { AZ_GATHER_NODE, AZ_GATHER_ALL } az_gather;

/* Where part p of bytes begins; parts are equal, multiples of AZ_SPREAD_BLOCK, but that the last
 * ones end with the bytes and may be shorter or empty. Pure. */
static inline size_t az_fabric_cut(size_t bytes, int p, int n_positions)
{
    const size_t blocks = (bytes + 63) / 64, n = (size_t)n_positions;
    const size_t at = (blocks + n - 1) / n * 64 * (size_t)p;
    return at < bytes ? at : bytes;
}
/* Room that a whole takes where it is gathered: its equal parts. Pure. */
static inline size_t az_fabric_room(size_t bytes, int n_positions)
{
    const size_t blocks = (bytes + 63) / 64, n = (size_t)n_positions;
    return (blocks + n - 1) / n * n * 64;
}

/* Bring the parts of a whole of `bytes` together, cut by az_fabric_cut over all positions, in place
 * at whole (az_fabric_room bytes, device memory). Into the gather queue; the host waits with
 * AZ_GATHER_ALL over MPI alone. Collective. */
void az_fabric_gather(az_fabric *fabric, char *whole, size_t bytes, az_gather how);
/* The same for any cut: part p is elements [cut[p], cut[p + 1]) of `size` bytes each; cut
 * [n_positions + 1], the same on all ranks. */
void az_fabric_gather_cut(az_fabric *fabric, char *whole, size_t size, const int64_t *cut);
/* Sums over all ranks: part p of sums (cut as above) holds those of all afterwards at position p;
 * the other parts are undefined. Into the gather queue; the host waits over MPI. Collective. */
void az_fabric_reduce_i64(az_fabric *fabric, int64_t *sums, const int64_t *cut);

/* So far. */
typedef struct {
    double waited_s;        /* by the host, for messages between nodes */
    int64_t received_bytes; /* from other nodes, by this rank */
} az_fabric_stats;
az_fabric_stats az_fabric_get_stats(const az_fabric *fabric);

#endif
