/* Causal attention with grouped heads, forward and backward.
 *
 * A tile is a constant number of queries of one group of heads; the H/G heads that share a key head
 * are stacked, so that a tile is one product with the keys up to its last query and one with the
 * values. What the causal mask hides from the whole tile is never computed. A row of scores is held
 * whole, so scratch grows with the longest sequence only. Loops between the products are parallel
 * over rows; the BLAS has its own threads. dk and dv are summed over tiles in their order. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

/* Rows of a tile: queries times heads of a group. */
#define ROWS 192

/* One tile and the places of its pieces. Row (i, h) of the stacked arrays is query q0 + i, head h
 * of the group. */
typedef struct {
    int64_t q_row; /* of the first query, in q, out, ... */
    int64_t n;     /* queries */
    int64_t heads; /* of the group */
    int64_t m;     /* rows: n * heads */
    int64_t seen;  /* keys that the first query sees */
    int64_t keys;  /* keys that the last query sees */
    int64_t ld;    /* of scores */
    int64_t head0; /* first head of the group */
    const az_seq *seq;
} tile;

/* Scratch, carved. */
typedef struct {
    float *scores, *dscores, *q, *dout, *y, *a;
} pieces;

static int64_t tile_queries(int H, int G)
{
    return az_max_i64(1, ROWS * G / H);
}

/* A row of scores: padded, so that rows of a power of two do not fall on the same lines of the
 * cache. */
static int64_t padded(int64_t keys)
{
    return (keys + 15) / 16 * 16 + 16;
}

size_t az_kern_attention_scratch_cpu(int64_t longest, int H, int G, int64_t K)
{
    int64_t rows = tile_queries(H, G) * (H / G);
    return (size_t)(2 * rows * padded(longest) + 3 * rows * K + rows);
}

static pieces carve(float *scratch, const az_seq *seqs, int n_seqs, int H, int G, int64_t K)
{
    int64_t rows = tile_queries(H, G) * (H / G), longest = 0;
    for (int i = 0; i < n_seqs; i++)
        longest = az_max_i64(longest, seqs[i].k_len);
    pieces s;
    s.scores = scratch;
    s.dscores = s.scores + rows * padded(longest);
    s.q = s.dscores + rows * padded(longest);
    s.dout = s.q + rows * K;
    s.y = s.dout + rows * K;
    s.a = s.y + rows * K;
    return s;
}

static tile tile_at(const az_seq *seq, int64_t q0, int g, int H, int G)
{
    int64_t heads = H / G, n = az_min_i64(tile_queries(H, G), seq->q_len - q0),
            seen = seq->k_len - seq->q_len + q0 + 1;
    return (tile){.q_row = seq->q_row + q0,
                  .n = n,
                  .heads = heads,
                  .m = n * heads,
                  .seen = seen,
                  .keys = seen + n - 1,
                  .ld = padded(seen + n - 1),
                  .head0 = g * heads,
                  .seq = seq};
}

/* ---- loops over one row, for vectors ---- */

/* x = exp(x - shift); returns the sum. */
AZ_HOT static double exp_sum(float *x, float shift, int64_t n)
{
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) {
        x[i] = az_kern_expf(x[i] - shift);
        s += (double)x[i];
    }
    return s;
}

AZ_HOT static void scale_row(float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* p = exp(p - lse); ds = p (ds - delta) scale */
AZ_HOT static void score_gradient(float *restrict p, float *restrict ds, float lse, float delta,
                                  float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        p[i] = az_kern_expf(p[i] - lse);
        ds[i] = p[i] * (ds[i] - delta) * scale;
    }
}

AZ_HOT static double dot(const float *x, const float *y, int64_t n)
{
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)y[i];
    return s;
}

/* ---- tiles ---- */

/* The heads of a group lie side by side in a row of q: each query is one copy. */
static void stack_rows(float *to, const float *from, const tile *t, int H, int64_t K)
{
    size_t bytes = (size_t)(t->heads * K) * sizeof *to;
    for (int64_t i = 0; i < t->n; i++)
        memcpy(to + i * t->heads * K, from + ((t->q_row + i) * H + t->head0) * K, bytes);
}

