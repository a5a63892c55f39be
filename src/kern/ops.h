/* kern/ops: the numeric operations of training and generation, as a table that each kind of device
 * fills. C and C++.
 *
 * Arrays lie in the device's memory, row-major; what is done to them is put into the device's
 * compute queue, in order. `act` arrays hold activations and their gradients, in the type that the
 * table was opened for (f32; on GPUs also bf16): they are void here. Sums are f32 at least. Frozen
 * weights come as views in the type of their file, and are made the activations' type as they are
 * used, in pieces, where they are of another. Each operation has a plain twin in double precision,
 * NAME_ref in kern_ref.h.
 *
 * Letters: N tokens, D model width, H query heads, G key/value heads, K head width, F feed-forward
 * width, V vocabulary, R adapter rank. All Local. For the same device model and sizes results are
 * the same bit for bit: no atomic addition of floating-point numbers, fixed workspaces. Nothing is
 * allocated: scratch is handed in. */
#ifndef AZ_KERN_OPS_H
#define AZ_KERN_OPS_H

#include <stdbool.h>

#include "base/num.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One sequence: q_len query rows from q_row, k_len key rows from k_row. Query i sees keys 0 ..
 * k_len - q_len + i. */
typedef struct {
    int64_t q_row, q_len, k_row, k_len;
} az_seq;

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t t; /* 1, 2, ...: number of this update */
} az_adamw;

/* A dropout mask's name: probability, and what the counter-based numbers are drawn for. sample,
 * pos: [N], in device memory. */
typedef struct {
    double p;
    uint64_t seed;
    uint32_t step, module;
    const uint32_t *sample;
    const int32_t *pos;
} az_mask;

/* Where a table works: the first argument of each operation. */
typedef struct az_kern_self az_kern_self;

