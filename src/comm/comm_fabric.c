/* fabric: gathers and sums.
 *
 * A message that goes through the host goes in pieces, of each node's part so many bytes at once.
 * While the host waits for piece i in MPI, the device brings piece i + 1 out and piece i - 1 in, in
 * the gather queue:
 *
 *     out 0, out 1, [0 in MPI] in 0, out 2, [1 in MPI] in 1, out 3, ...
 *
 * A piece is written where the one before the last was. What is brought out waits in the queue
 * until that has been brought in; and as the host waits for what is brought out before it calls
 * MPI, so does what MPI writes. */
#include <config.h>

#include <string.h>

#include "comm/fabric_priv.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- 1. in NCCL ---- */

/* Each of n_roots ranks has n_parts parts that follow each other, and all get all. even_bytes: so
 * many of each root, one root's behind the other's; 0: as begins say. */
static void gather_over(az_fabric *f, az_nccl *over, char *whole, int n_roots, int n_parts,
                        int rank, size_t even_bytes)
{
    const size_t *begins = f->begins;
    if (even_bytes > 0) {
        f->nccl->allgather(over, AZ_QUEUE_GATHER, whole + (size_t)rank * even_bytes, whole,
                           even_bytes);
        return;
    }
    f->nccl->begin_group(over);
    for (int r = 0; r < n_roots; r++) {
        const size_t begin = begins[r * n_parts], end = begins[(r + 1) * n_parts];
        if (end > begin)
            f->nccl->broadcast(over, AZ_QUEUE_GATHER, whole + begin, end - begin, r);
    }
    f->nccl->end_group(over);
}

static void sum_over(az_fabric *f, az_nccl *over, int64_t *sums, const int64_t *cut, int n_roots,
                     int n_parts)
{
    f->nccl->begin_group(over);
    for (int r = 0; r < n_roots; r++) {
        const int64_t begin = cut[r * n_parts], end = cut[(r + 1) * n_parts];
        if (end > begin)
            f->nccl->reduce_i64(over, AZ_QUEUE_GATHER, sums + begin, (size_t)(end - begin), r);
    }
    f->nccl->end_group(over);
}

/* ---- 2. through the host ---- */

/* Which bytes of a part belong to a piece. */
typedef struct {
    size_t begin, bytes;
} range;

static range get_range(const az_fabric *f, const size_t *begins, int node, int piece)
{
    const size_t bytes = begins[node + 1] - begins[node];
    const size_t at = min_size((size_t)piece * f->slot, bytes);
    return (range){begins[node] + at, min_size(f->slot, bytes - at)};
}

/* begins [n_nodes + 1]: the parts of this rank's lane. */
static int count_pieces(const az_fabric *f, const size_t *begins)
{
    size_t longest = 0;
    for (int i = 0; i < f->n_nodes; i++) {
        const size_t bytes = begins[i + 1] - begins[i];
        longest = bytes > longest ? bytes : longest;
    }
    return (int)((longest + f->slot - 1) / f->slot);
}

/* All nodes' bytes but its own come to a rank. */
static void count_received(az_fabric *f, const size_t *begins)
{
    if (f->lane < 0 || f->n_nodes == 1)
        return;
    begins += f->lane * f->n_nodes;
    f->stats.received_bytes += (int64_t)(begins[f->n_nodes] - begins[0]) -
                               (int64_t)(begins[f->number + 1] - begins[f->number]);
}

static void wait_out(az_fabric *f, int piece)
{
    az_dev_sync_event(f->dev, f->out[piece % 2], AZ_SYNC_STAGE);
}

static void take_part_out(az_fabric *f, const char *whole, const size_t *begins, int piece)
{
    const range own = get_range(f, begins, f->number, piece);
    az_dev_copy_out(f->dev, AZ_QUEUE_GATHER, f->stage[piece % 2] + (size_t)f->number * f->slot,
                    whole + own.begin, own.bytes);
    az_dev_record(f->dev, f->out[piece % 2], AZ_QUEUE_GATHER);
}

static void exchange_parts(az_fabric *f, const size_t *begins, int piece)
{
    char *stage = f->stage[piece % 2];
    for (int i = 0; i < f->n_nodes; i++) {
        f->counts[i] = get_range(f, begins, i, piece).bytes;
        f->offsets[i] = (size_t)i * f->slot;
    }
    az_comm_lane_allgatherv(f->comm, stage + f->offsets[f->number], stage, f->counts, f->offsets);
}

static void bring_parts_in(az_fabric *f, char *whole, const size_t *begins, int piece)
{
    for (int i = 0; i < f->n_nodes; i++) {
        const range part = get_range(f, begins, i, piece);
        if (i != f->number)
            az_dev_copy_in(f->dev, AZ_QUEUE_GATHER, whole + part.begin,
                           f->stage[piece % 2] + (size_t)i * f->slot, part.bytes);
    }
}

static void gather_staged(az_fabric *f, char *whole, const size_t *begins)
{
    const int n = count_pieces(f, begins);
    if (n > 0)
        take_part_out(f, whole, begins, 0);
    for (int i = 0; i < n; i++) {
        if (i + 1 < n)
            take_part_out(f, whole, begins, i + 1);
        wait_out(f, i);
        exchange_parts(f, begins, i);
        bring_parts_in(f, whole, begins, i);
    }
}

