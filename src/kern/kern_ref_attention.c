/* Plain twin of attention: one query and head after the other, probabilities computed where they
 * are used. */
#include <config.h>

#include <math.h>

#include "kern/kern_ref.h"

/* One query of one head: its keys and values. */
typedef struct {
    const double *q, *k, *v; /* k, v: of key 0 */
    int64_t seen, stride, K;
    double max, sum; /* of exp(score - max) */
} query;

static double score(const query *x, int64_t j)
{
    double s = 0;
    for (int64_t d = 0; d < x->K; d++)
        s += x->q[d] * x->k[j * x->stride + d];
    return s / sqrt((double)x->K);
}

static double probability(const query *x, int64_t j)
{
    return exp(score(x, j) - x->max) / x->sum;
}

static query query_at(const double *q, const double *k, const double *v, const az_seq *seq,
                      int64_t i, int h, int H, int G, int64_t K)
{
    int64_t key0 = (seq->k_row * G + h / (H / G)) * K;
    query x = {.q = q + ((seq->q_row + i) * H + h) * K,
               .k = k + key0,
               .v = v + key0,
               .seen = seq->k_len - seq->q_len + i + 1,
               .stride = G * K,
               .K = K,
               .max = -INFINITY};
    for (int64_t j = 0; j < x.seen; j++)
        x.max = fmax(x.max, score(&x, j));
    for (int64_t j = 0; j < x.seen; j++)
        x.sum += exp(score(&x, j) - x.max);
    return x;
}

void az_kern_attention_forward_ref(double *out, double *opt_lse, const double *q, const double *k,
                                   const double *v, const az_seq *seqs, int n_seqs, int H, int G,
                                   int64_t K)
{
    for (int s = 0; s < n_seqs; s++)
        for (int64_t i = 0; i < seqs[s].q_len; i++)
            for (int h = 0; h < H; h++) {
                query x = query_at(q, k, v, &seqs[s], i, h, H, G, K);
                int64_t row = (seqs[s].q_row + i) * H + h;
                for (int64_t d = 0; d < K; d++)
                    out[row * K + d] = 0;
                for (int64_t j = 0; j < x.seen; j++)
                    for (int64_t d = 0; d < K; d++)
                        out[row * K + d] += probability(&x, j) * x.v[j * x.stride + d];
                if (opt_lse != NULL)
                    opt_lse[row] = x.max + log(x.sum);
            }
}

/* With p the probabilities: dv_j += p_j dout; dp_j = dout v_j; ds_j = p_j (dp_j - sum_i p_i dp_i);
 * dq += ds_j k_j / sqrt(K); dk_j += ds_j q / sqrt(K). */
void az_kern_attention_backward_ref(double *dq, double *dk, double *dv, const double *dout,
                                    const double *q, const double *k, const double *v,
                                    const az_seq *seqs, int n_seqs, int H, int G, int64_t K)
{
    double root = sqrt((double)K);
    for (int s = 0; s < n_seqs; s++) {
        for (int64_t i = seqs[s].k_row * G * K; i < (seqs[s].k_row + seqs[s].k_len) * G * K; i++)
            dk[i] = dv[i] = 0;
        for (int64_t i = 0; i < seqs[s].q_len; i++)
            for (int h = 0; h < H; h++) {
                query x = query_at(q, k, v, &seqs[s], i, h, H, G, K);
                int64_t row = ((seqs[s].q_row + i) * H + h) * K, key0 = x.k - k;
                double delta = 0;
                for (int64_t d = 0; d < K; d++)
                    dq[row + d] = 0;
                for (int64_t j = 0; j < x.seen; j++) {
                    double p = probability(&x, j);
                    for (int64_t d = 0; d < K; d++)
                        delta += p * dout[row + d] * x.v[j * x.stride + d];
                }
                for (int64_t j = 0; j < x.seen; j++) {
                    double p = probability(&x, j), dp = 0;
                    for (int64_t d = 0; d < K; d++)
                        dp += dout[row + d] * x.v[j * x.stride + d];
                    for (int64_t d = 0; d < K; d++) {
                        int64_t key = key0 + j * x.stride + d;
                        dv[key] += p * dout[row + d];
                        dq[row + d] += p * (dp - delta) * k[key] / root;
                        dk[key] += p * (dp - delta) * x.q[d] / root;
                    }
                }
            }
    }
}
