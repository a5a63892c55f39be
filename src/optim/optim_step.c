/* optim: exact sums, norm, clipping and the update. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "optim/optim.h"

/* torch's clip_grad_norm_ divides by norm + 1e-6. */
#define CLIP_EPS 1e-6

/* What is summed over ranks besides gradients. */
enum { LOSS, OVERFLOW, N_EXTRAS };

struct az_optim {
    az_comm *comm;
    az_optim_options options;
    int64_t n, first, n_own, n_blocks;
    int64_t *counts;                     /* [ranks] elements owned */
    size_t *own_bytes, *own_offsets;     /* [ranks] of the f32 buffer */
    size_t *block_bytes, *block_offsets; /* [ranks] of squares */
    int64_t *sum, *own;                  /* [n] this rank's sums, [n_own] all ranks' */
    double *squares;                     /* [n_blocks] */
    float *m, *v;                        /* [n_own] moments */
    int64_t extras[N_EXTRAS];
    double limit; /* largest value one micro-batch may add */
    int64_t updates;
};

/* Slices: whole blocks, as even as they go. */
static void cut(az_optim *o)
{
    const int n_ranks = az_comm_size(o->comm), rank = az_comm_rank(o->comm);
    for (int r = 0; r < n_ranks; r++) {
        int64_t b0 = o->n_blocks * r / n_ranks, b1 = o->n_blocks * (r + 1) / n_ranks;
        int64_t e0 = az_min_i64(b0 * AZ_OPTIM_BLOCK, o->n);
        int64_t e1 = az_min_i64(b1 * AZ_OPTIM_BLOCK, o->n);
        o->counts[r] = e1 - e0;
        o->own_bytes[r] = (size_t)(e1 - e0) * sizeof(float);
        o->own_offsets[r] = (size_t)e0 * sizeof(float);
        o->block_bytes[r] = (size_t)(b1 - b0) * sizeof(double);
        o->block_offsets[r] = (size_t)b0 * sizeof(double);
        if (r == rank) {
            o->first = e0;
            o->n_own = e1 - e0;
        }
    }
}

az_err az_optim_create(az_optim **out_optim, int64_t n, const az_optim_options *options,
                       az_comm *comm)
{
    az_err err;
    az_optim *o = NULL;
    const size_t n_ranks = (size_t)az_comm_size(comm);
    *out_optim = NULL;
    AZ_TRY(AZ_NEW(o, 1, "optimizer"));
    o->comm = comm;
    o->options = *options;
    o->n = n;
    o->n_blocks = az_ceil_div(n, AZ_OPTIM_BLOCK);
    AZ_TRY(AZ_NEW(o->counts, n_ranks, "optimizer"));
    AZ_TRY(AZ_NEW(o->own_bytes, n_ranks, "optimizer"));
    AZ_TRY(AZ_NEW(o->own_offsets, n_ranks, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_bytes, n_ranks, "optimizer"));
    AZ_TRY(AZ_NEW(o->block_offsets, n_ranks, "optimizer"));
    cut(o);
    AZ_TRY(AZ_NEW(o->sum, (size_t)n, "adapter gradients"));
    AZ_TRY(AZ_NEW(o->own, (size_t)o->n_own, "adapter gradients"));
    AZ_TRY(AZ_NEW(o->squares, (size_t)o->n_blocks, "optimizer"));
    AZ_TRY(AZ_NEW(o->m, (size_t)o->n_own, "moments"));
    AZ_TRY(AZ_NEW(o->v, (size_t)o->n_own, "moments"));
out:
    err = az_comm_agree(comm, err);
    if (err != AZ_OK)
        az_optim_destroy(o);
    else
        *out_optim = o;
    return err;
}

void az_optim_destroy(az_optim *opt_optim)
{
    if (opt_optim == NULL)
        return;
    az_free(opt_optim->counts);
    az_free(opt_optim->own_bytes);
    az_free(opt_optim->own_offsets);
    az_free(opt_optim->block_bytes);
    az_free(opt_optim->block_offsets);
    az_free(opt_optim->sum);
    az_free(opt_optim->own);
    az_free(opt_optim->squares);
    az_free(opt_optim->m);
    az_free(opt_optim->v);
    az_free(opt_optim);
}

void az_optim_begin(az_optim *optim, int n_micro)
{
    memset(optim->sum, 0, (size_t)optim->n * sizeof *optim->sum);
    memset(optim->extras, 0, sizeof optim->extras);
    /* So bounded, n_micro terms cannot leave the integer's range. */
    optim->limit = AZ_FIXED_RANGE / (n_micro > 1 ? n_micro : 1);
}

void az_optim_add(az_optim *optim, const float *grad, int64_t off, int64_t n)
{
    az_kern_fixed_add(optim->sum + off, grad, (size_t)n, optim->limit, &optim->extras[OVERFLOW]);
}

void az_optim_add_loss(az_optim *optim, double loss)
{
    optim->extras[LOSS] += az_kern_to_fixed(loss, optim->limit, &optim->extras[OVERFLOW]);
}

/* Norm of the whole gradient from this rank's part. */
static double global_norm(az_optim *o)
{
    double *mine = (double *)((char *)o->squares + o->block_offsets[az_comm_rank(o->comm)]);
    az_kern_square_blocks(mine, o->own, (size_t)o->n_own, AZ_OPTIM_BLOCK);
    az_comm_allgatherv(o->comm, mine, o->squares, o->block_bytes, o->block_offsets);
    double sum = 0;
    for (int64_t b = 0; b < o->n_blocks; b++)
        sum += o->squares[b];
    return sqrt(sum);
}

az_optim_result az_optim_step(az_optim *o, float *flat, double lr)
{
    az_optim_result result = {.clip = 1};
    az_comm_sum_i64(o->comm, o->extras, N_EXTRAS);
    result.finite = o->extras[OVERFLOW] == 0;
    if (!result.finite) {
        result.loss = result.grad_norm = NAN;
        return result;
    }
    result.loss = (double)o->extras[LOSS] * AZ_FIXED_UNIT;
    az_comm_reduce_scatter_i64(o->comm, o->sum, o->own, o->counts);
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
    float *mine = flat + o->first;
    az_kern_adamw(mine, o->m, o->v, o->own, result.clip, (size_t)o->n_own, &adamw);
    az_optim_share(o, flat);
    return result;
}

void az_optim_share(az_optim *o, float *flat)
{
    az_comm_allgatherv(o->comm, flat + o->first, flat, o->own_bytes, o->own_offsets);
}

bool az_optim_has_gradient(const az_optim *optim, int64_t off, int64_t n)
{
    int64_t from = az_max_i64(off, optim->first);
    int64_t to = az_min_i64(off + n, optim->first + optim->n_own);
    for (int64_t i = from; i < to; i++)
        if (optim->own[i - optim->first] != 0)
            return true;
    return false;
}

const int64_t *az_optim_get_sums(const az_optim *optim)
{
    return optim->sum;
}

int64_t az_optim_get_slice(const az_optim *optim, int64_t *out_first)
{
    *out_first = optim->first;
    return optim->n_own;
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
