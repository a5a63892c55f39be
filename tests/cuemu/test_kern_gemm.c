/* Products and the linear layer of a GPU against plain loops: all types, odd sizes, rows longer
 * than the matrix, weights in pieces. */
#include <config.h>

#include "tests/cuemu/kern_gpu.h"

typedef void gemm_limited(az_kern_self *, bool, bool, int64_t, int64_t, int64_t, float,
                          const void *, int64_t, const void *, int64_t, float, void *, int64_t,
                          bool, int64_t);

typedef void forward_limited(az_kern_self *, void *, bool, const void *, az_view, az_view, int64_t,
                             void *, size_t);
typedef void backward_limited(az_kern_self *, void *, const void *, az_view, bool, int64_t, void *,
                              size_t);

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
            C[m * ldc + n] = alpha * s + (beta == 0 ? 0 : beta * C[m * ldc + n]);
        }
}

static double tolerance(az_dtype result)
{
    return result == AZ_F32 ? TOL_KERNEL_F32 : TOL_KERNEL_BF16;
}

/* One product; limit > 0: in calls of at most limit. With beta 0 the result's old numbers, NaN, do
 * not matter. */
static void check_gemm(az_dtype act, bool c_f32, int transposes, int64_t M, int64_t N, int64_t K,
                       float beta, int64_t limit)
{
    const az_kern *kern = open_kern(act);
    const bool ta = transposes & 1, tb = transposes & 2;
    const az_dtype c_type = c_f32 ? AZ_F32 : act;
    int64_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
    size_t na = (size_t)((ta ? K : M) * lda), nb = (size_t)((tb ? N : K) * ldb),
           nc = (size_t)(M * ldc);
    float *A = random_acts(na, 1, act), *B = random_acts(nb, 2, act), *C = random_acts(nc, 3, act);
    double *a = widened(A, na), *b = widened(B, nb), *c = widened(C, nc);
    for (int64_t i = 0; beta == 0 && i < M * N; i++)
        C[i / N * ldc + i % N] = NAN;
    void *dA = floats_to_gpu(A, na, act), *dB = floats_to_gpu(B, nb, act),
         *dC = floats_to_gpu(C, nc, c_type);
    gemm_ref(ta, tb, M, N, K, 0.5, a, lda, b, ldb, (double)beta, c, ldc);
    if (limit > 0)
        (*(gemm_limited *const *)az_dev_get_table(gpu_dev, "az_cuda_gemm_limited"))(
            kern->self, ta, tb, M, N, K, 0.5f, dA, lda, dB, ldb, beta, dC, ldc, c_f32, limit);
    else
        kern->op->gemm(kern->self, ta, tb, M, N, K, 0.5f, dA, lda, dB, ldb, beta, dC, ldc, c_f32);
    float *got = floats_from_gpu(dC, nc, c_type);
    CHECK_ERROR(error_of(got, c, nc), tolerance(c_type));
    free_gpu(dA);
    free_gpu(dB);
    az_free(A);
    az_free(B);
    az_free(C);
    az_free(got);
    az_free(a);
    az_free(b);
    az_free(c);
}

static void test_gemm(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {7, 33, 1},  {33, 1, 40},
                                       {1, 24, 100}, {33, 20, 7}, {64, 64, 64}};
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++)
        for (int t = 0; t < 4; t++)
            for (size_t i = 0; i < COUNT(sizes); i++)
                for (int c_f32 = 0; c_f32 < 2; c_f32++)
                    check_gemm(acts[a], c_f32, t, sizes[i][0], sizes[i][1], sizes[i][2],
                               i % 2 ? -1.5f : 0.0f, 0);
}

/* Dimensions beyond the integers of cuBLAS are cut: the same code with a small limit. */
static void test_gemm_limited(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        check_gemm(AZ_F32, false, t, 33, 20, 47, -1.5f, 10);
        check_gemm(AZ_F32, false, t, 10, 21, 10, 0.0f, 10);
    }
}

/* A sum of no terms is 0: C is scaled. */
static void test_gemm_empty(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++) {
        check_gemm(acts[a], false, 0, 4, 3, 0, 0.5f, 0);
        check_gemm(acts[a], true, 1, 4, 3, 0, 0.5f, 0);
        check_gemm(acts[a], false, 2, 4, 3, 0, 0.0f, 0);
        check_gemm(acts[a], false, 0, 0, 3, 2, 0.0f, 0);
        check_gemm(acts[a], false, 0, 2, 0, 2, 0.0f, 0);
    }
}

/* A linear layer and its arrays on the GPU. */
typedef struct {
    int64_t N, D, F;
    bool bias, y_f32;
    size_t limit; /* elements of a piece of the weight in scratch; 0: the one there is */
    az_view W, b;
    void *scratch;
} layer;

static void run_forward(const az_kern *kern, const layer *l, void *y, const void *x)
{
    az_view none = {0}, b = l->bias ? l->b : none;
    if (l->limit > 0)
        (*(forward_limited *const *)az_dev_get_table(gpu_dev, "az_cuda_forward_limited"))(
            kern->self, y, l->y_f32, x, l->W, b, l->N, l->scratch, l->limit);
    else
        kern->op->linear_forward(kern->self, y, l->y_f32, x, l->W, b, l->N, l->scratch);
}

