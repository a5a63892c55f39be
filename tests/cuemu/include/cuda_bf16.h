/* cuemu: the subset of cuda_bf16.h that the project uses. */
#ifndef CUEMU_CUDA_BF16_H
#define CUEMU_CUDA_BF16_H
#include <cuda_runtime.h>

inline float cuemu_bf16_to_float(unsigned short b)
{
    return __uint_as_float((unsigned)b << 16);
}
inline unsigned short cuemu_float_to_bf16(float f)
{
    unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff; /* NaN */
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
/* a float that rounds to the same bf16 as v: cut off, inexact made odd */
inline float cuemu_odd(long double v)
{
    float f = (float)v;
    if ((long double)f == v)
        return f;
    unsigned u = __float_as_uint(f);
    return __uint_as_float((u - (fabsl(f) > fabsl(v))) | 1);
}

struct __nv_bfloat16_raw {
    unsigned short x;
};
/* The conversions and operators are NVIDIA's, so that an expression that is
 * ambiguous with nvcc (bf16 * float, float += bf16) is so here too, and one
 * of two bf16 operands is rounded to bf16.                                */
/* clang-format off */
#define CUEMU_INTEGERS(X) \
    X(short)              \
    X(unsigned short) X(int) X(unsigned) X(long) X(unsigned long) X(long long) X(unsigned long long)
/* clang-format on */
class __nv_bfloat16
{
  protected:
    unsigned short __x;

  public:
    __nv_bfloat16() = default;
    __nv_bfloat16(__nv_bfloat16_raw r) : __x(r.x)
    {
    }
    __nv_bfloat16(float f) : __x(cuemu_float_to_bf16(f))
    {
    }
    __nv_bfloat16(double f) : __x(cuemu_float_to_bf16(cuemu_odd(f)))
    {
    }
    operator __nv_bfloat16_raw() const
    {
        return {__x};
    }
    operator float() const
    {
        return cuemu_bf16_to_float(__x);
    }
    operator bool() const
    {
        return (__x & 0x7fff) != 0;
    }
    operator char() const
    {
        return (char)(float)*this;
    }
    operator signed char() const
    {
        return (signed char)(float)*this;
    }
    operator unsigned char() const
    {
        return (unsigned char)(float)*this;
    }
#define CUEMU_CONVERT(T)                                        \
    __nv_bfloat16(T i) : __x(cuemu_float_to_bf16(cuemu_odd(i))) \
    {                                                           \
    }                                                           \
    operator T() const                                          \
    {                                                           \
        return (T)(float)*this;                                 \
    }
    CUEMU_INTEGERS(CUEMU_CONVERT)
#undef CUEMU_CONVERT
};
#undef CUEMU_INTEGERS
#define CUEMU_ARITHMETIC(op)                                                         \
    inline __nv_bfloat16 operator op(const __nv_bfloat16 &a, const __nv_bfloat16 &b) \
    {                                                                                \
        return __nv_bfloat16((float)a op(float) b);                                  \
    }                                                                                \
    inline __nv_bfloat16 &operator op##=(__nv_bfloat16 &a, const __nv_bfloat16 &b)   \
    {                                                                                \
        return a = a op b;                                                           \
    }
CUEMU_ARITHMETIC(+)
CUEMU_ARITHMETIC(-)
CUEMU_ARITHMETIC(*)
CUEMU_ARITHMETIC(/)
#undef CUEMU_ARITHMETIC
#define CUEMU_COMPARE(op)                                                   \
    inline bool operator op(const __nv_bfloat16 &a, const __nv_bfloat16 &b) \
    {                                                                       \
        return (float)a op(float) b;                                        \
    }
CUEMU_COMPARE(==)
CUEMU_COMPARE(!=)
CUEMU_COMPARE(<)
CUEMU_COMPARE(<=)
CUEMU_COMPARE(>)
CUEMU_COMPARE(>=)
#undef CUEMU_COMPARE
inline __nv_bfloat16 operator+(const __nv_bfloat16 &a)
{
    return a;
}
inline __nv_bfloat16 operator-(const __nv_bfloat16 &a)
{
    return __nv_bfloat16(-(float)a);
}
struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
template <> inline constexpr bool cuemu::shuffles<__nv_bfloat16> = true;
template <> inline constexpr bool cuemu::shuffles<__nv_bfloat162> = true;
template <> inline constexpr bool cuemu::adds<__nv_bfloat16> = true;

inline float __bfloat162float(__nv_bfloat16 b)
{
    return b;
}
inline __nv_bfloat16 __float2bfloat16(float f)
{
    return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return f;
}
inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return {v.x, v.y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __floats2bfloat162_rn(v.x, v.y);
}
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return {a, b};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b)
{
    return __nv_bfloat16_raw(b).x;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16(__nv_bfloat16_raw{u});
}
#endif
