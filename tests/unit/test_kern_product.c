/* Products and the linear layer against plain loops, all types, odd sizes, several panels. */
#include <config.h>

#include "kern/kern_priv.h"
#include "kern_test.h"

static void gemm_ref(bool ta, bool tb, int64_t M, int64_t N, int64_t K, double alpha,
                     const double *A, int64_t lda, const double *B, int64_t ldb, double beta,
                     double *C, int64_t ldc)
{
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double s = 0;
            for (int64_t k = 0; k < K; k++)
                s +=
                    (ta ? A[k * lda + m] : A[m * lda + k]) * (tb ? B[n * ldb + k] : B[k * ldb + n]);
            C[m * ldc + n] = alpha * s + beta * C[m * ldc + n];
        }
}

/* One product, whole and in calls of at most limit, with rows longer than the matrix. */
static void check_gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, int64_t limit)
{
    int64_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
    size_t na = (size_t)((ta ? K : M) * lda), nb = (size_t)((tb ? N : K) * ldb),
           nc = (size_t)(M * ldc);
    float *A = random_floats(na, 1), *B = random_floats(nb, 2), *C = random_floats(nc, 3);
    double *a = widened(A, na), *b = widened(B, nb), *c = widened(C, nc);
    gemm_ref(ta, tb, M, N, K, 0.5, a, lda, b, ldb, -1.5, c, ldc);
    if (limit > 0)
        az_kern_gemm_limited_cpu(ta, tb, M, N, K, 0.5f, A, lda, B, ldb, -1.5f, C, ldc, limit);
    else
        az_kern_gemm_cpu(ta, tb, M, N, K, 0.5f, A, lda, B, ldb, -1.5f, C, ldc);
    CHECK_ERROR(error_of(C, c, nc), TOL_KERNEL_F32);
    az_free(A);
    az_free(B);
    az_free(C);
    az_free(a);
    az_free(b);
    az_free(c);
}

static void test_gemm(void **state)
{
    static const int64_t sizes[] = {1, 7, 33, 100};
    (void)state;
    for (int t = 0; t < 4; t++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(sizes); k++)
                    check_gemm(t & 1, t & 2, sizes[m], sizes[n], sizes[k], 0);
}

/* Dimensions beyond the BLAS's integers are split: the same code with a small limit. */
static void test_gemm_limited(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        check_gemm(t & 1, t & 2, 33, 20, 47, 10);
        check_gemm(t & 1, t & 2, 10, 21, 10, 10);
        check_gemm(t & 1, t & 2, 3, 2, 1, 1);
    }
}

/* A sum of no terms is 0: C is scaled. */
static void test_gemm_empty(void **state)
{
    (void)state;
    float C[6] = {1, 2, 3, 4, 5, 6}, none[1] = {NAN};
    az_kern_gemm_cpu(false, false, 2, 3, 0, 1.0f, none, 1, none, 3, 0.5f, C, 3);
    for (int i = 0; i < 6; i++)
        assert_true(C[i] == 0.5f * (float)(i + 1));
    az_kern_gemm_cpu(false, false, 0, 3, 2, 1.0f, none, 2, none, 3, 0.0f, C, 3);
    az_kern_gemm_cpu(false, false, 2, 0, 2, 1.0f, none, 2, none, 1, 0.0f, C, 1);
    assert_true(C[0] == 0.5f);
}

static void check_linear(az_dtype t, int64_t N, int64_t D, int64_t F, bool bias)
{
    double *W, *b;
    az_view wv = random_view(t, F, D, 4, &W), bv = random_view(t, 1, F, 5, &b), none = {0};
    size_t nx = (size_t)(N * D), ny = (size_t)(N * F);
    float *x = random_floats(nx, 6), *y = random_floats(ny, 7),
          *scratch = floats(az_kern_linear_scratch_cpu());
    double *xd = widened(x, nx), *yd = widened(y, ny);

    /* Backward first, so that y holds random numbers for dy; with and without accumulation. */
    for (int add = 0; add < 2; add++) {
        float *dx = random_floats(nx, 8);
        double *dxd = widened(dx, nx);
        if (!add)
            for (size_t i = 0; i < nx; i++)
                dx[i] = NAN;
        az_kern_linear_backward_cpu(dx, y, wv, add, N, scratch);
        az_kern_linear_backward_ref(dxd, yd, W, add, N, D, F);
        CHECK_ERROR(error_of(dx, dxd, nx), TOL_KERNEL_F32);
        az_free(dx);
        az_free(dxd);
    }
    for (size_t i = 0; i < ny; i++)
        y[i] = NAN;
    az_kern_linear_forward_cpu(y, x, wv, bias ? bv : none, N, scratch);
    az_kern_linear_forward_ref(yd, xd, W, bias ? b : NULL, N, D, F);
    CHECK_ERROR(error_of(y, yd, ny), TOL_KERNEL_F32);

    az_free((void *)(uintptr_t)wv.data);
    az_free((void *)(uintptr_t)bv.data);
    az_free(W);
    az_free(b);
    az_free(x);
    az_free(y);
    az_free(xd);
    az_free(yd);
    az_free(scratch);
}

