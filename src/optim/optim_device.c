/* optim: sums of gradients in the memory of GPUs, each rank's its own.
 *
 * Operations are in the compute queue, sums over ranks in the gather queue. What orders the two:
 *
 *   added        compute to gather: all of this rank's gradients are in the sums
 *   reduced[h]   gather to compute: part of half h of the sums, and with AZ_REDUCE_STEP of all
 *                of them, holds what all ranks have added
 *
 * With AZ_REDUCE_UNIT the part of a layer is added to own, and its half is cleared, when the half
 * is to be used again, two layers later: until then the reduction has time. */
#include <config.h>

#include <string.h>

#include "optim/optim_priv.h"

/* ---- 1. begin and end ---- */

/* The sums, or own with them. */
static az_err create_sums(az_optim *o)
{
    az_err err;
    az_dev *dev = o->kern->dev;
    AZ_TRY(az_dev_alloc((void **)&o->sum, dev, (size_t)o->n_sum * sizeof *o->sum,
                        "adapter gradients"));
    if (o->reduce == AZ_REDUCE_STEP)
        o->own = o->sum + o->first;
    else
        AZ_TRY(az_dev_alloc((void **)&o->own, dev, (size_t)o->n_own * sizeof *o->own,
                            "adapter gradients"));
out:
    return err;
}

static az_err create_moments(az_optim *o)
{
    az_err err;
    az_dev *dev = o->kern->dev;
    const size_t bytes = (size_t)o->n_own * sizeof *o->m;
    AZ_TRY(az_dev_alloc((void **)&o->m, dev, bytes, "moments"));
    AZ_TRY(az_dev_alloc((void **)&o->v, dev, bytes, "moments"));
    AZ_TRY(az_dev_alloc_host((void **)&o->m_host, dev, bytes, "moments"));
    AZ_TRY(az_dev_alloc_host((void **)&o->v_host, dev, bytes, "moments"));
    az_optim_push(o);
out:
    return err;
}

/* What the host sees of a step. */
static az_err create_results(az_optim *o)
{
    az_err err;
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    const size_t squares = (size_t)az_ceil_div(o->n_own, AZ_PARAMS_BLOCK) * sizeof *d->squares;
    AZ_TRY(az_dev_alloc((void **)&d->overflow_d, dev, sizeof *d->overflow, "optimizer"));
    AZ_TRY(az_dev_alloc_host((void **)&d->overflow, dev, sizeof *d->overflow, "optimizer"));
    AZ_TRY(az_dev_alloc((void **)&d->squares_d, dev, squares, "optimizer"));
    AZ_TRY(az_dev_alloc_host((void **)&d->squares, dev, squares, "optimizer"));
    AZ_TRY(
        az_dev_alloc_host((void **)&d->piece, dev, AZ_OPTIM_PIECE * sizeof *d->piece, "optimizer"));
    AZ_TRY(az_dev_create_event(&d->added, dev));
    AZ_TRY(az_dev_create_event(&d->reduced[0], dev));
    AZ_TRY(az_dev_create_event(&d->reduced[1], dev));
out:
    return err;
}

static az_err create_all(az_optim *o)
{
    az_err err;
    az_optim_device *d = &o->device;
    const int n_positions = az_comm_n_positions(o->comm);
    d->pending[0] = d->pending[1] = -1;
    AZ_TRY(AZ_NEW(d->cuts, (size_t)n_positions + 1, "optimizer"));
    AZ_TRY(AZ_NEW(d->clipped, (size_t)n_positions + 1, "optimizer"));
    for (int i = 0; i <= n_positions; i++)
        d->cuts[i] = az_params_cut(o->n, i, n_positions);
    AZ_TRY(create_sums(o));
    AZ_TRY(create_moments(o));
    AZ_TRY(create_results(o));
out:
    return err;
}

static az_err create(az_optim *optim)
{
    return az_comm_agree(optim->comm, create_all(optim));
}

static void destroy(az_optim *o)
{
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    az_dev_destroy_event(dev, d->added);
    az_dev_destroy_event(dev, d->reduced[0]);
    az_dev_destroy_event(dev, d->reduced[1]);
    if (o->reduce == AZ_REDUCE_UNIT)
        az_dev_free(dev, o->own);
    az_dev_free(dev, o->sum);
    az_dev_free(dev, o->m);
    az_dev_free(dev, o->v);
    az_dev_free(dev, d->overflow_d);
    az_dev_free(dev, d->squares_d);
    az_dev_free_host(dev, o->m_host);
    az_dev_free_host(dev, o->v_host);
    az_dev_free_host(dev, d->overflow);
    az_dev_free_host(dev, d->squares);
    az_dev_free_host(dev, d->piece);
    az_free(d->cuts);
    az_free(d->clipped);
}

/* ---- 2. sums ---- */

static int64_t count_elements(const az_optim *o, int layer)
{
    return o->spans->off[layer + 1] - o->spans->off[layer];
}

/* A step that was given up may have left sums on their way. */
static void begin(az_optim *o)
{
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    for (int h = 0; h < 2; h++) {
        if (d->pending[h] >= 0)
            az_dev_wait(dev, AZ_QUEUE_COMPUTE, d->reduced[h]);
        d->pending[h] = -1;
    }
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, o->sum, 0, (size_t)o->n_sum * sizeof *o->sum);
    if (o->reduce == AZ_REDUCE_UNIT)
        az_dev_fill(dev, AZ_QUEUE_COMPUTE, o->own, 0, (size_t)o->n_own * sizeof *o->own);
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, d->overflow_d, 0, sizeof *d->overflow_d);
}

