/* optim: norm, clipping and the update. */
#include <config.h>

#include <math.h>

#include "kern/kern_cpu.h"
#include "optim/optim_priv.h"

/* torch's clip_grad_norm_ divides by norm + 1e-6. */
#define CLIP_EPS 1e-6

/* Norm of the whole gradient, from each owner's part. */
static double global_norm(az_optim *o)
{
    double *lane = o->squares + o->cuts[0] / AZ_PARAMS_BLOCK;
    double *mine = o->squares + o->first / AZ_PARAMS_BLOCK, sum = 0;
    az_kern_square_blocks_cpu(mine, o->own, (size_t)o->n_own, AZ_PARAMS_BLOCK);
    az_comm_lane_allgatherv(o->comm, mine, lane, o->block_bytes, o->block_offsets);
    az_comm_node_barrier(o->comm);
    for (int64_t b = 0; b < o->n_blocks; b++)
        sum += o->squares[b];
    return sqrt(sum);
}

az_optim_result az_optim_step(az_optim *o, double lr)
{
    az_optim_result result = {.clip = 1};
    int64_t first, n;
    az_comm_sum_i64(o->comm, o->extras, AZ_OPTIM_N_EXTRAS);
    result.finite = o->extras[AZ_OPTIM_OVERFLOW] == 0;
    if (!result.finite) {
        result.loss = result.grad_norm = NAN;
        return result;
    }
    result.loss = (double)o->extras[AZ_OPTIM_LOSS] * AZ_FIXED_UNIT;
    az_optim_reduce(o);
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
    float *mine = az_params_get_slice(o->params, &first, &n);
    az_kern_adamw_cpu(mine, o->m, o->v, o->own, result.clip, (size_t)n, &adamw);
    az_params_share(o->params);
    return result;
}

float *az_optim_get_exp_avg(az_optim *optim)
{
    return optim->m;
}

float *az_optim_get_exp_avg_sq(az_optim *optim)
{
    return optim->v;
}

int64_t az_optim_get_updates(const az_optim *optim)
{
    return optim->updates;
}

void az_optim_set_updates(az_optim *optim, int64_t updates)
{
    optim->updates = updates;
}
