/* Dropout: whether an element is kept is a function of what it is (seed, step, module, sample,
 * position, column), never of where it is computed, so that the mask is the same in a recomputed
 * layer, in another batch and on another rank. The mask is never stored. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_VECTORS 1
#endif

/* Counters whose words are made at a time. */
#define COUNTERS 128

/* A run of counters (a0 + j, b, c, d) of base/rng.c's Philox4x32-10. */
typedef struct {
    uint64_t seed;
    uint32_t a0, b, c, d;
} counters;

/* Weyl sequences of the two halves of the key, multipliers of the two pairs of words. */
#define KEY0 0x9E3779B9u
#define KEY1 0xBB67AE85u
#define MUL0 0xD2511F53u
#define MUL2 0xCD9E8D57u

/* words[4 j ..]: the four words of counter j < n. Any CPU. */
static void fill_words_plain(uint32_t *words, counters o, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        az_philox(words + 4 * j, o.seed, o.a0 + (uint32_t)j, o.b, o.c, o.d);
}

#ifdef HAVE_VECTORS

/* One counter in each 64-bit lane, a word in the lane's lower half; the product of lower halves is
 * one instruction, and what a round leaves in the upper halves is never read. Compilers do not find
 * this form, and the mask is otherwise as dear as the products that it precedes. Even lanes hold
 * the first half of the counters, so that pairing the words leaves them in order. Several groups
 * run side by side to hide the latency of the multiplications. */
#define GROUPS 4

__attribute__((target("avx512f"))) static void fill_words_avx512(uint32_t *words, counters o,
                                                                 int64_t n)
{
    const __m512i m0 = _mm512_set1_epi64(MUL0), m2 = _mm512_set1_epi64(MUL2),
                  low = _mm512_set1_epi64(0xffffffff),
                  lanes = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t j = 0; j < n; j += 8 * GROUPS) {
        __m512i x0[GROUPS], x1[GROUPS], x2[GROUPS], x3[GROUPS];
        uint32_t k0 = (uint32_t)o.seed, k1 = (uint32_t)(o.seed >> 32);
        for (int i = 0; i < GROUPS; i++) {
            x0[i] =
                _mm512_add_epi64(lanes, _mm512_set1_epi64(o.a0 + (uint32_t)j + 8u * (unsigned)i));
            x1[i] = _mm512_set1_epi64(o.b);
            x2[i] = _mm512_set1_epi64(o.c);
            x3[i] = _mm512_set1_epi64(o.d);
        }
        for (int round = 0; round < 10; round++, k0 += KEY0, k1 += KEY1)
            for (int i = 0; i < GROUPS; i++) {
                __m512i p = _mm512_mul_epu32(x0[i], m0), q = _mm512_mul_epu32(x2[i], m2);
                x0[i] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(q, 32), x1[i]),
                                         _mm512_set1_epi64(k0));
                x2[i] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p, 32), x3[i]),
                                         _mm512_set1_epi64(k1));
                x1[i] = q;
                x3[i] = p;
            }
        for (int i = 0; i < GROUPS; i++) {
            __m512i first =
                        _mm512_or_si512(_mm512_and_si512(x0[i], low), _mm512_slli_epi64(x1[i], 32)),
                    second =
                        _mm512_or_si512(_mm512_and_si512(x2[i], low), _mm512_slli_epi64(x3[i], 32));
            uint32_t *to = words + 4 * (j + 8 * i);
            _mm512_storeu_si512(to, _mm512_unpacklo_epi64(first, second));
            _mm512_storeu_si512(to + 16, _mm512_unpackhi_epi64(first, second));
        }
    }
}

