/* The CPU's table of operations: its kernels, with host memory for the device's. */
#include <config.h>

#include <string.h>

#include "kern/kern_priv.h"

static void gemm(az_kern_self *self, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                 float alpha, const void *A, int64_t lda, const void *B, int64_t ldb, float beta,
                 void *C, int64_t ldc, bool c_f32)
{
    (void)self;
    (void)c_f32;
    az_kern_gemm_cpu(trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

static void linear_forward(az_kern_self *self, void *y, bool y_f32, const void *x, az_view W,
                           az_view b, int64_t N, void *scratch)
{
    (void)self;
    (void)y_f32;
    az_kern_linear_forward_cpu(y, x, W, b, N, scratch);
}

static void linear_backward(az_kern_self *self, void *dx, const void *dy, az_view W, bool add,
                            int64_t N, void *scratch)
{
    (void)self;
    az_kern_linear_backward_cpu(dx, dy, W, add, N, scratch);
}

static void embed(az_kern_self *self, void *x, az_view piece, int64_t row0, const int32_t *ids,
                  int64_t N)
{
    (void)self;
    az_kern_embed_cpu(x, piece, row0, ids, N);
}

static void rmsnorm_forward(az_kern_self *self, void *y, const void *x, az_view w, double eps,
                            int64_t N, int64_t D)
{
    (void)self;
    az_kern_rmsnorm_forward_cpu(y, x, w, eps, N, D);
}

static void rmsnorm_backward(az_kern_self *self, void *dx, const void *dy, const void *x, az_view w,
                             double eps, int64_t N, int64_t D)
{
    (void)self;
    az_kern_rmsnorm_backward_cpu(dx, dy, x, w, eps, N, D);
}

static void rope(az_kern_self *self, void *x, const int32_t *pos, const float *table, int64_t N,
                 int heads, int64_t K, bool inverse)
{
    (void)self;
    az_kern_rope_cpu(x, pos, table, N, heads, K, inverse);
}

static void silu_gate_forward(az_kern_self *self, void *a, const void *g, const void *u, size_t n)
{
    (void)self;
    az_kern_silu_gate_forward_cpu(a, g, u, n);
}

static void silu_gate_backward(az_kern_self *self, void *dg, void *du, const void *da,
                               const void *g, const void *u, size_t n)
{
    (void)self;
    az_kern_silu_gate_backward_cpu(dg, du, da, g, u, n);
}

static void add(az_kern_self *self, void *y, const void *x, size_t n)
{
    (void)self;
    az_kern_add_cpu(y, x, n);
}

static void dropout(az_kern_self *self, void *y, const void *x, bool accumulate,
                    const az_mask *mask, int64_t N, int64_t D)
{
    (void)self;
    az_kern_dropout_cpu(y, x, accumulate, mask->p, mask->seed, mask->step, mask->module,
                        mask->sample, mask->pos, N, D);
}

static void gather_rows(az_kern_self *self, void *y, const void *x, const int64_t *rows, int64_t n,
                        int64_t D)
{
    const size_t width = (size_t)D * sizeof(float);
    (void)self;
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)y + (size_t)i * width, (const char *)x + (size_t)rows[i] * width, width);
}

static void scatter_rows(az_kern_self *self, void *y, const void *x, const int64_t *rows, int64_t n,
                         int64_t D)
{
    const size_t width = (size_t)D * sizeof(float);
    (void)self;
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)y + (size_t)rows[i] * width, (const char *)x + (size_t)i * width, width);
}

static void narrow(az_kern_self *self, void *y, const float *x, size_t n)
{
    (void)self;
    memcpy(y, x, n * sizeof *x);
}

static void widen(az_kern_self *self, float *y, az_view x)
{
    (void)self;
    az_kern_widen(y, x.data, x.dtype, (size_t)(x.rows * x.cols));
}