/* Sums of a whole [cut[n_positions]] over all ranks. */
static void sum_over_ranks(az_optim *o, int64_t *sums, const int64_t *cut, az_event *reduced)
{
    az_dev *dev = o->kern->dev;
    if (az_comm_size(o->comm) == 1)
        return;
    az_dev_record(dev, o->device.added, AZ_QUEUE_COMPUTE);
    az_dev_wait(dev, AZ_QUEUE_GATHER, o->device.added);
    az_fabric_reduce_i64(az_params_get_fabric(o->params), sums, cut);
    az_dev_record(dev, reduced, AZ_QUEUE_GATHER);
}

/* What was reduced in a half comes to own, and the half can be used again. */
static void settle(az_optim *o, int half)
{
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    int64_t *sum = o->sum + half * o->half;
    const int layer = d->pending[half];
    if (layer < 0)
        return;
    const int64_t begin = o->spans->off[layer], from = az_max_i64(o->first, begin);
    const int64_t n = az_min_i64(o->first + o->n_own, o->spans->off[layer + 1]) - from;
    az_dev_wait(dev, AZ_QUEUE_COMPUTE, d->reduced[half]);
    if (n > 0)
        o->kern->op->add_i64(o->kern->self, o->own + (from - o->first), sum + (from - begin),
                             (size_t)n);
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, sum, 0, (size_t)count_elements(o, layer) * sizeof *sum);
    d->pending[half] = -1;
}

static void add(az_optim *o, int layer, const float *grad)
{
    const int64_t n = count_elements(o, layer);
    if (o->reduce == AZ_REDUCE_UNIT)
        settle(o, o->turn % 2);
    if (n > 0)
        o->kern->op->fixed_add(o->kern->self, az_optim_find_sums(o, layer), grad, (size_t)n,
                               o->limit, o->device.overflow_d, false);
}

static void end_unit(az_optim *o, int layer)
{
    az_optim_device *d = &o->device;
    const int half = o->turn % 2;
    const int64_t begin = o->spans->off[layer], end = o->spans->off[layer + 1];
    settle(o, half);
    if (begin < end) {
        for (int i = 0; i <= az_comm_n_positions(o->comm); i++)
            d->clipped[i] = az_min_i64(az_max_i64(d->cuts[i], begin), end) - begin;
        sum_over_ranks(o, az_optim_find_sums(o, layer), d->clipped, d->reduced[half]);
        d->pending[half] = layer;
    }
    o->turn++;
}

static void count(az_optim *o)
{
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, d->overflow, d->overflow_d, sizeof *d->overflow);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_NORM);
    o->extras[AZ_OPTIM_OVERFLOW] += *d->overflow;
}

static void reduce(az_optim *o)
{
    if (o->reduce == AZ_REDUCE_UNIT) {
        settle(o, 0);
        settle(o, 1);
    } else {
        sum_over_ranks(o, o->sum, o->device.cuts, o->device.reduced[0]);
        az_dev_wait(o->kern->dev, AZ_QUEUE_COMPUTE, o->device.reduced[0]);
    }
}

static void square(az_optim *o, double *squares)
{
    az_optim_device *d = &o->device;
    az_dev *dev = o->kern->dev;
    const size_t bytes = (size_t)az_ceil_div(o->n_own, AZ_PARAMS_BLOCK) * sizeof *squares;
    if (o->n_own == 0)
        return;
    o->kern->op->square_blocks(o->kern->self, d->squares_d, o->own, (size_t)o->n_own,
                               AZ_PARAMS_BLOCK);
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, d->squares, d->squares_d, bytes);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_NORM);
    memcpy(squares, d->squares, bytes);
}

static const int64_t *read(az_optim *o, const int64_t *sums, int64_t n)
{
    az_dev *dev = o->kern->dev;
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, o->device.piece, sums, (size_t)n * sizeof *sums);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    return o->device.piece;
}

const az_optim_way az_optim_on_device = {.create = create,
                                         .destroy = destroy,
                                         .begin = begin,
                                         .add = add,
                                         .end_unit = end_unit,
                                         .count = count,
                                         .reduce = reduce,
                                         .square = square,
                                         .read = read};

/* ---- 3. sizes ---- */

az_optim_gpu_sizes az_optim_measure_gpu(const az_spans *spans, const az_topology *topology,
                                        az_reduce reduce)
{
    const int64_t n = spans->off[spans->n];
    const int n_positions = topology->n_lanes * topology->n_nodes;
    const bool step = reduce == AZ_REDUCE_STEP;
    const size_t sums = (size_t)(step ? n : 2 * az_params_find_largest(spans)) * sizeof(int64_t);
    int64_t own[2]; /* most, least */
    size_t gradient[2], moments[2], results[2], other[2];
    const az_footprint common = az_optim_measure_common(spans, topology);
    az_params_find_slices(&own[0], &own[1], n, topology);
    for (int i = 0; i < 2; i++) {
        gradient[i] = sums + (step ? 0 : (size_t)own[i] * sizeof(int64_t));
        moments[i] = 2 * (size_t)own[i] * sizeof(float);
        results[i] =
            sizeof(int64_t) + (size_t)az_ceil_div(own[i], AZ_PARAMS_BLOCK) * sizeof(double);
        other[i] = common.most + results[i] +
                   (2 * ((size_t)n_positions + 1) + AZ_OPTIM_PIECE) * sizeof(int64_t);
    }
    return (az_optim_gpu_sizes){.device = {.gradient = {0, gradient[0], gradient[1]},
                                           .moments = {0, moments[0], moments[1]},
                                           .other = {0, results[0], results[1]}},
                                .host = {.moments = {0, moments[0], moments[1]},
                                         .other = {common.shared, other[0], other[1]}}};
}
