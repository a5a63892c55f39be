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

#include "comm/comm_priv.h"
#include "comm/shared.h"
#include "comm/spread_priv.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

/* What a rank tells those of its node. Written by it alone. */
typedef struct {
    _Alignas(64) _Atomic int64_t released; /* positions, of all walks */
    _Atomic int64_t done;                  /* fetches of its lane, of all walks */
} counters;

typedef struct {
    const char *home;
    int cut;                       /* its number among the cut ones, -1: resident */
    size_t node_bytes, rank_bytes; /* that a fetch brings to this node, through this rank */
} item;

struct az_spread {
    az_comm *comm;
    item *items;
    int n_items, n_cut;
    int *parts; /* [n_cut][n_nodes + 1] where the parts of this lane begin, in blocks of the item */
    az_timetable timetable;
    az_shared *slots, *board;
    size_t slot_bytes;
    counters *ranks;                  /* [node_size], in board */
    int64_t seen_released, seen_done; /* at least so far are all ranks, all lanes of the node */
    bool joined;
    az_mover mover;
    /* The walk. */
    int *program;    /* [longest] */
    int position, n; /* items released, items in all */
    bool open, held;
    int64_t positions, fetches; /* of earlier walks */
    az_spread_stats stats;
    /* The transport, under the lock of comm->progress. */
    MPI_Comm lane;
    MPI_Datatype block;
    int fetch, n_fetches; /* the next, or under way; all that are to be done */
    int done_blocks;      /* of each part of that fetch */
    bool under_way;
    MPI_Request request;
    int *counts, *offsets; /* [n_nodes] */
};

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
    const item *it = &s->items[f->item];
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

