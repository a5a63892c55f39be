/* kern/kern_cpu: the operations on the CPU, as they fill its table (ops.h), and what is there on
 * the CPU alone.
 *
 * Arrays are f32, row-major, on the host. Frozen weights come as views in the type of their file
 * (f32, f16, bf16) and are widened as they are used, in pieces that fit the cache.
 *
 * All Local. Threads: OpenMP and the BLAS's own; BLAS is never called inside a parallel region. For
 * a given number of threads results are reproducible bit for bit; sizes of pieces are constants.
 * Nothing here allocates: scratch is handed in. */
#ifndef AZ_KERN_KERN_CPU_H
#define AZ_KERN_KERN_CPU_H

#include "kern/kern.h"

/* ---- products (kern_gemm.c) ---- */

/* C[M,N] = alpha op(A) op(B) + beta C. op is the transpose where trans_ is set; ld: elements from
 * row to row of the array as it lies in memory. 2 M N K flop. */
void az_kern_gemm_cpu(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, float alpha,
                      const float *A, int64_t lda, const float *B, int64_t ldb, float beta,
                      float *C, int64_t ldc);

/* Elements of scratch that az_kern_linear_* want, whatever the sizes. */
size_t az_kern_linear_scratch_cpu(void);
/* y[N,F] = x[N,D] W[F,D]' (+ b[F])       W, opt b: views; b.data NULL: none.
 * y overwritten. 2 N D F flop. */
void az_kern_linear_forward_cpu(float *y, const float *x, az_view W, az_view b, int64_t N,
                                float *scratch);
/* dx[N,D] = (or +=, with add) dy[N,F] W[F,D]. */
void az_kern_linear_backward_cpu(float *dx, const float *dy, az_view W, bool add, int64_t N,
                                 float *scratch);

/* ---- rows and elements (kern_elem.c) ---- */

/* For the rows [row0, row0 + piece.rows) of the embedding table that piece holds: x[n,:] = row
 * ids[n], for all n whose id lies in them. x [N,D]. */
void az_kern_embed_cpu(float *x, az_view piece, int64_t row0, const int32_t *ids, int64_t N);
/* y[n,:] = x[n,:] / sqrt(mean(x[n,:]^2) + eps) * w    rows of width D; y may not be x. */
void az_kern_rmsnorm_forward_cpu(float *y, const float *x, az_view w, double eps, int64_t N,
                                 int64_t D);
/* dx[N,D] += gradient through the norm of dy[N,D], x [N,D] the norm's input. No gradient of w. */
void az_kern_rmsnorm_backward_cpu(float *dx, const float *dy, const float *x, az_view w, double eps,
                                  int64_t N, int64_t D);
/* Rotary embedding in place, half-split pairs (j, j + K/2): x [N, heads, K], pos [N], table [P, K]:
 * cos of K/2 angles, then sin, for position p < P. inverse: rotate back (the gradient). */
void az_kern_rope_cpu(float *x, const int32_t *pos, const float *table, int64_t N, int heads,
                      int64_t K, bool inverse);
/* a[i] = silu(g[i]) * u[i];  backward: dg, du from da; five arrays that do not overlap.
 * n elements. */
void az_kern_silu_gate_forward_cpu(float *a, const float *g, const float *u, size_t n);
void az_kern_silu_gate_backward_cpu(float *dg, float *du, const float *da, const float *g,
                                    const float *u, size_t n);
/* y[i] += x[i] */
void az_kern_add_cpu(float *y, const float *x, size_t n);
/* Inverted dropout, y[n,d] = keep ? x[n,d] / (1-p) : 0, y may be x. keep is a function of (seed,
 * step, module, sample[n], pos[n], d) alone: word (pos * ceil(D/4) + d/4) of the stream, component
 * d%4, kept if its unit value >= p. The gradient is the same operation on dy. accumulate: y +=
 * instead. */
void az_kern_dropout_cpu(float *y, const float *x, bool accumulate, double p, uint64_t seed,
                         uint32_t step, uint32_t module, const uint32_t *sample, const int32_t *pos,
                         int64_t N, int64_t D);

/* ---- attention (kern_attention.c) ---- */

/* Elements of scratch for sequences of at most longest keys. Linear in longest. */
size_t az_kern_attention_scratch_cpu(int64_t longest, int H, int G, int64_t K);
/* out[Nq,H,K] = softmax(q k' / sqrt(K)) v, causal, H/G query heads share a key head. q [Nq,H,K], k,
 * v [Nk,G,K]. lse [Nq,H]: log of the sum of exp of the scaled scores, for backward. Tiled over
 * queries: never the whole score matrix. */
void az_kern_attention_forward_cpu(float *out, float *lse, const float *q, const float *k,
                                   const float *v, const az_seq *seqs, int n_seqs, int H, int G,
                                   int64_t K, float *scratch);
/* dq [Nq,H,K], dk, dv [Nk,G,K] overwritten (for the rows of the sequences), from dout [Nq,H,K] and
 * what forward left. */
void az_kern_attention_backward_cpu(float *dq, float *dk, float *dv, const float *dout,
                                    const float *out, const float *lse, const float *q,
                                    const float *k, const float *v, const az_seq *seqs, int n_seqs,
                                    int H, int G, int64_t K, float *scratch);

/* ---- cross entropy over a vocabulary that comes in column pieces (kern_loss.c) ---- */

/* Fold a piece of logits [N,C] (columns col0 .. col0+C of the vocabulary) into max[N], sum[N] (sum
 * of exp(logit - max)) and hit[N] (the logit at label[n], if it lies in the piece). Start with max
 * = -inf, sum = 0, hit = 0 (az_kern_loss_begin_cpu). */
void az_kern_loss_begin_cpu(float *max, double *sum, float *hit, int64_t N);
void az_kern_loss_fold_cpu(float *max, double *sum, float *hit, const float *logits,
                           const int32_t *label, int64_t col0, int64_t N, int64_t C);
/* Sum over n, in order, of log(sum) + max - hit: the negative log-likelihood. opt_each [N] also
 * gets every term. */
double az_kern_loss_end_cpu(const float *max, const double *sum, const float *hit, float *opt_each,
                            int64_t N);
/* logits [N,C] -> scale * (softmax - onehot) in place. */
void az_kern_loss_backward_cpu(float *logits, const float *max, const double *sum,
                               const int32_t *label, double scale, int64_t col0, int64_t N,
                               int64_t C);

/* ---- exact sums and the optimizer (kern_optim.c) ---- */

/* sum[i] += round(x[i] / unit), ties to even. */
void az_kern_fixed_add_cpu(int64_t *sum, const float *x, size_t n, double limit, int64_t *overflow);
/* The same where other processes add to sum at the same time, each number as a whole. */
void az_kern_fixed_add_shared_cpu(int64_t *sum, const float *x, size_t n, double limit,
                                  int64_t *overflow);
/* out[b] = sum over block b of (g[i] * unit)^2 in double, in an order that depends on nothing but
 * the block's length; blocks of block elements, the last may be shorter. */
void az_kern_square_blocks_cpu(double *out, const int64_t *g, size_t n, size_t block);

/* AdamW as torch.optim.AdamW: g = fixed * unit * clip; p *= 1 - lr wd; m, v moments; p -=
 * lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). p, m, v [n] f32 in place; arithmetic per element in
 * double, rounded to f32 once each. */
void az_kern_adamw_cpu(float *p, float *m, float *v, const int64_t *fixed, double clip, size_t n,
                       const az_adamw *o);

#endif
