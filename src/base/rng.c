/* Philox4x32-10 and what is made from its words. */
#include <config.h>

#include "base/rng.h"

#include <math.h>

void az_philox(uint32_t out[4], uint64_t seed, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t x0 = a, x1 = b, x2 = c, x3 = d;
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
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

void az_u32_to_normal(double out[2], uint32_t u, uint32_t v)
{
    double r = sqrt(-2.0 * log(((double)u + 0.5) * 0x1p-32)),
           phi = 2.0 * M_PI * ((double)v * 0x1p-32);
    out[0] = r * cos(phi);
    out[1] = r * sin(phi);
}