static void run_backward(const az_kern *kern, const layer *l, void *dx, const void *dy, bool add)
{
    if (l->limit > 0)
        (*(backward_limited *const *)az_dev_get_table(gpu_dev, "az_cuda_backward_limited"))(
            kern->self, dx, dy, l->W, add, l->N, l->scratch, l->limit);
    else
        kern->op->linear_backward(kern->self, dx, dy, l->W, add, l->N, l->scratch);
}

static void check_backward(const az_kern *kern, const layer *l, const double *W, bool add)
{
    const az_dtype act = kern->numeric.act;
    size_t nx = (size_t)(l->N * l->D), ny = (size_t)(l->N * l->F);
    float *dx = random_acts(nx, 8, act), *dy = random_acts(ny, 7, act);
    double *ref = widened(dx, nx), *dyd = widened(dy, ny);
    for (size_t i = 0; !add && i < nx; i++)
        dx[i] = NAN;
    void *gdx = floats_to_gpu(dx, nx, act), *gdy = floats_to_gpu(dy, ny, act);
    run_backward(kern, l, gdx, gdy, add);
    az_kern_linear_backward_ref(ref, dyd, W, add, l->N, l->D, l->F);
    float *got = floats_from_gpu(gdx, nx, act);
    CHECK_ERROR(error_of(got, ref, nx), tolerance(act));
    free_gpu(gdy);
    az_free(got);
    az_free(dx);
    az_free(dy);
    az_free(ref);
    az_free(dyd);
}

/* A bias that is wider than the activations is rounded too. */
static void check_forward(const az_kern *kern, const layer *l, const double *W, const double *b)
{
    const az_dtype act = kern->numeric.act, y_type = l->y_f32 ? AZ_F32 : act;
    size_t nx = (size_t)(l->N * l->D), ny = (size_t)(l->N * l->F);
    float *x = random_acts(nx, 6, act), *y = floats(ny);
    double *ref = doubles(ny), *xd = widened(x, nx);
    for (size_t i = 0; i < ny; i++)
        y[i] = NAN;
    void *gx = floats_to_gpu(x, nx, act), *gy = floats_to_gpu(y, ny, y_type);
    run_forward(kern, l, gy, gx);
    az_kern_linear_forward_ref(ref, xd, W, l->bias ? b : NULL, l->N, l->D, l->F);
    float *got = floats_from_gpu(gy, ny, y_type);
    CHECK_ERROR(error_of(got, ref, ny), (l->bias ? 2 : 1) * tolerance(y_type));
    free_gpu(gx);
    az_free(got);
    az_free(x);
    az_free(y);
    az_free(ref);
    az_free(xd);
}

static void check_linear(az_dtype act, az_dtype weight, layer l)
{
    const az_kern *kern = open_kern(act);
    double *W, *b;
    az_view w = random_view(weight, l.F, l.D, 4, &W), v = random_view(weight, 1, l.F, 5, &b);
    size_t bytes = (l.limit > 0 ? l.limit : (size_t)(l.F * l.D)) * az_dtype_bytes(act);
    assert_true(bytes <= az_kern_linear_scratch(kern->numeric));
    l.W = view_to_gpu(w);
    l.b = view_to_gpu(v);
    assert_int_equal(az_dev_alloc(&l.scratch, gpu_dev, bytes, "test"), AZ_OK);
    /* What the product is given of a weight is of the activations' type. */
    for (int64_t i = 0; act == AZ_BF16 && i < l.F * l.D; i++)
        W[i] = (double)az_bf16_to_f32(az_f32_to_bf16((float)W[i]));
    check_forward(kern, &l, W, b);
    check_backward(kern, &l, W, false);
    check_backward(kern, &l, W, true);
    free_gpu(l.W.data);
    free_gpu(l.b.data);
    free_gpu(l.scratch);
    az_free((void *)(uintptr_t)w.data);
    az_free((void *)(uintptr_t)v.data);
    az_free(W);
    az_free(b);
}

static void test_linear(void **state)
{
    static const layer layers[] = {{1, 1, 1, .bias = false},
                                   {7, 33, 100, .bias = true},
                                   {33, 100, 7, .y_f32 = true},
                                   {3, 64, 40, .bias = true, .y_f32 = true}};
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++)
        for (int t = AZ_F32; t <= AZ_BF16; t++)
            for (size_t i = 0; i < COUNT(layers); i++)
                check_linear(acts[a], (az_dtype)t, layers[i]);
}

/* More than one piece: the same code with less scratch. */
static void test_linear_pieces(void **state)
{
    (void)state;
    check_linear(AZ_F32, AZ_BF16, (layer){5, 40, 100, .bias = true, .limit = 1000});
    check_linear(AZ_F32, AZ_F16, (layer){5, 33, 70, .limit = 600});
    check_linear(AZ_F32, AZ_BF16, (layer){5, 33, 70, .limit = 70});
}

static void test_linear_nothing(void **state)
{
    (void)state;
    const az_kern *kern = open_kern(AZ_BF16);
    az_view w = {.data = "", .dtype = AZ_BF16, .rows = 3, .cols = 2}, none = {0};
    kern->op->linear_forward(kern->self, NULL, false, NULL, w, none, 0, NULL);
    kern->op->linear_backward(kern->self, NULL, NULL, w, false, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),          cmocka_unit_test(test_gemm_limited),
        cmocka_unit_test(test_gemm_empty),    cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_pieces), cmocka_unit_test(test_linear_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, close_kerns);
}
