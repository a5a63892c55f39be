/* spread: items brought together.
 *
 * The timetable (comm_timetable.c) gives the fetches of a walk in order, each with the position
 * after which its slot is free. A rank with a lane does them one after the other: it waits until
 * all ranks of the node have released that position, brings the lane's parts from all nodes into
 * the slot, and counts the fetch as done; the item is there when all lanes have. Both counters lie
 * in memory that the node shares and only grow, from walk to walk, so nothing has to be reset or
 * agreed on. All fetches of a lane come in the same order on all nodes.
 *
 * Why a thread: tests/bench/bench_spread.c on two hosts, TCP at 200 Mbit/s, MPICH 4.0 over UCX, six
 * items of 16 MiB, each brought in 0.35 s and used for as long. Time of a walk over that of the
 * transfers or of the computation, whichever is larger, first where a core is free for the
 * transport, then where ranks and other programs keep all cores busy. The first item, which nothing
 * can hide, is 0.17 of it.
 *
 *     one slot, no overlap                 2.0   2.0
 *     polling between items                2.0   1.9
 *     MPI_Rget, polling                    1.6   1.7
 *     MPI_Rget, a thread looks into MPI    1.3   1.4
 *     MPI_Iallgatherv, a thread            1.2   1.5
 *
 * So polling moves nothing. One-sided gets gain nothing clear over TCP, where MPI serves them in
 * the target's own calls, and need a window over the base.
 *
 * A walk that ends early leaves no half of a fetch: what could begin after the last position that
 * was released, and nothing else, has been or will be begun on every node, and all of it is
 * waited for. */
#include <config.h>

#include "comm/spread_priv.h"

#include <limits.h>
#include <string.h>

/* ---- 1. the transport ---- */

static int64_t find_least(const az_spread *s, bool done)
{
    const int n = done ? s->comm->topology.n_lanes : s->comm->node_size;
    int64_t least = INT64_MAX;
    for (int r = 0; r < n; r++) {
        const _Atomic int64_t *at = done ? &s->ranks[r].done : &s->ranks[r].released;
        least = az_min_i64(least, atomic_load_explicit(at, memory_order_acquire));
    }
    return least;
}

static bool is_free(az_spread *s, const az_fetch *f)
{
    const int64_t needed = s->positions + f->after + 1;
    if (s->seen_released < needed)
        s->seen_released = find_least(s, false);
    return s->seen_released >= needed;
}

/* Begin to bring the next piece of the lane's parts, as much as one call may move; false: all is
 * there. */
static bool post(az_spread *s, const az_fetch *f)
{
    const int n_nodes = s->comm->topology.n_nodes, node = s->comm->node_number;
    const az_spread_place *it = &s->items[f->item];
    const int *parts = s->parts + (size_t)it->cut * (size_t)(n_nodes + 1);
    const size_t limit = s->comm->limit / AZ_SPREAD_BLOCK / (size_t)n_nodes;
    const int piece = limit < 1 ? 1 : limit < INT_MAX ? (int)limit : INT_MAX;
    const int first = s->done_blocks;
    bool any = false;
    for (int i = 0; i < n_nodes; i++) {
        const int left = parts[i + 1] - parts[i] - first;
        s->counts[i] = left <= 0 ? 0 : left < piece ? left : piece;
        s->offsets[i] = parts[i] - parts[0] + (left > 0 ? first : 0);
        any = any || left > 0;
    }
    if (!any)
        return false;
    const char *send = it->home != NULL ? it->home + (size_t)first * AZ_SPREAD_BLOCK : NULL;
    char *recv = az_shared_get(s->slots) + (size_t)f->slot * s->slot_bytes +
                 (size_t)parts[0] * AZ_SPREAD_BLOCK;
    s->done_blocks = first + piece;
    if (n_nodes == 1) {
        memcpy(recv + (size_t)s->offsets[0] * AZ_SPREAD_BLOCK, send,
               (size_t)s->counts[0] * AZ_SPREAD_BLOCK);
        s->request = MPI_REQUEST_NULL;
    } else {
        MPI_Iallgatherv(send, s->counts[node], s->block, recv, s->counts, s->offsets, s->block,
                        s->lane, &s->request);
    }
    return true;
}

static void publish(az_spread *s)
{
    s->fetch++;
    s->done_blocks = 0;
    atomic_store_explicit(&s->ranks[s->comm->node_rank].done, s->fetches + s->fetch,
                          memory_order_release);
}

/* Over TCP one look into MPI moves one segment, often 8 KiB: a thread that looks once and sleeps
 * again moves less than a slow link. */
#define LOOKS 16

static bool has_come(az_spread *s)
{
    int done = s->request == MPI_REQUEST_NULL;
    for (int i = 0; i < LOOKS && !done; i++)
        MPI_Test(&s->request, &done, MPI_STATUS_IGNORE);
    return done;
}

