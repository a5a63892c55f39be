/* lora/params: the adapter's parameters, once a node.
 *
 * Owners write through one mapping of the shared memory, all read through another one that cannot
 * be written, so a stray store is a fault and not a wrong adapter. Between nodes, what the ranks of
 * a lane own lies together, so each lane brings its stretch of the buffer to its node, and no byte
 * comes to a node twice. */
#include <config.h>

#include <string.h>

#include "comm/shared.h"
#include "lora/params.h"

/* Elements that rank 0 hands out at a time. */
#define PIECE ((int64_t)1 << 18)

struct az_params {
    az_comm *comm;
    az_spans spans;
    int64_t *off; /* of spans */
    az_shared *memory;
    float *flat;       /* for owners */
    const float *read; /* for all */
    int64_t first, n_own;
    int64_t lane_first;      /* where this lane's slices begin */
    size_t *bytes, *offsets; /* [nodes] this lane's slices, from there */
    bool open;               /* a layer is */
};

int64_t az_params_cut(int64_t n, int position, int n_positions)
{
    const size_t blocks = (size_t)az_ceil_div(n, AZ_PARAMS_BLOCK);
    return az_min_i64(
        (int64_t)az_cut(blocks, (size_t)position, (size_t)n_positions) * AZ_PARAMS_BLOCK, n);
}

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

/* What may fail on one rank alone. */
static az_err prepare(az_params **out_params, const az_spans *spans, az_comm *comm)
{
    az_err err;
    az_params *p;
    const size_t n_nodes = (size_t)az_comm_get_topology(comm)->n_nodes;
    AZ_TRY(AZ_NEW(p, 1, "adapter"));
    *out_params = p;
    p->comm = comm;
    AZ_TRY(AZ_NEW(p->off, (size_t)spans->n + 1, "adapter"));
    memcpy(p->off, spans->off, ((size_t)spans->n + 1) * sizeof *p->off);
    p->spans = (az_spans){spans->n, p->off};
    AZ_TRY(AZ_NEW(p->bytes, n_nodes, "adapter"));
    AZ_TRY(AZ_NEW(p->offsets, n_nodes, "adapter"));
    cut(p);
out:
    return err;
}

az_err az_params_create(az_params **out_params, const az_spans *spans, az_comm *comm)
{
    az_err err;
    az_params *p = NULL;
    const size_t bytes = az_params_measure(spans, az_comm_get_topology(comm)).shared;
    *out_params = NULL;
    err = prepare(&p, spans, comm);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(
        az_shared_create(&p->memory, bytes, "adze-adapter", "adapter", AZ_SHARED_READONLY, comm));
    p->flat = (float *)az_shared_get(p->memory);
    p->read = (const float *)az_shared_get_readonly(p->memory);
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
    az_shared_destroy(opt_params->memory);
    az_free(opt_params->off);
    az_free(opt_params->bytes);
    az_free(opt_params->offsets);
    az_free(opt_params);
}

const az_spans *az_params_get_spans(const az_params *params)
{
    return &params->spans;
}

float *az_params_get_slice(const az_params *params, int64_t *out_first, int64_t *out_n)
{
    *out_first = params->first;
    *out_n = params->n_own;
    return params->flat + params->first;
}

void az_params_share(az_params *p)
{
    az_comm_lane_allgatherv(p->comm, p->flat + p->first, p->flat + p->lane_first, p->bytes,
                            p->offsets);
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
            memcpy(p->flat + from, piece + (from - at), (size_t)(to - from) * sizeof *piece);
    }
    az_params_share(p);
out:
    az_free(piece);
    return err;
}

const float *az_params_get_layer(az_params *params, int layer)
{
    AZ_ASSERT(!params->open && layer >= 0 && layer < params->spans.n);
    params->open = true;
    return params->read + params->off[layer];
}

void az_params_release_layer(az_params *params)
{
    AZ_ASSERT(params->open);
    params->open = false;
}

az_err az_params_gather_all(const float **out_flat, az_params *params)
{
    *out_flat = az_comm_rank(params->comm) == 0 ? params->read : NULL;
    return AZ_OK;
}

void az_params_release_all(az_params *params)
{
    (void)params;
}

az_footprint az_params_measure(const az_spans *spans, const az_topology *topology)
{
    const size_t n_nodes = (size_t)topology->n_nodes;
    const size_t own = sizeof(az_params) + ((size_t)spans->n + 1) * sizeof *spans->off +
                       2 * n_nodes * sizeof(size_t);
    return (az_footprint){(size_t)spans->off[spans->n] * sizeof(float), own, own};
}
