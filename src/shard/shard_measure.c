/* shard: how much memory the units take of a node and of a rank, and which of them stay resident
 * where there is more of it than must be. Everything here is a pure function of sizes. */
#include <config.h>

#include <limits.h>

#include "shard/shard_priv.h"

/* A unit this many times smaller than the largest is small: resident before any other, since a
 * transfer of it costs its latency rather than its bytes. */
enum { SMALL = 64 };

size_t az_shard_count_blocks(const az_unit_info *unit, const az_topology *topology)
{
    const size_t parts = (size_t)topology->n_lanes * (size_t)topology->n_nodes;
    return (unit->bytes / AZ_SHARD_ALIGN + parts - 1) / parts;
}

az_range az_shard_cut_unit(const az_unit_info *unit, int i, int n)
{
    const size_t blocks = unit->bytes / AZ_SHARD_ALIGN;
    return (az_range){az_cut(blocks, (size_t)i, (size_t)n) * AZ_SHARD_ALIGN,
                      az_cut(blocks, (size_t)i + 1, (size_t)n) * AZ_SHARD_ALIGN};
}

size_t az_shard_count_held(const az_unit_info *unit, bool resident, const az_topology *topology)
{
    return resident || topology->n_nodes == 1
               ? unit->bytes
               : (size_t)topology->n_lanes * az_shard_count_blocks(unit, topology) * AZ_SHARD_ALIGN;
}

/* What it takes more of a node's memory to keep a unit resident. Of one that has fewer blocks than
 * there are ranks the stripes, of one size each, may be larger than the whole. */
static size_t excess(const az_unit_info *unit, const az_topology *topology)
{
    const size_t cut = az_shard_count_held(unit, false, topology);
    return unit->bytes > cut ? unit->bytes - cut : 0;
}

size_t az_shard_count_excess(const az_unit_list *list, const az_topology *topology)
{
    size_t sum = 0;
    for (int u = 0; u < list->n_units; u++)
        sum += excess(&list->units[u], topology);
    return sum;
}

/* Units that are chosen from together: small ones (uses < 0), or those of a number of uses. */
typedef struct {
    const az_unit_list *list;
    const az_topology *topology;
    size_t largest;
    int uses;
} class;

static bool belongs(const class *c, int u)
{
    const az_unit_info *unit = &c->list->units[u];
    const bool small = unit->bytes * SMALL <= c->largest;
    return c->uses < 0 ? small : !small && unit->uses == c->uses;
}

/* Take k of the n units of a class, evenly spread and away from both ends (the last layer's second
 * use follows soon upon its first, and costs nothing then). Returns their excess; marks them where
 * opt_resident is given. */
static size_t take(bool *opt_resident, const class *c, int64_t k, int64_t n)
{
    size_t sum = 0;
    int64_t i = 0;
    for (int u = 0; u < c->list->n_units; u++) {
        if (!belongs(c, u))
            continue;
        const bool taken = ((i + 1) * k + n / 2) / n > (i * k + n / 2) / n;
        i++;
        if (!taken)
            continue;
        sum += excess(&c->list->units[u], c->topology);
        if (opt_resident != NULL)
            opt_resident[u] = true;
    }
    return sum;
}

/* As many of a class as fit. */
static void take_most(bool *resident, const class *c, size_t *io_spend)
{
    int64_t n = 0;
    for (int u = 0; u < c->list->n_units; u++)
        n += belongs(c, u);
    int64_t k = n;
    while (k > 0 && take(NULL, c, k, n) > *io_spend)
        k--;
    if (k > 0)
        *io_spend -= take(resident, c, k, n);
}

void az_shard_choose_resident(bool *resident, const az_unit_list *list, size_t spend,
                              const az_topology *topology)
{
    class c = {.list = list, .topology = topology, .uses = -1};
    int most = 0;
    for (int u = 0; u < list->n_units; u++) {
        resident[u] = topology->n_nodes == 1;
        c.largest = list->units[u].bytes > c.largest ? list->units[u].bytes : c.largest;
        most = list->units[u].uses > most ? list->units[u].uses : most;
    }
    if (topology->n_nodes == 1)
        return;
    take_most(resident, &c, &spend);
    for (c.uses = most; c.uses >= 0; c.uses--)
        take_most(resident, &c, &spend);
}

/* What a rank has of its own for the units, but for what brings them together. */
static size_t count_index(const az_unit_list *list)
{
    return sizeof(az_shard) + (size_t)list->n_units * (sizeof(az_unit_info) + sizeof(az_unit)) +
           (size_t)list->n_members * sizeof(az_member) +
           (size_t)(AZ_SHARD_PROGRAM * list->n_units) * sizeof(int);
}

