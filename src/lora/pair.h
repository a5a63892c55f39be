/* lora/pair: forward and backward of one LoRA pair beside a frozen linear. Rules: PEFT's
 * lora.Linear.
 *
 *   y += s drop(x) A' B'      A [R,in], B [out,R], s = alpha / R (or alpha / sqrt(R)), dropout on
 * this branch only
 *
 * Arrays lie in the memory of the device that kern works on, and are of the type of its activations
 * (act) except where said. Local; nothing is allocated. */
#ifndef AZ_LORA_PAIR_H
#define AZ_LORA_PAIR_H

#include "base/base.h"
#include "kern/kern.h"

/* One pair as the step sees it. R == 0: the linear is not adapted. dA, dB: gradients, f32,
 * overwritten by backward. */
typedef struct {
    int64_t R, in, out;
    float scale;
    const void *A, *B;
    float *dA, *dB;
    uint32_t module; /* number of the linear in the model, names its dropout mask */
} az_adapter;

/* t[N,R] = drop(x)[N,in] A';  opt_y[N,out] += s t B' (NULL: t alone). t is kept for backward. drop:
 * the mask but for its module; p = 0: none. dropped [N,in]: scratch, used if p > 0. */
void az_pair_forward(void *opt_y, void *t, const void *x, const az_adapter *ad, const az_mask *drop,
                     int64_t N, void *dropped, const az_kern *kern);
/* dB = s dy' t, dA = s (dy B)' drop(x), and unless opt_dx is NULL dx += drop(s dy B A). x, t: as in
 * forward. dt [N,R] and dropped [N,in]: scratch. */
void az_pair_backward(void *opt_dx, const void *dy, const void *x, const void *t,
                      const az_adapter *ad, const az_mask *drop, int64_t N, void *dt, void *dropped,
                      const az_kern *kern);

#endif
