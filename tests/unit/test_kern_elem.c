/* Rows and elements against plain loops; the exponential against the library's; derivatives by
 * differences. */
#include <config.h>

#include "kern/kern_priv.h"
#include "kern_test.h"

static const int64_t sizes[] = {1, 7, 33, 100};

/* ---- exponential ---- */

/* Distance in units of the last place of the exact result (2^-149 below the normal range). */
static double ulps(float got, double exact)
{
    int e;
    frexp(exact, &e);
    return fabs((double)got - exact) / ldexp(1.0, e - 24 > -149 ? e - 24 : -149);
}

static void test_expf(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = -4200000; i <= 3548900; i++) {
        float x = (float)i * 2.5e-5f;
        double err = ulps(az_kern_expf(x), exp((double)x));
        if (!(err <= worst))
            worst = err;
    }
    /* Tiny arguments and a walk through all exponents. */
    for (int e = -149; e < 7; e++)
        for (int s = 0; s < 200; s++) {
            float x = (float)ldexp((s & 1 ? -1.0 : 1.0) * (1.0 + s / 200.0), e);
            if (x <= 88.72f && x >= -105.0f)
                worst = fmax(worst, ulps(az_kern_expf(x), exp((double)x)));
        }
    print_message("expf: %.3f ulp at worst\n", worst);
    CHECK_ERROR(worst, 2.0);
}

static void test_expf_edges(void **state)
{
    (void)state;
    assert_true(az_kern_expf(0.0f) == 1.0f && az_kern_expf(-0.0f) == 1.0f);
    assert_true(az_kern_expf(-INFINITY) == 0.0f && az_kern_expf(-1e30f) == 0.0f);
    assert_true(az_kern_expf(-104.0f) == 0.0f && az_kern_expf(-103.98f) == 0.0f);
    assert_true(az_kern_expf(-103.9f) == 0x1p-149f);
    assert_true(az_kern_expf(INFINITY) == INFINITY && az_kern_expf(1e30f) == INFINITY);
    assert_true(az_kern_expf(88.73f) == INFINITY && isfinite(az_kern_expf(88.72f)));
    assert_true(isnan(az_kern_expf(NAN)));
}

/* ---- widening ---- */

static void test_widen(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    uint16_t *bits = az_alloc(ALL, sizeof *bits, "test");
    float *got = floats(ALL);
    for (int i = 0; i < ALL; i++)
        bits[i] = (uint16_t)i;
    for (int t = AZ_F16; t <= AZ_BF16; t++) {
        az_kern_widen(got, bits, (az_dtype)t, ALL);
        for (int i = 0; i < ALL; i++) {
            float want =
                t == AZ_F16 ? az_f16_to_f32((az_f16){bits[i]}) : az_bf16_to_f32((az_bf16){bits[i]});
            assert_true(isnan(want) ? isnan(got[i]) : memcmp(&got[i], &want, 4) == 0);
        }
    }
    az_free(bits);
    az_free(got);
}

/* ---- embedding ---- */

static void check_embed(az_dtype t, int64_t N, int64_t D)
{
    enum { V = 23 };
    double *table, *ref = doubles((size_t)(N * D));
    az_view w = random_view(t, V, D, 1, &table);
    float *x = floats((size_t)(N * D));
    int32_t *ids = az_alloc((size_t)N, sizeof *ids, "test");
    for (int64_t n = 0; n < N; n++)
        ids[n] = (int32_t)((n * 7 + 22) % V);
    for (int64_t i = 0; i < N * D; i++)
        x[i] = NAN;
    az_kern_embed_ref(ref, table, ids, N, D);
    /* In pieces of 5 rows, as ranks hold them; a piece touches only its own ids. */
    for (int64_t row = 0; row < V; row += 5) {
        az_view piece = w;
        piece.data = (const char *)w.data + (size_t)(row * D) * az_dtype_bytes(t);
        piece.rows = az_min_i64(5, V - row);
        az_kern_embed_cpu(x, piece, row, ids, N);
    }
    CHECK_ERROR(error_of(x, ref, (size_t)(N * D)), 0);
    az_free((void *)(uintptr_t)w.data);
    az_free(table);
    az_free(ref);
    az_free(x);
    az_free(ids);
}

static void test_embed(void **state)
{
    (void)state;
    for (int t = AZ_F32; t <= AZ_BF16; t++)
        for (size_t n = 0; n < COUNT(sizes); n++)
            for (size_t d = 0; d < COUNT(sizes); d++)
                check_embed((az_dtype)t, sizes[n], sizes[d]);
}

/* ---- norm ---- */

