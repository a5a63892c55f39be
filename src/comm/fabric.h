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
 * collectives crosswise; a caller orders that queue with others by events. Where every node has one
 * rank and MPI goes between them, and on one rank, NCCL is not needed.
 *
 * All functions may be called while a spread's walk is open. What has gone wrong in NCCL's
 * background ends the job through the device's fail function (dev.h), from a thread of the fabric's
 * own; a rank that does not come any more is found by the watchdog. */
#ifndef AZ_COMM_FABRIC_H
#define AZ_COMM_FABRIC_H

#include "comm/comm.h"
#include "dev/dev.h"

typedef struct az_fabric az_fabric;

typedef enum { AZ_INTERNODE_AUTO, AZ_INTERNODE_MPI, AZ_INTERNODE_NCCL } az_internode;

typedef struct {
    az_internode internode; /* auto: mpi */
    /* MPI may be given device memory in gathers, if it says that it can take it. Sums are formed by
     * the host in any case. */
    bool direct;
    size_t piece; /* bytes of a piece of a message that goes through the host; 0: AZ_FABRIC_PIECE */
} az_fabric_options;

#define AZ_FABRIC_PIECE ((size_t)4 << 20)

/* Communicators and pinned buffers. Each kind of collective is used once, so that what NCCL needs
 * of the device's memory is taken now. Fails with AZ_EENV where NCCL is needed and the backend has
 * none. dev: a GPU. Collective. */
az_err az_fabric_create(az_fabric **out_fabric, az_dev *dev, const az_fabric_options *options,
                        az_comm *comm);
/* What is under way is waited for, unless NCCL has failed. On all ranks. */
void az_fabric_destroy(az_fabric *opt_fabric);
/* Pinned bytes of the host that a rank with a lane takes for messages between nodes, in the
 * category AZ_FABRIC_LABEL; others take none. Pure. */
size_t az_fabric_measure(const az_topology *topology, const az_fabric_options *options);
#define AZ_FABRIC_LABEL "messages between nodes"
bool az_fabric_uses_nccl_between_nodes(const az_fabric *fabric);
/* For the banner: "NCCL 2.21.5 in the node; between nodes MPI, staged through the host". Local. */
void az_fabric_describe(const az_fabric *fabric, char *text, size_t size);

/* Bytes a second that the slowest rank reaches while all do the same; 0 where there is no such
 * link. */
typedef struct {
    double host;    /* copied in from pinned memory of the host */
    double node;    /* that come to a GPU in a gather within its node */
    double between; /* that come to a GPU with a lane from other nodes, on the way chosen */
} az_fabric_links;
/* Takes less than 0.3 s where links are faster than 0.1 GB/s, and device memory (AZ_FABRIC_PROBE
 * bytes and a little) only while it runs; the same on all ranks. Fails with AZ_EENV where there is
 * no memory. Collective. */
az_err az_fabric_measure_links(az_fabric *fabric, az_fabric_links *out);
#define AZ_FABRIC_PROBE ((size_t)32 << 20)

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
 * at whole (az_fabric_room bytes, device memory). Before, a rank with a lane has the stretch of its
 * lane there (AZ_GATHER_NODE) or the part of its position (AZ_GATHER_ALL). Into the gather queue;
 * the host waits with AZ_GATHER_ALL over MPI alone. Collective over the node, or over all. */
void az_fabric_gather(az_fabric *fabric, char *whole, size_t bytes, az_gather how);
/* The same as AZ_GATHER_ALL for any cut: part p is elements [cut[p], cut[p + 1]) of `size` bytes
 * each; cut [n_positions + 1], the same on all ranks. */
void az_fabric_gather_cut(az_fabric *fabric, char *whole, size_t size, const int64_t *cut);
/* Sums over all ranks, in place: part p (cut as above) of sums holds those of all ranks afterwards
 * at position p; the other parts are undefined. Into the gather queue; the host waits over MPI.
 * Collective. */
void az_fabric_reduce_i64(az_fabric *fabric, int64_t *sums, const int64_t *cut);

/* So far. */
typedef struct {
    double waited_s;        /* by the host, for messages between nodes */
    int64_t received_bytes; /* from other nodes, by this rank */
} az_fabric_stats;
az_fabric_stats az_fabric_get_stats(const az_fabric *fabric);

#endif
