/* lora/pair: forward and backward of one LoRA pair beside a frozen linear. Rules: PEFT's
 * lora.Linear.
 *
 *   y += s drop(x) A' B'      A [R,in], B [out,R], s = alpha / R (or alpha / sqrt(R)), dropout on
 * this branch only
 *
 * All arrays f32. Local; nothing is allocated. */
#ifndef AZ_LORA_PAIR_H
#define AZ_LORA_PAIR_H

#include "base/base.h"

/* One pair as the step sees it. R == 0: the linear is not adapted. dA, dB: gradients, overwritten
 * by backward. */
typedef struct {
    int64_t R, in, out;
    float scale;
    const float *A, *B;
    float *dA, *dB;
    uint32_t module; /* number of the linear in the model, names its dropout mask */
} az_adapter;

/* What dropout depends on besides the module; rows are described by sample and pos [N]. p = 0:
 * none. */
typedef struct {
    double p;
    uint64_t seed;
    uint32_t step;
    const uint32_t *sample;
    const int32_t *pos;
} az_dropout;

/* t[N,R] = drop(x)[N,in] A';  opt_y[N,out] += s t B' (NULL: t alone). t is kept for backward.
 * dropped [N,in]: scratch, used if p > 0. */
void az_pair_forward(float *opt_y, float *t, const float *x, const az_adapter *ad,
                     const az_dropout *drop, int64_t N, float *dropped);
/* dB = s dy' t, dA = s (dy B)' drop(x), and unless opt_dx is NULL dx += drop(s dy B A). x, t: as in
 * forward. dt [N,R] and dropped [N,in]: scratch. */
void az_pair_backward(float *opt_dx, const float *dy, const float *x, const float *t,
                      const az_adapter *ad, const az_dropout *drop, int64_t N, float *dt,
                      float *dropped);

#endif
