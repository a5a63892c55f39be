/* lora/params: the adapter's parameters, once a node or once a job.
 *
 * Replicated, owners write through one mapping of the shared memory, and all read through another
 * one that cannot be written, so a stray store is a fault and not a wrong adapter. Between nodes,
 * what the ranks of a lane own lies together, so each lane brings its stretch of the buffer to its
 * node, and no byte comes to a node twice.
 *
 * Gathered, a layer is an item of a spread. Items begin and end on its blocks, which slices do too,
 * but layers need not: an item has up to a block more on both sides. */
#include <config.h>

#include <string.h>

#include "comm/shared.h"
#include "lora/params.h"

/* Elements that rank 0 hands out at a time. */
#define PIECE ((int64_t)1 << 18)
/* Layers that are together at a time: one is used while the next one comes. */
#define SLOTS 2
/* Elements of a block of a spread. */
#define GRAIN ((int64_t)(AZ_SPREAD_BLOCK / sizeof(float)))

struct az_params {
    az_comm *comm;
    az_params_placement placement;
    az_spans spans;
    int64_t *off; /* of spans */
    int64_t first, n_own;
    float *slice; /* [n_own] this rank's, in one of the next two */
    az_shared *memory;
    float *own;
    /* Replicated. */
    float *flat;             /* for owners */
    const float *read;       /* for all */
    int64_t lane_first;      /* where this lane's slices begin */
    size_t *bytes, *offsets; /* [nodes] this lane's slices, from there */
    /* Gathered. */
    az_spread *spread;
    int *program; /* layers with pairs: all in order, then those of backward */
    int n_forward, n_program;
    int turn;     /* of the walk's layers, the next one */
    float *whole; /* what az_params_gather_all has made */
    bool open;    /* a layer is */
    bool held;    /* it is from the spread */
};

int64_t az_params_cut(int64_t n, int position, int n_positions)
{
    const size_t blocks = (size_t)az_ceil_div(n, AZ_PARAMS_BLOCK);
    return az_min_i64(
        (int64_t)az_cut(blocks, (size_t)position, (size_t)n_positions) * AZ_PARAMS_BLOCK, n);
}

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

static bool is_empty(const az_spans *spans, int layer)
{
    return spans->off[layer] == spans->off[layer + 1];
}

/* ---- 1. begin and end ---- */

/* The slices of this rank's lane, and its own. */
static void cut(az_params *p)
{
    const int n_nodes = az_comm_get_topology(p->comm)->n_nodes;
    const int n_positions = az_comm_n_positions(p->comm), position = az_comm_position(p->comm);
    const int64_t n = p->off[p->spans.n];
    if (position < 0)
        return;
    const int begin = az_comm_lane(p->comm) * n_nodes;
    p->lane_first = az_params_cut(n, begin, n_positions);
    p->first = az_params_cut(n, position, n_positions);
    p->n_own = az_params_cut(n, position + 1, n_positions) - p->first;
    for (int i = 0; i < n_nodes; i++) {
        const int64_t from = az_params_cut(n, begin + i, n_positions);
        const int64_t to = az_params_cut(n, begin + i + 1, n_positions);
        p->bytes[i] = (size_t)(to - from) * sizeof *p->flat;
        p->offsets[i] = (size_t)(from - p->lane_first) * sizeof *p->flat;
    }
}

/* Layers with pairs: all in order, then back. Returns how many there are. */
static int fill_program(int *program, const az_spans *spans)
{
    int n = 0;
    for (int l = 0; l < spans->n; l++)
        if (!is_empty(spans, l))
            program[n++] = l;
    for (int i = 0; i < n; i++)
        program[n + i] = program[n - 1 - i];
    return n;
}

static az_params_placement choose_placement(az_params_placement placement,
                                            const az_topology *topology)
{
    return topology->n_nodes > 1 ? placement : AZ_PARAMS_REPLICATED;
}

