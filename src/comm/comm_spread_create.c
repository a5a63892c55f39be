/* spread: which parts of an item a rank brings, memory, begin and end. */
#include <config.h>

#include <limits.h>
#include <string.h>

#include "comm/spread_priv.h"

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
    az_spread_place *to = &s->items[i];
    AZ_ASSERT(count_blocks(from->bytes) <= INT_MAX);
    *to = (az_spread_place){.home = from->home, .cut = -1};
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
    s->ranks = (az_spread_counters *)az_shared_get(s->board);
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
                         .mover = {.step = az_spread_step, .context = s}};
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

/* The mapping that can be written: what is pinned is a range of addresses. */
az_err az_spread_pin(az_spread *s, az_dev *dev)
{
    az_err err = AZ_OK;
    if (s->n_cut == 0)
        return AZ_OK;
    AZ_TRY(az_dev_pin(dev, az_shared_get(s->slots), (size_t)s->timetable.n_slots * s->slot_bytes));
    s->pinned_for = dev;
out:
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
    if (s->pinned_for != NULL)
        az_dev_unpin(s->pinned_for, az_shared_get(s->slots));
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
    out->own_bytes = sizeof(az_spread) + (size_t)n_items * sizeof(az_spread_place) +
                     ints * sizeof(int) +
                     az_timetable_measure(n_items, (int)slots, longest_program);
}
