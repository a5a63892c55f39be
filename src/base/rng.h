/* Random numbers that are functions of a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw:
 * "Parallel Random Numbers: As Easy as 1, 2, 3", SC11). A value depends on (seed, purpose, a, b, c)
 * alone, so it does not depend on ranks, threads or order. Local. */
#ifndef AZ_BASE_RNG_H
#define AZ_BASE_RNG_H

#include <stdint.h>

typedef enum {
    AZ_RNG_ORDER = 1, /* a: epoch */
    AZ_RNG_INIT,      /* a: element, b: module */
    AZ_RNG_DROPOUT, /* a: element of the sample, b: sample, c: step; module in the purpose's word */
    AZ_RNG_SAMPLE,  /* a: position, b: sample */
    AZ_RNG_SPLIT
} az_rng_purpose;

/* Four 32-bit words for one counter. The counter is (a, b, c, purpose | module << 8). */
void az_philox(uint32_t out[4], uint64_t seed, uint32_t a, uint32_t b, uint32_t c, uint32_t d);
/* The fourth counter word. module < 2^24. */
static inline uint32_t az_rng_word(az_rng_purpose purpose, uint32_t module)
{
    return (uint32_t)purpose | module << 8;
}
/* In [0, 1), 24 bits. */
static inline float az_u32_to_unit(uint32_t u)
{
    return (float)(u >> 8) * 0x1p-24f;
}
/* Two independent standard normal values from two words (Box-Muller). */
void az_u32_to_normal(double out[2], uint32_t u, uint32_t v);

#endif
