/* Rows and elements: embedding, norm, rotary embedding, gated unit, sums.
 *
 * Every routine is a serial loop over a row or a block, compiled for several CPUs (AZ_HOT), and a
 * parallel loop over rows or blocks around it. Sums run within a row, on one thread, in double. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

#if defined(__x86_64__) && defined(__GNUC__) && (__GNUC__ >= 11 || defined(__clang__))
#include <immintrin.h>
#define HAVE_F16C 1
#endif

/* Columns of a norm's weight that are widened at a time. */
#define NORM_PIECE 512

/* ---- widening ---- */

AZ_HOT static void widen_bf16(float *restrict dst, const uint16_t *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)src[i] << 16;
        memcpy(&dst[i], &u, 4);
    }
}

/* Subnormals through an integer conversion: a multiplication of a subnormal f32 would be slow. */
AZ_HOT static void widen_f16_plain(float *restrict dst, const uint16_t *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t h = src[i], sign = (h & 0x8000) << 16, exponent = h & 0x7c00;
        uint32_t u = (h & 0x7fff) << 13, s;
        float small = (float)(int32_t)(h & 0x3ff) * 0x1p-24f;
        memcpy(&s, &small, 4);
        u += exponent == 0x7c00 ? 0x70000000u : 0x38000000u;
        u = (exponent == 0 ? s : u) | sign;
        memcpy(&dst[i], &u, 4);
    }
}

#ifdef HAVE_F16C
/* CPUs of the last ten years have an instruction for it. */
__attribute__((target("avx,f16c"))) static void widen_f16_f16c(float *dst, const uint16_t *src,
                                                               size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    for (; i < n; i++)
        dst[i] = _cvtsh_ss(src[i]);
}
#endif

static void widen_f16(float *dst, const uint16_t *src, size_t n)
{
#ifdef HAVE_F16C
    if (__builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c")) {
        widen_f16_f16c(dst, src, n);
        return;
    }
#endif
    widen_f16_plain(dst, src, n);
}

void az_kern_widen(float *dst, const void *src, az_dtype t, size_t n)
{
    if (t == AZ_F32)
        memcpy(dst, src, 4 * n);
    else if (t == AZ_BF16)
        widen_bf16(dst, src, n);
    else
        widen_f16(dst, src, n);
}

/* n elements of a vector as f32: where it lies, or widened into buffer. */
static const float *vector_piece(az_view w, int64_t i, int64_t n, float *buffer)
{
    if (w.dtype == AZ_F32)
        return (const float *)w.data + i;
    az_kern_widen(buffer, az_view_at(w, i), w.dtype, (size_t)n);
    return buffer;
}

void az_kern_embed_cpu(float *x, az_view piece, int64_t row0, const int32_t *ids, int64_t N)
{
    int64_t D = piece.cols;
#pragma omp parallel for schedule(static) if (N * D > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        int64_t row = ids[n] - row0;
        if (row >= 0 && row < piece.rows)
            az_kern_widen(x + n * D, az_view_at(piece, row * D), piece.dtype, (size_t)D);
    }
}

/* ---- norm ---- */

AZ_HOT static double sum_squares(const float *x, int64_t n)
{
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return s;
}

AZ_HOT static double sum_products(const float *x, const float *y, const float *z, int64_t n)
{
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)y[i] * (double)z[i];
    return s;
}

AZ_HOT static void norm_apply(float *restrict y, const float *restrict x, const float *restrict w,
                              float r, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

AZ_HOT static void norm_apply_gradient(float *restrict dx, const float *restrict dy,
                                       const float *restrict x, const float *restrict w, float r,
                                       float c, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] += dy[i] * w[i] * r - x[i] * c;
}

/* (numerics, eq. 6) */
void az_kern_rmsnorm_forward_cpu(float *y, const float *x, az_view w, double eps, int64_t N,
                                 int64_t D)
{
#pragma omp parallel for schedule(static) if (N * D > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        float buffer[NORM_PIECE];
        const float *row = x + n * D;
        float r = (float)(1.0 / sqrt(sum_squares(row, D) / (double)D + eps));
        for (int64_t i = 0; i < D; i += NORM_PIECE) {
            int64_t len = az_min_i64(NORM_PIECE, D - i);
            norm_apply(y + n * D + i, row + i, vector_piece(w, i, len, buffer), r, len);
        }
    }
}