az_move az_spread_step(void *context)
{
    az_spread *s = context;
    if (s->fetch == s->n_fetches)
        return AZ_MOVE_NONE;
    const az_fetch *f = &s->timetable.fetches[s->fetch];
    if (s->under_way) {
        if (!has_come(s))
            return AZ_MOVE_FLIGHT;
    } else if (!is_free(s, f)) {
        return AZ_MOVE_WAIT;
    }
    s->under_way = post(s, f);
    if (!s->under_way)
        publish(s);
    return AZ_MOVE_DONE;
}

/* ---- 2. a walk ---- */

static bool is_there(az_spread *s, int64_t n_done)
{
    if (s->seen_done < n_done)
        s->seen_done = find_least(s, true);
    return s->seen_done >= n_done;
}

static bool is_drained(az_spread *s, int64_t n_done)
{
    const az_spread_counters *own = &s->ranks[s->comm->node_rank];
    return s->comm->lane_number < 0 ||
           atomic_load_explicit(&own->done, memory_order_acquire) >= n_done;
}

/* Until so many fetches are done. */
static void wait_for(az_spread *s, bool (*is_done)(az_spread *, int64_t), int64_t n_done)
{
    const double begin = az_now();
    for (int n = 0; !is_done(s, n_done); n++) {
        const az_move move = az_progress_advance(s->comm);
        az_progress_pause(n, move);
    }
    s->stats.wait_s += az_now() - begin;
}

void az_spread_begin(az_spread *s, const int *program, int n)
{
    AZ_ASSERT(!s->open && n >= 0 && n <= s->timetable.longest);
    memcpy(s->program, program, (size_t)n * sizeof *program);
    s->open = true;
    s->position = 0;
    s->n = n;
    if (s->n_cut == 0)
        return;
    az_timetable_make(&s->timetable, program, n);
    s->fetch = 0; /* the transport rests */
    s->n_fetches = s->comm->lane_number >= 0 ? s->timetable.n_fetches : 0;
    az_progress_open(s->comm, &s->mover);
    az_progress_advance(s->comm);
}

const char *az_spread_get(az_spread *s)
{
    AZ_ASSERT(s->open && !s->held && s->position < s->n);
    const az_spread_place *it = &s->items[s->program[s->position]];
    const char *data = it->home;
    az_watch_begin(s->comm->watch, AZ_CALL_GATHER);
    if (it->cut >= 0) {
        const int fetch = s->timetable.brought[s->position];
        if (fetch >= 0 || s->seen_done < s->fetches)
            wait_for(s, is_there, s->fetches + fetch + 1);
        data =
            (s->pinned_for != NULL ? az_shared_get(s->slots) : az_shared_get_readonly(s->slots)) +
            (size_t)s->timetable.slot[s->position] * s->slot_bytes;
    }
    az_watch_end(s->comm->watch);
    s->held = true;
    s->stats.gets++;
    return data;
}

void az_spread_release(az_spread *s)
{
    AZ_ASSERT(s->held);
    s->held = false;
    s->position++;
    if (s->n_cut == 0)
        return;
    atomic_store_explicit(&s->ranks[s->comm->node_rank].released, s->positions + s->position,
                          memory_order_release);
    az_progress_advance(s->comm);
}

static void count_fetches(az_spread *s, int n_fetches)
{
    for (int f = 0; f < n_fetches; f++) {
        const az_spread_place *it = &s->items[s->timetable.fetches[f].item];
        s->stats.fetches++;
        s->stats.node_bytes += (int64_t)it->node_bytes;
        s->stats.rank_bytes += (int64_t)it->rank_bytes;
    }
}

void az_spread_end(az_spread *s)
{
    AZ_ASSERT(s->open && !s->held);
    s->open = false;
    if (s->n_cut == 0)
        return;
    const int n_fetches = az_timetable_end(&s->timetable, s->position);
    az_progress_lock(s->comm);
    AZ_ASSERT(s->fetch <= n_fetches);
    s->n_fetches = s->comm->lane_number >= 0 ? n_fetches : 0;
    az_progress_unlock(s->comm);
    az_watch_begin(s->comm->watch, AZ_CALL_GATHER);
    wait_for(s, is_drained, s->fetches + n_fetches);
    az_watch_end(s->comm->watch);
    az_progress_close(s->comm, &s->mover);
    count_fetches(s, n_fetches);
    s->fetches += n_fetches;
    s->positions += s->n;
    atomic_store_explicit(&s->ranks[s->comm->node_rank].released, s->positions,
                          memory_order_release);
}

void az_spread_forget(az_spread *s)
{
    AZ_ASSERT(!s->open);
    az_timetable_forget(&s->timetable);
}

az_spread_stats az_spread_get_stats(const az_spread *s)
{
    return s->stats;
}
