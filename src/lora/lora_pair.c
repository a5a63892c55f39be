/* lora/pair: four thin products and a mask that is made again where it is needed. */
#include <config.h>

#include "lora/pair.h"

void az_pair_stack(az_adapter *ads, int n)
{
    int64_t width = 0;
    for (int i = 0; i < n; i++) {
        ads[i].at = width;
        width += ads[i].R;
    }
    for (int i = 0; i < n; i++)
        ads[i].width = width;
}

/* All pairs of one input as one; R is 0 if there are none. */
static az_adapter join(const az_adapter *ads, int n, const az_kern *kern)
{
    az_adapter all = {0};
    for (int i = n - 1; i >= 0; i--) {
        if (ads[i].R == 0)
            continue;
        AZ_ASSERT(all.R == 0 || all.A == az_kern_at(kern, ads[i].A, ads[i].R * ads[i].in));
        AZ_ASSERT(all.R == 0 || ads[i].dA == NULL || all.dA == ads[i].dA + ads[i].R * ads[i].in);
        const int64_t R = all.R + ads[i].R;
        all = ads[i];
        all.R = R;
    }
    AZ_ASSERT(all.R == all.width);
    return all;
}

/* A pair's mask on rows of its input. */
static void drop_rows(void *y, const void *x, bool accumulate, const az_adapter *ad,
                      const az_mask *drop, int64_t N, const az_kern *kern)
{
    az_mask mask = *drop;
    mask.module = ad->module;
    kern->op->dropout(kern->self, y, x, accumulate, &mask, N, ad->in);
}

/* t = x A' */
static void form_t(void *t, const void *x, const az_adapter *ad, int64_t N, const az_kern *kern)
{
    kern->op->gemm(kern->self, false, true, N, ad->R, ad->in, 1, x, ad->in, ad->A, ad->in, 0,
                   az_kern_at(kern, t, ad->at), ad->width, false);
}

/* (numerics, eq. 24) */
void az_pair_forward_in(void *t, const void *x, const az_adapter *ads, int n, const az_mask *drop,
                        int64_t N, void *dropped, const az_kern *kern)
{
    if (drop->p == 0) {
        const az_adapter all = join(ads, n, kern);
        if (all.R > 0)
            form_t(t, x, &all, N, kern);
        return;
    }
    for (int i = 0; i < n; i++)
        if (ads[i].R > 0) {
            drop_rows(dropped, x, false, &ads[i], drop, N, kern);
            form_t(t, dropped, &ads[i], N, kern);
        }
}

void az_pair_forward_out(void *y, const void *t, const az_adapter *ad, int64_t N,
                         const az_kern *kern)
{
    kern->op->gemm(kern->self, false, true, N, ad->out, ad->R, ad->scale,
                   az_kern_at(kern, t, ad->at), ad->width, ad->B, ad->R, 1, y, ad->out, false);
}

/* (numerics, eq. 25) */
void az_pair_backward_out(void *dt, const void *dy, const void *t, const az_adapter *ad, int64_t N,
                          const az_kern *kern)
{
    kern->op->gemm(kern->self, true, false, ad->out, ad->R, N, ad->scale, dy, ad->out,
                   az_kern_at(kern, t, ad->at), ad->width, 0, ad->dB, ad->R, true);
    kern->op->gemm(kern->self, false, false, N, ad->R, ad->out, ad->scale, dy, ad->out, ad->B,
                   ad->R, 0, az_kern_at(kern, dt, ad->at), ad->width, false);
}

/* dA = dt' x */
static void form_dA(const void *dt, const void *x, const az_adapter *ad, int64_t N,
                    const az_kern *kern)
{
    kern->op->gemm(kern->self, true, false, ad->R, ad->in, N, 1, az_kern_at(kern, dt, ad->at),
                   ad->width, x, ad->in, 0, ad->dA, ad->in, true);
}

/* dx = dt A + beta dx */
static void form_dx(void *dx, const void *dt, const az_adapter *ad, float beta, int64_t N,
                    const az_kern *kern)
{
    kern->op->gemm(kern->self, false, false, N, ad->in, ad->R, 1, az_kern_at(kern, dt, ad->at),
                   ad->width, ad->A, ad->in, beta, dx, ad->in, false);
}

void az_pair_backward_in(void *opt_dx, const void *dt, const void *x, const az_adapter *ads, int n,
                         const az_mask *drop, int64_t N, void *dropped, const az_kern *kern)
{
    if (drop->p == 0) {
        const az_adapter all = join(ads, n, kern);
        if (all.R == 0)
            return;
        form_dA(dt, x, &all, N, kern);
        if (opt_dx != NULL)
            form_dx(opt_dx, dt, &all, 1, N, kern);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (ads[i].R == 0)
            continue;
        drop_rows(dropped, x, false, &ads[i], drop, N, kern);
        form_dA(dt, dropped, &ads[i], N, kern);
        if (opt_dx == NULL)
            continue;
        form_dx(dropped, dt, &ads[i], 0, N, kern);
        drop_rows(opt_dx, dropped, true, &ads[i], drop, N, kern);
    }
}
