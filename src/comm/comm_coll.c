/* comm: collectives. Messages beyond the limit of one call go in pieces.
 *
 * Those that a pass over the model uses (az_comm_poll, az_comm_node_barrier, sums over a node and
 * what goes over lanes) wait in such a way that what goes on beside the main thread goes on: two
 * nodes that wait for each other, one for a sum, one for a piece of the model, would stand still
 * for ever. */
#include <config.h>

#include "comm/comm_priv.h"

#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Some of the ranks: all, or those of a lane. */
typedef struct {
    MPI_Comm comm;
    int size, rank;
} group;

static group world_of(const az_comm *comm)
{
    return (group){comm->world, comm->size, comm->rank};
}

/* One rank where there is no lane. */
static group lane_of(const az_comm *comm)
{
    const int size = comm->lane_number < 0 ? 1 : comm->topology.n_nodes;
    return (group){comm->lane, size, size > 1 ? comm->node_number : 0};
}

void az_comm_barrier(az_comm *comm)
{
    if (comm->alone)
        return;
    az_comm_block(comm, AZ_CALL_BARRIER);
    MPI_Barrier(comm->world);
    az_watch_end(comm->watch);
}

void az_comm_node_barrier(az_comm *comm)
{
    if (comm->node_size == 1)
        return;
    MPI_Request request;
    az_watch_begin(comm->watch, AZ_CALL_BARRIER);
    az_progress_lock(comm);
    MPI_Ibarrier(comm->node, &request);
    az_progress_unlock(comm);
    az_progress_wait(comm, &request);
    az_watch_end(comm->watch);
}

unsigned az_comm_poll(az_comm *comm)
{
    if (comm->size == 1)
        return az_stop_get();
    az_watch_begin(comm->watch, AZ_CALL_POLL);
    if (comm->polling) {
        az_progress_wait(comm, &comm->poll);
        comm->polling = false;
    }
    const unsigned answer = comm->answer;
    if (answer == 0) {
        comm->asked = az_stop_get();
        az_progress_lock(comm);
        MPI_Iallreduce(&comm->asked, &comm->answer, 1, MPI_UNSIGNED, MPI_BOR, comm->world,
                       &comm->poll);
        az_progress_unlock(comm);
        comm->polling = true;
    }
    az_watch_end(comm->watch);
    return answer;
}

void az_comm_bcast(az_comm *comm, void *buffer, size_t bytes, int root)
{
    if (comm->size == 1)
        return;
    az_comm_block(comm, AZ_CALL_BCAST);
    for (size_t done = 0; done < bytes; done += comm->limit)
        MPI_Bcast((char *)buffer + done, (int)min_size(comm->limit, bytes - done), MPI_BYTE, root,
                  comm->world);
    az_watch_end(comm->watch);
}

void az_comm_allgather(az_comm *comm, const void *send, size_t bytes, void *recv)
{
    char *mine = (char *)recv + (size_t)comm->rank * bytes;
    if (send != mine && bytes > 0)
        memcpy(mine, send, bytes);
    if (comm->size == 1)
        return;
    if (bytes <= comm->limit / (size_t)comm->size) {
        az_comm_block(comm, AZ_CALL_ALLGATHER);
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, recv, (int)bytes, MPI_BYTE, comm->world);
        az_watch_end(comm->watch);
        return;
    }
    for (int r = 0; r < comm->size; r++)
        az_comm_bcast(comm, (char *)recv + (size_t)r * bytes, bytes, r);
}

/* Whether one call can say where all lies, in comm->counts and comm->offsets. */
static bool fits_one_call(az_comm *comm, const group *g, const size_t *counts,
                          const size_t *offsets)
{
    for (int r = 0; r < g->size; r++) {
        if (offsets[r] + counts[r] > comm->limit)
            return false;
        comm->counts[r] = (int)counts[r];
        comm->offsets[r] = (int)offsets[r];
    }
    return true;
}

void az_comm_allgatherv(az_comm *comm, const void *send, void *recv, const size_t *counts,
                        const size_t *offsets)
{
    const group g = world_of(comm);
    char *mine = (char *)recv + offsets[g.rank];
    if (send != mine && counts[g.rank] > 0)
        memcpy(mine, send, counts[g.rank]);
    if (g.size == 1)
        return;
    if (!fits_one_call(comm, &g, counts, offsets)) {
        for (int r = 0; r < g.size; r++)
            az_comm_bcast(comm, (char *)recv + offsets[r], counts[r], r);
        return;
    }
    az_comm_block(comm, AZ_CALL_ALLGATHERV);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, recv, comm->counts, comm->offsets, MPI_BYTE, g.comm);
    az_watch_end(comm->watch);
}

