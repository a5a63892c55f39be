/* Exact sums and AdamW.
 *
 * A gradient is rounded once, to an integer number of units of 2^-50; all further additions are of
 * integers and so are exact in any order. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

/* Elements that go through a buffer at a time. */
#define PIECE 512
/* Interleaved partial sums of a block of squares. */
#define SUMS 8

/* ---- fixed point ---- */

/* x 2^50 rounded to an integer, without a conversion instruction (only newer CPUs have one for
 * vectors): for |d| < 2^51, d + magic holds round(d), ties to even, in its low bits. The value is
 * split at 2^32; the lower part v - h 2^32 is exact, for if h is not 0, a f32 has no bits below
 * 2^7 units (numerics, eq. 18). Values that are refused add 0;
 * returns their number. */
AZ_HOT static int64_t fixed_add(int64_t *restrict sum, const float *restrict x, double limit,
                                size_t n)
{
    const double magic = 0x1.8p52;
    int64_t magic_bits, bad = 0;
    memcpy(&magic_bits, &magic, 8);
#pragma omp simd reduction(+ : bad)
    for (size_t i = 0; i < n; i++) {
        double value = (double)x[i];
        bool good = fabs(value) < limit;
        bad += good ? 0 : 1;
        double v = (good ? value : 0.0) * 0x1p50;
        double high = v * 0x1p-32 + magic;
        double low = v - (high - magic) * 0x1p32 + magic;
        int64_t h, l;
        memcpy(&h, &high, 8);
        memcpy(&l, &low, 8);
        uint64_t fixed = ((uint64_t)(h - magic_bits) << 32) + (uint64_t)(l - magic_bits);
        sum[i] = (int64_t)((uint64_t)sum[i] + fixed);
    }
    return bad;
}

void az_kern_fixed_add_cpu(int64_t *sum, const float *x, size_t n, double limit, int64_t *overflow)
{
    AZ_ASSERT(limit <= AZ_FIXED_RANGE);
    int64_t blocks = az_ceil_div((int64_t)n, AZ_KERN_BLOCK), bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * AZ_KERN_BLOCK;
        bad += fixed_add(sum + i, x + i, limit, az_kern_block_length(n, b));
    }
    *overflow += bad;
}

/* What is 0 is not added: B starts so, and then A has no gradient. */
static int64_t fixed_add_shared(int64_t *sum, const float *x, double limit, size_t n)
{
    int64_t fixed[PIECE], bad = 0;
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t len = n - i < PIECE ? n - i : PIECE;
        memset(fixed, 0, len * sizeof *fixed);
        bad += fixed_add(fixed, x + i, limit, len);
        for (size_t j = 0; j < len; j++)
            if (fixed[j] != 0)
                __atomic_fetch_add(&sum[i + j], fixed[j], __ATOMIC_RELAXED);
    }
    return bad;
}

void az_kern_fixed_add_shared_cpu(int64_t *sum, const float *x, size_t n, double limit,
                                  int64_t *overflow)
{
    AZ_ASSERT(limit <= AZ_FIXED_RANGE);
    int64_t blocks = az_ceil_div((int64_t)n, AZ_KERN_BLOCK), bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * AZ_KERN_BLOCK;
        bad += fixed_add_shared(sum + i, x + i, limit, az_kern_block_length(n, b));
    }
    *overflow += bad;
}

int64_t az_kern_to_fixed(double x, double limit, int64_t *overflow)
{
    AZ_ASSERT(limit <= AZ_FIXED_RANGE);
    /* One unit more than x: what rounding may add where x has bits below the unit. */
    if (!(fabs(x) + AZ_FIXED_UNIT < limit)) {
        ++*overflow;
        return 0;
    }
    return (int64_t)llrint(x * 0x1p50);
}

/* ---- norm ---- */

/* (numerics, eq. 19): element i of a block goes to partial sum i mod 8; the eight are added in
 * pairs. */
static double sum_of_squares(const int64_t *g, size_t n)
{
    double s[SUMS] = {0};
    for (size_t i = 0; i < n; i++) {
        double x = (double)g[i] * AZ_FIXED_UNIT;
        s[i % SUMS] += x * x;
    }
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

void az_kern_square_blocks_cpu(double *out, const int64_t *g, size_t n, size_t block)
{
    AZ_ASSERT(block > 0);
    int64_t blocks = (int64_t)((n + block - 1) / block);
#pragma omp parallel for schedule(static) if (n > AZ_KERN_PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * block;
        out[b] = sum_of_squares(g + i, n - i < block ? n - i : block);
    }
}

/* ---- AdamW ---- */

/* What is the same for all elements of an update. */
typedef struct {
    double beta1, beta2, rate, decay, root, eps;
} factors;

AZ_HOT static void update(float *restrict p, float *restrict m, float *restrict v,
                          const double *restrict g, const factors *f, size_t n)
{
    const double beta1 = f->beta1, beta2 = f->beta2, rate = f->rate, decay = f->decay,
                 root = f->root, eps = f->eps;
    for (size_t i = 0; i < n; i++) {
        double a = beta1 * (double)m[i] + (1.0 - beta1) * g[i];
        double b = beta2 * (double)v[i] + (1.0 - beta2) * g[i] * g[i];
        p[i] = (float)((double)p[i] * decay - rate * a / (sqrt(b) * root + eps));
        m[i] = (float)a;
        v[i] = (float)b;
    }
}

/* (numerics, eq. 20-23) */
void az_kern_adamw_cpu(float *p, float *m, float *v, const int64_t *fixed, double clip, size_t n,
                       const az_adamw *o)
{
    AZ_ASSERT(o->t >= 1);
    const double t = (double)o->t, unit = AZ_FIXED_UNIT * clip;
    const factors f = {.beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .rate = o->lr / (1.0 - pow(o->beta1, t)),
                       .decay = 1.0 - o->lr * o->weight_decay,
                       .root = 1.0 / sqrt(1.0 - pow(o->beta2, t)),
                       .eps = o->eps};
    int64_t blocks = az_ceil_div((int64_t)n, PIECE);
#pragma omp parallel for schedule(static) if (n > AZ_KERN_PARALLEL / 8)
    for (int64_t b = 0; b < blocks; b++) {
        size_t i = (size_t)b * PIECE, len = n - i < PIECE ? n - i : PIECE;
        double g[PIECE];
        for (size_t j = 0; j < len; j++)
            g[j] = (double)fixed[i + j] * unit;
        update(p + i, m + i, v + i, g, &f, len);
    }
}
