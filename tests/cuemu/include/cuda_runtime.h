/* cuemu: a CPU stand-in for the CUDA runtime, for test builds only.
 *
 * A .cu file is passed through cu2cpp.sed and compiled as C++ with this
 * directory first on the include path.  Kernels then run on the CPU, one
 * fiber per CUDA thread, and every asynchronous call goes into a per-stream
 * queue that is executed later, in an order drawn from CUEMU_SEED.
 *
 * Length: one header stands for all of CUDA's.                              */
#ifndef CUEMU_CUDA_RUNTIME_H
#define CUEMU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#define CUEMU 1
#define CUDART_VERSION 13000
#pragma GCC diagnostic error "-Wvla" /* nvcc has none */

/* ---- language ---------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
/* cu2cpp.sed rewrites every __shared__ declaration; one it missed must not
 * compile.                                                                */
#define __shared__ cuemu_unrewritten_shared_declaration

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
    constexpr dim3(uint3 u) : x(u.x), y(u.y), z(u.z)
    {
    }
};

#define CUEMU_VEC(T, N, A)                      \
    struct __attribute__((aligned(2 * A))) N##2 \
    {                                           \
        T x, y;                                 \
    };                                          \
    struct N##3                                 \
    {                                           \
        T x, y, z;                              \
    };                                          \
    struct __attribute__((aligned(4 * A))) N##4 \
    {                                           \
        T x, y, z, w;                           \
    };                                          \
    inline N##2 make_##N##2(T x, T y)           \
    {                                           \
        return {x, y};                          \
    }                                           \
    inline N##3 make_##N##3(T x, T y, T z)      \
    {                                           \
        return {x, y, z};                       \
    }                                           \
    inline N##4 make_##N##4(T x, T y, T z, T w) \
    {                                           \
        return {x, y, z, w};                    \
    }
