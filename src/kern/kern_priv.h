/* Inside kern: what its sources share. */
#ifndef AZ_KERN_KERN_PRIV_H
#define AZ_KERN_KERN_PRIV_H

#include "kern/kern_cpu.h"

/* The build has no -march flag, so that one binary serves a whole cluster. A loop whose speed
 * matters is compiled three times and the CPU's version is bound when the program starts. The same
 * CPU always gets the same version. Sanitizers run before the binding is possible. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(AZ_SANITIZE)
#define AZ_HOT __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AZ_HOT
#endif

/* Elements that one thread takes at a time. A constant, so that an element's place in its vector,
 * and with it its last bit, does not depend on the number of threads. */
#define AZ_KERN_BLOCK 8192
/* Below this many elements a loop stays on one thread: starting the others costs more. */
#define AZ_KERN_PARALLEL 32768

static inline size_t az_kern_block_length(size_t n, int64_t block)
{
    size_t left = n - (size_t)block * AZ_KERN_BLOCK;
    return left < AZ_KERN_BLOCK ? left : AZ_KERN_BLOCK;
}

/* exp(x) in f32 without tables or branches, so that loops over it become vector code; within 2 ulp
 * over the whole range, subnormal results, 0, +inf and NaN included (numerics, eq. 1-3).
 * x = n ln 2 + r, |r| <= ln(2)/2; e^r = 1 + r + r^2 q(r); 2^n is applied in two halves, so that
 * neither overflows or underflows before the result does. */
static inline float az_kern_expf(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float t = x * 0x1.715476p+0f + magic;
    float n = t - magic;
    float r = x - n * 0.693359375f; /* ten bits of ln 2: the product is exact */
    r = r - n * -2.12194440e-4f;
    float q = 0.00139264006f;
    q = q * r + 0.00836335309f;
    q = q * r + 0.0416665524f;
    q = q * r + 0.166665763f;
    q = q * r + 0.5f;
    float e = 1.0f + (r + r * r * q);
    uint32_t bits, low, high;
    memcpy(&bits, &t, 4);
    bits -= 0x4b400000; /* n as an integer */
    low = (uint32_t)((int32_t)bits >> 1);
    high = bits - low;
    low = (low + 127) << 23;
    high = (high + 127) << 23;
    float two_low, two_high;
    memcpy(&two_low, &low, 4);
    memcpy(&two_high, &high, 4);
    return e * two_low * two_high;
}

/* The table that kern_cpu.c fills. */
extern const az_kern_ops az_kern_ops_cpu;
/* az_widen, compiled for the CPU. */
void az_kern_widen(float *dst, const void *src, az_dtype t, size_t n);
/* The largest of n values, -inf for none; NaN is passed over. */
float az_kern_largest(const float *x, int64_t n);
/* az_kern_gemm_cpu with each call of the BLAS kept to at most limit in every dimension. */
void az_kern_gemm_limited_cpu(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                              float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                              float beta, float *C, int64_t ldc, int64_t limit);
/* words[4 j ...]: what az_philox gives for the counter (a0 + j, b, c, d), j < n, with vectors of at
 * most widest bits (0, 256, 512). Whole groups are written: room for n rounded up to 32 counters.
 */
void az_kern_fill_words(uint32_t *words, uint64_t seed, uint32_t a0, uint32_t b, uint32_t c,
                        uint32_t d, int64_t n, int widest);
/* The address of element i of a view. */
static inline const void *az_view_at(az_view v, int64_t i)
{
    return (const char *)v.data + (size_t)i * az_dtype_bytes(v.dtype);
}

#endif