/* dx += r w dy - r^3 / D x sum(x w dy)   (numerics, eq. 7) */
void az_kern_rmsnorm_backward_cpu(float *dx, const float *dy, const float *x, az_view w, double eps,
                                  int64_t N, int64_t D)
{
#pragma omp parallel for schedule(static) if (N * D > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        float buffer[NORM_PIECE];
        const float *row = x + n * D, *drow = dy + n * D;
        double r = 1.0 / sqrt(sum_squares(row, D) / (double)D + eps), dot = 0;
        for (int64_t i = 0; i < D; i += NORM_PIECE) {
            int64_t len = az_min_i64(NORM_PIECE, D - i);
            dot += sum_products(row + i, drow + i, vector_piece(w, i, len, buffer), len);
        }
        float c = (float)(r * r * r * dot / (double)D);
        for (int64_t i = 0; i < D; i += NORM_PIECE) {
            int64_t len = az_min_i64(NORM_PIECE, D - i);
            norm_apply_gradient(dx + n * D + i, drow + i, row + i, vector_piece(w, i, len, buffer),
                                (float)r, c, len);
        }
    }
}

/* ---- rotary embedding ---- */

AZ_HOT static void rotate(float *restrict low, float *restrict high, const float *restrict cos_,
                          const float *restrict sin_, float sign, int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        float a = low[j], b = high[j], s = sign * sin_[j];
        low[j] = a * cos_[j] - b * s;
        high[j] = b * cos_[j] + a * s;
    }
}

/* (numerics, eq. 8) */
void az_kern_rope_cpu(float *x, const int32_t *pos, const float *table, int64_t N, int heads,
                      int64_t K, bool inverse)
{
    int64_t half = K / 2;
    float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static) if (N * heads * K > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        const float *angle = table + pos[n] * K;
        for (int h = 0; h < heads; h++) {
            float *row = x + (n * heads + h) * K;
            rotate(row, row + half, angle, angle + half, sign, half);
        }
    }
}

/* ---- gated unit ---- */

AZ_HOT static void gate_forward(float *restrict a, const float *restrict g, const float *restrict u,
                                size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] = g[i] / (1.0f + az_kern_expf(-g[i])) * u[i];
}

AZ_HOT static void gate_backward(float *restrict dg, float *restrict du, const float *restrict da,
                                 const float *restrict g, const float *restrict u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + az_kern_expf(-g[i]));
        dg[i] = da[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
        du[i] = da[i] * g[i] * s;
    }
}

/* (numerics, eq. 9) */
void az_kern_silu_gate_forward_cpu(float *a, const float *g, const float *u, size_t n)
{
    int64_t blocks = az_ceil_div((int64_t)n, AZ_KERN_BLOCK);
#pragma omp parallel for schedule(static) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * AZ_KERN_BLOCK;
        gate_forward(a + i, g + i, u + i, az_kern_block_length(n, b));
    }
}

/* (numerics, eq. 10) */
void az_kern_silu_gate_backward_cpu(float *dg, float *du, const float *da, const float *g,
                                    const float *u, size_t n)
{
    int64_t blocks = az_ceil_div((int64_t)n, AZ_KERN_BLOCK);
#pragma omp parallel for schedule(static) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * AZ_KERN_BLOCK;
        gate_backward(dg + i, du + i, da + i, g + i, u + i, az_kern_block_length(n, b));
    }
}

/* ---- sums ---- */

AZ_HOT static void add(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

void az_kern_add_cpu(float *y, const float *x, size_t n)
{
    int64_t blocks = az_ceil_div((int64_t)n, AZ_KERN_BLOCK);
#pragma omp parallel for schedule(static) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * AZ_KERN_BLOCK;
        add(y + i, x + i, az_kern_block_length(n, b));
    }
}