static void attention_forward(az_kern_self *self, void *out, float *lse, const void *q,
                              const void *k, const void *v, const az_seq *seqs, int n_seqs, int H,
                              int G, int64_t K, void *scratch)
{
    (void)self;
    az_kern_attention_forward_cpu(out, lse, q, k, v, seqs, n_seqs, H, G, K, scratch);
}

static void attention_backward(az_kern_self *self, void *dq, void *dk, void *dv, const void *dout,
                               const void *out, const float *lse, const void *q, const void *k,
                               const void *v, const az_seq *seqs, int n_seqs, int H, int G,
                               int64_t K, void *scratch)
{
    (void)self;
    az_kern_attention_backward_cpu(dq, dk, dv, dout, out, lse, q, k, v, seqs, n_seqs, H, G, K,
                                   scratch);
}

static void loss_begin(az_kern_self *self, float *max, double *sum, float *hit, int64_t N)
{
    (void)self;
    az_kern_loss_begin_cpu(max, sum, hit, N);
}

static void loss_fold(az_kern_self *self, float *max, double *sum, float *hit, const float *logits,
                      const int32_t *label, int64_t col0, int64_t N, int64_t C)
{
    (void)self;
    az_kern_loss_fold_cpu(max, sum, hit, logits, label, col0, N, C);
}

static void loss_end(az_kern_self *self, double *out, const float *max, const double *sum,
                     const float *hit, int64_t N)
{
    (void)self;
    *out = az_kern_loss_end_cpu(max, sum, hit, NULL, N);
}

static void loss_backward(az_kern_self *self, void *dlogits, const float *logits, const float *max,
                          const double *sum, const int32_t *label, double scale, int64_t col0,
                          int64_t N, int64_t C)
{
    (void)self;
    if (dlogits != logits)
        memcpy(dlogits, logits, (size_t)(N * C) * sizeof *logits);
    az_kern_loss_backward_cpu(dlogits, max, sum, label, scale, col0, N, C);
}

static void fixed_add(az_kern_self *self, int64_t *sum, const float *x, size_t n, double limit,
                      int64_t *overflow, bool shared)
{
    (void)self;
    if (shared)
        az_kern_fixed_add_shared_cpu(sum, x, n, limit, overflow);
    else
        az_kern_fixed_add_cpu(sum, x, n, limit, overflow);
}

static void add_i64(az_kern_self *self, int64_t *y, const int64_t *x, size_t n)
{
    (void)self;
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void square_blocks(az_kern_self *self, double *out, const int64_t *g, size_t n, size_t block)
{
    (void)self;
    az_kern_square_blocks_cpu(out, g, n, block);
}

static void adamw(az_kern_self *self, float *p, float *m, float *v, const int64_t *fixed,
                  double clip, size_t n, const az_adamw *o)
{
    (void)self;
    az_kern_adamw_cpu(p, m, v, fixed, clip, n, o);
}

const az_kern_ops az_kern_ops_cpu = {.gemm = gemm,
                                     .linear_forward = linear_forward,
                                     .linear_backward = linear_backward,
                                     .embed = embed,
                                     .rmsnorm_forward = rmsnorm_forward,
                                     .rmsnorm_backward = rmsnorm_backward,
                                     .rope = rope,
                                     .silu_gate_forward = silu_gate_forward,
                                     .silu_gate_backward = silu_gate_backward,
                                     .add = add,
                                     .dropout = dropout,
                                     .gather_rows = gather_rows,
                                     .scatter_rows = scatter_rows,
                                     .narrow = narrow,
                                     .widen = widen,
                                     .attention_forward = attention_forward,
                                     .attention_backward = attention_backward,
                                     .loss_begin = loss_begin,
                                     .loss_fold = loss_fold,
                                     .loss_end = loss_end,
                                     .loss_backward = loss_backward,
                                     .fixed_add = fixed_add,
                                     .add_i64 = add_i64,
                                     .square_blocks = square_blocks,
                                     .adamw = adamw};