static void check_norm(az_dtype t, int64_t N, int64_t D)
{
    const double eps = 1e-5;
    size_t n = (size_t)(N * D);
    double *w;
    az_view wv = random_view(t, 1, D, 2, &w);
    float *x = random_floats(n, 3), *dy = random_floats(n, 4), *dx = random_floats(n, 5),
          *y = floats(n);
    double *xd = widened(x, n), *dyd = widened(dy, n), *dxd = widened(dx, n), *yd = doubles(n);
    az_kern_rmsnorm_forward_cpu(y, x, wv, eps, N, D);
    az_kern_rmsnorm_forward_ref(yd, xd, w, eps, N, D);
    CHECK_ERROR(error_of(y, yd, n), TOL_KERNEL_F32);
    az_kern_rmsnorm_backward_cpu(dx, dy, x, wv, eps, N, D);
    az_kern_rmsnorm_backward_ref(dxd, dyd, xd, w, eps, N, D);
    CHECK_ERROR(error_of(dx, dxd, n), TOL_KERNEL_F32);
    /* A row of zeros is legal: eps carries it. */
    memset(x, 0, n * sizeof *x);
    az_kern_rmsnorm_forward_cpu(y, x, wv, eps, N, D);
    for (size_t i = 0; i < n; i++)
        assert_true(y[i] == 0.0f);
    az_free((void *)(uintptr_t)wv.data);
    az_free(w);
    az_free(x);
    az_free(dy);
    az_free(dx);
    az_free(y);
    az_free(xd);
    az_free(dyd);
    az_free(dxd);
    az_free(yd);
}

static void test_norm(void **state)
{
    (void)state;
    for (int t = AZ_F32; t <= AZ_BF16; t++) {
        for (size_t n = 0; n < COUNT(sizes); n++)
            for (size_t d = 0; d < COUNT(sizes); d++)
                check_norm((az_dtype)t, sizes[n], sizes[d]);
        check_norm((az_dtype)t, 41, 1031);
    }
}

enum { REF_N = 3, REF_D = 6 };

typedef struct {
    double *x, *w;
} norm_case;

static void norm_of(double *y, void *ctx)
{
    norm_case *c = ctx;
    az_kern_rmsnorm_forward_ref(y, c->x, c->w, 1e-5, REF_N, REF_D);
}

static void test_norm_difference(void **state)
{
    (void)state;
    double x[REF_N * REF_D], w[REF_D], dy[REF_N * REF_D], dx[REF_N * REF_D] = {0},
                                                                     diff[REF_N * REF_D];
    for (size_t i = 0; i < COUNT(x); i++) {
        x[i] = normal(6, i);
        dy[i] = normal(7, i);
    }
    for (size_t i = 0; i < COUNT(w); i++)
        w[i] = normal(8, i);
    norm_case c = {x, w};
    az_kern_rmsnorm_backward_ref(dx, dy, x, w, 1e-5, REF_N, REF_D);
    differences(diff, x, COUNT(x), norm_of, &c, dy, COUNT(dy));
    CHECK_ERROR(error_of_doubles(dx, diff, COUNT(x)), TOL_DIFFERENCE);
}

/* ---- rotary embedding ---- */

static void check_rope(int64_t N, int heads, int64_t K)
{
    enum { P = 50 };
    size_t n = (size_t)(N * heads * K);
    float *x = random_floats(n, 9), *table = floats((size_t)(P * K));
    int32_t *pos = az_alloc((size_t)N, sizeof *pos, "test");
    for (int64_t i = 0; i < N; i++)
        pos[i] = (int32_t)((i * 11) % P);
    for (int64_t p = 0; p < P; p++)
        for (int64_t j = 0; j < K / 2; j++) {
            double angle = (double)p * pow(10000.0, -2.0 * (double)j / (double)K);
            table[p * K + j] = (float)cos(angle);
            table[p * K + K / 2 + j] = (float)sin(angle);
        }
    double *xd = widened(x, n), *start = widened(x, n), *td = widened(table, (size_t)(P * K));
    az_kern_rope_cpu(x, pos, table, N, heads, K, false);
    az_kern_rope_ref(xd, pos, td, N, heads, K, false);
    CHECK_ERROR(error_of(x, xd, n), TOL_KERNEL_F32);
    az_kern_rope_cpu(x, pos, table, N, heads, K, true);
    CHECK_ERROR(error_of(x, start, n), TOL_KERNEL_F32);
    az_kern_rope_ref(xd, pos, td, N, heads, K, true);
    CHECK_ERROR(error_of_doubles(xd, start, n), TOL_KERNEL_F32); /* table is f32: cos^2 + sin^2 */
    az_free(x);
    az_free(table);
    az_free(pos);
    az_free(xd);
    az_free(start);
    az_free(td);
}

static void test_rope(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(sizes); n++) {
        check_rope(sizes[n], 1, 2);
        check_rope(sizes[n], 3, 6);
        check_rope(sizes[n], 9, 64);
        check_rope(sizes[n], 4, 130);
    }
}

