/* A GPU's cross entropy in column pieces against plain loops and the CPU's. */
#include <config.h>

#include "tests/cuemu/gpu_arrays.h"

/* Logits that come in pieces of width columns, folded and turned to gradients. */
static void check_loss(int64_t N, int64_t V, int64_t width, double spread)
{
    const size_t n = (size_t)(N * V), rows = (size_t)N;
    float *logits = random_floats(n, 1), *piece = floats((size_t)(N * width)), *got = floats(n),
          *grad = floats(n);
    double *ref = doubles(n), *exact, loss;
    int32_t *label = az_alloc(rows + 1, sizeof *label, "test");
    for (size_t i = 0; i < n; i++)
        logits[i] *= (float)spread;
    for (int64_t i = 0; i < N; i++)
        label[i] = (int32_t)((i * 13 + V - 1) % V);
    exact = widened(logits, n);
    float *max = gpu_put(NULL, rows, sizeof *max), *hit = gpu_put(NULL, rows, sizeof *hit);
    double *sum = gpu_put(NULL, rows, sizeof *sum), *out = gpu_put(NULL, 1, sizeof *out);
    const int32_t *label_d = gpu_put(label, rows, sizeof *label);
    float *piece_d = gpu_put(NULL, (size_t)(N * width), sizeof *piece_d);
    void *dlogits =
        gpu.kern.numeric.act == AZ_F32 ? (void *)piece_d : put_act(NULL, (size_t)(N * width));
    gpu.op->loss_begin(gpu.self, max, sum, hit, N);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t col = 0; col < V; col += width) {
            const int64_t C = az_min_i64(width, V - col);
            const size_t len = (size_t)(N * C);
            for (int64_t i = 0; i < N; i++)
                memcpy(piece + i * C, logits + i * V + col, (size_t)C * sizeof *piece);
            az_dev_copy_in(gpu.dev, AZ_QUEUE_COMPUTE, piece_d, piece, len * sizeof *piece);
            gpu_wait();
            if (pass == 0) {
                gpu.op->loss_fold(gpu.self, max, sum, hit, piece_d, label_d, col, N, C);
                continue;
            }
            gpu.op->loss_backward(gpu.self, dlogits, piece_d, max, sum, label_d, 0.37, col, N, C);
            get_act(got, dlogits, len);
            for (int64_t i = 0; i < N; i++)
                memcpy(grad + i * V + col, got + i * C, (size_t)C * sizeof *got);
        }
    gpu.op->loss_end(gpu.self, out, max, sum, hit, N);
    gpu_get(&loss, out, sizeof loss);
    const double loss_ref = az_kern_loss_ref(exact, label, N, V);
    CHECK_ERROR(fabs(loss - loss_ref) / fmax(loss_ref, 1.0), 1e-6);
    az_kern_loss_backward_ref(ref, exact, label, 0.37, N, V);
    CHECK_ERROR(error_of(grad, ref, n),
                gpu.kern.numeric.act == AZ_BF16 ? TOL_ROUND_BF16 : TOL_KERNEL_F32);
    gpu_free_all();
    float *const f[] = {logits, piece, got, grad};
    for (size_t i = 0; i < COUNT(f); i++)
        az_free(f[i]);
    az_free(ref);
    az_free(exact);
    az_free(label);
}

static void loss(void)
{
    static const int64_t sizes[] = {1, 7, 100, 1032};
    for (size_t v = 0; v < COUNT(sizes); v++) {
        check_loss(5, sizes[v], sizes[v], 1);
        check_loss(3, sizes[v], (sizes[v] + 2) / 3, 1);
        check_loss(2, sizes[v], 64, 30); /* exponentials beyond f32 without the shift */
    }
    check_loss(300, 8, 8, 1); /* more rows than a block has threads */
    check_loss(2, 2100, 1052, 3);
}

/* The loss of one row of four columns from col0, after a piece that is all masked. */
static double loss_of(const float *x, int32_t label, int64_t col0)
{
    const float masked[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    float *max = gpu_put(NULL, 1, sizeof *max), *hit = gpu_put(NULL, 1, sizeof *hit);
    double *sum = gpu_put(NULL, 1, sizeof *sum), *out = gpu_put(NULL, 1, sizeof *out), got;
    const int32_t *label_d = gpu_put(&label, 1, sizeof label);
    gpu.op->loss_begin(gpu.self, max, sum, hit, 1);
    gpu.op->loss_fold(gpu.self, max, sum, hit, gpu_put(masked, 4, sizeof *masked), label_d, 0, 1,
                      4);
    gpu.op->loss_fold(gpu.self, max, sum, hit, gpu_put(x, 4, sizeof *x), label_d, col0, 1, 4);
    gpu.op->loss_end(gpu.self, out, max, sum, hit, 1);
    gpu_get(&got, out, sizeof got);
    gpu_free_all();
    return got;
}

static void extremes(void)
{
    const float b[4] = {1, -INFINITY, 1000, 2}, nan[4] = {0, NAN, 1, 2}, inf[4] = {0, INFINITY};
    CHECK_ERROR(fabs(loss_of(b, 6, 4)), 0);
    CHECK_ERROR(fabs(loss_of(b, 4, 4) - 999), 1e-12);
    assert_true(isinf(loss_of(b, 5, 4)));
    assert_true(isnan(loss_of(nan, 4, 4)));
    assert_true(isnan(loss_of(inf, 4, 4)));
    double *out = gpu_put(NULL, 1, sizeof *out), none;
    gpu.op->loss_end(gpu.self, out, NULL, NULL, NULL, 0);
    gpu_get(&none, out, sizeof none);
    assert_true(none == 0);
    gpu_free_all();
}

static void test_loss(void **state)
{
    (void)state;
    for_all_kinds(loss);
}

static void test_extremes(void **state)
{
    (void)state;
    for_all_kinds(extremes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, gpu_end);
}
