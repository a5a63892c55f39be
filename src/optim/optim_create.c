/* optim: what it holds. */
#include <config.h>

#include "kern/kern.h"
#include "optim/optim_priv.h"

int64_t az_optim_find_half(const az_spans *spans)
{
    int64_t most = 0;
    for (int l = 0; l < spans->n; l++)
        most = az_max_i64(most, spans->off[l + 1] - spans->off[l]);
    return most;
}

int64_t az_optim_find_part(const az_spans *spans, int64_t first, int64_t n)
{
    int64_t most = 0;
    for (int l = 0; l < spans->n; l++)
        most = az_max_i64(most, az_min_i64(spans->off[l + 1], first + n) -
                                    az_max_i64(spans->off[l], first));
    return most;
}

/* This lane's slices, and this rank's among them. */
static void cut(az_optim *o)
{
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes, lane = az_comm_lane(o->comm);
    const int n_positions = az_comm_n_positions(o->comm);
    az_params_get_slice(o->params, &o->first, &o->n_own);
    for (int i = 0; i <= n_nodes && lane >= 0; i++)
        o->cuts[i] = az_params_cut(o->n, lane * n_nodes + i, n_positions);
    for (int i = 0; i < n_nodes; i++) {
        const int64_t begin = o->cuts[i] - o->cuts[0], end = o->cuts[i + 1] - o->cuts[0];
        const int64_t b0 = az_ceil_div(begin, AZ_PARAMS_BLOCK);
        o->block_offsets[i] = (size_t)b0 * sizeof *o->squares;
        o->block_bytes[i] = (size_t)(az_ceil_div(end, AZ_PARAMS_BLOCK) - b0) * sizeof *o->squares;
    }
}

/* What may fail on one rank alone. */
static az_err prepare(az_optim **out_optim, az_params *params, const az_optim_options *options,
                      az_reduce reduce, az_comm *comm)
{
    az_err err;
    az_optim *o;
    const size_t n_nodes = (size_t)az_comm_get_topology(comm)->n_nodes;
    AZ_TRY(AZ_NEW(o, 1, "optimizer"));
    *out_optim = o;
    o->comm = comm;
    o->params = params;
    o->options = *options;
    o->reduce = reduce;
    o->spans = az_params_get_spans(params);
    o->n = o->spans->off[o->spans->n];
    o->n_blocks = az_ceil_div(o->n, AZ_PARAMS_BLOCK);
    o->half = az_optim_find_half(o->spans);
    o->n_sum = reduce == AZ_REDUCE_STEP ? o->n : 2 * o->half;
    o->in_place = reduce == AZ_REDUCE_STEP && n_nodes == 1;
    AZ_TRY(AZ_NEW(o->cuts, n_nodes + 1, "optimizer"));
    AZ_TRY(AZ_NEW(o->counts, n_nodes, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_bytes, n_nodes, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_offsets, n_nodes, "optimizer"));
    cut(o);
    if (!o->in_place)
        AZ_TRY(AZ_NEW(o->own, (size_t)o->n_own, "adapter gradients"));
    if (reduce == AZ_REDUCE_UNIT)
        AZ_TRY(AZ_NEW(o->part, (size_t)az_optim_find_part(o->spans, o->first, o->n_own),
                      "adapter gradients"));
    AZ_TRY(AZ_NEW(o->m, (size_t)o->n_own, "moments"));
    AZ_TRY(AZ_NEW(o->v, (size_t)o->n_own, "moments"));
out:
    return err;
}

az_err az_optim_create(az_optim **out_optim, az_params *params, const az_optim_options *options,
                       az_reduce reduce, az_comm *comm)
{
    az_err err;
    az_optim *o = NULL;
    *out_optim = NULL;
    err = prepare(&o, params, options, reduce, comm);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(az_shared_create(&o->sum_memory, (size_t)o->n_sum * sizeof *o->sum, "adze-gradients",
                            "adapter gradients", 0, comm));
    AZ_TRY(az_shared_create(&o->square_memory, (size_t)o->n_blocks * sizeof *o->squares,
                            "adze-squares", "optimizer", 0, comm));
    o->sum = (int64_t *)az_shared_get(o->sum_memory);
    o->squares = (double *)az_shared_get(o->square_memory);
    if (o->in_place)
        o->own = o->sum + o->first;
    *out_optim = o;
    o = NULL;
out:
    az_optim_destroy(o);
    return err;
}

void az_optim_destroy(az_optim *opt_optim)
{
    if (opt_optim == NULL)
        return;
    if (!opt_optim->in_place)
        az_free(opt_optim->own);
    az_free(opt_optim->cuts);
    az_free(opt_optim->counts);
    az_free(opt_optim->block_bytes);
    az_free(opt_optim->block_offsets);
    az_free(opt_optim->part);
    az_free(opt_optim->m);
    az_free(opt_optim->v);
    az_shared_destroy(opt_optim->sum_memory);
    az_shared_destroy(opt_optim->square_memory);
    az_free(opt_optim);
}

/* One rank's part, by what it owns. */
static void measure_slice(az_optim_sizes *s, const az_spans *spans, int64_t first, int64_t n,
                          bool in_place, az_reduce reduce)
{
    const int64_t part = reduce == AZ_REDUCE_UNIT ? az_optim_find_part(spans, first, n) : 0;
    const size_t gradient = (size_t)((in_place ? 0 : n) + part) * sizeof(int64_t);
    const size_t moments = 2 * (size_t)n * sizeof(float);
    if (gradient + moments > s->gradient.most + s->moments.most) {
        s->gradient.most = gradient;
        s->moments.most = moments;
    }
    if (gradient + moments < s->gradient.least + s->moments.least) {
        s->gradient.least = gradient;
        s->moments.least = moments;
    }
}

az_optim_sizes az_optim_measure(const az_spans *spans, const az_topology *topology,
                                az_reduce reduce)
{
    const int64_t n = spans->off[spans->n];
    const int n_positions = topology->n_lanes * topology->n_nodes;
    const size_t tables = sizeof(az_optim) + (4 * (size_t)topology->n_nodes + 1) * sizeof(int64_t);
    const bool step = reduce == AZ_REDUCE_STEP;
    az_optim_sizes s = {.gradient.least = SIZE_MAX / 2, .other = {0, tables, tables}};
    s.gradient.shared = (size_t)(step ? n : 2 * az_optim_find_half(spans)) * sizeof(int64_t);
    s.other.shared = (size_t)az_ceil_div(n, AZ_PARAMS_BLOCK) * sizeof(double);
    for (int p = 0; p < n_positions; p++) {
        const int64_t first = az_params_cut(n, p, n_positions);
        measure_slice(&s, spans, first, az_params_cut(n, p + 1, n_positions) - first,
                      step && topology->n_nodes == 1, reduce);
    }
    if (n_positions < topology->n_ranks)
        measure_slice(&s, spans, 0, 0, false, reduce);
    return s;
}