static az_move step(void *context)
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
    const counters *own = &s->ranks[s->comm->node_rank];
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
    const item *it = &s->items[s->program[s->position]];
    const char *data = it->home;
    az_watch_begin(s->comm->watch, AZ_CALL_GATHER);
    if (it->cut >= 0) {
        const int fetch = s->timetable.brought[s->position];
        if (fetch >= 0 || s->seen_done < s->fetches)
            wait_for(s, is_there, s->fetches + fetch + 1);
        data = az_shared_get_readonly(s->slots) +
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
        const item *it = &s->items[s->timetable.fetches[f].item];
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

/* ---- 3. begin and end ---- */

static size_t count_blocks(size_t bytes)
{
    return (bytes + AZ_SPREAD_BLOCK - 1) / AZ_SPREAD_BLOCK;
}

/* Where the part of a position begins. */
static size_t cut_at(const az_spread_item *from, int position, int n_positions)
{
    const size_t n = count_blocks(from->bytes);
    if (from->opt_cut == NULL)
        return az_cut(n, (size_t)position, (size_t)n_positions);
    const size_t at = from->opt_cut[position];
    AZ_ASSERT(at % AZ_SPREAD_BLOCK == 0 || at == from->bytes);
    AZ_ASSERT(position > 0 || at == 0);
    AZ_ASSERT(position < n_positions || count_blocks(at) == n);
    return count_blocks(at);
}

static bool needs_slot(const az_spread_item *from)
{
    return !from->resident && from->bytes > 0;
}

static void fill_item(az_spread *s, int i, const az_spread_item *from)
{
    const az_comm *comm = s->comm;
    const int n_nodes = comm->topology.n_nodes, n_positions = az_comm_n_positions(comm);
    item *to = &s->items[i];
    AZ_ASSERT(count_blocks(from->bytes) <= INT_MAX);
    *to = (item){.home = from->home, .cut = -1};
    s->timetable.cut[i] = needs_slot(from);
    if (!needs_slot(from))
        return;
    to->cut = s->n_cut++;
    to->node_bytes = count_blocks(from->bytes);
    for (int p = comm->node_number; p < n_positions; p += n_nodes)
        to->node_bytes -= cut_at(from, p + 1, n_positions) - cut_at(from, p, n_positions);
    to->node_bytes *= AZ_SPREAD_BLOCK;
    if (comm->lane_number < 0)
        return;
    int *parts = s->parts + (size_t)to->cut * (size_t)(n_nodes + 1);
    for (int node = 0; node <= n_nodes; node++)
        parts[node] = (int)cut_at(from, comm->lane_number * n_nodes + node, n_positions);
    const int *own = parts + comm->node_number;
    AZ_ASSERT(from->home != NULL || own[1] == own[0]);
    to->rank_bytes = (size_t)(parts[n_nodes] - parts[0] - (own[1] - own[0])) * AZ_SPREAD_BLOCK;
}

/* What may fail on this rank alone. */
static az_err fill(az_spread *s, const az_spread_item *items, int n_cut, int n_slots, int longest)
{
    az_err err;
    const size_t n_nodes = (size_t)s->comm->topology.n_nodes;
    AZ_TRY(AZ_NEW(s->items, (size_t)s->n_items, "communication"));
    AZ_TRY(AZ_NEW(s->parts, (size_t)n_cut * (n_nodes + 1), "communication"));
    AZ_TRY(AZ_NEW(s->program, (size_t)longest, "communication"));
    AZ_TRY(AZ_NEW(s->counts, n_nodes, "communication"));
    AZ_TRY(AZ_NEW(s->offsets, n_nodes, "communication"));
    AZ_TRY(az_timetable_init(&s->timetable, s->n_items, n_slots, longest));
    for (int i = 0; i < s->n_items; i++) {
        AZ_ASSERT(!needs_slot(&items[i]) || items[i].bytes <= s->slot_bytes);
        fill_item(s, i, &items[i]);
    }
out:
    return err;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static size_t round_slot(size_t bytes)
{
    return count_blocks(bytes) * AZ_SPREAD_BLOCK;
}

static az_err check_thread(const az_comm *comm, az_progress_kind progress)
{
    if (progress != AZ_PROGRESS_THREAD || comm->serialized)
        return AZ_OK;
    return az_fail(AZ_EENV,
                   "shard.progress: this MPI (%s) is not made to be called by a thread beside the "
                   "main one (MPI_THREAD_SERIALIZED is needed); poll works, and auto takes it",
                   az_comm_library());
}

/* Memory that the node shares, the transport's communicator, and the thread. Collective. */
static az_err connect(az_spread *s, int n_slots, az_progress_kind progress, const char *label)
{
    az_err err;
    az_comm *comm = s->comm;
    const bool far = comm->lane_number >= 0 && comm->topology.n_nodes > 1;
    AZ_TRY(az_shared_create(&s->slots, (size_t)n_slots * s->slot_bytes, "adze-slots", label,
                            AZ_SHARED_READONLY, comm));
    AZ_TRY(az_shared_create(&s->board, (size_t)comm->node_size * sizeof *s->ranks, "adze-board",
                            "communication", 0, comm));
    s->ranks = (counters *)az_shared_get(s->board);
    err = check_thread(comm, progress);
    if (err == AZ_OK)
        err = az_progress_join(comm, &s->mover,
                               far && comm->serialized && progress != AZ_PROGRESS_POLL);
    s->joined = err == AZ_OK;
    AZ_TRY(az_comm_agree(comm, err));
    if (far) {
        MPI_Comm_dup(comm->lane, &s->lane);
        MPI_Type_contiguous(AZ_SPREAD_BLOCK, MPI_BYTE, &s->block);
        MPI_Type_commit(&s->block);
    }
out:
    return err;
}

az_err az_spread_create(az_spread **out_spread, const az_spread_item *items, int n_items,
                        int n_slots, size_t slot_bytes, int longest_program,
                        az_progress_kind progress, const char *label, az_comm *comm)
{
    az_err err;
    az_spread *s = NULL;
    int n_cut = 0;
    *out_spread = NULL;
    for (int i = 0; i < n_items; i++)
        n_cut += needs_slot(&items[i]);
    AZ_ASSERT(n_cut == 0 || n_slots > 0);
    n_slots = min_int(n_slots, n_cut);
    err = AZ_NEW(s, 1, "communication");
    if (err == AZ_OK) {
        *s = (az_spread){.comm = comm,
                         .n_items = n_items,
                         .slot_bytes = round_slot(slot_bytes),
                         .lane = MPI_COMM_NULL,
                         .block = MPI_DATATYPE_NULL,
                         .mover = {.step = step, .context = s}};
        err = fill(s, items, n_cut, n_slots, longest_program);
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (n_cut > 0)
        AZ_TRY(connect(s, n_slots, progress, label));
    *out_spread = s;
    s = NULL;
out:
    az_spread_destroy(s);
    return err;
}

void az_spread_destroy(az_spread *opt_spread)
{
    az_spread *s = opt_spread;
    if (s == NULL)
        return;
    s->held = false;
    if (s->open)
        az_spread_end(s);
    if (s->joined)
        az_progress_leave(s->comm, &s->mover);
    if (s->lane != MPI_COMM_NULL)
        MPI_Comm_free(&s->lane);
    if (s->block != MPI_DATATYPE_NULL)
        MPI_Type_free(&s->block);
    az_shared_destroy(s->board);
    az_shared_destroy(s->slots);
    az_timetable_fini(&s->timetable);
    az_free(s->items);
    az_free(s->parts);
    az_free(s->program);
    az_free(s->counts);
    az_free(s->offsets);
    az_free(s);
}

void az_spread_measure(az_spread_sizes *out, int n_items, int n_cut, int n_slots, size_t slot_bytes,
                       int longest_program, const az_topology *topology)
{
    const size_t slots = (size_t)min_int(n_slots, n_cut), nodes = (size_t)topology->n_nodes;
    const size_t ints = (size_t)n_cut * (nodes + 1) + 2 * nodes + (size_t)longest_program;
    out->slot_bytes = slots * round_slot(slot_bytes);
    out->own_bytes = sizeof(az_spread) + (size_t)n_items * sizeof(item) + ints * sizeof(int) +
                     az_timetable_measure(n_items, (int)slots, longest_program);
}
