/* optim: a step: begin, loss, norm, clipping and the update. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "optim/optim_priv.h"

/* torch's clip_grad_norm_ divides by norm + 1e-6. */
#define CLIP_EPS 1e-6

void az_optim_begin(az_optim *optim, int n_micro)
{
    optim->turn = 0;
    memset(optim->extras, 0, sizeof optim->extras);
    /* So bounded, n_micro terms cannot leave the integer's range. */
    optim->limit = AZ_FIXED_RANGE / (n_micro > 1 ? n_micro : 1);
    optim->way->begin(optim);
}

void az_optim_add(az_optim *optim, int layer, const float *grad)
{
    optim->way->add(optim, layer, grad);
}

void az_optim_end_unit(az_optim *optim, int layer)
{
    if (optim->reduce == AZ_REDUCE_UNIT)
        optim->way->end_unit(optim, layer);
}

void az_optim_add_loss(az_optim *optim, double loss)
{
    optim->extras[AZ_OPTIM_LOSS] +=
        az_kern_to_fixed(loss, optim->limit, &optim->extras[AZ_OPTIM_OVERFLOW]);
}

/* Norm of the whole gradient, from each owner's part. */
static double global_norm(az_optim *o)
{
    double *lane = o->squares + o->cuts[0] / AZ_PARAMS_BLOCK;
    double *mine = o->squares + o->first / AZ_PARAMS_BLOCK, sum = 0;
    o->way->square(o, mine);
    az_comm_lane_allgatherv(o->comm, mine, lane, o->block_bytes, o->block_offsets);
    az_comm_node_barrier(o->comm);
    for (int64_t b = 0; b < o->n_blocks; b++)
        sum += o->squares[b];
    return sqrt(sum);
}

static az_optim_result make_step(az_optim *o, double lr)
{
    az_optim_result result = {.clip = 1};
    o->way->count(o);
    az_comm_sum_i64(o->comm, o->extras, AZ_OPTIM_N_EXTRAS);
    result.finite = o->extras[AZ_OPTIM_OVERFLOW] == 0;
    if (!result.finite) {
        result.loss = result.grad_norm = NAN;
        return result;
    }
    result.loss = (double)o->extras[AZ_OPTIM_LOSS] * AZ_FIXED_UNIT;
    o->way->reduce(o);
    result.grad_norm = global_norm(o);
    if (o->options.max_grad_norm > 0)
        result.clip = fmin(o->options.max_grad_norm / (result.grad_norm + CLIP_EPS), 1);
    o->updates++;
    const az_adamw adamw = {.lr = lr,
                            .beta1 = o->options.beta1,
                            .beta2 = o->options.beta2,
                            .eps = o->options.eps,
                            .weight_decay = o->options.weight_decay,
                            .t = o->updates};
    if (o->n_own > 0)
        o->kern->op->adamw(o->kern->self, az_params_get_slice_d(o->params), o->m, o->v, o->own,
                           result.clip, (size_t)o->n_own, &adamw);
    az_params_share_updated(o->params);
    return result;
}

az_optim_result az_optim_step(az_optim *o, double lr)
{
    az_optim_begin_time(o);
    const az_optim_result result = make_step(o, lr);
    az_optim_end_time(o);
    return result;
}