/* What may fail on one rank alone. */
static az_err prepare(az_params **out_params, const az_spans *spans, az_params_placement placement,
                      az_comm *comm)
{
    az_err err;
    az_params *p;
    const az_topology *topology = az_comm_get_topology(comm);
    AZ_TRY(AZ_NEW(p, 1, "adapter"));
    *out_params = p;
    p->comm = comm;
    p->placement = choose_placement(placement, topology);
    AZ_TRY(AZ_NEW(p->off, (size_t)spans->n + 1, "adapter"));
    memcpy(p->off, spans->off, ((size_t)spans->n + 1) * sizeof *p->off);
    p->spans = (az_spans){spans->n, p->off};
    AZ_TRY(AZ_NEW(p->bytes, (size_t)topology->n_nodes, "adapter"));
    AZ_TRY(AZ_NEW(p->offsets, (size_t)topology->n_nodes, "adapter"));
    cut(p);
    AZ_TRY(AZ_NEW(p->program, 2 * (size_t)spans->n, "adapter"));
    p->n_forward = fill_program(p->program, spans);
    p->n_program = 2 * p->n_forward;
    if (p->placement == AZ_PARAMS_GATHERED)
        AZ_TRY(AZ_NEW(p->own, (size_t)round_up(p->n_own), "adapter"));
out:
    return err;
}

static az_err create_copy(az_params *p)
{
    az_err err;
    const size_t bytes = (size_t)p->off[p->spans.n] * sizeof *p->flat;
    AZ_TRY(az_shared_create(&p->memory, bytes, "adze-adapter", "adapter", AZ_SHARED_READONLY,
                            p->comm));
    p->flat = (float *)az_shared_get(p->memory);
    p->read = (const float *)az_shared_get_readonly(p->memory);
    p->slice = p->flat + p->first;
out:
    return err;
}

/* The layers as items; cuts [layers, positions + 1]. */
static void fill_items(az_spread_item *items, size_t *cuts, const az_params *p)
{
    const int n_positions = az_comm_n_positions(p->comm);
    const int64_t n = p->off[p->spans.n];
    for (int l = 0; l < p->spans.n; l++) {
        int64_t begin, end;
        size_t *cut_of = cuts + (size_t)l * (size_t)(n_positions + 1);
        find_item(&begin, &end, &p->spans, l);
        for (int i = 0; i <= n_positions; i++) {
            const int64_t at = az_params_cut(n, i, n_positions);
            cut_of[i] = (size_t)(az_min_i64(az_max_i64(at, begin), end) - begin) * sizeof *p->own;
        }
        const int64_t from = az_max_i64(begin, p->first);
        items[l] = (az_spread_item){.bytes = (size_t)(end - begin) * sizeof *p->own,
                                    .resident = is_empty(&p->spans, l),
                                    .opt_cut = cut_of};
        if (from < az_min_i64(end, p->first + p->n_own))
            items[l].home = p->own + (from - p->first);
    }
}

