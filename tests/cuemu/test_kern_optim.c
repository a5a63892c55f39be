/* A GPU's exact sums and AdamW against the CPU's. */
#include <config.h>

#include "kern/kern_priv.h"
#include "tests/cuemu/gpu_arrays.h"

static const size_t lengths[] = {0, 1, 3, 4, 33, 1000, 5003};

/* The same integers as on the CPU. */
static void check_fixed(size_t n, double limit)
{
    float *x = random_floats(n, 1);
    int64_t *sum = az_alloc(n + 1, sizeof *sum, "test"),
            *got = az_alloc(n + 1, sizeof *got, "test"), overflow = 5, overflow_got;
    for (size_t i = 0; i < n; i++) {
        static const float edges[] = {0.0f,      -0.0f,    0x1p-51f, -0x1p-51f, 0x1.8p-50f,
                                      0x1p-149f, 0x1p-40f, INFINITY, -INFINITY, NAN,
                                      8191.9f,   -8191.9f, 8192.0f,  1e30f,     0x1.4p-49f};
        if (i % 3 == 0)
            x[i] = edges[i / 3 % COUNT(edges)];
        else
            x[i] = (float)ldexp((double)x[i], -(int)(i % 60));
        sum[i] = (int64_t)(i * 0x9e3779b97f4a7c15u);
    }
    int64_t *sum_d = gpu_put(sum, n, sizeof *sum),
            *overflow_d = gpu_put(&overflow, 1, sizeof overflow);
    gpu.op->fixed_add(gpu.self, sum_d, gpu_put(x, n, sizeof *x), n, limit, overflow_d, false);
    gpu_get(got, sum_d, n * sizeof *sum);
    gpu_get(&overflow_got, overflow_d, sizeof overflow_got);
    az_kern_fixed_add_cpu(sum, x, n, limit, &overflow);
    assert_memory_equal(got, sum, n * sizeof *sum);
    assert_int_equal(overflow_got, overflow);
    gpu_free_all();
    az_free(x);
    az_free(sum);
    az_free(got);
}

static int64_t *random_integers(size_t n, uint32_t stream)
{
    int64_t *g = az_alloc(n + 1, sizeof *g, "test");
    assert_non_null(g);
    for (size_t i = 0; i < n; i++)
        g[i] = (int64_t)(normal(stream, i) * 0x1p44);
    return g;
}

static void check_add(size_t n)
{
    int64_t *x = random_integers(n, 2), *y = random_integers(n, 3),
            *got = az_alloc(n + 1, sizeof *got, "test");
    int64_t *y_d = gpu_put(y, n, sizeof *y);
    gpu.op->add_i64(gpu.self, y_d, gpu_put(x, n, sizeof *x), n);
    gpu_get(got, y_d, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        assert_true(got[i] == x[i] + y[i]);
    gpu_free_all();
    az_free(x);
    az_free(y);
    az_free(got);
}

/* A block's sum does not depend on where the block lies. */
static void check_squares(size_t n, size_t block)
{
    const size_t blocks = (n + block - 1) / block;
    int64_t *g = random_integers(n, 4);
    double *want = doubles(blocks), *got = doubles(blocks), again;
    double *out = gpu_put(NULL, blocks, sizeof *out);
    const int64_t *g_d = gpu_put(g, n, sizeof *g);
    gpu.op->square_blocks(gpu.self, out, g_d, n, block);
    gpu_get(got, out, blocks * sizeof *out);
    az_kern_square_blocks_cpu(want, g, n, block);
    CHECK_ERROR(error_of_doubles(got, want, blocks), 1e-14);
    if (blocks > 1) {
        gpu.op->square_blocks(gpu.self, out, g_d + block, n - block < block ? n - block : block,
                              block);
        gpu_get(&again, out, sizeof again);
        assert_memory_equal(&again, &got[1], sizeof again);
    }
    gpu_free_all();
    az_free(g);
    az_free(want);
    az_free(got);
}

/* Arithmetic in double, rounded to f32 once: at most the last bit differs where a GPU fuses a
 * product and a sum. */
static void check_adamw(size_t n)
{
    float *p = random_floats(n, 5), *m = random_floats(n, 6), *v = random_floats(n, 7),
          *got = floats(n);
    int64_t *g = random_integers(n, 8);
    for (size_t i = 0; i < n; i++)
        v[i] = v[i] * v[i];
    if (n > 3) {
        g[1] = 0;
        m[1] = 0;
        v[1] = 0;
        m[2] = NAN;
    }
    float *const state[] = {p, m, v};
    float *state_d[3];
    for (int i = 0; i < 3; i++)
        state_d[i] = gpu_put(state[i], n, sizeof *p);
    const int64_t *g_d = gpu_put(g, n, sizeof *g);
    for (int t = 1; t <= 3; t++) {
        const az_adamw o = {
            .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .t = t};
        gpu.op->adamw(gpu.self, state_d[0], state_d[1], state_d[2], g_d, 0.7, n, &o);
        az_kern_adamw_cpu(p, m, v, g, 0.7, n, &o);
    }
    for (int i = 0; i < 3; i++) {
        gpu_get(got, state_d[i], n * sizeof *got);
        for (size_t j = 0; j < n; j++)
            assert_true(isnan(state[i][j])
                            ? isnan(got[j])
                            : fabsf(got[j] - state[i][j]) <= 4e-7f * fabsf(state[i][j]));
    }
    gpu_free_all();
    for (int i = 0; i < 3; i++)
        az_free(state[i]);
    az_free(got);
    az_free(g);
}

static void fixed(void)
{
    for (size_t i = 0; i < COUNT(lengths); i++) {
        check_fixed(lengths[i], AZ_FIXED_RANGE);
        check_fixed(lengths[i], 0.25);
        check_add(lengths[i]);
    }
}

static void squares(void)
{
    check_squares(1, 4096);
    check_squares(5003, 1000);
    check_squares(5003, 4096);
    check_squares(64, 8);
}

static void adamw(void)
{
    for (size_t i = 0; i < COUNT(lengths); i++)
        check_adamw(lengths[i]);
}

static void test_fixed(void **state)
{
    (void)state;
    for_all_kinds(fixed);
}

static void test_squares(void **state)
{
    (void)state;
    for_all_kinds(squares);
}

static void test_adamw(void **state)
{
    (void)state;
    for_all_kinds(adamw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, NULL, gpu_end);
}