/* Begin a message and wait for it while what is under way goes on. */
static void lane_bcast(az_comm *comm, const group *g, char *buffer, size_t bytes, int root)
{
    MPI_Request request;
    for (size_t done = 0; done < bytes; done += comm->limit) {
        az_progress_lock(comm);
        MPI_Ibcast(buffer + done, (int)min_size(comm->limit, bytes - done), MPI_BYTE, root, g->comm,
                   &request);
        az_progress_unlock(comm);
        az_progress_wait(comm, &request);
    }
}

void az_comm_lane_allgatherv(az_comm *comm, const void *send, void *recv, const size_t *counts,
                             const size_t *offsets)
{
    const group g = lane_of(comm);
    MPI_Request request;
    if (comm->lane_number < 0)
        return;
    char *mine = (char *)recv + offsets[g.rank];
    if (send != mine && counts[g.rank] > 0)
        memcpy(mine, send, counts[g.rank]);
    if (g.size == 1)
        return;
    az_watch_begin(comm->watch, AZ_CALL_ALLGATHERV);
    if (fits_one_call(comm, &g, counts, offsets)) {
        az_progress_lock(comm);
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, recv, comm->counts, comm->offsets, MPI_BYTE,
                        g.comm, &request);
        az_progress_unlock(comm);
        az_progress_wait(comm, &request);
    } else {
        for (int r = 0; r < g.size; r++)
            lane_bcast(comm, &g, (char *)recv + offsets[r], counts[r], r);
    }
    az_watch_end(comm->watch);
}

void az_comm_lane_reduce_scatter_i64(az_comm *comm, const int64_t *send, int64_t *recv,
                                     const int64_t *counts)
{
    const group g = lane_of(comm);
    int64_t total = 0;
    if (comm->lane_number < 0)
        return;
    for (int r = 0; r < g.size; r++)
        total += counts[r];
    if (g.size == 1) {
        memcpy(recv, send, (size_t)total * sizeof *send);
        return;
    }
    int64_t piece = (int64_t)(comm->limit / sizeof *send);
    MPI_Request request;
    az_watch_begin(comm->watch, AZ_CALL_REDUCE_SCATTER);
    if (total <= piece) {
        for (int r = 0; r < g.size; r++)
            comm->counts[r] = (int)counts[r];
        az_progress_lock(comm);
        MPI_Ireduce_scatter(send, recv, comm->counts, MPI_INT64_T, MPI_SUM, g.comm, &request);
        az_progress_unlock(comm);
        az_progress_wait(comm, &request);
        az_watch_end(comm->watch);
        return;
    }
    for (int r = 0; r < g.size; send += counts[r++])
        for (int64_t done = 0; done < counts[r]; done += piece) {
            az_progress_lock(comm);
            MPI_Ireduce(send + done, recv + done, (int)az_min_i64(piece, counts[r] - done),
                        MPI_INT64_T, MPI_SUM, r, g.comm, &request);
            az_progress_unlock(comm);
            az_progress_wait(comm, &request);
        }
    az_watch_end(comm->watch);
}

/* Element-wise reductions in place, in pieces. */
static void reduce_over(az_comm *comm, MPI_Comm over, void *values, size_t n, MPI_Datatype type,
                        MPI_Op op)
{
    size_t piece = comm->limit / 8;
    MPI_Request request;
    az_watch_begin(comm->watch, AZ_CALL_ALLREDUCE);
    for (size_t done = 0; done < n; done += piece) {
        az_progress_lock(comm);
        MPI_Iallreduce(MPI_IN_PLACE, (char *)values + 8 * done, (int)min_size(piece, n - done),
                       type, op, over, &request);
        az_progress_unlock(comm);
        az_progress_wait(comm, &request);
    }
    az_watch_end(comm->watch);
}

static void reduce_all(az_comm *comm, void *values, size_t n, MPI_Datatype type, MPI_Op op)
{
    if (comm->size > 1)
        reduce_over(comm, comm->world, values, n, type, op);
}

void az_comm_sum_i64(az_comm *comm, int64_t *values, size_t n)
{
    reduce_all(comm, values, n, MPI_INT64_T, MPI_SUM);
}

void az_comm_node_sum_i64(az_comm *comm, int64_t *values, size_t n)
{
    if (comm->node_size > 1)
        reduce_over(comm, comm->node, values, n, MPI_INT64_T, MPI_SUM);
}

void az_comm_max_i64(az_comm *comm, int64_t *values, size_t n)
{
    reduce_all(comm, values, n, MPI_INT64_T, MPI_MAX);
}

void az_comm_sum_f64(az_comm *comm, double *values, size_t n)
{
    reduce_all(comm, values, n, MPI_DOUBLE, MPI_SUM);
}

void az_comm_max_f64(az_comm *comm, double *values, size_t n)
{
    reduce_all(comm, values, n, MPI_DOUBLE, MPI_MAX);
}
