/* lora/pair: four thin products and a mask that is made again where it is needed. */
#include <config.h>

#include "lora/pair.h"

/* The pair's mask on rows of its input. */
static void drop_rows(void *y, const void *x, bool accumulate, const az_adapter *ad,
                      const az_mask *drop, int64_t N, const az_kern *kern)
{
    az_mask mask = *drop;
    mask.module = ad->module;
    kern->op->dropout(kern->self, y, x, accumulate, &mask, N, ad->in);
}

/* The branch's input: x itself, or x under its dropout mask in the scratch. */
static const void *drop_input(void *dropped, const void *x, const az_adapter *ad,
                              const az_mask *drop, int64_t N, const az_kern *kern)
{
    if (drop->p == 0)
        return x;
    drop_rows(dropped, x, false, ad, drop, N, kern);
    return dropped;
}

/* (numerics, eq. 24) */
void az_pair_forward(void *opt_y, void *t, const void *x, const az_adapter *ad, const az_mask *drop,
                     int64_t N, void *dropped, const az_kern *kern)
{
    const az_kern_ops *op = kern->op;
    const void *xd = drop_input(dropped, x, ad, drop, N, kern);
    op->gemm(kern->self, false, true, N, ad->R, ad->in, 1, xd, ad->in, ad->A, ad->in, 0, t, ad->R,
             false);
    if (opt_y != NULL)
        op->gemm(kern->self, false, true, N, ad->out, ad->R, ad->scale, t, ad->R, ad->B, ad->R, 1,
                 opt_y, ad->out, false);
}

/* (numerics, eq. 25) */
void az_pair_backward(void *opt_dx, const void *dy, const void *x, const void *t,
                      const az_adapter *ad, const az_mask *drop, int64_t N, void *dt, void *dropped,
                      const az_kern *kern)
{
    const az_kern_ops *op = kern->op;
    az_kern_self *self = kern->self;
    op->gemm(self, true, false, ad->out, ad->R, N, ad->scale, dy, ad->out, t, ad->R, 0, ad->dB,
             ad->R, true);
    op->gemm(self, false, false, N, ad->R, ad->out, ad->scale, dy, ad->out, ad->B, ad->R, 0, dt,
             ad->R, false);
    const void *xd = drop_input(dropped, x, ad, drop, N, kern);
    op->gemm(self, true, false, ad->R, ad->in, N, 1, dt, ad->R, xd, ad->in, 0, ad->dA, ad->in,
             true);
    if (opt_dx == NULL)
        return;
    if (drop->p == 0) {
        op->gemm(self, false, false, N, ad->in, ad->R, 1, dt, ad->R, ad->A, ad->in, 1, opt_dx,
                 ad->in, false);
        return;
    }
    op->gemm(self, false, false, N, ad->in, ad->R, 1, dt, ad->R, ad->A, ad->in, 0, dropped, ad->in,
             false);
    drop_rows(opt_dx, dropped, true, ad, drop, N, kern);
}