CUEMU_VEC(float, float, 4)
CUEMU_VEC(int, int, 4)
CUEMU_VEC(unsigned char, uchar, 1)
CUEMU_VEC(unsigned short, ushort, 2)
#undef CUEMU_VEC
struct __attribute__((aligned(8))) uint2 {
    unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
struct __attribute__((aligned(16))) double2 {
    double x, y;
};
inline double2 make_double2(double x, double y)
{
    return {x, y};
}

/* ---- host API types ---------------------------------------------------- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostRegisterDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterReadOnly = 8
};
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int pciDomainID, pciBusID, pciDeviceID;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int warpSize, maxThreadsPerBlock, major, minor, multiProcessorCount;
};
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);

extern "C" {
const char *cudaGetErrorString(cudaError_t);
const char *cudaGetErrorName(cudaError_t);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaRuntimeGetVersion(int *);
cudaError_t cudaDeviceCanAccessPeer(int *, int, int);
cudaError_t cudaHostRegister(void *, size_t, unsigned);
cudaError_t cudaHostUnregister(void *);
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int *);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int);
cudaError_t cudaMemGetInfo(size_t *, size_t *);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaFree(void *);
cudaError_t cudaFreeAsync(void *, cudaStream_t);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t s = nullptr);
cudaError_t cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, cudaMemcpyKind,
                              cudaStream_t s = nullptr);
cudaError_t cudaMemset(void *, int, size_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t s = nullptr);
cudaError_t cudaStreamCreate(cudaStream_t *);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *, unsigned, int);
cudaError_t cudaDeviceGetStreamPriorityRange(int *, int *);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned f = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void *);
cudaError_t cudaEventCreate(cudaEvent_t *);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t s = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t);
}

/* ---- launching --------------------------------------------------------- */

namespace cuemu
{

typedef void (*ThreadFn)(const void *call);

struct Config {
    dim3 grid, block;
    size_t shmem;
    cudaStream_t stream;
    const char *file;
    int line;
    template <class... A> auto operator()(A &&...a) const;
};

template <class... A> struct Packet {
    Config cfg;
    std::tuple<A...> args;
};

template <class... A> auto Config::operator()(A &&...a) const
{
    return Packet<A &&...>{*this, std::tuple<A &&...>(std::forward<A>(a)...)};
}

/* k<<<g, b, sh, st>>>(args) becomes k *cuemu::cfg(g, b, sh, st)(args). */
inline Config cfg(dim3 g, dim3 b, size_t sh = 0, cudaStream_t st = nullptr,
                  const char *f = __builtin_FILE(), int l = __builtin_LINE())
{
    return {g, b, sh, st, f, l};
}

cudaError_t alloc(void **, size_t, bool pinned, cudaStream_t *stream);
cudaError_t launch(const void *kernel, ThreadFn, std::shared_ptr<void> call, const Config &);
cudaError_t func_attribute(const void *kernel, cudaFuncAttribute, int);
void check_pointer_argument(const void *p, int index, const Config &);

template <class... P> struct Call {
    void (*k)(P...);
    std::tuple<P...> args;
    template <class... A> Call(void (*f)(P...), A &&...a) : k(f), args(std::forward<A>(a)...)
    {
    }
    static void thread(const void *c)
    {
        const Call *call = static_cast<const Call *>(c);
        std::apply(call->k, call->args);
    }
};

template <class T> void check_argument(const T &v, int i, const Config &c)
{
    if constexpr (std::is_pointer_v<T>)
        check_pointer_argument(v, i, c);
}

template <class... P, class... A>
cudaError_t launch_call(void (*k)(P...), const Config &c, A &&...a)
{
    static_assert(sizeof...(P) == sizeof...(A), "wrong number of arguments");
    static_assert(((!std::is_reference_v<P> && std::is_trivially_copyable_v<P>)&&...),
                  "kernel arguments are copied byte by byte");
    auto call = std::make_shared<Call<P...>>(k, std::forward<A>(a)...);
    std::apply(
        [&](auto &...v) {
            int i = 0;
            (check_argument(v, i++, c), ...);
        },
        call->args);
    return launch((const void *)k, &Call<P...>::thread, call, c);
}

template <class... P, class... A> void operator*(void (*k)(P...), Packet<A...> &&pk)
{
    std::apply([&](auto &&...a) { launch_call(k, pk.cfg, std::forward<decltype(a)>(a)...); },
               std::move(pk.args));
}

template <class... P, size_t... I>
cudaError_t launch_array(void (*k)(P...), const Config &c, void **a, std::index_sequence<I...>)
{
    return launch_call(k, c, *static_cast<P *>(a[I])...);
}

/* ---- what a running CUDA thread sees ----------------------------------- */

struct Current {
    uint3 tid, bid, bdim, gdim;
};
#if defined(__SANITIZE_THREAD__) || defined(CUEMU_TSAN)
#define CUEMU_THREAD_LOCAL /* one OS thread at a time runs kernels */
#else
#define CUEMU_THREAD_LOCAL __thread
#endif
extern CUEMU_THREAD_LOCAL Current cur;

void *shared_slot(const void *key, size_t bytes);
void *dynamic_shared();
template <class T> T &shared(const void *key)
{
    return *static_cast<T *>(shared_slot(key, sizeof(T)));
}
#define CUEMU_SHARED(...)           \
    cuemu::shared<__VA_ARGS__>([] { \
        static char k;              \
        return (const void *)&k;    \
    }())

void barrier(const char *file, int line);
int barrier_count(int pred, const char *file, int line);

enum WarpOp { SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, SYNC, BALLOT };
uint64_t warp_op(WarpOp, unsigned mask, uint64_t value, int arg, int width, const char *file,
                 int line);
unsigned active_mask();
void fence();

/* the types that the real functions take */
template <class T, class... U> inline constexpr bool one_of = (std::is_same_v<T, U> || ...);
typedef unsigned long long ull;
template <class T> inline constexpr bool shuffles = std::is_arithmetic_v<T>;
template <class T> inline constexpr bool adds = one_of<T, int, unsigned, ull, float, double>;

template <class T> T shfl(WarpOp op, unsigned mask, T v, int arg, int width, const char *f, int l)
{
    static_assert(shuffles<T> && sizeof(T) <= 8, "no such shuffle");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    u = warp_op(op, mask, u, arg, width, f, l);
    memcpy((void *)&v, &u, sizeof v);
    return v;
}
} // namespace cuemu

template <class T> cudaError_t cudaMalloc(T **p, size_t n)
{
    return cuemu::alloc((void **)p, n, false, nullptr);
}
template <class T> cudaError_t cudaMallocAsync(T **p, size_t n, cudaStream_t s)
{
    return cuemu::alloc((void **)p, n, false, &s);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t n, unsigned = 0)
{
    return cuemu::alloc((void **)p, n, true, nullptr);
}
template <class T> cudaError_t cudaHostAlloc(T **p, size_t n, unsigned)
{
    return cuemu::alloc((void **)p, n, true, nullptr);
}
template <class K> cudaError_t cudaFuncSetAttribute(K *k, cudaFuncAttribute a, int v)
{
    return cuemu::func_attribute((const void *)k, a, v);
}
template <class K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, K *)
{
    a->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}
template <class... P>
cudaError_t cudaLaunchKernel(void (*k)(P...), dim3 g, dim3 b, void **args, size_t sh = 0,
                             cudaStream_t s = nullptr, const char *f = __builtin_FILE(),
                             int l = __builtin_LINE())
{
    return cuemu::launch_array(k, cuemu::Config{g, b, sh, s, f, l}, args,
                               std::index_sequence_for<P...>{});
}

