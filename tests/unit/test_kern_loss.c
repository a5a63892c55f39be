/* Cross entropy in column pieces against plain loops. */
#include <config.h>

#include "kern_test.h"

static const int64_t sizes[] = {1, 7, 33, 100, 1031};

/* All logits folded in pieces of width columns. Returns the loss, *out_grad the gradient. */
static void check_loss(int64_t N, int64_t V, int64_t width, double spread)
{
    size_t n = (size_t)(N * V);
    float *logits = random_floats(n, 1), *grad = floats(n), *piece = floats((size_t)(N * width)),
          *max = floats((size_t)N), *hit = floats((size_t)N), *each = floats((size_t)N);
    double *sum = doubles((size_t)N), *ref = doubles(n), *exact;
    int32_t *label = az_alloc((size_t)N, sizeof *label, "test");
    for (size_t i = 0; i < n; i++)
        logits[i] *= (float)spread;
    for (int64_t i = 0; i < N; i++)
        label[i] = (int32_t)((i * 13 + V - 1) % V);
    exact = widened(logits, n);

    az_kern_loss_begin_cpu(max, sum, hit, N);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t col = 0; col < V; col += width) {
            int64_t C = az_min_i64(width, V - col);
            for (int64_t i = 0; i < N; i++)
                memcpy(piece + i * C, logits + i * V + col, (size_t)C * sizeof *piece);
            if (pass == 0) {
                az_kern_loss_fold_cpu(max, sum, hit, piece, label, col, N, C);
                continue;
            }
            az_kern_loss_backward_cpu(piece, max, sum, label, 0.37, col, N, C);
            for (int64_t i = 0; i < N; i++)
                memcpy(grad + i * V + col, piece + i * C, (size_t)C * sizeof *piece);
        }
    double loss = az_kern_loss_end_cpu(max, sum, hit, each, N),
           loss_ref = az_kern_loss_ref(exact, label, N, V);
    CHECK_ERROR(fabs(loss - loss_ref) / fmax(loss_ref, 1.0), 1e-6);
    assert_true(az_kern_loss_end_cpu(max, sum, hit, NULL, N) == loss);
    double total = 0;
    for (int64_t i = 0; i < N; i++) {
        double one = az_kern_loss_ref(exact + i * V, label + i, 1, V);
        CHECK_ERROR(fabs((double)each[i] - one) / fmax(one, 1.0), 1e-6);
        total += (double)each[i];
    }
    CHECK_ERROR(fabs(total - loss) / fmax(loss, 1.0), 1e-6);
    az_kern_loss_backward_ref(ref, exact, label, 0.37, N, V);
    CHECK_ERROR(error_of(grad, ref, n), TOL_KERNEL_F32);

    az_free(logits);
    az_free(grad);
    az_free(piece);
    az_free(max);
    az_free(hit);
    az_free(each);
    az_free(sum);
    az_free(ref);
    az_free(exact);
    az_free(label);
}

static void test_loss(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(sizes); n++)
        for (size_t v = 0; v < COUNT(sizes); v++) {
            check_loss(sizes[n], sizes[v], sizes[v], 1);
            check_loss(sizes[n], sizes[v], (sizes[v] + 2) / 3, 1);
            check_loss(sizes[n], sizes[v], 5, 30); /* exponentials beyond f32 without the shift */
        }
}

/* Masked columns, hopeless labels and NaN. */
static void test_extremes(void **state)
{
    (void)state;
    float max[1], hit[1], a[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                          b[4] = {1, -INFINITY, 1000, 2}, nan[4] = {0, NAN, 1, 2};
    double sum[1];
    int32_t label[1] = {6};
    az_kern_loss_begin_cpu(max, sum, hit, 1);
    az_kern_loss_fold_cpu(max, sum, hit, a, label, 0, 1, 4); /* a first piece that is all masked */
    az_kern_loss_fold_cpu(max, sum, hit, b, label, 4, 1, 4);
    double loss = az_kern_loss_end_cpu(max, sum, hit, NULL, 1);
    CHECK_ERROR(fabs(loss), 0);
    label[0] = 4;
    az_kern_loss_begin_cpu(max, sum, hit, 1);
    az_kern_loss_fold_cpu(max, sum, hit, b, label, 4, 1, 4);
    CHECK_ERROR(fabs(az_kern_loss_end_cpu(max, sum, hit, NULL, 1) - 999), 1e-12);
    az_kern_loss_backward_cpu(b, max, sum, label, 1, 4, 1, 4);
    assert_true(b[0] == -1.0f && b[1] == 0.0f && b[2] == 1.0f && b[3] == 0.0f);
    az_kern_loss_begin_cpu(max, sum, hit, 1);
    az_kern_loss_fold_cpu(max, sum, hit, nan, label, 4, 1, 4);
    assert_true(isnan(az_kern_loss_end_cpu(max, sum, hit, NULL, 1)));
    assert_true(az_kern_loss_end_cpu(max, sum, hit, NULL, 0) == 0);
}

enum { REF_N = 3, REF_V = 7 };

typedef struct {
    double *logits;
    const int32_t *label;
} loss_case;

static void loss_of(double *out, void *ctx)
{
    loss_case *c = ctx;
    out[0] = az_kern_loss_ref(c->logits, c->label, REF_N, REF_V);
}

static void test_difference(void **state)
{
    (void)state;
    const int32_t label[REF_N] = {6, 0, 3};
    const double scale = 0.8;
    double logits[REF_N * REF_V], grad[REF_N * REF_V], diff[REF_N * REF_V];
    for (size_t i = 0; i < COUNT(logits); i++)
        logits[i] = 2 * normal(2, i);
    loss_case c = {logits, label};
    az_kern_loss_backward_ref(grad, logits, label, scale, REF_N, REF_V);
    differences(diff, logits, COUNT(logits), loss_of, &c, &scale, 1);
    CHECK_ERROR(error_of_doubles(grad, diff, COUNT(grad)), TOL_DIFFERENCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_difference),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
