/* lora/params: the adapter's parameters: what is the same wherever they lie. */
#include <config.h>

#include <string.h>

#include "lora/params_priv.h"

/* Elements that rank 0 hands out at a time. */
#define PIECE ((int64_t)1 << 18)

int64_t az_params_cut(int64_t n, int position, int n_positions)
{
    const size_t blocks = (size_t)az_ceil_div(n, AZ_PARAMS_BLOCK);
    return az_min_i64(
        (int64_t)az_cut(blocks, (size_t)position, (size_t)n_positions) * AZ_PARAMS_BLOCK, n);
}

void az_params_find_slices(int64_t *out_most, int64_t *out_least, int64_t n,
                           const az_topology *topology)
{
    const int n_positions = topology->n_lanes * topology->n_nodes;
    *out_most = 0;
    *out_least = n_positions < topology->n_ranks ? 0 : n;
    for (int i = 0; i < n_positions; i++) {
        const int64_t own = az_params_cut(n, i + 1, n_positions) - az_params_cut(n, i, n_positions);
        *out_most = az_max_i64(*out_most, own);
        *out_least = az_min_i64(*out_least, own);
    }
}

int64_t az_params_find_largest(const az_spans *spans)
{
    int64_t most = 0;
    for (int l = 0; l < spans->n; l++)
        most = az_max_i64(most, spans->off[l + 1] - spans->off[l]);
    return most;
}

int az_params_count_layers(const az_spans *spans)
{
    int n = 0;
    for (int l = 0; l < spans->n; l++)
        n += !az_params_is_empty(spans, l);
    return n;
}

size_t az_params_measure_common(const az_spans *spans)
{
    const size_t n_layers = (size_t)spans->n;
    return sizeof(az_params) + (n_layers + 1) * sizeof *spans->off + 2 * n_layers * sizeof(int);
}

/* ---- 1. begin and end ---- */

/* Layers with pairs: all in order, then back. */
static void fill_program(az_params *p)
{
    int n = 0;
    for (int l = 0; l < p->spans.n; l++)
        if (!az_params_is_empty(&p->spans, l))
            p->program[n++] = l;
    for (int i = 0; i < n; i++)
        p->program[n + i] = p->program[n - 1 - i];
    p->n_forward = n;
    p->n_program = 2 * n;
}

/* What may fail on one rank alone. */
static az_err prepare(az_params **out_params, const az_spans *spans, const az_kern *kern,
                      az_fabric *opt_fabric, az_comm *comm)
{
    az_err err;
    az_params *p;
    const int position = az_comm_position(comm), n_positions = az_comm_n_positions(comm);
    const int64_t n = spans->off[spans->n];
    AZ_TRY(AZ_NEW(p, 1, "adapter"));
    *out_params = p;
    p->way = kern->numeric.gpu ? &az_params_on_device : &az_params_on_host;
    p->comm = comm;
    p->kern = kern;
    p->fabric = opt_fabric;
    AZ_TRY(AZ_NEW(p->off, (size_t)spans->n + 1, "adapter"));
    memcpy(p->off, spans->off, ((size_t)spans->n + 1) * sizeof *p->off);
    p->spans = (az_spans){spans->n, p->off};
    AZ_TRY(AZ_NEW(p->program, 2 * (size_t)spans->n, "adapter"));
    fill_program(p);
    if (position >= 0) {
        p->first = az_params_cut(n, position, n_positions);
        p->n_own = az_params_cut(n, position + 1, n_positions) - p->first;
    }
out:
    return err;
}

az_err az_params_create(az_params **out_params, const az_spans *spans,
                        az_params_placement placement, az_progress_kind progress,
                        const az_kern *kern, az_fabric *opt_fabric, az_comm *comm)
{
    az_err err;
    az_params *p = NULL;
    *out_params = NULL;
    err = prepare(&p, spans, kern, opt_fabric, comm);
    AZ_TRY(az_comm_agree(comm, err));
    p->placement = placement;
    AZ_TRY(p->way->create(p, progress));
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
    az_params_release_all(opt_params);
    opt_params->way->destroy(opt_params);
    az_free(opt_params->program);
    az_free(opt_params->off);
    az_free(opt_params);
}

