/* Exact sums and AdamW. */
#include <config.h>

#include "kern_test.h"

#define ONE ((int64_t)1 << 50)

/* ---- fixed point ---- */

static int64_t fixed_of(float x, int64_t *overflow)
{
    int64_t sum = 0;
    az_kern_fixed_add_cpu(&sum, &x, 1, AZ_FIXED_RANGE, overflow);
    return sum;
}

static void test_fixed_values(void **state)
{
    static const struct {
        float x;
        int64_t want;
    } rows[] = {
        {0.0f, 0},
        {-0.0f, 0},
        {1.0f, ONE},
        {-1.0f, -ONE},
        {0x1p-50f, 1},
        {0x1p-51f, 0},   /* half a unit: to even */
        {0x1.8p-50f, 2}, /* 1.5: to even */
        {0x1.4p-49f, 2}, /* 2.5: to even */
        {-0x1.8p-50f, -2},
        {-0x1p-51f, 0},
        {0x1.000002p-51f, 1}, /* just above the tie */
        {0x1.fffffep-52f, 0},
        {0x1p-149f, 0},
        {-0x1p-18f, -((int64_t)1 << 32)}, /* where the halves of the conversion meet */
        {0x1.000002p-19f, ((int64_t)1 << 31) + 256},
        {0x1.fffffep-20f, ((int64_t)1 << 31) - 128},
        {0x1.fffffep12f, INT64_MAX - ((int64_t)1 << 39) + 1}, /* the largest: 8192 (1 - 2^-24) */
        {-0x1.fffffep12f, -(INT64_MAX - ((int64_t)1 << 39) + 1)},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t overflow = 0;
        assert_int_equal(fixed_of(rows[i].x, &overflow), rows[i].want);
        assert_int_equal(az_kern_to_fixed((double)rows[i].x, AZ_FIXED_RANGE, &overflow),
                         rows[i].want);
        assert_int_equal(overflow, 0);
    }
}

/* Against the library's rounding, over all exponents, at every place of a vector. */
static void test_fixed_random(void **state)
{
    (void)state;
    enum { N = 70001 };
    float *x = random_floats(N, 1);
    int64_t *sum = az_alloc(N, sizeof *sum, "test"), overflow = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)ldexp(fmod((double)x[i], 1.0), i % 80 - 67);
    for (int round = 1; round <= 2; round++) {
        az_kern_fixed_add_cpu(sum, x, N, AZ_FIXED_RANGE, &overflow);
        for (int i = 0; i < N; i++)
            assert_int_equal(sum[i], round * llrint((double)x[i] * 0x1p50));
    }
    assert_int_equal(overflow, 0);
    az_free(x);
    az_free(sum);
}

static void test_fixed_overflow(void **state)
{
    static const float bad[] = {8192.0f, -8192.0f, 1e30f, INFINITY, -INFINITY, NAN};
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        int64_t overflow = 0, sum[20];
        float x[20];
        for (int j = 0; j < 20; j++) {
            x[j] = 1.0f;
            sum[j] = j;
        }
        x[i] = bad[i];
        x[19] = bad[i];
        az_kern_fixed_add_cpu(sum, x, 20, AZ_FIXED_RANGE, &overflow);
        assert_int_equal(overflow, 2);
        for (int j = 0; j < 20; j++)
            assert_int_equal(sum[j], j + (j == (int)i || j == 19 ? 0 : ONE));
        assert_int_equal(az_kern_to_fixed((double)bad[i], AZ_FIXED_RANGE, &overflow), 0);
        assert_int_equal(overflow, 3);
    }
    /* A smaller limit, for sums of more terms. */
    int64_t overflow = 0;
    float x[2] = {1023.5f, 1024.0f};
    int64_t sum[2] = {0};
    az_kern_fixed_add_cpu(sum, x, 2, AZ_FIXED_RANGE / 8, &overflow);
    assert_int_equal(overflow, 1);
    assert_true(sum[0] == 1023 * ONE + ONE / 2 && sum[1] == 0);
    assert_int_equal(az_kern_to_fixed(-1024, AZ_FIXED_RANGE / 8, &overflow), 0);
    assert_int_equal(overflow, 2);
    assert_int_equal(az_kern_to_fixed(-1000, AZ_FIXED_RANGE / 8, &overflow), -1000 * ONE);
    assert_int_equal(overflow, 2);
}