typedef struct {
    /* ---- products. scratch: az_kern_linear_scratch bytes (kern.h) */

    /* C[M,N] = alpha op(A) op(B) + beta C; A and B are act; C is act, or f32 with c_f32. op is the
     * transpose where trans_ is set; ld: elements from row to row of the array as it lies. */
    void (*gemm)(az_kern_self *, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                 float alpha, const void *A, int64_t lda, const void *B, int64_t ldb, float beta,
                 void *C, int64_t ldc, bool c_f32);
    /* y[N,F] act, or f32 with y_f32 = x[N,D] W[F,D]' (+ b[F]); b.data NULL: none. */
    void (*linear_forward)(az_kern_self *, void *y, bool y_f32, const void *x, az_view W, az_view b,
                           int64_t N, void *scratch);
    /* dx[N,D] = (or +=, with add) dy[N,F] W[F,D]. */
    void (*linear_backward)(az_kern_self *, void *dx, const void *dy, az_view W, bool add,
                            int64_t N, void *scratch);

    /* ---- rows and elements */

    /* x[n,:] = row ids[n] - row0 of piece, for all n whose id lies in [row0, row0 + piece.rows).
     * x [N,D] act, ids [N] in device memory. */
    void (*embed)(az_kern_self *, void *x, az_view piece, int64_t row0, const int32_t *ids,
                  int64_t N);
    /* y[n,:] = x[n,:] / sqrt(mean(x[n,:]^2) + eps) * w; y is not x. */
    void (*rmsnorm_forward)(az_kern_self *, void *y, const void *x, az_view w, double eps,
                            int64_t N, int64_t D);
    /* dx[N,D] += gradient through the norm of dy[N,D], x [N,D] the norm's input. */
    void (*rmsnorm_backward)(az_kern_self *, void *dx, const void *dy, const void *x, az_view w,
                             double eps, int64_t N, int64_t D);
    /* Rotary embedding in place, half-split pairs (j, j + K/2): x [N, heads, K], pos [N] in device
     * memory, table f32 [P, K]: cos of K/2 angles, then sin, for position p < P. inverse: rotate
     * back (the gradient). */
    void (*rope)(az_kern_self *, void *x, const int32_t *pos, const float *table, int64_t N,
                 int heads, int64_t K, bool inverse);
    /* a[i] = silu(g[i]) * u[i];  backward: dg, du from da; five arrays that do not overlap. */
    void (*silu_gate_forward)(az_kern_self *, void *a, const void *g, const void *u, size_t n);
    void (*silu_gate_backward)(az_kern_self *, void *dg, void *du, const void *da, const void *g,
                               const void *u, size_t n);
    /* y[i] += x[i] */
    void (*add)(az_kern_self *, void *y, const void *x, size_t n);
    /* Inverted dropout, y[n,d] = keep ? x[n,d] / (1-p) : 0, y may be x. keep is a function of
     * (seed, step, module, sample[n], pos[n], d) alone: word (pos * ceil(D/4) + d/4) of the stream,
     * component d%4, kept if its unit value >= p. The gradient is the same operation on dy.
     * accumulate: y += instead. */
    void (*dropout)(az_kern_self *, void *y, const void *x, bool accumulate, const az_mask *mask,
                    int64_t N, int64_t D);
    /* y[i,:] = x[rows[i],:], and back: y[rows[i],:] = x[i,:]. i < n, rows [n] in device memory, all
     * different; width D, act. */
    void (*gather_rows)(az_kern_self *, void *y, const void *x, const int64_t *rows, int64_t n,
                        int64_t D);
    void (*scatter_rows)(az_kern_self *, void *y, const void *x, const int64_t *rows, int64_t n,
                         int64_t D);
    /* y act = x f32, rounded where act is narrower. */
    void (*narrow)(az_kern_self *, void *y, const float *x, size_t n);
    /* y f32 = view's elements, exactly. */
    void (*widen)(az_kern_self *, float *y, az_view x);

    /* ---- attention. scratch: az_kern_attention_scratch bytes (kern.h) */

    /* out[Nq,H,K] = softmax(q k' / sqrt(K)) v, causal, H/G query heads share a key head. q
     * [Nq,H,K], k, v [Nk,G,K] act. lse f32 [Nq,H]: log of the sum of exp of the scaled scores, for
     * backward. Tiled over queries: never the whole score matrix. seqs lie in host memory, and are
     * read before the call returns; no row belongs to two. */
    void (*attention_forward)(az_kern_self *, void *out, float *lse, const void *q, const void *k,
                              const void *v, const az_seq *seqs, int n_seqs, int H, int G,
                              int64_t K, void *scratch);
    /* dq [Nq,H,K], dk, dv [Nk,G,K] overwritten (for the rows of the sequences), from dout [Nq,H,K]
     * and what forward left. */
    void (*attention_backward)(az_kern_self *, void *dq, void *dk, void *dv, const void *dout,
                               const void *out, const float *lse, const void *q, const void *k,
                               const void *v, const az_seq *seqs, int n_seqs, int H, int G,
                               int64_t K, void *scratch);

    /* ---- cross entropy over a vocabulary that comes in column pieces */

    /* Fold a piece of logits f32 [N,C] (columns col0 .. col0+C of the vocabulary) into max[N],
     * sum[N] (sum of exp(logit - max)) and hit[N] (the logit at label[n], if it lies in the piece).
     * label [N] in device memory. Start with loss_begin. */
    void (*loss_begin)(az_kern_self *, float *max, double *sum, float *hit, int64_t N);
    void (*loss_fold)(az_kern_self *, float *max, double *sum, float *hit, const float *logits,
                      const int32_t *label, int64_t col0, int64_t N, int64_t C);
    /* *out (device memory) = sum over n, in an order that N alone decides, of log(sum) + max - hit:
     * the negative log-likelihood. */
    void (*loss_end)(az_kern_self *, double *out, const float *max, const double *sum,
                     const float *hit, int64_t N);
    /* dlogits act [N,C] = scale * (softmax - onehot). dlogits may be logits where act is f32. */
    void (*loss_backward)(az_kern_self *, void *dlogits, const float *logits, const float *max,
                          const double *sum, const int32_t *label, double scale, int64_t col0,
                          int64_t N, int64_t C);

    /* ---- exact sums and the optimizer. Fixed point: AZ_FIXED_UNIT */

    /* sum[i] += round(x[i] / unit), ties to even. A value that is not finite or whose magnitude is
     * limit or more is counted in *overflow (device memory) and adds nothing. shared: other
     * processes add to sum at the same time, each number as a whole (CPU alone). */
    void (*fixed_add)(az_kern_self *, int64_t *sum, const float *x, size_t n, double limit,
                      int64_t *overflow, bool shared);
    /* y[i] += x[i] */
    void (*add_i64)(az_kern_self *, int64_t *y, const int64_t *x, size_t n);
    /* out[b] = sum over block b of (g[i] * unit)^2 in double, in an order that depends on nothing
     * but the block's length; blocks of block elements, the last may be shorter. */
    void (*square_blocks)(az_kern_self *, double *out, const int64_t *g, size_t n, size_t block);
    /* AdamW as torch.optim.AdamW: g = fixed * unit * clip; p *= 1 - lr wd; m, v moments; p -=
     * lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). p, m, v [n] f32 in place; arithmetic per
     * element in double, rounded to f32 once each. */
    void (*adamw)(az_kern_self *, float *p, float *m, float *v, const int64_t *fixed, double clip,
                  size_t n, const az_adamw *o);
} az_kern_ops;

/* Fixed point: one unit is 2^-50. A value's limit is at most AZ_FIXED_RANGE, divided by the number
 * of terms so that no sum can wrap. */
#define AZ_FIXED_UNIT 0x1p-50
#define AZ_FIXED_RANGE 8192.0

#ifdef __cplusplus
}
#endif
#endif
