/* optim: what it holds, but for what optim_host.c and optim_device.c hold each in its way. */
#include <config.h>

#include <string.h>

#include "optim/optim_priv.h"

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
    o->kern = az_params_get_kern(params);
    o->way = o->kern->numeric.gpu ? &az_optim_on_device : &az_optim_on_host;
    o->comm = comm;
    o->params = params;
    o->options = *options;
    o->reduce = reduce;
    o->spans = az_params_get_spans(params);
    o->n = o->spans->off[o->spans->n];
    o->n_blocks = az_ceil_div(o->n, AZ_PARAMS_BLOCK);
    o->half = az_params_find_largest(o->spans);
    o->n_sum = reduce == AZ_REDUCE_STEP ? o->n : 2 * o->half;
    AZ_TRY(AZ_NEW(o->cuts, n_nodes + 1, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_bytes, n_nodes, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_offsets, n_nodes, "optimizer"));
    cut(o);
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
    err = az_optim_create_times(o);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(o->way->create(o));
    AZ_TRY(az_shared_create(&o->square_memory, (size_t)o->n_blocks * sizeof *o->squares,
                            "adze-squares", "optimizer", 0, comm));
    o->squares = (double *)az_shared_get(o->square_memory);
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
    az_optim_destroy_times(opt_optim);
    opt_optim->way->destroy(opt_optim);
    az_shared_destroy(opt_optim->square_memory);
    az_free(opt_optim->cuts);
    az_free(opt_optim->block_bytes);
    az_free(opt_optim->block_offsets);
    az_free(opt_optim);
}

/* ---- moments, for the host ---- */

float *az_optim_get_exp_avg(az_optim *optim)
{
    return optim->m_host;
}

float *az_optim_get_exp_avg_sq(az_optim *optim)
{
    return optim->v_host;
}

void az_optim_pull(az_optim *o)
{
    az_dev *dev = o->kern->dev;
    const size_t bytes = (size_t)o->n_own * sizeof *o->m;
    if (o->m_host == o->m)
        return;
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, o->m_host, o->m, bytes);
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, o->v_host, o->v, bytes);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_SAVE);
}

void az_optim_push(az_optim *o)
{
    az_dev *dev = o->kern->dev;
    const size_t bytes = (size_t)o->n_own * sizeof *o->m;
    if (o->m_host == o->m)
        return;
    az_dev_copy_in(dev, AZ_QUEUE_COMPUTE, o->m, o->m_host, bytes);
    az_dev_copy_in(dev, AZ_QUEUE_COMPUTE, o->v, o->v_host, bytes);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
}

int64_t az_optim_get_updates(const az_optim *optim)
{
    return optim->updates;
}

void az_optim_set_updates(az_optim *optim, int64_t updates)
{
    optim->updates = updates;
}

/* ---- sums, for the host ---- */

bool az_optim_has_gradient(az_optim *o, int64_t off, int64_t n)
{
    int64_t at = az_max_i64(off, o->first);
    const int64_t end = az_min_i64(off + n, o->first + o->n_own);
    for (int64_t len; at < end; at += len) {
        len = az_min_i64(end - at, AZ_OPTIM_PIECE);
        const int64_t *sums = o->way->read(o, o->own + (at - o->first), len);
        for (int64_t i = 0; i < len; i++)
            if (sums[i] != 0)
                return true;
    }
    return false;
}

void az_optim_copy_sums(int64_t *out, az_optim *o)
{
    AZ_ASSERT(o->reduce == AZ_REDUCE_STEP);
    memset(out, 0, (size_t)o->n * sizeof *out);
    if (!o->kern->numeric.gpu && az_comm_node_rank(o->comm) > 0)
        return;
    for (int64_t at = 0, len; at < o->n; at += len) {
        len = az_min_i64(o->n - at, AZ_OPTIM_PIECE);
        memcpy(out + at, o->way->read(o, o->sum + at, len), (size_t)len * sizeof *out);
    }
}

az_footprint az_optim_measure_common(const az_spans *spans, const az_topology *topology)
{
    const int64_t n_blocks = az_ceil_div(spans->off[spans->n], AZ_PARAMS_BLOCK);
    const size_t own = sizeof(az_optim) + (3 * (size_t)topology->n_nodes + 1) * sizeof(int64_t);
    return (az_footprint){(size_t)n_blocks * sizeof(double), own, own};
}
