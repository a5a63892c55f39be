/* optim: gradients summed exactly over micro-batches and ranks, the global norm, clipping, AdamW on
 * the owned slice, the schedule of the learning rate.
 *
 * Gradients are summed as fixed-point integers, so neither the order nor the number of ranks
 * changes a bit. The sums are there once a node, in memory to which all of its ranks add; between
 * nodes they are reduced over lanes (comm.h), to the owners of the slices (lora/params.h), which
 * hold the moments of their slices and update them. What is held and when it is reduced is a
 * choice that changes no bit either:
 *
 *   AZ_REDUCE_STEP   the sums of all layers, reduced once, at the end of the step
 *   AZ_REDUCE_UNIT   the sums of two layers in turn, reduced to the owners after each layer's
 *                    backward, for each group of micro-batches
 *
 * The norm is formed from sums of blocks of squares added in block order.
 *
 * On GPUs each rank adds to sums of its own in the memory of its GPU, which are reduced over the
 * fabric (comm/fabric.h); squares come to the host, which decides on the update, and the update is
 * the GPU's.
 *
 * Order of a step on the ranks of a node, with what keeps them apart (on the CPU; optim_device.c
 * says what does on GPUs):
 *
 *   begin      each clears its part of the sums | node barrier: all is clear
 *   add        each adds to the sums
 *   end_unit   (AZ_REDUCE_UNIT) node barrier: all have added to this layer's sums | lanes reduce
 *              and clear them, while others add to the next layer's in the other half; the half is
 *              used again only after the next barrier, to which lanes come when they are done
 *   step       loss and overflow summed over all ranks: all have added, and none reads parameters
 *              any more | lanes reduce | owners form squares, lanes bring them together |
 *              node barrier | all form the norm; owners update, lanes bring slices together |
 *              node barrier: parameters may be read, sums may be cleared */
#ifndef AZ_OPTIM_OPTIM_H
#define AZ_OPTIM_OPTIM_H

#include "base/base.h"
#include "comm/comm.h"
#include "lora/params.h"

typedef struct az_optim az_optim;

typedef enum { AZ_REDUCE_STEP, AZ_REDUCE_UNIT } az_reduce;

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

/* For the device that params are for. params is borrowed. Collective (agrees on memory). */
az_err az_optim_create(az_optim **out_optim, az_params *params, const az_optim_options *options,
                       az_reduce reduce, az_comm *comm);
/* Local, on all ranks. */
void az_optim_destroy(az_optim *opt_optim);
/* Start a step of n_micro micro-batches (over all ranks): sums are zero. Collective over the node.
 */
void az_optim_begin(az_optim *optim, int n_micro);
/* Add the gradient of one micro-batch for a layer's pairs, in the device's memory, already divided
 * by the step's targets. With AZ_REDUCE_UNIT: of the layer whose turn it is. Local. */
void az_optim_add(az_optim *optim, int layer, const float *grad);
/* The layer's backward is done on this rank, for a group of micro-batches or for none: each layer's
 * in turn, in the same order on all ranks. Does nothing with AZ_REDUCE_STEP. Collective. */
void az_optim_end_unit(az_optim *optim, int layer);
/* Add a micro-batch's share of the loss, already divided by the step's targets. Local. */
void az_optim_add_loss(az_optim *optim, double loss);
/* Sum over ranks, clip, update the owned slice of the parameters with AdamW, share them. If a
 * gradient or loss is not finite (or beyond the range of fixed point) nothing is updated.
 * Collective. */
az_optim_result az_optim_step(az_optim *optim, double lr);
/* How long steps have taken so far, by the device's clock: no time that passes take is counted. A
 * GPU's last step is missing as long as the GPU is not done with it. Local. */
double az_optim_get_seconds(az_optim *optim);
/* Whether the last step's gradient has anything but zeros in the owned part of elements [off,
 * off+n). Local. */
bool az_optim_has_gradient(az_optim *optim, int64_t off, int64_t n);
/* Moments of the slice that this rank owns (az_params_get_slice), in the host's memory: on a GPU a
 * copy. Local. */
float *az_optim_get_exp_avg(az_optim *optim);
float *az_optim_get_exp_avg_sq(az_optim *optim);
/* The host's copy is what updates have made of the moments; or they become what the host has
 * written. Local. */
void az_optim_pull(az_optim *optim);
void az_optim_push(az_optim *optim);
/* Updates made so far (steps that were not skipped): the exponent of AdamW's bias corrections. */
int64_t az_optim_get_updates(const az_optim *optim);
void az_optim_set_updates(az_optim *optim, int64_t updates);
/* Sums of the step so far, [n] in units of AZ_FIXED_UNIT (kern.h): what this rank holds of them, so
 * that those of all ranks add up to the gradient; on the CPU a node's first rank holds its node's.
 * With AZ_REDUCE_STEP. For tests. Local. */
void az_optim_copy_sums(int64_t *out, az_optim *optim);

/* Memory as az_optim_create takes it. Pure. */
typedef struct {
    az_footprint gradient, moments, other; /* other: squares of blocks, tables */
} az_optim_sizes;
az_optim_sizes az_optim_measure(const az_spans *spans, const az_topology *topology,
                                az_reduce reduce);
/* The same for GPUs: of a GPU's memory, and of the host's. topology: of the job's ranks. */
typedef struct {
    az_optim_sizes device, host;
} az_optim_gpu_sizes;
az_optim_gpu_sizes az_optim_measure_gpu(const az_spans *spans, const az_topology *topology,
                                        az_reduce reduce);

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
