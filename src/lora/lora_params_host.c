/* lora/params: in the memory of hosts, once a node or once a job.
 *
 * Replicated, owners write through one mapping of the shared memory, and all read through another
 * one that cannot be written, so a stray store is a fault and not a wrong adapter. Between nodes,
 * what the ranks of a lane own lies together, so each lane brings its stretch of the buffer to its
 * node, and no byte comes to a node twice.
 *
 * Gathered, a layer is an item of a spread. Items begin and end on its blocks, which slices do too,
 * but layers need not: an item has up to a block more on both sides. */
#include <config.h>

#include "lora/params_priv.h"

/* Elements of a block of a spread. */
#define GRAIN ((int64_t)(AZ_SPREAD_BLOCK / sizeof(float)))

static int64_t round_up(int64_t n)
{
    return az_ceil_div(n, GRAIN) * GRAIN;
}

/* A layer's item: elements [*out_begin, *out_end). */
static void find_item(int64_t *out_begin, int64_t *out_end, const az_spans *spans, int layer)
{
    *out_begin = spans->off[layer] / GRAIN * GRAIN;
    *out_end = az_min_i64(round_up(spans->off[layer + 1]), spans->off[spans->n]);
}

static az_params_placement choose_placement(az_params_placement placement,
                                            const az_topology *topology)
{
    return topology->n_nodes > 1 ? placement : AZ_PARAMS_REPLICATED;
}

/* ---- 1. begin and end ---- */

/* The slices of this rank's lane. */
static void cut(az_params *p)
{
    az_params_host *h = &p->host;
    const int n_nodes = az_comm_get_topology(p->comm)->n_nodes;
    const int n_positions = az_comm_n_positions(p->comm);
    const int64_t n = p->off[p->spans.n];
    if (az_comm_lane(p->comm) < 0)
        return;
    const int begin = az_comm_lane(p->comm) * n_nodes;
    h->lane_first = az_params_cut(n, begin, n_positions);
    for (int i = 0; i < n_nodes; i++) {
        const int64_t from = az_params_cut(n, begin + i, n_positions);
        const int64_t to = az_params_cut(n, begin + i + 1, n_positions);
        h->bytes[i] = (size_t)(to - from) * sizeof *h->flat;
        h->offsets[i] = (size_t)(from - h->lane_first) * sizeof *h->flat;
    }
}

/* What may fail on one rank alone. */
static az_err prepare(az_params *p)
{
    az_err err;
    const size_t n_nodes = (size_t)az_comm_get_topology(p->comm)->n_nodes;
    AZ_TRY(AZ_NEW(p->host.bytes, n_nodes, "adapter"));
    AZ_TRY(AZ_NEW(p->host.offsets, n_nodes, "adapter"));
    cut(p);
    if (p->placement == AZ_PARAMS_GATHERED)
        AZ_TRY(AZ_NEW(p->host.own, (size_t)round_up(p->n_own), "adapter"));
out:
    return err;
}

static az_err create_copy(az_params *p)
{
    az_err err;
    az_params_host *h = &p->host;
    const size_t bytes = (size_t)p->off[p->spans.n] * sizeof *h->flat;
    AZ_TRY(az_shared_create(&h->memory, bytes, "adze-adapter", "adapter", AZ_SHARED_READONLY,
                            p->comm));
    h->flat = (float *)az_shared_get(h->memory);
    h->read = (const float *)az_shared_get_readonly(h->memory);
    p->slice = h->flat + p->first;
out:
    return err;
}

/* The layers as items; cuts [layers, positions + 1]. */
static void fill_items(az_spread_item *items, size_t *cuts, const az_params *p)
{
    const float *own = p->host.own;
    const int n_positions = az_comm_n_positions(p->comm);
    const int64_t n = p->off[p->spans.n];
    for (int l = 0; l < p->spans.n; l++) {
        int64_t begin, end;
        size_t *cut_of = cuts + (size_t)l * (size_t)(n_positions + 1);
        find_item(&begin, &end, &p->spans, l);
        for (int i = 0; i <= n_positions; i++) {
            const int64_t at = az_params_cut(n, i, n_positions);
            cut_of[i] = (size_t)(az_min_i64(az_max_i64(at, begin), end) - begin) * sizeof *own;
        }
        const int64_t from = az_max_i64(begin, p->first);
        items[l] = (az_spread_item){.bytes = (size_t)(end - begin) * sizeof *own,
                                    .resident = az_params_is_empty(&p->spans, l),
                                    .opt_cut = cut_of};
        if (from < az_min_i64(end, p->first + p->n_own))
            items[l].home = own + (from - p->first);
    }
}

/* Bytes of the largest item. */
static size_t find_slot(const az_spans *spans)
{
    int64_t most = 0, begin, end;
    for (int l = 0; l < spans->n; l++) {
        find_item(&begin, &end, spans, l);
        most = az_params_is_empty(spans, l) ? most : az_max_i64(most, round_up(end - begin));
    }
    return (size_t)most * sizeof(float);
}

