/* A GPU's elementwise operations against the CPU's and plain loops. */
#include <config.h>

#include "kern/kern_priv.h"
#include "tests/cuemu/gpu_arrays.h"

static const size_t lengths[] = {0, 1, 7, 8, 33, 1000, 5003};

/* ---- gated unit ---- */

static void check_gate(size_t n, double scale)
{
    float *g = random_floats(n, 10), *u = random_act(n, 11), *da = random_act(n, 12);
    for (size_t i = 0; i < n; i++)
        g[i] *= (float)scale;
    round_act(g, n);
    double *gd = widened(g, n), *ud = widened(u, n), *dad = widened(da, n), *ad = doubles(n),
           *dgd = doubles(n), *dud = doubles(n);
    void *a = put_act(NULL, n), *dg = put_act(NULL, n), *du = put_act(NULL, n),
         *g_d = put_act(g, n), *u_d = put_act(u, n), *da_d = put_act(da, n);
    gpu.op->silu_gate_forward(gpu.self, a, g_d, u_d, n);
    gpu.op->silu_gate_backward(gpu.self, dg, du, da_d, g_d, u_d, n);
    az_kern_silu_gate_forward_ref(ad, gd, ud, n);
    az_kern_silu_gate_backward_ref(dgd, dud, dad, gd, ud, n);
    CHECK_ERROR(act_error(a, ad, n), TOL_KERNEL_F32);
    CHECK_ERROR(act_error(dg, dgd, n), TOL_KERNEL_F32);
    CHECK_ERROR(act_error(du, dud, n), TOL_KERNEL_F32);
    gpu_free_all();
    float *const f[] = {g, u, da};
    double *const d[] = {gd, ud, dad, ad, dgd, dud};
    for (size_t i = 0; i < COUNT(f); i++)
        az_free(f[i]);
    for (size_t i = 0; i < COUNT(d); i++)
        az_free(d[i]);
}

/* What is not finite comes out as on the CPU. */
static void check_gate_edges(void)
{
    const float edges[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 3e38f, -3e38f, 1.0f, -200.0f};
    enum { N = COUNT(edges) * COUNT(edges) };
    float g[N], u[N], da[N], want[3][N], got[N];
    for (size_t i = 0; i < N; i++) {
        g[i] = edges[i / COUNT(edges)];
        u[i] = edges[i % COUNT(edges)];
        da[i] = edges[(i + i / COUNT(edges)) % COUNT(edges)];
    }
    round_act(g, N);
    round_act(u, N);
    round_act(da, N);
    az_kern_silu_gate_forward_cpu(want[0], g, u, N);
    az_kern_silu_gate_backward_cpu(want[1], want[2], da, g, u, N);
    void *out[] = {put_act(NULL, N), put_act(NULL, N), put_act(NULL, N)}, *g_d = put_act(g, N),
         *u_d = put_act(u, N), *da_d = put_act(da, N);
    gpu.op->silu_gate_forward(gpu.self, out[0], g_d, u_d, N);
    gpu.op->silu_gate_backward(gpu.self, out[1], out[2], da_d, g_d, u_d, N);
    for (int a = 0; a < 3; a++) {
        get_act(got, out[a], N);
        round_act(want[a], N);
        for (size_t i = 0; i < N; i++)
            if (!isfinite(want[a][i]))
                assert_true(isnan(want[a][i]) ? isnan(got[i]) : got[i] == want[a][i]);
            else
                assert_true(fabsf(got[i] - want[a][i]) <= 0x1p-7f * fabsf(want[a][i]));
    }
    gpu_free_all();
}

static void gate(void)
{
    for (size_t i = 0; i < COUNT(lengths); i++)
        check_gate(lengths[i], 1);
    check_gate(1000, 40); /* into the tails: exp overflows and underflows */
    check_gate_edges();
}

/* ---- sums and changes of type ---- */

static void check_add(size_t n)
{
    float *x = random_act(n, 15), *y = random_act(n, 16), *got = floats(n);
    if (n > 4) {
        x[1] = NAN;
        x[2] = INFINITY;
        y[2] = -INFINITY;
        x[3] = INFINITY;
    }
    void *y_d = put_act(y, n), *x_d = put_act(x, n);
    gpu.op->add(gpu.self, y_d, x_d, n);
    get_act(got, y_d, n);
    az_kern_add_cpu(y, x, n);
    round_act(y, n);
    for (size_t i = 0; i < n; i++)
        assert_true(isnan(y[i]) ? isnan(got[i]) : got[i] == y[i]);
    gpu_free_all();
    az_free(x);
    az_free(y);
    az_free(got);
}

static void sums(void)
{
    for (size_t i = 0; i < COUNT(lengths); i++)
        check_add(lengths[i]);
}

/* To the nearest, ties to even, as base/num.c rounds. */
static void check_narrow(size_t n)
{
    float *x = random_floats(n, 17), *got = floats(n);
    for (size_t i = 0; i < n; i += 3) { /* ties, and what rounds to infinity */
        const uint32_t bits = (uint32_t)(i * 0x9e3779b9u) << 16 | 0x8000;
        memcpy(&x[i], &bits, 4);
    }
    if (n > 2)
        x[2] = NAN;
    void *y = put_act(NULL, n);
    gpu.op->narrow(gpu.self, y, gpu_put(x, n, sizeof *x), n);
    get_act(got, y, n);
    round_act(x, n);
    for (size_t i = 0; i < n; i++)
        assert_true(isnan(x[i]) ? isnan(got[i]) : memcmp(&got[i], &x[i], 4) == 0);
    gpu_free_all();
    az_free(x);
    az_free(got);
}