static void unstack_rows(float *to, const float *from, const tile *t, int H, int64_t K)
{
    size_t bytes = (size_t)(t->heads * K) * sizeof *to;
    for (int64_t i = 0; i < t->n; i++)
        memcpy(to + ((t->q_row + i) * H + t->head0) * K, from + i * t->heads * K, bytes);
}

/* scores[m, keys] = q k' / sqrt(K) */
static void fill_scores(float *scores, const float *q, const float *k, const tile *t, int g, int G,
                        int64_t K)
{
    az_kern_gemm_cpu(false, true, t->m, t->keys, K, (float)(1.0 / sqrt((double)K)), q, K,
                     k + (t->seq->k_row * G + g) * K, G * K, 0.0f, scores, t->ld);
}

static void forward_tile(float *out, float *lse, const float *q, const float *k, const float *v,
                         const tile *t, int g, int H, int G, int64_t K, const pieces *s)
{
    stack_rows(s->q, q, t, H, K);
    fill_scores(s->scores, s->q, k, t, g, G, K);
#pragma omp parallel for schedule(static) if (t->m * t->keys > AZ_KERN_PARALLEL)
    for (int64_t row = 0; row < t->m; row++) {
        float *x = s->scores + row * t->ld;
        int64_t i = row / t->heads, seen = t->seen + i;
        float max = az_kern_largest(x, seen);
        double sum = exp_sum(x, max, seen);
        memset(x + seen, 0, (size_t)(t->keys - seen) * sizeof *x);
        lse[(t->q_row + i) * H + t->head0 + row % t->heads] = (float)((double)max + log(sum));
        s->a[row] = (float)(1.0 / sum);
    }
    az_kern_gemm_cpu(false, false, t->m, K, t->keys, 1.0f, s->scores, t->ld,
                     v + (t->seq->k_row * G + g) * K, G * K, 0.0f, s->y, K);
    for (int64_t row = 0; row < t->m; row++)
        scale_row(s->y + row * K, s->a[row], K);
    unstack_rows(out, s->y, t, H, K);
}

/* ---- one row ---- */

/* scores[j] = scale q k_j */
AZ_HOT static void fill_row(float *scores, const float *q, const float *k, int64_t stride,
                            float scale, int64_t n, int64_t K)
{
    for (int64_t j = 0; j < n; j++) {
        const float *key = k + j * stride;
        float s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t d = 0; d < K; d++)
            s += q[d] * key[d];
        scores[j] = s * scale;
    }
}

/* out = sum over j of p[j] v_j, in order of j, times scale */
AZ_HOT static void sum_values(float *restrict out, const float *restrict p, const float *restrict v,
                              int64_t stride, float scale, int64_t n, int64_t K)
{
    memset(out, 0, (size_t)K * sizeof *out);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < K; d++)
            out[d] += p[j] * v[j * stride + d];
    for (int64_t d = 0; d < K; d++)
        out[d] *= scale;
}

/* Generation without grouped heads: one row for each key head, which a product handles at half the
 * speed at which the memory delivers keys. With three heads and more the product is faster. */
static void forward_row(float *out, float *lse, const float *q, const float *k, const float *v,
                        const az_seq *seq, int H, int64_t K, const pieces *s)
{
    const int64_t stride = H * K, ld = padded(seq->k_len);
    const float scale = (float)(1.0 / sqrt((double)K));
#pragma omp parallel for schedule(static) if (seq->k_len * stride > AZ_KERN_PARALLEL)
    for (int h = 0; h < H; h++) {
        int64_t at = seq->q_row * H + h, key0 = (seq->k_row * H + h) * K;
        float *p = s->scores + h * ld;
        fill_row(p, q + at * K, k + key0, stride, scale, seq->k_len, K);
        float max = az_kern_largest(p, seq->k_len);
        double sum = exp_sum(p, max, seq->k_len);
        lse[at] = (float)((double)max + log(sum));
        sum_values(out + at * K, p, v + key0, stride, (float)(1.0 / sum), seq->k_len, K);
    }
}

/* Whether a sequence is taken that way; its scores lie where those of a tile would. */
static bool is_one_row(const az_seq *seq, int H, int G)
{
    return seq->q_len == 1 && H == G && H <= tile_queries(H, G);
}

