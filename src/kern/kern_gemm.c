/* Products: the BLAS behind one door, and the linear layer on weights that stay in the type of
 * their file.
 *
 * A weight in f16 or bf16 is widened a panel of rows at a time into scratch and multiplied from
 * there, while it is still in the cache; one in f32 is used where it lies. The panel is the same in
 * both directions: forward it yields columns of y, backward a part of the sum over F. */
#include <config.h>

#include <cblas.h>
#include <limits.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kern/kern_priv.h"

/* Elements of a widened panel (2 MiB: it stays in the last cache), and the widest rows that a panel
 * takes whole. Wider rows are cut into equal pieces of at most PIECE columns. The product forward
 * wants many rows, since it brings x in again for each panel; backward wants whole rows, since it
 * reads and writes dx again for each. Measured with tests/bench/bench_kern.c. Constants, because
 * they order sums. */
#define PANEL 524288
#define FORWARD_WHOLE 1024
#define FORWARD_PIECE 640
#define BACKWARD_WHOLE 8192
#define BACKWARD_PIECE 8192
#define PANEL_ALIGN 16
/* Up to this many rows of x, forward takes each row of the weight by itself, in pieces. */
#define FEW 4
#define FEW_PIECE 2048

void az_kern_gemm_limited_cpu(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                              float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                              float beta, float *C, int64_t ldc, int64_t limit)
{
    AZ_ASSERT(lda <= INT_MAX && ldb <= INT_MAX && ldc <= INT_MAX);
#if defined(AZ_DEBUG) && defined(_OPENMP)
    AZ_ASSERT(!omp_in_parallel());
#endif
    if (M == 0 || N == 0)
        return;
    /* An empty product still scales C, which the loop below does in its first round. */
    for (int64_t m = 0; m < M; m += limit) {
        int64_t ms = az_min_i64(limit, M - m);
        for (int64_t n = 0; n < N; n += limit) {
            int64_t ns = az_min_i64(limit, N - n), k = 0;
            do {
                int64_t ks = az_min_i64(limit, K - k);
                cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                            trans_b ? CblasTrans : CblasNoTrans, (int)ms, (int)ns, (int)ks, alpha,
                            trans_a ? A + k * lda + m : A + m * lda + k, (int)lda,
                            trans_b ? B + n * ldb + k : B + k * ldb + n, (int)ldb,
                            k == 0 ? beta : 1.0f, C + m * ldc + n, (int)ldc);
                k += limit;
            } while (k < K);
        }
    }
}

void az_kern_gemm_cpu(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, float alpha,
                      const float *A, int64_t lda, const float *B, int64_t ldb, float beta,
                      float *C, int64_t ldc)
{
    az_kern_gemm_limited_cpu(trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc,
                             1 << 30);
}

size_t az_kern_linear_scratch_cpu(void)
{
    return PANEL;
}

static int64_t round_up(int64_t n)
{
    return az_ceil_div(n, PANEL_ALIGN) * PANEL_ALIGN;
}

/* A panel of the weight: rows [f, f + rows), columns [d, d + cols), ready for the BLAS. */
typedef struct {
    int64_t f, rows, d, cols, ld;
    const float *data;
} panel;

/* The panel that starts at (f, d). */
static panel panel_at(az_view W, int64_t f, int64_t d, int64_t whole, int64_t piece)
{
    int64_t cols = W.cols, rows = W.rows;
    if (W.dtype != AZ_F32) {
        if (cols > whole)
            cols = round_up(az_ceil_div(cols, az_ceil_div(cols, piece)));
        rows = PANEL / round_up(cols) / PANEL_ALIGN * PANEL_ALIGN;
    }
    return (panel){
        .f = f, .rows = az_min_i64(rows, W.rows - f), .d = d, .cols = az_min_i64(cols, W.cols - d)};
}