/* The same terms in any order and grouping give the same bits. */
static void test_fixed_order(void **state)
{
    (void)state;
    enum { N = 1000, TERMS = 24 };
    float *x = random_floats(N * TERMS, 2);
    int64_t *a = az_alloc(N, sizeof *a, "test"), *b = az_alloc(3 * N, sizeof *b, "test"),
            overflow = 0;
    for (int i = 0; i < N * TERMS; i++)
        x[i] *= (float)ldexp(1.0, i % 40 - 35);
    for (int t = 0; t < TERMS; t++)
        az_kern_fixed_add_cpu(a, x + t * N, N, AZ_FIXED_RANGE / TERMS, &overflow);
    /* Backwards, on three ranks, each array in two calls. */
    for (int t = TERMS - 1; t >= 0; t--) {
        int64_t *mine = b + t % 3 * N;
        az_kern_fixed_add_cpu(mine + 333, x + t * N + 333, N - 333, AZ_FIXED_RANGE / TERMS,
                              &overflow);
        az_kern_fixed_add_cpu(mine, x + t * N, 333, AZ_FIXED_RANGE / TERMS, &overflow);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(a[i], b[2 * N + i] + b[i] + b[N + i]);
    assert_int_equal(overflow, 0);
    az_free(x);
    az_free(a);
    az_free(b);
}

static void test_squares(void **state)
{
    static const size_t lengths[] = {0, 1, 7, 8, 33, 100, 4096, 4097, 50001};
    (void)state;
    for (size_t k = 0; k < COUNT(lengths); k++) {
        size_t n = lengths[k], block = 100, blocks = (n + block - 1) / block;
        int64_t *g = az_alloc(n + 1, sizeof *g, "test");
        double *out = doubles(blocks), *alone = doubles(1);
        for (size_t i = 0; i < n; i++)
            g[i] = llrint(normal(3, i) * 0x1p50);
        az_kern_square_blocks_cpu(out, g, n, block);
        for (size_t b = 0; b < blocks; b++) {
            size_t len = n - b * block < block ? n - b * block : block;
            double s = 0;
            for (size_t i = 0; i < len; i++)
                s += pow((double)g[b * block + i] * 0x1p-50, 2);
            CHECK_ERROR(fabs(out[b] - s) / s, 1e-14);
            /* Wherever a block lies, its sum has the same bits. */
            az_kern_square_blocks_cpu(alone, g + b * block, len, block);
            assert_memory_equal(alone, &out[b], sizeof *out);
        }
        az_free(g);
        az_free(out);
        az_free(alone);
    }
}

/* ---- AdamW ---- */

static const az_adamw defaults = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .t = 1};

static void check_adamw(size_t n, double clip)
{
    float *p = random_floats(n, 4), *m = floats(n), *v = floats(n);
    int64_t *fixed = az_alloc(n + 1, sizeof *fixed, "test");
    double *pd = widened(p, n), *md = doubles(n), *vd = doubles(n), *g = doubles(n);
    az_adamw o = defaults;
    for (o.t = 1; o.t <= 5; o.t++) {
        for (size_t i = 0; i < n; i++) {
            fixed[i] = llrint(1e-3 * normal(5 + (uint32_t)o.t, i) * 0x1p50);
            g[i] = (double)fixed[i] * 0x1p-50 * clip;
        }
        az_kern_adamw_cpu(p, m, v, fixed, clip, n, &o);
        az_kern_adamw_ref(pd, md, vd, g, n, &o);
        CHECK_ERROR(error_of(p, pd, n), TOL_KERNEL_F32);
        CHECK_ERROR(error_of(m, md, n), TOL_KERNEL_F32);
        CHECK_ERROR(error_of(v, vd, n), TOL_KERNEL_F32);
    }
    az_free(p);
    az_free(m);
    az_free(v);
    az_free(fixed);
    az_free(pd);
    az_free(md);
    az_free(vd);
    az_free(g);
}

static void test_adamw(void **state)
{
    static const size_t lengths[] = {0, 1, 7, 33, 100, 512, 513, 70001};
    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        check_adamw(lengths[i], 1);
        check_adamw(lengths[i], 0.25);
    }
}

/* A constant gradient keeps the corrected moments at g and g^2, so that every step is
 * p <- p (1 - lr wd) - lr g / (|g| + eps), whatever t. */
static void test_adamw_closed_form(void **state)
{
    (void)state;
    static const float gradient[] = {0.5f, -0x1p-20f, 0.0f, 3.0f};
    float p[4] = {1, -2, 3, 0}, m[4] = {0}, v[4] = {0};
    int64_t fixed[4], overflow = 0;
    az_adamw o = defaults;
    for (int i = 0; i < 4; i++)
        fixed[i] = fixed_of(gradient[i], &overflow);
    for (o.t = 1; o.t <= 3; o.t++) {
        double want[4];
        for (int i = 0; i < 4; i++)
            want[i] = (double)p[i] * (1 - o.lr * o.weight_decay) -
                      o.lr * (double)gradient[i] / (fabs((double)gradient[i]) + o.eps);
        az_kern_adamw_cpu(p, m, v, fixed, 1, 4, &o);
        CHECK_ERROR(error_of(p, want, 4), 1e-6);
    }
}

/* An element's update does not depend on its neighbours: the owned slice may begin anywhere. */
static void test_adamw_slices(void **state)
{
    (void)state;
    enum { N = 1500, CUT = 701 };
    float *p = random_floats(N, 6), *m = floats(N), *v = floats(N), *p2 = random_floats(N, 6),
          *m2 = floats(N), *v2 = floats(N);
    int64_t *fixed = az_alloc(N, sizeof *fixed, "test");
    az_adamw o = defaults;
    for (o.t = 1; o.t <= 3; o.t++) {
        for (int i = 0; i < N; i++)
            fixed[i] = llrint(normal(7 + (uint32_t)o.t, (size_t)i) * 0x1p40);
        az_kern_adamw_cpu(p, m, v, fixed, 0.7, N, &o);
        az_kern_adamw_cpu(p2, m2, v2, fixed, 0.7, CUT, &o);
        az_kern_adamw_cpu(p2 + CUT, m2 + CUT, v2 + CUT, fixed + CUT, 0.7, N - CUT, &o);
    }
    assert_memory_equal(p, p2, N * sizeof *p);
    assert_memory_equal(m, m2, N * sizeof *m);
    assert_memory_equal(v, v2, N * sizeof *v);
    az_free(p);
    az_free(m);
    az_free(v);
    az_free(p2);
    az_free(m2);
    az_free(v2);
    az_free(fixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed_values),      cmocka_unit_test(test_fixed_random),
        cmocka_unit_test(test_fixed_overflow),    cmocka_unit_test(test_fixed_order),
        cmocka_unit_test(test_squares),           cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_closed_form), cmocka_unit_test(test_adamw_slices),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