/* (numerics, eq. 12-13) */
void az_kern_attention_forward_cpu(float *out, float *lse, const float *q, const float *k,
                                   const float *v, const az_seq *seqs, int n_seqs, int H, int G,
                                   int64_t K, float *scratch)
{
    AZ_ASSERT(G > 0 && H % G == 0);
    pieces s = carve(scratch, seqs, n_seqs, H, G, K);
    for (int i = 0; i < n_seqs; i++) {
        AZ_ASSERT(seqs[i].k_len >= seqs[i].q_len);
        if (is_one_row(&seqs[i], H, G)) {
            forward_row(out, lse, q, k, v, &seqs[i], H, K, &s);
            continue;
        }
        for (int g = 0; g < G; g++)
            for (int64_t q0 = 0; q0 < seqs[i].q_len; q0 += tile_queries(H, G)) {
                tile t = tile_at(&seqs[i], q0, g, H, G);
                forward_tile(out, lse, q, k, v, &t, g, H, G, K, &s);
            }
    }
}

static void backward_tile(float *dq, float *dk, float *dv, const float *dout, const float *out,
                          const float *lse, const float *q, const float *k, const float *v,
                          const tile *t, int g, int H, int G, int64_t K, const pieces *s)
{
    const float scale = (float)(1.0 / sqrt((double)K));
    const int64_t key0 = (t->seq->k_row * G + g) * K;
    stack_rows(s->q, q, t, H, K);
    stack_rows(s->dout, dout, t, H, K);
    stack_rows(s->y, out, t, H, K);
    fill_scores(s->scores, s->q, k, t, g, G, K);
    az_kern_gemm_cpu(false, true, t->m, t->keys, K, 1.0f, s->dout, K, v + key0, G * K, 0.0f,
                     s->dscores, t->ld);
#pragma omp parallel for schedule(static) if (t->m * t->keys > AZ_KERN_PARALLEL)
    for (int64_t row = 0; row < t->m; row++) {
        float *p = s->scores + row * t->ld, *ds = s->dscores + row * t->ld;
        int64_t i = row / t->heads, seen = t->seen + i;
        float delta = (float)dot(s->dout + row * K, s->y + row * K, K);
        score_gradient(p, ds, lse[(t->q_row + i) * H + t->head0 + row % t->heads], delta, scale,
                       seen);
        memset(p + seen, 0, (size_t)(t->keys - seen) * sizeof *p);
        memset(ds + seen, 0, (size_t)(t->keys - seen) * sizeof *ds);
    }
    az_kern_gemm_cpu(true, false, t->keys, K, t->m, 1.0f, s->scores, t->ld, s->dout, K, 1.0f,
                     dv + key0, G * K);
    az_kern_gemm_cpu(true, false, t->keys, K, t->m, 1.0f, s->dscores, t->ld, s->q, K, 1.0f,
                     dk + key0, G * K);
    az_kern_gemm_cpu(false, false, t->m, K, t->keys, 1.0f, s->dscores, t->ld, k + key0, G * K, 0.0f,
                     s->y, K);
    unstack_rows(dq, s->y, t, H, K);
}

/* (numerics, eq. 14) */
void az_kern_attention_backward_cpu(float *dq, float *dk, float *dv, const float *dout,
                                    const float *out, const float *lse, const float *q,
                                    const float *k, const float *v, const az_seq *seqs, int n_seqs,
                                    int H, int G, int64_t K, float *scratch)
{
    AZ_ASSERT(G > 0 && H % G == 0);
    pieces s = carve(scratch, seqs, n_seqs, H, G, K);
    for (int i = 0; i < n_seqs; i++) {
        AZ_ASSERT(seqs[i].k_len >= seqs[i].q_len);
        size_t bytes = (size_t)(seqs[i].k_len * G * K) * sizeof *dk;
        memset(dk + seqs[i].k_row * G * K, 0, bytes);
        memset(dv + seqs[i].k_row * G * K, 0, bytes);
        for (int g = 0; g < G; g++)
            for (int64_t q0 = 0; q0 < seqs[i].q_len; q0 += tile_queries(H, G)) {
                tile t = tile_at(&seqs[i], q0, g, H, G);
                backward_tile(dq, dk, dv, dout, out, lse, q, k, v, &t, g, H, G, K, &s);
            }
    }
}