enum { ROPE_N = 4, ROPE_HEADS = 2, ROPE_K = 6 };

typedef struct {
    double *x, *table;
    const int32_t *pos;
} rope_case;

static void rope_of(double *y, void *ctx)
{
    rope_case *c = ctx;
    memcpy(y, c->x, ROPE_N * ROPE_HEADS * ROPE_K * sizeof *y);
    az_kern_rope_ref(y, c->pos, c->table, ROPE_N, ROPE_HEADS, ROPE_K, false);
}

static void test_rope_difference(void **state)
{
    (void)state;
    const int32_t pos[ROPE_N] = {3, 0, 4, 1};
    double x[ROPE_N * ROPE_HEADS * ROPE_K], dy[COUNT(x)], diff[COUNT(x)], table[5 * ROPE_K];
    for (size_t i = 0; i < COUNT(x); i++) {
        x[i] = normal(21, i);
        dy[i] = normal(22, i);
    }
    for (size_t i = 0; i < COUNT(table); i++)
        table[i] = normal(23, i);
    rope_case c = {x, table, pos};
    differences(diff, x, COUNT(x), rope_of, &c, dy, COUNT(dy));
    az_kern_rope_ref(dy, pos, table, ROPE_N, ROPE_HEADS, ROPE_K, true);
    CHECK_ERROR(error_of_doubles(dy, diff, COUNT(x)), TOL_DIFFERENCE);
}

/* ---- gated unit ---- */

static void check_gate(size_t n, double scale)
{
    float *g = random_floats(n, 10), *u = random_floats(n, 11), *da = random_floats(n, 12),
          *a = floats(n), *dg = floats(n), *du = floats(n);
    for (size_t i = 0; i < n; i++)
        g[i] *= (float)scale;
    double *gd = widened(g, n), *ud = widened(u, n), *dad = widened(da, n), *ad = doubles(n),
           *dgd = doubles(n), *dud = doubles(n);
    az_kern_silu_gate_forward_cpu(a, g, u, n);
    az_kern_silu_gate_forward_ref(ad, gd, ud, n);
    CHECK_ERROR(error_of(a, ad, n), TOL_KERNEL_F32);
    az_kern_silu_gate_backward_cpu(dg, du, da, g, u, n);
    az_kern_silu_gate_backward_ref(dgd, dud, dad, gd, ud, n);
    CHECK_ERROR(error_of(dg, dgd, n), TOL_KERNEL_F32);
    CHECK_ERROR(error_of(du, dud, n), TOL_KERNEL_F32);
    az_free(g);
    az_free(u);
    az_free(da);
    az_free(a);
    az_free(dg);
    az_free(du);
    az_free(gd);
    az_free(ud);
    az_free(dad);
    az_free(ad);
    az_free(dgd);
    az_free(dud);
}

static void test_gate(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        check_gate((size_t)sizes[i], 1);
        check_gate((size_t)sizes[i], 40); /* into the tails: exp overflows and underflows */
    }
    check_gate(70001, 1);
}

enum { GATE_N = 9 };

static void gate_of(double *a, void *ctx)
{
    double *gu = ctx;
    az_kern_silu_gate_forward_ref(a, gu, gu + GATE_N, GATE_N);
}

static void test_gate_difference(void **state)
{
    (void)state;
    double gu[2 * GATE_N], da[GATE_N], grad[2 * GATE_N], diff[2 * GATE_N];
    for (size_t i = 0; i < COUNT(gu); i++)
        gu[i] = normal(13, i);
    for (size_t i = 0; i < COUNT(da); i++)
        da[i] = normal(14, i);
    az_kern_silu_gate_backward_ref(grad, grad + GATE_N, da, gu, gu + GATE_N, GATE_N);
    differences(diff, gu, COUNT(gu), gate_of, gu, da, COUNT(da));
    CHECK_ERROR(error_of_doubles(grad, diff, COUNT(gu)), TOL_DIFFERENCE);
}

static void test_add(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 7, 8192, 70001};
    for (size_t k = 0; k < COUNT(lengths); k++) {
        size_t n = lengths[k];
        float *x = random_floats(n, 15), *y = random_floats(n, 16);
        double *sum = widened(y, n);
        for (size_t i = 0; i < n; i++)
            sum[i] = (double)(y[i] + x[i]);
        az_kern_add_cpu(y, x, n);
        CHECK_ERROR(error_of(y, sum, n), 0);
        az_free(x);
        az_free(y);
        az_free(sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expf),  cmocka_unit_test(test_expf_edges),
        cmocka_unit_test(test_widen), cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),  cmocka_unit_test(test_norm_difference),
        cmocka_unit_test(test_rope),  cmocka_unit_test(test_rope_difference),
        cmocka_unit_test(test_gate),  cmocka_unit_test(test_gate_difference),
        cmocka_unit_test(test_add),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
