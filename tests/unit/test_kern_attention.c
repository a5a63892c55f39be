/* Attention against plain loops: lengths, groups, cached keys, several sequences; the references'
 * derivative by differences. */
#include <config.h>

#include "kern_test.h"

typedef struct {
    int H, G;
    int64_t K;
} shape;

static void free_all(void **p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        az_free(p[i]);
}

/* Sequences packed one after the other, with gap rows that belong to none between them. */
static void check_attention(const az_seq *lengths, int n_seqs, shape s, double spread)
{
    az_seq seqs[8];
    int64_t Nq = 0, Nk = 0, longest = 0;
    for (int i = 0; i < n_seqs; i++) {
        seqs[i] = (az_seq){Nq, lengths[i].q_len, Nk, lengths[i].k_len};
        Nq += lengths[i].q_len + 1;
        Nk += lengths[i].k_len + 1;
        longest = az_max_i64(longest, lengths[i].k_len);
    }
    size_t nq = (size_t)(Nq * s.H * s.K), nk = (size_t)(Nk * s.G * s.K), nl = (size_t)(Nq * s.H),
           ns = az_kern_attention_scratch_cpu(longest, s.H, s.G, s.K);
    float *q = random_floats(nq, 1), *k = random_floats(nk, 2), *v = random_floats(nk, 3),
          *dout = random_floats(nq, 4), *out = random_floats(nq, 5), *lse = random_floats(nl, 6),
          *dq = random_floats(nq, 7), *dk = random_floats(nk, 8), *dv = random_floats(nk, 9),
          *scratch = floats(ns);
    for (size_t i = 0; i < nq; i++)
        q[i] *= (float)spread;
    for (size_t i = 0; i < ns; i++)
        scratch[i] = NAN;
    /* Rows of no sequence keep their random numbers, in the references as well. */
    double *qd = widened(q, nq), *kd = widened(k, nk), *vd = widened(v, nk),
           *doutd = widened(dout, nq), *outd = widened(out, nq), *lsed = widened(lse, nl),
           *dqd = widened(dq, nq), *dkd = widened(dk, nk), *dvd = widened(dv, nk);
    az_kern_attention_forward_cpu(out, lse, q, k, v, seqs, n_seqs, s.H, s.G, s.K, scratch);
    az_kern_attention_forward_ref(outd, lsed, qd, kd, vd, seqs, n_seqs, s.H, s.G, s.K);
    CHECK_ERROR(error_of(out, outd, nq), TOL_KERNEL_CHAIN_F32);
    CHECK_ERROR(error_of(lse, lsed, nl), TOL_KERNEL_F32);
    az_kern_attention_backward_cpu(dq, dk, dv, dout, out, lse, q, k, v, seqs, n_seqs, s.H, s.G, s.K,
                                   scratch);
    az_kern_attention_backward_ref(dqd, dkd, dvd, doutd, qd, kd, vd, seqs, n_seqs, s.H, s.G, s.K);
    CHECK_ERROR(error_of(dq, dqd, nq), TOL_KERNEL_CHAIN_F32);
    CHECK_ERROR(error_of(dk, dkd, nk), TOL_KERNEL_CHAIN_F32);
    CHECK_ERROR(error_of(dv, dvd, nk), TOL_KERNEL_CHAIN_F32);
    assert_true(scratch[ns] == 0.0f); /* one element behind the scratch */
    free_all((void *[]){q, k, v, dout, out, lse, dq, dk, dv, scratch, qd, kd, vd, doutd, outd, lsed,
                        dqd, dkd, dvd},
             19);
}

static const shape shapes[] = {{1, 1, 1}, {4, 4, 16}, {9, 3, 64}, {6, 1, 7}, {200, 1, 4}};

static void test_lengths(void **state)
{
    static const int64_t lengths[] = {1, 7, 33, 100};
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t i = 0; i < COUNT(lengths); i++)
            check_attention(&(az_seq){0, lengths[i], 0, lengths[i]}, 1, shapes[s], 1);
    /* More than one tile of queries: 192 rows. */
    check_attention(&(az_seq){0, 300, 0, 300}, 1, (shape){2, 2, 16}, 1);
    check_attention(&(az_seq){0, 150, 0, 150}, 1, (shape){6, 2, 16}, 1);
}

/* Generation: more keys than queries. */
static void test_cache(void **state)
{
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); s++) {
        check_attention(&(az_seq){0, 1, 0, 1}, 1, shapes[s], 1);
        check_attention(&(az_seq){0, 1, 0, 100}, 1, shapes[s], 1);
        check_attention(&(az_seq){0, 1, 0, 517}, 1, shapes[s], 1);
        check_attention(&(az_seq){0, 3, 0, 33}, 1, shapes[s], 1);
        check_attention(&(az_seq){0, 70, 0, 90}, 1, shapes[s], 1);
    }
}

