/* kern_ref: the plain twins of the kernels, in double precision, never tuned. The tests hold the
 * kernels against them, and differentiate the forward ones by differences to check the backward
 * ones. Shapes and meaning are those of the routine of the same name in kern.h; weights come as
 * doubles. All Local, serial, without scratch. */
#ifndef AZ_KERN_KERN_REF_H
#define AZ_KERN_KERN_REF_H

#include "kern/kern_cpu.h"

/* ---- kern_ref_elem.c ---- */

void az_kern_linear_forward_ref(double *y, const double *x, const double *W, const double *opt_b,
                                int64_t N, int64_t D, int64_t F);
void az_kern_linear_backward_ref(double *dx, const double *dy, const double *W, bool add, int64_t N,
                                 int64_t D, int64_t F);
/* table [V,D], all rows. */
void az_kern_embed_ref(double *x, const double *table, const int32_t *ids, int64_t N, int64_t D);
void az_kern_rmsnorm_forward_ref(double *y, const double *x, const double *w, double eps, int64_t N,
                                 int64_t D);
void az_kern_rmsnorm_backward_ref(double *dx, const double *dy, const double *x, const double *w,
                                  double eps, int64_t N, int64_t D);
void az_kern_rope_ref(double *x, const int32_t *pos, const double *table, int64_t N, int heads,
                      int64_t K, bool inverse);
void az_kern_silu_gate_forward_ref(double *a, const double *g, const double *u, size_t n);
void az_kern_silu_gate_backward_ref(double *dg, double *du, const double *da, const double *g,
                                    const double *u, size_t n);
void az_kern_dropout_ref(double *y, const double *x, bool accumulate, double p, uint64_t seed,
                         uint32_t step, uint32_t module, const uint32_t *sample, const int32_t *pos,
                         int64_t N, int64_t D);

/* ---- kern_ref_attention.c ---- */

/* opt_lse may be NULL. */
void az_kern_attention_forward_ref(double *out, double *opt_lse, const double *q, const double *k,
                                   const double *v, const az_seq *seqs, int n_seqs, int H, int G,
                                   int64_t K);
/* Computes the probabilities again from q and k. */
void az_kern_attention_backward_ref(double *dq, double *dk, double *dv, const double *dout,
                                    const double *q, const double *k, const double *v,
                                    const az_seq *seqs, int n_seqs, int H, int G, int64_t K);

/* ---- kern_ref_optim.c ---- */

/* Sum over n of the negative log-likelihood of label[n] under logits [N,V]. */
double az_kern_loss_ref(const double *logits, const int32_t *label, int64_t N, int64_t V);
/* dlogits [N,V] overwritten: scale * (softmax - onehot). */
void az_kern_loss_backward_ref(double *dlogits, const double *logits, const int32_t *label,
                               double scale, int64_t N, int64_t V);
/* One update from the gradient g. */
void az_kern_adamw_ref(double *p, double *m, double *v, const double *g, size_t n,
                       const az_adamw *o);

#endif
