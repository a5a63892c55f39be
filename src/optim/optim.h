/* optim: gradients summed exactly over micro-batches and ranks, the global norm, clipping, AdamW on
 * the owned slice, the schedule of the learning rate.
 *
 * The adapter is one flat f32 buffer of n elements, the same on every rank. It is sliced over ranks
 * on boundaries of blocks of AZ_OPTIM_BLOCK elements; a rank may own nothing. Gradients are summed
 * as fixed-point integers, so neither the order nor the number of ranks changes a bit; the norm is
 * formed from sums of blocks added in block order. */
#ifndef AZ_OPTIM_OPTIM_H
#define AZ_OPTIM_OPTIM_H

#include "base/base.h"
#include "comm/comm.h"

/* Elements of a block: slices are cut and squares are summed on these. Part of the numeric
 * definition. */
#define AZ_OPTIM_BLOCK 1024

typedef struct az_optim az_optim;

typedef struct {
    double beta1, beta2, eps, weight_decay;
    double max_grad_norm; /* 0: no clipping */
} az_optim_options;

/* What a step came to; the same on all ranks. */
typedef struct {
    double loss;      /* mean negative log-likelihood per target of the step */
    double grad_norm; /* before clipping; NaN if not finite */
    double clip;      /* factor applied, at most 1 */
    bool finite;      /* false: nothing was updated */
} az_optim_result;

/* Collective (agrees on memory). */
az_err az_optim_create(az_optim **out_optim, int64_t n, const az_optim_options *options,
                       az_comm *comm);
void az_optim_destroy(az_optim *opt_optim);
/* Start a step of n_micro micro-batches (over all ranks): sums are zero. */
void az_optim_begin(az_optim *optim, int n_micro);
/* Add gradients [off, off+n) of one micro-batch, already divided by the step's targets. Local. */
void az_optim_add(az_optim *optim, const float *grad, int64_t off, int64_t n);
/* Add a micro-batch's share of the loss, already divided by the step's targets. Local. */
void az_optim_add_loss(az_optim *optim, double loss);
/* Sum over ranks, clip, update the owned slice of flat[n] with AdamW, put flat together again. If a
 * gradient or loss is not finite (or beyond the range of fixed point) nothing is updated.
 * Collective. */
az_optim_result az_optim_step(az_optim *optim, float *flat, double lr);
/* Whether the last step's gradient has anything but zeros in the owned part of elements [off,
 * off+n). Local. */
bool az_optim_has_gradient(const az_optim *optim, int64_t off, int64_t n);
/* What this rank owns: elements [*out_first, *out_first + return value) of the flat buffer, and
 * their moments. Local. */
int64_t az_optim_get_slice(const az_optim *optim, int64_t *out_first);
float *az_optim_get_exp_avg(az_optim *optim);
float *az_optim_get_exp_avg_sq(az_optim *optim);
/* Put flat together from the parts that the ranks own. Collective. */
void az_optim_share(az_optim *optim, float *flat);
/* Updates made so far (steps that were not skipped): the exponent of AdamW's bias corrections. */
int64_t az_optim_get_updates(const az_optim *optim);
void az_optim_set_updates(az_optim *optim, int64_t updates);
/* This rank's sums of the step so far, [n] in units of AZ_FIXED_UNIT (kern.h); for tests. */
const int64_t *az_optim_get_sums(const az_optim *optim);

/* Schedule of the learning rate, as transformers' get_*_schedule: linear warm-up from 0 over warmup
 * steps, then constant, linear or cosine decay from peak to floor at total steps. step counts from
 * 0. */
typedef enum { AZ_LR_CONSTANT, AZ_LR_LINEAR, AZ_LR_COSINE } az_lr_kind;
typedef struct {
    az_lr_kind kind;
    double peak, floor;
    int64_t warmup, total;
} az_lr;
double az_lr_get(const az_lr *lr, int64_t step);

#endif