static void test_several(void **state)
{
    static const az_seq many[] = {{0, 17, 0, 17}, {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 100, 0, 100},
                                  {0, 0, 0, 5},   {0, 2, 0, 9}, {0, 1, 0, 1}};
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); s++)
        check_attention(many, COUNT(many), shapes[s], 1);
    check_attention(many, 0, shapes[1], 1);
    check_attention(&(az_seq){0}, 1, shapes[1], 1);
}

/* Scores of +-100: the softmax is all but a choice, and must not overflow. */
static void test_sharp(void **state)
{
    (void)state;
    check_attention(&(az_seq){0, 40, 0, 40}, 1, (shape){6, 2, 16}, 40);
}

/* A sequence's result is the same bits alone and packed with others; a token sees nothing that
 * comes after it. */
static void test_isolation(void **state)
{
    (void)state;
    enum { H = 6, G = 2, K = 16, T = 90, N = 2 * T };
    float *q = random_floats(N * H * K, 1), *k = random_floats(N * G * K, 2),
          *v = random_floats(N * G * K, 3), *out = floats(N * H * K), *out2 = floats(N * H * K),
          *lse = floats(N * H), *scratch = floats(az_kern_attention_scratch_cpu(T, H, G, K));
    const az_seq both[2] = {{0, T, 0, T}, {T, T, T, T}};
    az_kern_attention_forward_cpu(out, lse, q, k, v, both, 2, H, G, K, scratch);
    az_kern_attention_forward_cpu(out2, lse, q, k, v, both + 1, 1, H, G, K, scratch);
    assert_memory_equal(out + T * H * K, out2 + T * H * K, T * H * K * sizeof *out);
    for (int i = 0; i < G * K; i++) {
        k[(T + T - 1) * G * K + i] += 1; /* the last token of the second sequence */
        v[(T + T - 1) * G * K + i] = NAN;
    }
    az_kern_attention_forward_cpu(out2, lse, q, k, v, both, 2, H, G, K, scratch);
    assert_memory_equal(out, out2, T * H * K * sizeof *out);
    /* Within the last tile the masked product multiplies by 0, so NaN would spread; a finite change
     * may not. */
    for (int i = 0; i < G * K; i++)
        v[(T + T - 1) * G * K + i] = 7;
    az_kern_attention_forward_cpu(out2, lse, q, k, v, both, 2, H, G, K, scratch);
    assert_memory_equal(out, out2, (N - 1) * H * K * sizeof *out);
    assert_memory_not_equal(out + (N - 1) * H * K, out2 + (N - 1) * H * K, H * K * sizeof *out);
    free_all((void *[]){q, k, v, out, out2, lse, scratch}, 7);
}

/* ---- the reference's backward is the derivative of its forward ---- */

enum { REF_H = 4, REF_G = 2, REF_K = 3, REF_Q = 5, REF_N = 8 };

static const az_seq ref_seqs[2] = {{0, 3, 0, 3}, {3, 2, 3, 5}};

typedef struct {
    double q[REF_Q * REF_H * REF_K], k[REF_N * REF_G * REF_K], v[REF_N * REF_G * REF_K];
} attention_case;

static void attention_of(double *out, void *ctx)
{
    attention_case *c = ctx;
    az_kern_attention_forward_ref(out, NULL, c->q, c->k, c->v, ref_seqs, 2, REF_H, REF_G, REF_K);
}

static void test_difference(void **state)
{
    (void)state;
    attention_case c, d;
    double dout[COUNT(c.q)], diff[COUNT(c.k)];
    for (size_t i = 0; i < COUNT(c.q); i++) {
        c.q[i] = normal(11, i);
        dout[i] = normal(14, i);
    }
    for (size_t i = 0; i < COUNT(c.k); i++) {
        c.k[i] = normal(12, i);
        c.v[i] = normal(13, i);
    }
    az_kern_attention_backward_ref(d.q, d.k, d.v, dout, c.q, c.k, c.v, ref_seqs, 2, REF_H, REF_G,
                                   REF_K);
    double *diff_q = doubles(COUNT(c.q));
    differences(diff_q, c.q, COUNT(c.q), attention_of, &c, dout, COUNT(dout));
    CHECK_ERROR(error_of_doubles(d.q, diff_q, COUNT(c.q)), TOL_DIFFERENCE);
    differences(diff, c.k, COUNT(c.k), attention_of, &c, dout, COUNT(dout));
    CHECK_ERROR(error_of_doubles(d.k, diff, COUNT(c.k)), TOL_DIFFERENCE);
    differences(diff, c.v, COUNT(c.v), attention_of, &c, dout, COUNT(dout));
    CHECK_ERROR(error_of_doubles(d.v, diff, COUNT(c.v)), TOL_DIFFERENCE);
    az_free(diff_q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),   cmocka_unit_test(test_cache),
        cmocka_unit_test(test_several),   cmocka_unit_test(test_sharp),
        cmocka_unit_test(test_isolation), cmocka_unit_test(test_difference),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