/* Every number that has 16 bits. */
static void check_widen_all(az_dtype t)
{
    enum { ALL = 65536 };
    uint16_t *bits = az_alloc(ALL, sizeof *bits, "test");
    float *got = floats(ALL), *want = floats(ALL);
    for (int i = 0; i < ALL; i++)
        bits[i] = (uint16_t)i;
    const az_view x = put_view((az_view){bits, t, 64, ALL / 64});
    float *y = gpu_put(NULL, ALL, sizeof *y);
    gpu.op->widen(gpu.self, y, x);
    gpu_get(got, y, ALL * sizeof *y);
    az_widen(want, bits, t, ALL);
    for (int i = 0; i < ALL; i++)
        assert_true(isnan(want[i]) ? isnan(got[i]) : memcmp(&got[i], &want[i], 4) == 0);
    gpu_free_all();
    az_free(bits);
    az_free(got);
    az_free(want);
}

static void check_widen(az_dtype t, int64_t rows, int64_t cols)
{
    const size_t n = (size_t)(rows * cols);
    double *exact;
    az_view w = random_view(t, rows, cols, 18, &exact);
    float *got = floats(n), *y = gpu_put(NULL, n, sizeof *y);
    gpu.op->widen(gpu.self, y, put_view(w));
    gpu_get(got, y, n * sizeof *y);
    CHECK_ERROR(error_of(got, exact, n), 0);
    gpu_free_all();
    az_free((void *)(uintptr_t)w.data);
    az_free(exact);
    az_free(got);
}

static void types(void)
{
    for (size_t i = 0; i < COUNT(lengths); i++)
        check_narrow(lengths[i]);
    for (int t = AZ_F32; t <= AZ_BF16; t++) {
        check_widen((az_dtype)t, 1, 1);
        check_widen((az_dtype)t, 7, 33);
        check_widen((az_dtype)t, 9, 64);
    }
    check_widen_all(AZ_F16);
    check_widen_all(AZ_BF16);
}

/* ---- dropout ---- */

/* The CPU's mask, bit for bit; sums rounded once. */
static void check_dropout(int64_t N, int64_t D, double p, bool accumulate, bool in_place)
{
    const size_t n = (size_t)(N * D);
    float *x = random_act(n, 20), *y = in_place ? x : random_act(n, 21), *got = floats(n);
    uint32_t *sample = az_alloc((size_t)N + 1, sizeof *sample, "test");
    int32_t *pos = az_alloc((size_t)N + 1, sizeof *pos, "test");
    for (int64_t i = 0; i < N; i++) {
        sample[i] = (uint32_t)(i / 3) * 0x10001u;
        pos[i] = (int32_t)((i * 77) % 5000);
    }
    void *x_d = put_act(x, n), *y_d = in_place ? x_d : put_act(y, n);
    const az_mask mask = {.p = p,
                          .seed = 0x123456789abcdefu,
                          .step = 7,
                          .module = 123456,
                          .sample = gpu_put(sample, (size_t)N, sizeof *sample),
                          .pos = gpu_put(pos, (size_t)N, sizeof *pos)};
    gpu.op->dropout(gpu.self, y_d, x_d, accumulate, &mask, N, D);
    get_act(got, y_d, n);
    az_kern_dropout_cpu(y, x, accumulate, p, mask.seed, mask.step, mask.module, sample, pos, N, D);
    if (gpu.kern.numeric.act == AZ_BF16) {
        round_act(y, n);
        for (size_t i = 0; i < n; i++) /* the CPU may fuse product and sum: rounded elsewhere */
            assert_true(accumulate ? fabsf(got[i] - y[i]) <= 0x1p-7f * fabsf(y[i])
                                   : got[i] == y[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            assert_true(accumulate ? fabsf(got[i] - y[i]) <= 1e-6f : got[i] == y[i]);
    }
    gpu_free_all();
    if (!in_place)
        az_free(y);
    az_free(x);
    az_free(got);
    az_free(sample);
    az_free(pos);
}

static void drop(void)
{
    static const int64_t widths[] = {1, 3, 4, 8, 30, 64, 257, 2056};
    for (size_t d = 0; d < COUNT(widths); d++) {
        check_dropout(5, widths[d], 0.3, false, false);
        check_dropout(3, widths[d], 0.05, true, false);
        check_dropout(2, widths[d], 0.999, false, true);
        check_dropout(2, widths[d], 0, false, false);
    }
    check_dropout(0, 8, 0.3, false, false);
    check_dropout(70, 8, 0.5, false, false);
    check_dropout(3, 24, 0, true, false);
    check_dropout(3, 24, 0, false, true);
}

/* ---- ---- */

static void test_gate(void **state)
{
    (void)state;
    for_all_kinds(gate);
}

static void test_add(void **state)
{
    (void)state;
    for_all_kinds(sums);
}

static void test_types(void **state)
{
    (void)state;
    for_all_kinds(types);
}

static void test_dropout(void **state)
{
    (void)state;
    for_all_kinds(drop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_dropout),
    };
    return cmocka_run_group_tests(tests, NULL, gpu_end);
}
