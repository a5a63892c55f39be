/* lora/pair: four thin products and a mask that is made again where it is needed. */
#include <config.h>

#include "lora/pair.h"

#include "kern/kern_cpu.h"

/* The branch's input: x itself, or x under its dropout mask in the scratch. */
static const float *drop_input(float *dropped, const float *x, const az_adapter *ad,
                               const az_dropout *drop, int64_t N)
{
    if (drop->p == 0)
        return x;
    az_kern_dropout_cpu(dropped, x, false, drop->p, drop->seed, drop->step, ad->module,
                        drop->sample, drop->pos, N, ad->in);
    return dropped;
}

/* (numerics, eq. 24) */
void az_pair_forward(float *opt_y, float *t, const float *x, const az_adapter *ad,
                     const az_dropout *drop, int64_t N, float *dropped)
{
    const float *xd = drop_input(dropped, x, ad, drop, N);
    az_kern_gemm_cpu(false, true, N, ad->R, ad->in, 1, xd, ad->in, ad->A, ad->in, 0, t, ad->R);
    if (opt_y != NULL)
        az_kern_gemm_cpu(false, true, N, ad->out, ad->R, ad->scale, t, ad->R, ad->B, ad->R, 1,
                         opt_y, ad->out);
}

/* (numerics, eq. 25) */
void az_pair_backward(float *opt_dx, const float *dy, const float *x, const float *t,
                      const az_adapter *ad, const az_dropout *drop, int64_t N, float *dt,
                      float *dropped)
{
    az_kern_gemm_cpu(true, false, ad->out, ad->R, N, ad->scale, dy, ad->out, t, ad->R, 0, ad->dB,
                     ad->R);
    az_kern_gemm_cpu(false, false, N, ad->R, ad->out, ad->scale, dy, ad->out, ad->B, ad->R, 0, dt,
                     ad->R);
    const float *xd = drop_input(dropped, x, ad, drop, N);
    az_kern_gemm_cpu(true, false, ad->R, ad->in, N, 1, dt, ad->R, xd, ad->in, 0, ad->dA, ad->in);
    if (opt_dx == NULL)
        return;
    if (drop->p == 0) {
        az_kern_gemm_cpu(false, false, N, ad->in, ad->R, 1, dt, ad->R, ad->A, ad->in, 1, opt_dx,
                         ad->in);
        return;
    }
    az_kern_gemm_cpu(false, false, N, ad->in, ad->R, 1, dt, ad->R, ad->A, ad->in, 0, dropped,
                     ad->in);
    az_kern_dropout_cpu(opt_dx, dropped, true, drop->p, drop->seed, drop->step, ad->module,
                        drop->sample, drop->pos, N, ad->in);
}
