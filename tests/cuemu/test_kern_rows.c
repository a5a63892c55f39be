/* A GPU's operations on rows against the CPU's and plain loops. */
#include <config.h>

#include "tests/cuemu/gpu_arrays.h"

static const int64_t widths[] = {1, 7, 8, 33, 64, 136, 2056};

/* ---- embedding ---- */

static void check_embed(az_dtype t, int64_t N, int64_t D)
{
    enum { V = 23 };
    const size_t n = (size_t)(N * D);
    double *table, *ref = doubles(n);
    az_view w = random_view(t, V, D, 1, &table);
    int32_t *ids = az_alloc((size_t)N + 1, sizeof *ids, "test");
    for (int64_t i = 0; i < N; i++)
        ids[i] = (int32_t)((i * 7 + 22) % V);
    void *x = put_act(NULL, n);
    const int32_t *ids_d = gpu_put(ids, (size_t)N, sizeof *ids);
    const az_view all = put_view(w);
    /* In pieces of 5 rows, as ranks hold them; a piece touches only its own ids. */
    for (int64_t row = 0; row < V; row += 5) {
        az_view piece = all;
        piece.data = (const char *)all.data + (size_t)(row * D) * az_dtype_bytes(t);
        piece.rows = az_min_i64(5, V - row);
        gpu.op->embed(gpu.self, x, piece, row, ids_d, N);
    }
    az_kern_embed_ref(ref, table, ids, N, D);
    CHECK_ERROR(act_error(x, ref, n), gpu.kern.numeric.act == t ? 0 : 1e-30);
    gpu_free_all();
    az_free((void *)(uintptr_t)w.data);
    az_free(table);
    az_free(ref);
    az_free(ids);
}

static void embed(void)
{
    for (int t = AZ_F32; t <= AZ_BF16; t++)
        for (size_t d = 0; d < COUNT(widths); d++)
            check_embed((az_dtype)t, 9, widths[d]);
    check_embed(AZ_BF16, 0, 8);
    check_embed(AZ_BF16, 300, 8);
}

/* ---- norm ---- */

static void check_norm(az_dtype t, int64_t N, int64_t D)
{
    const double eps = 1e-5;
    const size_t n = (size_t)(N * D);
    double *w;
    az_view wv = random_view(t, 1, D, 2, &w);
    float *x = random_act(n, 3), *dy = random_act(n, 4), *dx = random_act(n, 5);
    for (int64_t i = 0; i < D && N > 1; i++)
        x[i] = 0; /* a row of zeros is legal: eps carries it */
    double *xd = widened(x, n), *dyd = widened(dy, n), *dxd = widened(dx, n), *yd = doubles(n);
    void *y_d = put_act(NULL, n), *x_d = put_act(x, n), *dy_d = put_act(dy, n),
         *dx_d = put_act(dx, n);
    const az_view w_d = put_view(wv);
    gpu.op->rmsnorm_forward(gpu.self, y_d, x_d, w_d, eps, N, D);
    gpu.op->rmsnorm_backward(gpu.self, dx_d, dy_d, x_d, w_d, eps, N, D);
    az_kern_rmsnorm_forward_ref(yd, xd, w, eps, N, D);
    az_kern_rmsnorm_backward_ref(dxd, dyd, xd, w, eps, N, D);
    CHECK_ERROR(act_error(y_d, yd, n), TOL_KERNEL_F32);
    CHECK_ERROR(act_error(dx_d, dxd, n), TOL_KERNEL_F32);
    gpu_free_all();
    az_free((void *)(uintptr_t)wv.data);
    float *const f[] = {x, dy, dx};
    double *const d[] = {w, xd, dyd, dxd, yd};
    for (size_t i = 0; i < COUNT(f); i++)
        az_free(f[i]);
    for (size_t i = 0; i < COUNT(d); i++)
        az_free(d[i]);
}

/* NaN and infinity spoil their row alone. */
static void check_norm_edges(void)
{
    enum { N = 3, D = 40 };
    float x[N * D], w[D], got[N * D], want[N * D];
    for (size_t i = 0; i < N * D; i++)
        x[i] = (float)(i % 5) + 1;
    for (size_t i = 0; i < D; i++)
        w[i] = 1;
    x[3] = NAN;
    x[2 * D + 5] = INFINITY;
    void *y = put_act(NULL, N * D);
    gpu.op->rmsnorm_forward(gpu.self, y, put_act(x, N * D), put_view((az_view){w, AZ_F32, 1, D}),
                            1e-5, N, D);
    get_act(got, y, N * D);
    az_kern_rmsnorm_forward_cpu(want, x, (az_view){w, AZ_F32, 1, D}, 1e-5, N, D);
    for (size_t i = 0; i < N * D; i++)
        assert_true(isnan(want[i]) ? isnan(got[i]) : fabsf(got[i] - want[i]) <= 0.01f);
    gpu_free_all();
}