__attribute__((target("avx2"))) static void fill_words_avx2(uint32_t *words, counters o, int64_t n)
{
    const __m256i m0 = _mm256_set1_epi64x(MUL0), m2 = _mm256_set1_epi64x(MUL2),
                  low = _mm256_set1_epi64x(0xffffffff), lanes = _mm256_setr_epi64x(0, 2, 1, 3);
    for (int64_t j = 0; j < n; j += 4 * GROUPS) {
        __m256i x0[GROUPS], x1[GROUPS], x2[GROUPS], x3[GROUPS];
        uint32_t k0 = (uint32_t)o.seed, k1 = (uint32_t)(o.seed >> 32);
        for (int i = 0; i < GROUPS; i++) {
            x0[i] =
                _mm256_add_epi64(lanes, _mm256_set1_epi64x(o.a0 + (uint32_t)j + 4u * (unsigned)i));
            x1[i] = _mm256_set1_epi64x(o.b);
            x2[i] = _mm256_set1_epi64x(o.c);
            x3[i] = _mm256_set1_epi64x(o.d);
        }
        for (int round = 0; round < 10; round++, k0 += KEY0, k1 += KEY1)
            for (int i = 0; i < GROUPS; i++) {
                __m256i p = _mm256_mul_epu32(x0[i], m0), q = _mm256_mul_epu32(x2[i], m2);
                x0[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(q, 32), x1[i]),
                                         _mm256_set1_epi64x(k0));
                x2[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p, 32), x3[i]),
                                         _mm256_set1_epi64x(k1));
                x1[i] = q;
                x3[i] = p;
            }
        for (int i = 0; i < GROUPS; i++) {
            __m256i first =
                        _mm256_or_si256(_mm256_and_si256(x0[i], low), _mm256_slli_epi64(x1[i], 32)),
                    second =
                        _mm256_or_si256(_mm256_and_si256(x2[i], low), _mm256_slli_epi64(x3[i], 32));
            uint32_t *to = words + 4 * (j + 4 * i);
            _mm256_storeu_si256((void *)to, _mm256_unpacklo_epi64(first, second));
            _mm256_storeu_si256((void *)(to + 8), _mm256_unpackhi_epi64(first, second));
        }
    }
}

#endif

void az_kern_fill_words(uint32_t *words, uint64_t seed, uint32_t a0, uint32_t b, uint32_t c,
                        uint32_t d, int64_t n, int widest)
{
    counters o = {seed, a0, b, c, d};
#ifdef HAVE_VECTORS
    if (widest >= 512 && __builtin_cpu_supports("avx512f")) {
        fill_words_avx512(words, o, n);
        return;
    }
    if (widest >= 256 && __builtin_cpu_supports("avx2")) {
        fill_words_avx2(words, o, n);
        return;
    }
#endif
    (void)widest;
    fill_words_plain(words, o, n);
}

AZ_HOT static void mask(float *y, const float *x, const uint32_t *restrict words,
                        uint32_t threshold, float scale, bool accumulate, int64_t n)
{
    if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] += words[i] >> 8 >= threshold ? x[i] * scale : 0.0f;
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = words[i] >> 8 >= threshold ? x[i] * scale : 0.0f;
    }
}

/* y (+)= x m / (1 - p)   (numerics, eq. 11)
 * u 2^-24 >= p for the upper 24 bits u of a word is the same as u >= ceil(p 2^24). */
void az_kern_dropout_cpu(float *y, const float *x, bool accumulate, double p, uint64_t seed,
                         uint32_t step, uint32_t module, const uint32_t *sample, const int32_t *pos,
                         int64_t N, int64_t D)
{
    AZ_ASSERT(p >= 0 && p < 1);
    if (p == 0) {
        if (accumulate)
            az_kern_add_cpu(y, x, (size_t)(N * D));
        else if (y != x)
            memcpy(y, x, (size_t)(N * D) * sizeof *y);
        return;
    }
    uint32_t threshold = (uint32_t)ceil(p * 0x1p24), word = az_rng_word(AZ_RNG_DROPOUT, module);
    int64_t per_row = az_ceil_div(D, 4);
    float scale = (float)(1.0 / (1.0 - p));
#pragma omp parallel for schedule(static) if (N * D > AZ_KERN_PARALLEL / 8)
    for (int64_t n = 0; n < N; n++) {
        uint32_t words[4 * COUNTERS], a = (uint32_t)pos[n] * (uint32_t)per_row;
        for (int64_t j = 0; j < per_row; j += COUNTERS) {
            az_kern_fill_words(words, seed, a + (uint32_t)j, sample[n], step, word,
                               az_min_i64(COUNTERS, per_row - j), 512);
            mask(y + n * D + 4 * j, x + n * D + 4 * j, words, threshold, scale, accumulate,
                 az_min_i64(4 * COUNTERS, D - 4 * j));
        }
    }
}