const az_spans *az_params_get_spans(const az_params *params)
{
    return &params->spans;
}

double az_params_get_waited(const az_params *params)
{
    return params->way->get_waited(params);
}

const az_kern *az_params_get_kern(const az_params *params)
{
    return params->kern;
}

az_fabric *az_params_get_fabric(const az_params *params)
{
    return params->fabric;
}

/* ---- 2. writing ---- */

float *az_params_get_slice(const az_params *params, int64_t *out_first, int64_t *out_n)
{
    *out_first = params->first;
    *out_n = params->n_own;
    return params->slice;
}

float *az_params_get_slice_d(const az_params *params)
{
    return params->slice_d;
}

void az_params_pull(az_params *p)
{
    if (p->slice == p->slice_d)
        return;
    az_dev_copy_out(p->kern->dev, AZ_QUEUE_COMPUTE, p->slice, p->slice_d,
                    (size_t)p->n_own * sizeof *p->slice);
    az_dev_sync(p->kern->dev, AZ_QUEUE_COMPUTE, AZ_SYNC_SAVE);
}

void az_params_share(az_params *p)
{
    if (p->slice != p->slice_d) {
        az_dev_copy_in(p->kern->dev, AZ_QUEUE_COMPUTE, p->slice_d, p->slice,
                       (size_t)p->n_own * sizeof *p->slice);
        az_dev_sync(p->kern->dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    }
    az_params_share_updated(p);
}

void az_params_share_updated(az_params *params)
{
    params->way->share(params);
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
        params->way->begin(params, backward ? params->n_program : params->n_forward);
}

const float *az_params_get_layer(az_params *p, int layer)
{
    AZ_ASSERT(!p->open && layer >= 0 && layer < p->spans.n);
    p->open = true;
    p->held = p->placement == AZ_PARAMS_GATHERED && !az_params_is_empty(&p->spans, layer);
    if (p->held) {
        AZ_ASSERT(p->turn < p->n_program && p->program[p->turn] == layer);
        p->turn++;
    }
    return p->way->get_layer(p, layer);
}

void az_params_release_layer(az_params *params)
{
    AZ_ASSERT(params->open);
    if (params->held)
        params->way->release_layer(params);
    params->open = false;
}

void az_params_end(az_params *params)
{
    if (params->placement == AZ_PARAMS_GATHERED)
        params->way->end(params);
}

az_err az_params_gather_all(const float **out_flat, az_params *p)
{
    az_err err = AZ_OK;
    az_dev *dev = p->kern->dev;
    const bool root = az_comm_rank(p->comm) == 0;
    *out_flat = root ? p->host.read : NULL;
    if (p->placement == AZ_PARAMS_REPLICATED && !az_dev_is_gpu(dev))
        return AZ_OK;
    if (root)
        err = az_dev_alloc_host((void **)&p->whole, dev,
                                (size_t)p->off[p->spans.n] * sizeof *p->whole, "adapter file");
    AZ_TRY(az_comm_agree(p->comm, err));
    az_params_begin(p, false);
    for (int l = 0; l < p->spans.n; l++) {
        const float *layer = az_params_get_layer(p, l);
        if (root)
            az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, p->whole + p->off[l], layer,
                            (size_t)(p->off[l + 1] - p->off[l]) * sizeof *layer);
        az_params_release_layer(p);
    }
    az_params_end(p);
    if (root)
        az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_SAVE);
    *out_flat = p->whole;
out:
    return err;
}

void az_params_release_all(az_params *params)
{
    az_dev_free_host(params->kern->dev, params->whole);
    params->whole = NULL;
}