/* Bytes of the largest item. */
static size_t find_slot(const az_spans *spans)
{
    int64_t most = 0, begin, end;
    for (int l = 0; l < spans->n; l++) {
        find_item(&begin, &end, spans, l);
        most = is_empty(spans, l) ? most : az_max_i64(most, round_up(end - begin));
    }
    return (size_t)most * sizeof(float);
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static az_err create_spread(az_params *p, az_progress_kind progress)
{
    az_err err;
    const size_t n_layers = (size_t)p->spans.n;
    az_spread_item *items = NULL;
    size_t *cuts = NULL;
    p->slice = p->own;
    err = AZ_NEW(items, n_layers, "adapter");
    if (err == AZ_OK)
        err = AZ_NEW(cuts, n_layers * (size_t)(az_comm_n_positions(p->comm) + 1), "adapter");
    AZ_TRY(az_comm_agree(p->comm, err));
    fill_items(items, cuts, p);
    AZ_TRY(az_spread_create(&p->spread, items, p->spans.n, min_int(SLOTS, p->n_forward),
                            find_slot(&p->spans), p->n_program, progress, "adapter", p->comm));
out:
    az_free(items);
    az_free(cuts);
    return err;
}

az_err az_params_create(az_params **out_params, const az_spans *spans,
                        az_params_placement placement, az_progress_kind progress,
                        const az_kern *kern, az_fabric *opt_fabric, az_comm *comm)
{
    az_err err;
    az_params *p = NULL;
    *out_params = NULL;
    (void)kern;
    (void)opt_fabric;
    err = prepare(&p, spans, placement, comm);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(p->placement == AZ_PARAMS_REPLICATED ? create_copy(p) : create_spread(p, progress));
    *out_params = p;
    p = NULL;
out:
    az_params_destroy(p);
    return err;
}

void az_params_destroy(az_params *opt_params)
{
    if (opt_params == NULL)
        return;
    az_spread_destroy(opt_params->spread);
    az_shared_destroy(opt_params->memory);
    az_free(opt_params->whole);
    az_free(opt_params->own);
    az_free(opt_params->program);
    az_free(opt_params->off);
    az_free(opt_params->bytes);
    az_free(opt_params->offsets);
    az_free(opt_params);
}

const az_spans *az_params_get_spans(const az_params *params)
{
    return &params->spans;
}

double az_params_get_waited(const az_params *params)
{
    return params->spread != NULL ? az_spread_get_stats(params->spread).wait_s : 0;
}

/* ---- 2. writing ---- */

float *az_params_get_slice(const az_params *params, int64_t *out_first, int64_t *out_n)
{
    *out_first = params->first;
    *out_n = params->n_own;
    return params->slice;
}

void az_params_share(az_params *p)
{
    if (p->placement == AZ_PARAMS_GATHERED)
        az_spread_forget(p->spread);
    else
        az_comm_lane_allgatherv(p->comm, p->slice, p->flat + p->lane_first, p->bytes, p->offsets);
    az_comm_node_barrier(p->comm);
}

az_err az_params_hand_out(az_params *p, const float *opt_flat)
{
    az_err err;
    const int64_t n = p->off[p->spans.n], most = az_min_i64(n, PIECE);
    float *piece = NULL;
    err = AZ_NEW(piece, (size_t)most, "adapter file");
    AZ_TRY(az_comm_agree(p->comm, err));
    for (int64_t at = 0; at < n; at += most) {
        const int64_t len = az_min_i64(most, n - at);
        if (opt_flat != NULL)
            memcpy(piece, opt_flat + at, (size_t)len * sizeof *piece);
        az_comm_bcast(p->comm, piece, (size_t)len * sizeof *piece, 0);
        const int64_t from = az_max_i64(at, p->first);
        const int64_t to = az_min_i64(at + len, p->first + p->n_own);
        if (from < to)
            memcpy(p->slice + (from - p->first), piece + (from - at),
                   (size_t)(to - from) * sizeof *piece);
    }
    az_params_share(p);
out:
    az_free(piece);
    return err;
}

/* ---- 3. reading ---- */

void az_params_begin(az_params *params, bool backward)
{
    params->turn = 0;
    if (params->placement == AZ_PARAMS_GATHERED)
        az_spread_begin(params->spread, params->program,
                        backward ? params->n_program : params->n_forward);
}

const float *az_params_get_layer(az_params *p, int layer)
{
    int64_t begin, end;
    AZ_ASSERT(!p->open && layer >= 0 && layer < p->spans.n);
    p->open = true;
    p->held = p->placement == AZ_PARAMS_GATHERED && !is_empty(&p->spans, layer);
    if (p->placement == AZ_PARAMS_REPLICATED)
        return p->read + p->off[layer];
    if (!p->held)
        return p->slice;
    AZ_ASSERT(p->turn < p->n_program && p->program[p->turn] == layer);
    p->turn++;
    find_item(&begin, &end, &p->spans, layer);
    return (const float *)az_spread_get(p->spread) + (p->off[layer] - begin);
}

void az_params_release_layer(az_params *params)
{
    AZ_ASSERT(params->open);
    if (params->held)
        az_spread_release(params->spread);
    params->open = false;
}

void az_params_end(az_params *params)
{
    if (params->placement == AZ_PARAMS_GATHERED)
        az_spread_end(params->spread);
}

az_err az_params_gather_all(const float **out_flat, az_params *p)
{
    az_err err = AZ_OK;
    const bool root = az_comm_rank(p->comm) == 0;
    *out_flat = root ? p->read : NULL;
    if (p->placement == AZ_PARAMS_REPLICATED)
        return AZ_OK;
    if (root)
        err = AZ_NEW(p->whole, (size_t)p->off[p->spans.n], "adapter file");
    AZ_TRY(az_comm_agree(p->comm, err));
    az_params_begin(p, false);
    for (int l = 0; l < p->spans.n; l++) {
        const float *layer = az_params_get_layer(p, l);
        if (root)
            memcpy(p->whole + p->off[l], layer,
                   (size_t)(p->off[l + 1] - p->off[l]) * sizeof *layer);
        az_params_release_layer(p);
    }
    az_params_end(p);
    *out_flat = p->whole;
out:
    return err;
}

void az_params_release_all(az_params *params)
{
    az_free(params->whole);
    params->whole = NULL;
}

/* ---- 4. sizes ---- */

/* Bytes of a rank's own that every rank has. */
static size_t measure_tables(const az_spans *spans, const az_topology *topology)
{
    const size_t n_layers = (size_t)spans->n;
    return sizeof(az_params) + (n_layers + 1) * sizeof *spans->off + 2 * n_layers * sizeof(int) +
           2 * (size_t)topology->n_nodes * sizeof(size_t);
}

az_footprint az_params_measure(const az_spans *spans, az_params_placement placement,
                               const az_topology *topology)
{
    const int64_t n = spans->off[spans->n];
    const int n_positions = topology->n_lanes * topology->n_nodes;
    const size_t tables = measure_tables(spans, topology);
    int n_cut = 0;
    az_spread_sizes spread;
    int64_t most = 0, least = n_positions < topology->n_ranks ? 0 : INT64_MAX;
    if (choose_placement(placement, topology) == AZ_PARAMS_REPLICATED)
        return (az_footprint){(size_t)n * sizeof(float), tables, tables};
    for (int l = 0; l < spans->n; l++)
        n_cut += !is_empty(spans, l);
    az_spread_measure(&spread, spans->n, n_cut, min_int(SLOTS, n_cut), find_slot(spans), 2 * n_cut,
                      topology);
    for (int i = 0; i < n_positions; i++) {
        const int64_t own = az_params_cut(n, i + 1, n_positions) - az_params_cut(n, i, n_positions);
        most = az_max_i64(most, round_up(own));
        least = az_min_i64(least, round_up(own));
    }
    return (az_footprint){spread.slot_bytes,
                          tables + spread.own_bytes + (size_t)most * sizeof(float),
                          tables + spread.own_bytes + (size_t)least * sizeof(float)};
}

az_err az_params_count_walk(az_spread_traffic *out, const az_spans *spans)
{
    az_err err;
    size_t *bytes = NULL;
    int *program = NULL;
    AZ_TRY(AZ_NEW(bytes, (size_t)spans->n, "plan"));
    AZ_TRY(AZ_NEW(program, 2 * (size_t)spans->n, "plan"));
    for (int l = 0; l < spans->n; l++) {
        int64_t begin, end;
        find_item(&begin, &end, spans, l);
        bytes[l] = is_empty(spans, l) ? 0 : (size_t)(end - begin) * sizeof(float);
    }
    const int n = fill_program(program, spans);
    AZ_TRY(az_spread_count(out, bytes, spans->n, program, 2 * n, min_int(SLOTS, n)));
out:
    az_free(bytes);
    az_free(program);
    return err;
}