/* MPI reads and writes the device's memory. */
static void gather_direct(az_fabric *f, char *whole, const size_t *begins)
{
    for (int i = 0; i < f->n_nodes; i++) {
        f->counts[i] = begins[i + 1] - begins[i];
        f->offsets[i] = begins[i];
    }
    az_dev_record(f->dev, f->out[0], AZ_QUEUE_GATHER);
    wait_out(f, 0);
    az_comm_lane_allgatherv(f->comm, whole + begins[f->number], whole, f->counts, f->offsets);
}

static void gather_lane(az_fabric *f, char *whole)
{
    const double begin = az_now();
    if (!az_fabric_stages(f))
        return;
    const size_t *begins = f->begins + f->lane * f->n_nodes;
    if (f->direct)
        gather_direct(f, whole, begins);
    else
        gather_staged(f, whole, begins);
    f->stats.waited_s += az_now() - begin;
}

/* The pieces of all parts lie one behind the other, as MPI sums them. */
static void take_sums_out(az_fabric *f, const char *sums, const size_t *begins, int piece)
{
    char *to = f->stage[piece % 2];
    for (int i = 0; i < f->n_nodes; i++) {
        const range part = get_range(f, begins, i, piece);
        az_dev_copy_out(f->dev, AZ_QUEUE_GATHER, to, sums + part.begin, part.bytes);
        to += part.bytes;
    }
    az_dev_record(f->dev, f->out[piece % 2], AZ_QUEUE_GATHER);
}

static void sum_piece(az_fabric *f, const size_t *begins, int piece)
{
    for (int i = 0; i < f->n_nodes; i++)
        f->elements[i] = (int64_t)(get_range(f, begins, i, piece).bytes / sizeof(int64_t));
    az_comm_lane_reduce_scatter_i64(f->comm, (const int64_t *)(const void *)f->stage[piece % 2],
                                    (int64_t *)(void *)f->sum[piece % 2], f->elements);
}

static void sum_lane(az_fabric *f, int64_t *values)
{
    const double begin = az_now();
    char *sums = (char *)values;
    if (!az_fabric_stages(f))
        return;
    const size_t *begins = f->begins + f->lane * f->n_nodes;
    const int n = count_pieces(f, begins);
    if (n > 0)
        take_sums_out(f, sums, begins, 0);
    for (int i = 0; i < n; i++) {
        if (i + 1 < n)
            take_sums_out(f, sums, begins, i + 1);
        wait_out(f, i);
        sum_piece(f, begins, i);
        const range own = get_range(f, begins, f->number, i);
        az_dev_copy_in(f->dev, AZ_QUEUE_GATHER, sums + own.begin, f->sum[i % 2], own.bytes);
    }
    f->stats.waited_s += az_now() - begin;
}

/* ---- 3. both ---- */

/* The parts that f->begins says. even_part: all parts take so many bytes; 0: they do not. */
static void gather(az_fabric *f, char *whole, size_t even_part, az_gather how)
{
    const size_t even = f->even ? even_part : 0;
    if (f->begins[f->n_positions] == f->begins[0])
        return;
    if (how == AZ_GATHER_ALL)
        count_received(f, f->begins);
    if (how == AZ_GATHER_ALL && f->all != NULL) {
        gather_over(f, f->all, whole, f->n_positions, 1, f->lane * f->n_nodes + f->number, even);
        return;
    }
    if (how == AZ_GATHER_ALL)
        gather_lane(f, whole);
    if (f->node != NULL)
        gather_over(f, f->node, whole, f->n_lanes, f->n_nodes, f->lane, even * (size_t)f->n_nodes);
}

static void cut_evenly(az_fabric *f, size_t bytes)
{
    for (int p = 0; p <= f->n_positions; p++)
        f->begins[p] = az_fabric_cut(bytes, p, f->n_positions);
}

void az_fabric_gather(az_fabric *fabric, char *whole, size_t bytes, az_gather how)
{
    const int n = fabric->n_positions;
    cut_evenly(fabric, bytes);
    gather(fabric, whole, az_fabric_room(bytes, n) / (size_t)n, how);
}

void az_fabric_gather_between(az_fabric *fabric, char *whole, size_t bytes)
{
    cut_evenly(fabric, bytes);
    if (fabric->all != NULL)
        az_fabric_gather(fabric, whole, bytes, AZ_GATHER_ALL);
    else
        gather_lane(fabric, whole);
}

static void set_begins(az_fabric *f, size_t size, const int64_t *cut)
{
    for (int p = 0; p <= f->n_positions; p++)
        f->begins[p] = (size_t)cut[p] * size;
}

void az_fabric_gather_cut(az_fabric *fabric, char *whole, size_t size, const int64_t *cut)
{
    set_begins(fabric, size, cut);
    gather(fabric, whole, 0, AZ_GATHER_ALL);
}

void az_fabric_reduce_i64(az_fabric *fabric, int64_t *sums, const int64_t *cut)
{
    az_fabric *f = fabric;
    set_begins(f, sizeof *sums, cut);
    if (cut[f->n_positions] == cut[0])
        return;
    if (f->all != NULL) {
        sum_over(f, f->all, sums, cut, f->n_positions, 1);
    } else {
        if (f->node != NULL)
            sum_over(f, f->node, sums, cut, f->n_lanes, f->n_nodes);
        sum_lane(f, sums);
    }
    if (f->lane >= 0)
        f->stats.received_bytes +=
            (int64_t)(f->n_nodes - 1) * (int64_t)sizeof *sums *
            (cut[f->lane * f->n_nodes + f->number + 1] - cut[f->lane * f->n_nodes + f->number]);
}

az_fabric_stats az_fabric_get_stats(const az_fabric *fabric)
{
    return fabric->stats;
}
