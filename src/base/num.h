/* Numbers as files store them: f32, f16, bf16. Local. */
#ifndef AZ_BASE_NUM_H
#define AZ_BASE_NUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Structs of one member, so that arithmetic on raw bits does not compile. */
typedef struct {
    uint16_t bits;
} az_bf16;
typedef struct {
    uint16_t bits;
} az_f16;

typedef enum { AZ_F32, AZ_F16, AZ_BF16 } az_dtype;

static inline size_t az_dtype_bytes(az_dtype t)
{
    return t == AZ_F32 ? 4 : 2;
}
/* "F32", "F16", "BF16", as safetensors spells them. */
const char *az_dtype_name(az_dtype t);

static inline float az_bf16_to_f32(az_bf16 x)
{
    uint32_t u = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest, ties to even; NaN stays NaN. */
az_bf16 az_f32_to_bf16(float x);
float az_f16_to_f32(az_f16 x);
az_f16 az_f32_to_f16(float x);
/* n values of type t at src, widened (exactly) to f32 at dst. */
void az_widen(float *dst, const void *src, az_dtype t, size_t n);

/* A read-only view of a matrix [rows, cols], row-major, as its file stores it. Views never own.
 * data == NULL: the matrix is absent. A vector is one row. */
typedef struct {
    const void *data;
    az_dtype dtype;
    int64_t rows, cols;
} az_view;

static inline int64_t az_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t az_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t az_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
/* Where part i of n things cut into parts even parts begins: n i / parts, without overflow. */
static inline size_t az_cut(size_t n, size_t i, size_t parts)
{
    return n / parts * i + n % parts * i / parts;
}

#endif