az_shard_sizes az_shard_measure(const az_unit_list *list, const bool *resident, int n_slots,
                                bool poison, const az_topology *topology)
{
    az_shard_sizes s = {0};
    az_spread_sizes spread;
    size_t largest = 0;
    int n_cut = 0;
    for (int u = 0; u < list->n_units; u++) {
        const az_unit_info *unit = &list->units[u];
        const bool whole = resident[u] || topology->n_nodes == 1;
        s.held += az_shard_count_held(unit, whole, topology);
        largest = unit->bytes > largest ? unit->bytes : largest;
        if (whole)
            continue;
        n_cut++;
        s.slot_each = unit->bytes > s.slot_each ? unit->bytes : s.slot_each;
    }
    const int longest = AZ_SHARD_PROGRAM * list->n_units;
    az_spread_measure(&spread, list->n_units, n_cut, n_slots, s.slot_each, longest, topology);
    s.n_slots = n_slots < n_cut ? n_slots : n_cut;
    s.slots = spread.slot_bytes;
    s.own = count_index(list) + spread.own_bytes + (poison ? largest : 0);
    return s;
}

/* ---- GPUs */

az_gpu_cut az_shard_find_cut(az_scope scope, bool nccl_between_nodes, const az_topology *topology)
{
    if (scope == AZ_SCOPE_NODE || topology->n_nodes == 1)
        return AZ_CUT_NODE;
    return nccl_between_nodes ? AZ_CUT_ALL : AZ_CUT_HOST;
}

/* A lane's stretch is a part for each node. */
az_topology az_shard_list_gpus(az_gpu_cut cut, const az_topology *t)
{
    static const az_topology host = {.n_nodes = INT_MAX, .n_lanes = 1};
    if (cut == AZ_CUT_HOST)
        return host;
    if (cut == AZ_CUT_NODE)
        return (az_topology){.n_ranks = t->n_lanes, .n_nodes = t->n_lanes, .n_lanes = t->n_nodes};
    const int n = t->n_lanes * t->n_nodes;
    return (az_topology){.n_ranks = n, .n_nodes = n, .n_lanes = 1};
}

size_t az_shard_count_gpu_held(const az_unit_info *unit, bool resident, az_gpu_cut cut,
                               const az_topology *t)
{
    const int n_positions = t->n_lanes * t->n_nodes;
    const size_t room = az_fabric_room(unit->bytes, n_positions);
    const size_t part = room / (size_t)n_positions;
    if (resident)
        return room;
    return cut == AZ_CUT_NODE ? part * (size_t)t->n_nodes : cut == AZ_CUT_ALL ? part : 0;
}

az_shard_gpu_sizes az_shard_measure_gpus(const az_unit_list *list, const bool *resident,
                                         int n_slots, bool poison, az_gpu_cut cut,
                                         const az_topology *t)
{
    az_shard_gpu_sizes s = {0};
    az_spread_sizes spread = {0};
    const int n_positions = t->n_lanes * t->n_nodes, longest = AZ_SHARD_PROGRAM * list->n_units;
    int n_cut = 0;
    for (int u = 0; u < list->n_units; u++) {
        const az_unit_info *unit = &list->units[u];
        const size_t room = az_fabric_room(unit->bytes, n_positions);
        s.gpu.held += az_shard_count_gpu_held(unit, resident[u], cut, t);
        if (poison && unit->bytes > s.gpu.own)
            s.gpu.own = unit->bytes;
        if (resident[u])
            continue;
        n_cut++;
        s.gpu.slot_each = room > s.gpu.slot_each ? room : s.gpu.slot_each;
        s.host.held += cut == AZ_CUT_HOST ? az_shard_count_held(unit, false, t) : 0;
        if (cut == AZ_CUT_HOST && unit->bytes > s.host.slot_each)
            s.host.slot_each = unit->bytes;
    }
    s.gpu.n_slots = n_slots < n_cut ? n_slots : n_cut;
    s.gpu.slots = (size_t)s.gpu.n_slots * s.gpu.slot_each;
    s.host.n_slots = cut == AZ_CUT_HOST ? s.gpu.n_slots : 0;
    if (s.host.n_slots > 0)
        az_spread_measure(&spread, list->n_units, n_cut, n_slots, s.host.slot_each, longest, t);
    s.host.slots = spread.slot_bytes;
    s.host.own = count_index(list) + sizeof(az_shard_gpu) + spread.own_bytes +
                 az_timetable_measure(list->n_units, s.gpu.n_slots, longest) +
                 2 * (size_t)s.gpu.n_slots * sizeof(az_event *) + (size_t)longest * sizeof(int) +
                 (size_t)AZ_SHARD_PIECES * AZ_SHARD_CHUNK;
    return s;
}
