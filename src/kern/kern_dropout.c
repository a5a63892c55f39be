/* Dropout: whether an element is kept is a function of what it is (seed, step, module, sample,
 * position, column), never of where it is computed, so that the mask is the same in a recomputed
 * layer, in another batch and on another rank. The mask is never stored. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

/* Counters whose words are made at a time. */
#define COUNTERS 128

/* Philox4x32-10 of base/rng.c for counters (a0 + j, b, c, d), written so that the loop over j
 * becomes vector code. words [4 n]. */
AZ_HOT static void fill_words(uint32_t *restrict words, uint64_t seed, uint32_t a0, uint32_t b,
                              uint32_t c, uint32_t d, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        uint32_t x0 = a0 + (uint32_t)j, x1 = b, x2 = c, x3 = d;
        for (int round = 0; round < 10; round++) {
            uint64_t p = (uint64_t)0xD2511F53u * x0, q = (uint64_t)0xCD9E8D57u * x2;
            uint32_t y0 = (uint32_t)(q >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p >> 32) ^ x3 ^ k1;
            x1 = (uint32_t)q;
            x3 = (uint32_t)p;
            x0 = y0;
            x2 = y2;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[4 * j] = x0;
        words[4 * j + 1] = x1;
        words[4 * j + 2] = x2;
        words[4 * j + 3] = x3;
    }
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
void az_kern_dropout(float *y, const float *x, bool accumulate, double p, uint64_t seed,
                     uint32_t step, uint32_t module, const uint32_t *sample, const int32_t *pos,
                     int64_t N, int64_t D)
{
    AZ_ASSERT(p >= 0 && p < 1);
    if (p == 0) {
        if (accumulate)
            az_kern_add(y, x, (size_t)(N * D));
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
            fill_words(words, seed, a + (uint32_t)j, sample[n], step, word,
                       az_min_i64(COUNTERS, per_row - j));
            mask(y + n * D + 4 * j, x + n * D + 4 * j, words, threshold, scale, accumulate,
                 az_min_i64(4 * COUNTERS, D - 4 * j));
        }
    }
}
