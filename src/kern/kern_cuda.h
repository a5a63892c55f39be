/* Inside kern, for its CUDA sources: the state that a table works with, and what its kernels have
 * in common: conversions, packs of elements that are moved together, sums over a block. C++.
 *
 * Every operation is a function template over the type of the activations (float, __nv_bfloat16),
 * with the arguments of its entry in ops.h; the source that has its kernels instantiates it for
 * both, and kern_cuda.cu makes the tables. An operation is queued like this:
 *
 *     Queued queued(k, "rope");
 *     rope_rows<T><<<blocks, threads, 0, k->stream>>>(...);
 */
#ifndef AZ_KERN_KERN_CUDA_H
#define AZ_KERN_KERN_CUDA_H

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "dev/backend.h"
#include "kern/backend.h"
#include "kern/cuda.h"
#include "kern/ops.h"

struct az_kern_self {
    const az_backend_host *host;
    cudaStream_t stream; /* the compute queue */
    cublasHandle_t blas; /* works in stream, with a workspace of its own: same bits every time */
    void *workspace;
};

namespace az_cuda
{

/* ---- queueing ---- */

/* Around the launches of one operation: its name goes to the host before, and what a launch says
 * is looked at after. The failure of one ends the job. name: a string literal. */
class Queued
{
  public:
    Queued(az_kern_self *k, const char *name) : kern(k), operation(name)
    {
        k->host->note(k->host->context, AZ_QUEUE_COMPUTE, name);
    }
    ~Queued()
    {
        check(cudaGetLastError());
    }
    Queued(const Queued &) = delete;
    Queued &operator=(const Queued &) = delete;
    void check(cudaError_t e) const
    {
        if (e != cudaSuccess)
            kern->host->fail(kern->host->context, operation, cudaGetErrorString(e));
    }
    void check(cublasStatus_t e) const
    {
        if (e != CUBLAS_STATUS_SUCCESS)
            kern->host->fail(kern->host->context, operation, cublasGetStatusString(e));
    }

  private:
    az_kern_self *kern;
    const char *operation;
};

/* Threads of a block at most. */
constexpr int BLOCK = 256;

/* Threads that a row of n pieces of work is given: whole warps, BLOCK at most. */
inline unsigned row_threads(int64_t n)
{
    return n >= BLOCK ? BLOCK : (unsigned)((n + 31) / 32 * 32);
}

/* Blocks of BLOCK threads for n pieces of work. */
inline unsigned flat_blocks(size_t n)
{
    return (unsigned)((n + BLOCK - 1) / BLOCK);
}

/* This thread's number in a grid of flat_blocks. */
__device__ inline size_t flat_index()
{
    return (size_t)blockIdx.x * BLOCK + threadIdx.x;
}

/* A kernel is loaded where it is first asked about: then memory is not taken later, and a GPU that
 * the code was not made for is found here. */
template <class F> cudaError_t load_kernel(F *kernel)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
}
template <class F, class... More> cudaError_t load_kernel(F *kernel, More *...more)
{
    const cudaError_t e = load_kernel(kernel);
    return e != cudaSuccess ? e : load_kernel(more...);
}

/* ---- numbers ---- */

__device__ inline float to_f32(float x)
{
    return x;
}
__device__ inline float to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
/* Shift exponent and mantissa into place; subnormals come out right by a multiplication with 2^112.
 */
__device__ inline float to_f32(az_f16 x)
{
    const unsigned sign = (unsigned)(x.bits & 0x8000) << 16, u = (unsigned)(x.bits & 0x7fff) << 13;
    if (u >= 0x0f800000) /* Inf, NaN */
        return __uint_as_float((u & 0x7fffff) | 0x7f800000 | sign);
    return __uint_as_float(__float_as_uint(__uint_as_float(u) * 0x1p112f) | sign);
}

/* To the nearest, ties to even. */
template <class T> __device__ T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x)
{
    return x;
}
template <> __device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* ---- packs: W neighbours, moved by accesses of 16 bytes where they have so many ---- */

template <class T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
    T at[W];
};

/* Elements of a pack of activations. */
template <class T> constexpr int WIDTH = 16 / (int)sizeof(T);

template <class T, int W> __device__ inline Pack<T, W> load_pack(const T *p)
{
    return *reinterpret_cast<const Pack<T, W> *>(p);
}
template <class T, int W> __device__ inline void store_pack(T *p, const Pack<T, W> &v)
{
    *reinterpret_cast<Pack<T, W> *>(p) = v;
}

/* As numbers. */
template <int W, class T> __device__ inline Pack<float, W> load_f32(const T *p)
{
    const Pack<T, W> v = load_pack<T, W>(p);
    Pack<float, W> x;
#pragma unroll
    for (int i = 0; i < W; i++)
        x.at[i] = to_f32(v.at[i]);
    return x;
}
template <class T, int W> __device__ inline void store_f32(T *p, const Pack<float, W> &x)
{
    Pack<T, W> v;
#pragma unroll
    for (int i = 0; i < W; i++)
        v.at[i] = from_f32<T>(x.at[i]);
    store_pack<T, W>(p, v);
}
/* From a weight in the type of its file. */
template <int W>
__device__ inline Pack<float, W> load_weight(const void *data, az_dtype type, int64_t i)
{
    switch (type) {
    case AZ_F32:
        return load_f32<W>(static_cast<const float *>(data) + i);
    case AZ_F16:
        return load_f32<W>(static_cast<const az_f16 *>(data) + i);
    default:
        return load_f32<W>(static_cast<const __nv_bfloat16 *>(data) + i);
    }
}