static void test_linear(void **state)
{
    static const int64_t sizes[] = {1, 7, 33, 100};
    (void)state;
    for (int t = AZ_F32; t <= AZ_BF16; t++)
        for (size_t n = 0; n < COUNT(sizes); n++)
            for (size_t d = 0; d < COUNT(sizes); d++)
                for (size_t f = 0; f < COUNT(sizes); f++)
                    check_linear((az_dtype)t, sizes[n], sizes[d], sizes[f], (n + d + f) % 2);
}

/* More than one panel, in rows and in columns. */
static void test_linear_panels(void **state)
{
    (void)state;
    for (int t = AZ_F32; t <= AZ_BF16; t++) {
        check_linear((az_dtype)t, 3, 700, 1601, true);
        check_linear((az_dtype)t, 2, 17001, 90, false);
        check_linear((az_dtype)t, 9, 17001, 90, true);
    }
}

static void test_linear_nothing(void **state)
{
    (void)state;
    az_view w = {.data = "", .dtype = AZ_BF16, .rows = 3, .cols = 2}, none = {0};
    az_kern_linear_forward_cpu(NULL, NULL, w, none, 0, NULL);
    az_kern_linear_backward_cpu(NULL, NULL, w, false, 0, NULL);
}

/* One wrong weight must not be lost on the way. */
static void test_linear_nan(void **state)
{
    (void)state;
    enum { N = 2, D = 40, F = 30 };
    double *W;
    az_view w = random_view(AZ_BF16, F, D, 9, &W), none = {0};
    float *x = random_floats(N * D, 10), *y = floats(N * F),
          *scratch = floats(az_kern_linear_scratch_cpu());
    double *ref = doubles(N * F), *xd = widened(x, N * D);
    ((uint16_t *)(uintptr_t)w.data)[11 * D + 5] = 0x7fc0;
    az_kern_linear_forward_cpu(y, x, w, none, N, scratch);
    az_kern_linear_forward_ref(ref, xd, W, NULL, N, D, F);
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++)
            assert_true(isnan(y[n * F + f]) == (f == 11));
    assert_true(!(error_of(y, ref, N * F) <= TOL_KERNEL_F32));
    az_free((void *)(uintptr_t)w.data);
    az_free(W);
    az_free(x);
    az_free(y);
    az_free(scratch);
    az_free(ref);
    az_free(xd);
}

/* ---- the reference's backward is the derivative of its forward ---- */

enum { REF_N = 3, REF_D = 5, REF_F = 4 };

typedef struct {
    double *x, *W, *b;
} linear_case;

static void linear_of(double *y, void *ctx)
{
    linear_case *c = ctx;
    az_kern_linear_forward_ref(y, c->x, c->W, c->b, REF_N, REF_D, REF_F);
}

static void test_linear_difference(void **state)
{
    (void)state;
    double x[REF_N * REF_D], W[REF_F * REF_D], b[REF_F], dy[REF_N * REF_F], dx[REF_N * REF_D],
        diff[REF_N * REF_D];
    for (size_t i = 0; i < COUNT(x); i++)
        x[i] = normal(11, i);
    for (size_t i = 0; i < COUNT(W); i++)
        W[i] = normal(12, i);
    for (size_t i = 0; i < COUNT(b); i++)
        b[i] = normal(13, i);
    for (size_t i = 0; i < COUNT(dy); i++)
        dy[i] = normal(14, i);
    linear_case c = {x, W, b};
    az_kern_linear_backward_ref(dx, dy, W, false, REF_N, REF_D, REF_F);
    differences(diff, x, COUNT(x), linear_of, &c, dy, COUNT(dy));
    CHECK_ERROR(error_of_doubles(dx, diff, COUNT(x)), TOL_DIFFERENCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),          cmocka_unit_test(test_gemm_limited),
        cmocka_unit_test(test_gemm_empty),    cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_panels), cmocka_unit_test(test_linear_nothing),
        cmocka_unit_test(test_linear_nan),    cmocka_unit_test(test_linear_difference),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
