/* Cross entropy over a vocabulary that comes in column pieces. A block works on a row, and reads it
 * once: each thread keeps a maximum and the sum of exponentials relative to it, in double as on the
 * CPU; those of the threads, and then that of the pieces before, are put on a common maximum. */
#include "kern/kern_cuda.h"

namespace az_cuda {
namespace {

/* A maximum, and the sum of exp(x - largest) over what it is the maximum of. */
struct Folded {
    float largest;
    double sum;
};

/* The same sum relative to another maximum, which is not less. Where all is -inf so far, the shift
 * must be finite for exp(-inf - shift) = 0. */
__device__ inline double rebase(Folded a, float largest)
{
    return a.largest == largest ? a.sum : a.sum * exp((double)a.largest - (double)largest);
}

/* NaN is no maximum; it shows in the sum. */
struct Largest {
    __device__ float operator()(float a, float b) const
    {
        return b > a ? b : a;
    }
};

template <int W>
__device__ inline void fold_row(Folded &f, const float *row, int64_t C)
{
    for (int64_t c = (int64_t)threadIdx.x * W; c < C; c += (int64_t)blockDim.x * W) {
        const Pack<float, W> x = load_pack<float, W>(row + c);
        float largest = f.largest;
#pragma unroll
        for (int j = 0; j < W; j++)
            largest = x.at[j] > largest ? x.at[j] : largest;
        f.sum = rebase(f, largest);
        f.largest = largest;
        const float shift = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
        for (int j = 0; j < W; j++)
            f.sum += (double)expf(x.at[j] - shift);
    }
}

__global__ void __launch_bounds__(BLOCK)
    begin(float *__restrict__ max, double *__restrict__ sum, float *__restrict__ hit, int64_t N)
{
    const int64_t n = (int64_t)flat_index();
    if (n < N) {
        max[n] = -INFINITY;
        sum[n] = 0;
        hit[n] = 0;
    }
}

/* (numerics, eq. 15) */
template <int W>
__global__ void __launch_bounds__(BLOCK)
    fold(float *__restrict__ max, double *__restrict__ sum, float *__restrict__ hit,
         const float *__restrict__ logits, const int32_t *__restrict__ label, int64_t col0,
         int64_t C)
{
    __shared__ float maxima[BLOCK / 32];
    __shared__ double sums[BLOCK / 32];
    const int64_t n = blockIdx.x;
    const float *row = logits + n * C;
    Folded mine = {-INFINITY, 0};
    fold_row<W>(mine, row, C);
    Folded all;
    all.largest = reduce_block(mine.largest, maxima, Largest());
    all.sum = reduce_block(rebase(mine, all.largest), sums, Sum());
    if (threadIdx.x == 0) {
        const Folded before = {max[n], sum[n]};
        const float largest = all.largest > before.largest ? all.largest : before.largest;
        sum[n] = rebase(before, largest) + rebase(all, largest);
        max[n] = largest;
        if (label[n] >= col0 && label[n] - col0 < C)
            hit[n] = row[label[n] - col0];
    }
}

/* One block: thread t takes the rows t, t + BLOCK, ...   (numerics, eq. 16) */
__global__ void __launch_bounds__(BLOCK)
    end(double *__restrict__ out, const float *__restrict__ max, const double *__restrict__ sum,
        const float *__restrict__ hit, int64_t N)
{
    __shared__ double shared[BLOCK / 32];
    double total = 0;
    for (int64_t n = threadIdx.x; n < N; n += BLOCK)
        total += log(sum[n]) + ((double)max[n] - (double)hit[n]);
    total = reduce_block(total, shared, Sum());
    if (threadIdx.x == 0)
        *out = total;
}

/* dlogits may be logits.   (numerics, eq. 17) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    to_gradient(T *dlogits, const float *logits, const float *__restrict__ max,
                const double *__restrict__ sum, const int32_t *__restrict__ label, double scale,
                int64_t col0, int64_t C)
{
    const int64_t n = blockIdx.x, hit = label[n] - col0;
    const float shift = max[n], factor = (float)(scale / sum[n]);
    for (int64_t c = (int64_t)threadIdx.x * W; c < C; c += (int64_t)blockDim.x * W) {
        Pack<float, W> x = load_pack<float, W>(logits + n * C + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            x.at[j] = expf(x.at[j] - shift) * factor;
            if (c + j == hit)
                x.at[j] -= (float)scale;
        }
        store_f32(dlogits + n * C + c, x);
    }
}

} // namespace

/* ---- entries ---- */

void loss_begin(az_kern_self *k, float *max, double *sum, float *hit, int64_t N)
{
    Queued queued(k, "loss begin");
    if (N > 0)
        begin<<<flat_blocks((size_t)N), BLOCK, 0, k->stream>>>(max, sum, hit, N);
}

void loss_fold(az_kern_self *k, float *max, double *sum, float *hit, const float *logits,
               const int32_t *label, int64_t col0, int64_t N, int64_t C)
{
    Queued queued(k, "loss fold");
    if (N == 0 || C == 0)
        return;
    if (is_aligned(logits) && C % 4 == 0)
        fold<4><<<(unsigned)N, row_threads(C / 4), 0, k->stream>>>(max, sum, hit, logits, label,
                                                                   col0, C);
    else
        fold<1><<<(unsigned)N, row_threads(C), 0, k->stream>>>(max, sum, hit, logits, label, col0,
                                                               C);
}

void loss_end(az_kern_self *k, double *out, const float *max, const double *sum, const float *hit,
              int64_t N)
{
    Queued queued(k, "loss end");
    end<<<1, BLOCK, 0, k->stream>>>(out, max, sum, hit, N);
}

template <class T>
void loss_backward(az_kern_self *k, void *dlogits_, const float *logits, const float *max,
                   const double *sum, const int32_t *label, double scale, int64_t col0, int64_t N,
                   int64_t C)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "loss backward");
    T *dlogits = static_cast<T *>(dlogits_);
    if (N == 0 || C == 0)
        return;
    if (is_aligned(dlogits, logits) && C % W == 0)
        to_gradient<T, W><<<(unsigned)N, row_threads(C / W), 0, k->stream>>>(
            dlogits, logits, max, sum, label, scale, col0, C);
    else
        to_gradient<T, 1><<<(unsigned)N, row_threads(C), 0, k->stream>>>(dlogits, logits, max, sum,
                                                                         label, scale, col0, C);
}

template <class T> cudaError_t load_loss()
{
    return load_kernel(begin, fold<4>, fold<1>, end, to_gradient<T, WIDTH<T>>, to_gradient<T, 1>);
}

#define INSTANTIATE(T)                                                                           \
    template void loss_backward<T>(az_kern_self *, void *, const float *, const float *,         \
                                   const double *, const int32_t *, double, int64_t, int64_t,    \
                                   int64_t);                                                     \
    template cudaError_t load_loss<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