#define threadIdx (cuemu::cur.tid)
#define blockIdx (cuemu::cur.bid)
#define blockDim (cuemu::cur.bdim)
#define gridDim (cuemu::cur.gdim)
extern const int warpSize; /* no constant expression for nvcc either */

#define CUEMU_SITE const char *f = __builtin_FILE(), int l = __builtin_LINE()
inline void __syncthreads(CUEMU_SITE)
{
    cuemu::barrier(f, l);
}
inline int __syncthreads_count(int p, CUEMU_SITE)
{
    return cuemu::barrier_count(p, f, l);
}
inline int __syncthreads_or(int p, CUEMU_SITE)
{
    return cuemu::barrier_count(p, f, l) != 0;
}
inline int __syncthreads_and(int p, CUEMU_SITE)
{
    return cuemu::barrier_count(!p, f, l) == 0;
}
inline void __syncwarp(unsigned m = ~0u, CUEMU_SITE)
{
    cuemu::warp_op(cuemu::SYNC, m, 0, 0, 32, f, l);
}
template <class T> T __shfl_sync(unsigned m, T v, int src, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl(cuemu::SHFL, m, v, src, w, f, l);
}
template <class T> T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl(cuemu::SHFL_UP, m, v, (int)d, w, f, l);
}
template <class T> T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl(cuemu::SHFL_DOWN, m, v, (int)d, w, f, l);
}
template <class T> T __shfl_xor_sync(unsigned m, T v, int x, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl(cuemu::SHFL_XOR, m, v, x, w, f, l);
}
inline unsigned __ballot_sync(unsigned m, int p, CUEMU_SITE)
{
    return (unsigned)cuemu::warp_op(cuemu::BALLOT, m, p != 0, 0, 32, f, l);
}
inline int __any_sync(unsigned m, int p, CUEMU_SITE)
{
    return __ballot_sync(m, p, f, l) != 0;
}
inline int __all_sync(unsigned m, int p, CUEMU_SITE)
{
    return __ballot_sync(m, !p, f, l) == 0;
}
#undef CUEMU_SITE
inline unsigned __activemask()
{
    return cuemu::active_mask();
}
inline void __threadfence()
{
    cuemu::fence();
}
inline void __threadfence_block()
{
    __threadfence();
}

/* ---- atomics ----------------------------------------------------------- */

template <class T> T atomicAdd(T *p, std::common_type_t<T> v)
{
    static_assert(cuemu::adds<T>, "no such atomicAdd");
    T old, sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do
        sum = old + v;
    while (!__atomic_compare_exchange(p, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template <class T> T atomicMax(T *p, std::common_type_t<T> v)
{
    static_assert(cuemu::one_of<T, int, unsigned, long long, cuemu::ull>);
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v &&
           !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T> T atomicMin(T *p, std::common_type_t<T> v)
{
    static_assert(cuemu::one_of<T, int, unsigned, long long, cuemu::ull>);
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < old &&
           !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T> T atomicExch(T *p, std::common_type_t<T> v)
{
    static_assert(cuemu::one_of<T, int, unsigned, cuemu::ull, float>);
    T old;
    __atomic_exchange(p, &v, &old, __ATOMIC_RELAXED);
    return old;
}
template <class T> T atomicCAS(T *p, std::common_type_t<T> c, std::common_type_t<T> v)
{
    static_assert(cuemu::one_of<T, unsigned short, int, unsigned, cuemu::ull>);
    __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return c;
}

/* ---- maths and loads --------------------------------------------------- */

template <class T> T __ldg(const T *p)
{
    return *p;
}
#ifndef __NVCC__
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
#endif
/* glibc declares some of these names itself, so they must be macros. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float __frsqrt_rn(float a)
{
    return 1.0f / sqrtf(a);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline int __float_as_int(float f)
{
    int i;
    memcpy(&i, &f, 4);
    return i;
}
inline float __int_as_float(int i)
{
    float f;
    memcpy(&f, &i, 4);
    return f;
}
inline unsigned __float_as_uint(float f)
{
    return (unsigned)__float_as_int(f);
}
inline float __uint_as_float(unsigned i)
{
    return __int_as_float((int)i);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((uint64_t)a * b) >> 32);
}
#define CUEMU_MINMAX(T)       \
    inline T min(T a, T b)    \
    {                         \
        return b < a ? b : a; \
    }                         \
    inline T max(T a, T b)    \
    {                         \
        return a < b ? b : a; \
    }
CUEMU_MINMAX(int)
CUEMU_MINMAX(unsigned)
CUEMU_MINMAX(long)
CUEMU_MINMAX(unsigned long)
CUEMU_MINMAX(long long)
CUEMU_MINMAX(unsigned long long)
#undef CUEMU_MINMAX
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}

#endif