/* Widen the panel into scratch, or point into the weight. */
static void panel_load(panel *p, az_view W, float *scratch)
{
    if (W.dtype == AZ_F32) {
        p->data = (const float *)W.data + p->f * W.cols + p->d;
        p->ld = W.cols;
        return;
    }
#pragma omp parallel for schedule(static) if (p->rows * p->cols > AZ_KERN_PARALLEL)
    for (int64_t i = 0; i < p->rows; i++)
        az_kern_widen(scratch + i * p->cols, az_view_at(W, (p->f + i) * W.cols + p->d), W.dtype,
                      (size_t)p->cols);
    p->data = scratch;
    p->ld = p->cols;
}

/* ---- few rows ---- */

AZ_HOT static float dot_f32(const float *w, const float *x, int64_t n)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++)
        s += w[i] * x[i];
    return s;
}

AZ_HOT static float dot_bf16(const uint16_t *w, const float *x, int64_t n)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)w[i] << 16;
        float f;
        memcpy(&f, &u, 4);
        s += f * x[i];
    }
    return s;
}

/* Generation has one row or a few: the weight is read once, at the memory's speed, and nothing is
 * gained by a panel. Adds to y. */
static void forward_few(float *y, const float *x, az_view W, int64_t N)
{
    int64_t F = W.rows, D = W.cols;
#pragma omp parallel for schedule(static) if (F * D > AZ_KERN_PARALLEL)
    for (int64_t f = 0; f < F; f++) {
        float buffer[FEW_PIECE];
        for (int64_t d = 0; d < D; d += FEW_PIECE) {
            int64_t len = az_min_i64(FEW_PIECE, D - d);
            const void *w = az_view_at(W, f * D + d);
            if (W.dtype == AZ_F16) {
                az_kern_widen(buffer, w, AZ_F16, (size_t)len);
                w = buffer;
            }
            for (int64_t n = 0; n < N; n++)
                y[n * F + f] += W.dtype == AZ_BF16 ? dot_bf16(w, x + n * D + d, len)
                                                   : dot_f32(w, x + n * D + d, len);
        }
    }
}

/* ---- linear ---- */

/* y[N,F] = x[N,D] W[F,D]' + b[F]   (numerics, eq. 4)
 * Panels are columns of y; the sum over D is the BLAS's, split where D > FORWARD_WHOLE. */
void az_kern_linear_forward_cpu(float *y, const float *x, az_view W, az_view b, int64_t N,
                                float *scratch)
{
    int64_t F = W.rows, D = W.cols;
    if (N == 0)
        return;
    if (b.data != NULL) {
        AZ_ASSERT(b.cols == F);
        for (int64_t n = 0; n < N; n++)
            az_kern_widen(y + n * F, b.data, b.dtype, (size_t)F);
    }
    if (N <= FEW) {
        if (b.data == NULL)
            memset(y, 0, (size_t)(N * F) * sizeof *y);
        forward_few(y, x, W, N);
        return;
    }
    for (int64_t f = 0; f < F;) {
        panel p = {0};
        for (int64_t d = 0; d < D; d += p.cols) {
            p = panel_at(W, f, d, FORWARD_WHOLE, FORWARD_PIECE);
            panel_load(&p, W, scratch);
            az_kern_gemm_cpu(false, true, N, p.rows, p.cols, 1.0f, x + d, D, p.data, p.ld,
                             d == 0 && b.data == NULL ? 0.0f : 1.0f, y + f, F);
        }
        f += p.rows;
    }
}

/* dx[N,D] (+)= dy[N,F] W[F,D]   (numerics, eq. 5)
 * Panels are parts of the sum over F, added in order of f. */
void az_kern_linear_backward_cpu(float *dx, const float *dy, az_view W, bool add, int64_t N,
                                 float *scratch)
{
    int64_t F = W.rows, D = W.cols;
    if (N == 0)
        return;
    for (int64_t f = 0; f < F;) {
        panel p = {0};
        for (int64_t d = 0; d < D; d += p.cols) {
            p = panel_at(W, f, d, BACKWARD_WHOLE, BACKWARD_PIECE);
            panel_load(&p, W, scratch);
            az_kern_gemm_cpu(false, false, N, p.cols, p.rows, 1.0f, dy + f, F, p.data, p.ld,
                             f == 0 && !add ? 0.0f : 1.0f, dx + d, D);
        }
        f += p.rows;
    }
}