static void norm(void)
{
    for (int t = AZ_F32; t <= AZ_BF16; t++)
        for (size_t d = 0; d < COUNT(widths); d++)
            check_norm((az_dtype)t, 3, widths[d]);
    check_norm(AZ_BF16, 0, 64);
    check_norm(AZ_BF16, 130, 16);
    check_norm_edges();
}

/* ---- rotary embedding ---- */

static void check_rope(int64_t N, int heads, int64_t K)
{
    enum { P = 50 };
    const size_t n = (size_t)(N * heads * K), n_table = (size_t)(P * K);
    float *x = random_act(n, 9), *table = random_floats(n_table, 10);
    int32_t *pos = az_alloc((size_t)N + 1, sizeof *pos, "test");
    for (int64_t i = 0; i < N; i++)
        pos[i] = (int32_t)((i * 11) % P);
    double *xd = widened(x, n), *backward = widened(x, n), *td = widened(table, n_table);
    void *x_d = put_act(x, n), *backward_d = put_act(x, n);
    const float *table_d = gpu_put(table, n_table, sizeof *table);
    const int32_t *pos_d = gpu_put(pos, (size_t)N, sizeof *pos);
    gpu.op->rope(gpu.self, x_d, pos_d, table_d, N, heads, K, false);
    gpu.op->rope(gpu.self, backward_d, pos_d, table_d, N, heads, K, true);
    az_kern_rope_ref(xd, pos, td, N, heads, K, false);
    az_kern_rope_ref(backward, pos, td, N, heads, K, true);
    CHECK_ERROR(act_error(x_d, xd, n), TOL_KERNEL_F32);
    CHECK_ERROR(act_error(backward_d, backward, n), TOL_KERNEL_F32);
    gpu_free_all();
    az_free(x);
    az_free(table);
    az_free(pos);
    az_free(xd);
    az_free(backward);
    az_free(td);
}

static void rope(void)
{
    check_rope(1, 1, 2);
    check_rope(5, 3, 6);
    check_rope(7, 9, 64);
    check_rope(4, 4, 128);
    check_rope(3, 2, 24);
    check_rope(0, 2, 16);
    check_rope(100, 2, 16);
}

/* ---- rows brought together and put back ---- */

static void check_move(int64_t n, int64_t D)
{
    const int64_t all = 2 * n + 3;
    const size_t n_x = (size_t)(all * D), n_y = (size_t)(n * D);
    float *x = random_act(n_x, 30), *y = random_act(n_y, 31), *got = floats(n_x);
    int64_t *rows = az_alloc((size_t)n + 1, sizeof *rows, "test");
    for (int64_t i = 0; i < n; i++)
        rows[i] = (2 * i + 1) * 2 % all;
    void *x_d = put_act(x, n_x), *y_d = put_act(NULL, n_y);
    const int64_t *rows_d = gpu_put(rows, (size_t)n, sizeof *rows);
    gpu.op->gather_rows(gpu.self, y_d, x_d, rows_d, n, D);
    get_act(got, y_d, n_y);
    for (int64_t i = 0; i < n; i++)
        assert_memory_equal(got + i * D, x + rows[i] * D, (size_t)D * sizeof *x);
    gpu.op->scatter_rows(gpu.self, x_d, put_act(y, n_y), rows_d, n, D);
    get_act(got, x_d, n_x);
    for (int64_t i = 0; i < n; i++)
        memcpy(x + rows[i] * D, y + i * D, (size_t)D * sizeof *x);
    assert_memory_equal(got, x, n_x * sizeof *x);
    gpu_free_all();
    az_free(x);
    az_free(y);
    az_free(got);
    az_free(rows);
}

static void move(void)
{
    for (size_t d = 0; d < COUNT(widths); d++)
        check_move(5, widths[d]);
    check_move(0, 8);
    check_move(200, 8);
}

/* ---- ---- */

static void test_embed(void **state)
{
    (void)state;
    for_all_kinds(embed);
}

static void test_norm(void **state)
{
    (void)state;
    for_all_kinds(norm);
}

static void test_rope(void **state)
{
    (void)state;
    for_all_kinds(rope);
}

static void test_move(void **state)
{
    (void)state;
    for_all_kinds(move);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_move),
    };
    return cmocka_run_group_tests(tests, NULL, gpu_end);
}
