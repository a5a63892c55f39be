/* lora/pair: forward and backward of LoRA pairs beside frozen linears that have the same input.
 * Rules: PEFT's lora.Linear.
 *
 *   y += s drop(x) A' B'      A [R,in], B [out,R], s = alpha / R (or alpha / sqrt(R)), dropout on
 * this branch only
 *
 * The A of such pairs lie one after the other, and so are one matrix [width,in], where width is the
 * sum of their R; t = drop(x) A' [N,width] and its gradient dt hold those of all of them. Without
 * dropout they share one product, so that x is read once; masks are different, and with them each
 * has its own.
 *
 * Arrays lie in the memory of the device that kern works on, and are of the type of its activations
 * (act) except where said. Local; nothing is allocated. */
#ifndef AZ_LORA_PAIR_H
#define AZ_LORA_PAIR_H

#include "base/base.h"
#include "kern/kern.h"

/* One pair as the step sees it. R == 0: the linear is not adapted. dA, dB: gradients, f32,
 * overwritten by backward; dA lie as A do. */
typedef struct {
    int64_t R, in, out;
    float scale;
    const void *A, *B;
    float *dA, *dB;
    uint32_t module;   /* number of the linear in the model, names its dropout mask */
    int64_t at, width; /* columns [at, at + R) of t and dt are its own, of width */
} az_adapter;

/* ads [n]: the adapters of all linears with one input, adapted or not. drop: the mask but for its
 * module; p = 0: none. dropped [N,in]: scratch, used if p > 0. */

/* Set at and width from R. */
void az_pair_stack(az_adapter *ads, int n);
/* t[N,width] = drop(x)[N,in] A' of all of them. Kept for backward. */
void az_pair_forward_in(void *t, const void *x, const az_adapter *ads, int n, const az_mask *drop,
                        int64_t N, void *dropped, const az_kern *kern);
/* y[N,out] += s t B' of one. */
void az_pair_forward_out(void *y, const void *t, const az_adapter *ad, int64_t N,
                         const az_kern *kern);
/* dB = s dy' t, and its columns of dt = s dy B, of one. */
void az_pair_backward_out(void *dt, const void *dy, const void *t, const az_adapter *ad, int64_t N,
                          const az_kern *kern);
/* dA = dt' drop(x), and unless opt_dx is NULL dx += drop(dt A), of all of them. */
void az_pair_backward_in(void *opt_dx, const void *dt, const void *x, const az_adapter *ads, int n,
                         const az_mask *drop, int64_t N, void *dropped, const az_kern *kern);

#endif
