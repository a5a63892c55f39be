/* Numbers as files store them. */
#include <config.h>

#include "base/num.h"

const char *az_dtype_name(az_dtype t)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    return names[t];
}

az_bf16 az_f32_to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (az_bf16){(uint16_t)(u >> 16 | 0x40)};
    return (az_bf16){(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}

/* Shift exponent and mantissa into place; subnormals come out right by a multiplication with 2^112.
 */
float az_f16_to_f32(az_f16 x)
{
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, u = (uint32_t)(x.bits & 0x7fff) << 13;
    float f;
    if (u >= 0x0f800000) { /* Inf, NaN */
        u = (u & 0x7fffff) | 0x7f800000 | sign;
        memcpy(&f, &u, 4);
        return f;
    }
    memcpy(&f, &u, 4);
    f *= 0x1p112f;
    memcpy(&u, &f, 4);
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest, ties to even. Below the smallest normal number the addition of 2^-1 rounds at
 * 2^-24. */
az_f16 az_f32_to_f16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (az_f16){(uint16_t)(sign | 0x7e00)};
    if (u >= 0x47800000)
        return (az_f16){(uint16_t)(sign | 0x7c00)};
    if (u < 0x38800000) {
        float f;
        memcpy(&f, &u, 4);
        f += 0.5f;
        memcpy(&u, &f, 4);
        return (az_f16){(uint16_t)(sign | (u - 0x3f000000))};
    }
    u += 0xc8000fff + (u >> 13 & 1);
    return (az_f16){(uint16_t)(sign | u >> 13)};
}

void az_widen(float *dst, const void *src, az_dtype t, size_t n)
{
    const az_bf16 *b = src;
    const az_f16 *h = src;
    switch (t) {
    case AZ_F32:
        memcpy(dst, src, 4 * n);
        break;
    case AZ_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = az_f16_to_f32(h[i]);
        break;
    case AZ_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = az_bf16_to_f32(b[i]);
        break;
    }
}