static az_err create_spread(az_params *p, az_progress_kind progress)
{
    az_err err;
    const size_t n_layers = (size_t)p->spans.n;
    az_spread_item *items = NULL;
    size_t *cuts = NULL;
    p->slice = p->host.own;
    err = AZ_NEW(items, n_layers, "adapter");
    if (err == AZ_OK)
        err = AZ_NEW(cuts, n_layers * (size_t)(az_comm_n_positions(p->comm) + 1), "adapter");
    AZ_TRY(az_comm_agree(p->comm, err));
    fill_items(items, cuts, p);
    AZ_TRY(az_spread_create(&p->host.spread, items, p->spans.n, az_params_find_slots(p->n_forward),
                            find_slot(&p->spans), p->n_program, progress, "adapter", p->comm));
out:
    az_free(items);
    az_free(cuts);
    return err;
}

static az_err create(az_params *p, az_progress_kind progress)
{
    az_err err;
    p->placement = choose_placement(p->placement, az_comm_get_topology(p->comm));
    err = prepare(p);
    AZ_TRY(az_comm_agree(p->comm, err));
    AZ_TRY(p->placement == AZ_PARAMS_REPLICATED ? create_copy(p) : create_spread(p, progress));
    p->slice_d = p->slice;
out:
    return err;
}

static void destroy(az_params *params)
{
    az_params_host *h = &params->host;
    az_spread_destroy(h->spread);
    az_shared_destroy(h->memory);
    az_free(h->own);
    az_free(h->bytes);
    az_free(h->offsets);
}

/* ---- 2. sharing and reading ---- */

static void share(az_params *p)
{
    az_params_host *h = &p->host;
    if (p->placement == AZ_PARAMS_GATHERED)
        az_spread_forget(h->spread);
    else
        az_comm_lane_allgatherv(p->comm, p->slice, h->flat + h->lane_first, h->bytes, h->offsets);
    az_comm_node_barrier(p->comm);
}

static void begin(az_params *params, int n)
{
    az_spread_begin(params->host.spread, params->program, n);
}

static const float *get_layer(az_params *p, int layer)
{
    int64_t begin, end;
    if (p->placement == AZ_PARAMS_REPLICATED)
        return p->host.read + p->off[layer];
    if (!p->held)
        return p->slice;
    find_item(&begin, &end, &p->spans, layer);
    return (const float *)az_spread_get(p->host.spread) + (p->off[layer] - begin);
}

static void release_layer(az_params *params)
{
    az_spread_release(params->host.spread);
}

static void end(az_params *params)
{
    az_spread_end(params->host.spread);
}

static double get_waited(const az_params *params)
{
    return params->host.spread != NULL ? az_spread_get_stats(params->host.spread).wait_s : 0;
}

const az_params_way az_params_on_host = {.create = create,
                                         .destroy = destroy,
                                         .share = share,
                                         .begin = begin,
                                         .release_layer = release_layer,
                                         .end = end,
                                         .get_layer = get_layer,
                                         .get_waited = get_waited};

/* ---- 3. sizes ---- */

az_footprint az_params_measure(const az_spans *spans, az_params_placement placement,
                               const az_topology *topology)
{
    const int64_t n = spans->off[spans->n];
    const size_t tables =
        az_params_measure_common(spans) + 2 * (size_t)topology->n_nodes * sizeof(size_t);
    const int n_cut = az_params_count_layers(spans);
    az_spread_sizes spread;
    int64_t most, least;
    if (choose_placement(placement, topology) == AZ_PARAMS_REPLICATED)
        return (az_footprint){(size_t)n * sizeof(float), tables, tables};
    az_spread_measure(&spread, spans->n, n_cut, az_params_find_slots(n_cut), find_slot(spans),
                      2 * n_cut, topology);
    az_params_find_slices(&most, &least, n, topology);
    return (az_footprint){spread.slot_bytes,
                          tables + spread.own_bytes + (size_t)round_up(most) * sizeof(float),
                          tables + spread.own_bytes + (size_t)round_up(least) * sizeof(float)};
}

az_err az_params_count_walk(az_spread_traffic *out, const az_spans *spans)
{
    az_err err;
    size_t *bytes = NULL;
    int *program = NULL, n = 0;
    AZ_TRY(AZ_NEW(bytes, (size_t)spans->n, "plan"));
    AZ_TRY(AZ_NEW(program, 2 * (size_t)spans->n, "plan"));
    for (int l = 0; l < spans->n; l++) {
        int64_t begin, end;
        find_item(&begin, &end, spans, l);
        if (az_params_is_empty(spans, l))
            continue;
        bytes[l] = (size_t)(end - begin) * sizeof(float);
        program[n++] = l;
    }
    for (int i = 0; i < n; i++)
        program[n + i] = program[n - 1 - i];
    AZ_TRY(az_spread_count(out, bytes, spans->n, program, 2 * n, az_params_find_slots(n)));
out:
    az_free(bytes);
    az_free(program);
    return err;
}