/* Whether all arrays begin at 16 bytes. */
template <class... P> bool is_aligned(const P *...p)
{
    return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/* ---- over a block ---- */

/* What combine makes of all threads' x, the same in each, in an order that the number of threads
 * alone decides. shared: one for each warp; may be used again at once. All threads take part. */
template <class V, class C> __device__ inline V reduce_block(V x, V *shared, C combine)
{
    const int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (lane == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < n_warps; w++)
        x = combine(x, shared[w]);
    __syncthreads();
    return x;
}

struct Sum {
    template <class V> __device__ V operator()(V a, V b) const
    {
        return a + b;
    }
};

/* ---- operations (ops.h) ---- */

/* kern_cuda_gemm.cu */
template <class T>
void gemm(az_kern_self *k, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, float alpha,
          const void *A, int64_t lda, const void *B, int64_t ldb, float beta, void *C, int64_t ldc,
          bool c_f32);
template <class T>
void linear_forward(az_kern_self *k, void *y, bool y_f32, const void *x, az_view W, az_view b,
                    int64_t N, void *scratch);
template <class T>
void linear_backward(az_kern_self *k, void *dx, const void *dy, az_view W, bool add, int64_t N,
                     void *scratch);
template <class T> cudaError_t load_gemm();

/* kern_cuda_attention.cu */
template <class T>
void attention_forward(az_kern_self *k, void *out, float *lse, const void *q, const void *key,
                       const void *v, const az_seq *seqs, int n_seqs, int H, int G, int64_t K,
                       void *scratch);
template <class T>
void attention_backward(az_kern_self *k, void *dq, void *dk, void *dv, const void *dout,
                        const void *out, const float *lse, const void *q, const void *key,
                        const void *v, const az_seq *seqs, int n_seqs, int H, int G, int64_t K,
                        void *scratch);
/* kern_cuda_attention_rows.cu */
template <class T> cudaError_t load_attention();

/* kern_cuda_rows.cu */
template <class T>
void embed(az_kern_self *k, void *x, az_view piece, int64_t row0, const int32_t *ids, int64_t N);
template <class T>
void rmsnorm_forward(az_kern_self *k, void *y, const void *x, az_view w, double eps, int64_t N,
                     int64_t D);
template <class T>
void rmsnorm_backward(az_kern_self *k, void *dx, const void *dy, const void *x, az_view w,
                      double eps, int64_t N, int64_t D);
template <class T>
void rope(az_kern_self *k, void *x, const int32_t *pos, const float *table, int64_t N, int heads,
          int64_t K, bool inverse);
template <class T>
void gather_rows(az_kern_self *k, void *y, const void *x, const int64_t *rows, int64_t n,
                 int64_t D);
template <class T>
void scatter_rows(az_kern_self *k, void *y, const void *x, const int64_t *rows, int64_t n,
                  int64_t D);
template <class T> cudaError_t load_rows();

/* kern_cuda_elem.cu */
template <class T>
void silu_gate_forward(az_kern_self *k, void *a, const void *g, const void *u, size_t n);
template <class T>
void silu_gate_backward(az_kern_self *k, void *dg, void *du, const void *da, const void *g,
                        const void *u, size_t n);
template <class T> void add(az_kern_self *k, void *y, const void *x, size_t n);
template <class T>
void dropout(az_kern_self *k, void *y, const void *x, bool accumulate, const az_mask *mask,
             int64_t N, int64_t D);
template <class T> void narrow(az_kern_self *k, void *y, const float *x, size_t n);
void widen(az_kern_self *k, float *y, az_view x);
template <class T> cudaError_t load_elem();

/* kern_cuda_loss.cu */
void loss_begin(az_kern_self *k, float *max, double *sum, float *hit, int64_t N);
void loss_fold(az_kern_self *k, float *max, double *sum, float *hit, const float *logits,
               const int32_t *label, int64_t col0, int64_t N, int64_t C);
void loss_end(az_kern_self *k, double *out, const float *max, const double *sum, const float *hit,
              int64_t N);
template <class T>
void loss_backward(az_kern_self *k, void *dlogits, const float *logits, const float *max,
                   const double *sum, const int32_t *label, double scale, int64_t col0, int64_t N,
                   int64_t C);
template <class T> cudaError_t load_loss();

/* kern_cuda_optim.cu */
void fixed_add(az_kern_self *k, int64_t *sum, const float *x, size_t n, double limit,
               int64_t *overflow, bool shared);
void add_i64(az_kern_self *k, int64_t *y, const int64_t *x, size_t n);
void square_blocks(az_kern_self *k, double *out, const int64_t *g, size_t n, size_t block);
void adamw(az_kern_self *k, float *p, float *m, float *v, const int64_t *fixed, double clip,
           size_t n, const az_adamw *o);
cudaError_t load_optim();

} // namespace az_cuda

#endif
