/* Elements: gated unit, sums, dropout, changes of type. What an operation does to an array does not
 * depend on where the elements lie, so an array is cut into packs of 16 bytes of activations, one
 * for each thread, where all arrays are aligned; the rest of it, and arrays that are not, go one by
 * one. All are bound by the memory's speed. */
#include <cmath>

#include "base/rng.h"
#include "kern/kern_cuda.h"

namespace az_cuda {
namespace {

/* ---- gated unit ---- */

/* (numerics, eq. 9) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    gate_forward(T *__restrict__ a, const T *__restrict__ g, const T *__restrict__ u, size_t n)
{
    const size_t i = flat_index() * W;
    if (i >= n)
        return;
    const Pack<float, W> x = load_f32<W>(g + i);
    Pack<float, W> y = load_f32<W>(u + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        y.at[j] = x.at[j] / (1.0f + expf(-x.at[j])) * y.at[j];
    store_f32(a + i, y);
}

/* (numerics, eq. 10) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    gate_backward(T *__restrict__ dg, T *__restrict__ du, const T *__restrict__ da,
                  const T *__restrict__ g, const T *__restrict__ u, size_t n)
{
    const size_t i = flat_index() * W;
    if (i >= n)
        return;
    const Pack<float, W> d = load_f32<W>(da + i), x = load_f32<W>(g + i), y = load_f32<W>(u + i);
    Pack<float, W> to_g, to_u;
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float s = 1.0f / (1.0f + expf(-x.at[j]));
        to_g.at[j] = d.at[j] * y.at[j] * s * (1.0f + x.at[j] * (1.0f - s));
        to_u.at[j] = d.at[j] * x.at[j] * s;
    }
    store_f32(dg + i, to_g);
    store_f32(du + i, to_u);
}

/* ---- sums, changes of type ---- */

template <class T, int W>
__global__ void __launch_bounds__(BLOCK) add_elements(T *__restrict__ y, const T *__restrict__ x,
                                                      size_t n)
{
    const size_t i = flat_index() * W;
    if (i >= n)
        return;
    const Pack<float, W> a = load_f32<W>(x + i);
    Pack<float, W> b = load_f32<W>(y + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        b.at[j] += a.at[j];
    store_f32(y + i, b);
}

/* y = x in another type. */
template <class T, class S, int W>
__global__ void __launch_bounds__(BLOCK) convert(T *__restrict__ y, const S *__restrict__ x,
                                                 size_t n)
{
    const size_t i = flat_index() * W;
    if (i < n)
        store_f32(y + i, load_f32<W>(x + i));
}

template <class T, class S> void queue_convert(az_kern_self *k, T *y, const S *x, size_t n)
{
    const size_t body = is_aligned(y, x) ? n / 8 : 0, done = body * 8, rest = n - done;
    if (body > 0)
        convert<T, S, 8><<<flat_blocks(body), BLOCK, 0, k->stream>>>(y, x, done);
    if (rest > 0)
        convert<T, S, 1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(y + done, x + done, rest);
}

/* ---- dropout ---- */

/* Four words of Philox4x32-10 for the counter (a, b, c, d), as base/rng.c's az_philox. */
__device__ inline void make_words(unsigned words[4], uint64_t seed, unsigned a, unsigned b,
                                  unsigned c, unsigned d)
{
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32), x0 = a, x1 = b, x2 = c, x3 = d;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned y0 = __umulhi(0xCD9E8D57u, x2) ^ x1 ^ k0,
                       y2 = __umulhi(0xD2511F53u, x0) ^ x3 ^ k1;
        x1 = 0xCD9E8D57u * x2;
        x3 = 0xD2511F53u * x0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = x0;
    words[1] = x1;
    words[2] = x2;
    words[3] = x3;
}

/* What a mask is drawn from, as the kernel takes it. */
struct Draw {
    uint64_t seed;
    unsigned step, word, threshold;
    float scale;
};

/* y (+)= x m / (1 - p) for row blockIdx.x   (numerics, eq. 11)
 * A thread takes 4 W columns at a time, W counters; rows that cannot be cut into packs have W 1 and
 * go element by element. u 2^-24 >= p for the upper 24 bits u of a word is u >= ceil(p 2^24). y may
 * be x. */
template <class T, int W, bool packed>
__global__ void __launch_bounds__(BLOCK)
    drop_row(T *y, const T *x, bool accumulate, Draw draw, const uint32_t *__restrict__ sample,
             const int32_t *__restrict__ pos, int64_t D)
{
    const int64_t n = blockIdx.x;
    const unsigned b = sample[n], a = (unsigned)pos[n] * (unsigned)((D + 3) / 4);
    for (int64_t d = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 4 * W; d < D;
         d += (int64_t)gridDim.y * blockDim.x * 4 * W) {
        unsigned words[4 * W];
        bool keep[4 * W];
#pragma unroll
        for (int j = 0; j < W; j++)
            make_words(words + 4 * j, draw.seed, a + (unsigned)(d / 4) + j, b, draw.step,
                       draw.word);
#pragma unroll
        for (int j = 0; j < 4 * W; j++)
            keep[j] = words[j] >> 8 >= draw.threshold;
        T *to = y + n * D + d;
        const T *from = x + n * D + d;
        if constexpr (packed) {
            const Pack<float, 4 * W> in = load_f32<4 * W>(from);
            Pack<float, 4 * W> out = accumulate ? load_f32<4 * W>(to) : Pack<float, 4 * W>{};
#pragma unroll
            for (int j = 0; j < 4 * W; j++) {
                const float kept = keep[j] ? in.at[j] * draw.scale : 0.0f;
                out.at[j] = accumulate ? out.at[j] + kept : kept;
            }
            store_f32(to, out);
        } else {
#pragma unroll
            for (int j = 0; j < 4 * W; j++)
                if (d + j < D) {
                    const float kept = keep[j] ? to_f32(from[j]) * draw.scale : 0.0f;
                    to[j] = from_f32<T>(accumulate ? to_f32(to[j]) + kept : kept);
                }
        }
    }
}

} // namespace

/* ---- entries ---- */

template <class T>
void silu_gate_forward(az_kern_self *k, void *a_, const void *g_, const void *u_, size_t n)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "silu gate forward");
    T *a = static_cast<T *>(a_);
    const T *g = static_cast<const T *>(g_), *u = static_cast<const T *>(u_);
    const size_t body = is_aligned(a, g, u) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        gate_forward<T, W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(a, g, u, done);
    if (rest > 0)
        gate_forward<T, 1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(a + done, g + done,
                                                                       u + done, rest);
}

template <class T>
void silu_gate_backward(az_kern_self *k, void *dg_, void *du_, const void *da_, const void *g_,
                        const void *u_, size_t n)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "silu gate backward");
    T *dg = static_cast<T *>(dg_), *du = static_cast<T *>(du_);
    const T *da = static_cast<const T *>(da_), *g = static_cast<const T *>(g_),
            *u = static_cast<const T *>(u_);
    const size_t body = is_aligned(dg, du, da, g, u) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        gate_backward<T, W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(dg, du, da, g, u, done);
    if (rest > 0)
        gate_backward<T, 1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(
            dg + done, du + done, da + done, g + done, u + done, rest);
}

template <class T> void add(az_kern_self *k, void *y_, const void *x_, size_t n)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "add");
    T *y = static_cast<T *>(y_);
    const T *x = static_cast<const T *>(x_);
    const size_t body = is_aligned(y, x) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        add_elements<T, W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(y, x, done);
    if (rest > 0)
        add_elements<T, 1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(y + done, x + done, rest);
}

template <class T> void narrow(az_kern_self *k, void *y, const float *x, size_t n)
{
    Queued queued(k, "narrow");
    queue_convert(k, static_cast<T *>(y), x, n);
}

void widen(az_kern_self *k, float *y, az_view x)
{
    Queued queued(k, "widen");
    const size_t n = (size_t)(x.rows * x.cols);
    if (x.dtype == AZ_F32)
        queue_convert(k, y, static_cast<const float *>(x.data), n);
    else if (x.dtype == AZ_F16)
        queue_convert(k, y, static_cast<const az_f16 *>(x.data), n);
    else
        queue_convert(k, y, static_cast<const __nv_bfloat16 *>(x.data), n);
}

template <class T>
void dropout(az_kern_self *k, void *y_, const void *x_, bool accumulate, const az_mask *mask,
             int64_t N, int64_t D)
{
    constexpr int W = WIDTH<T> / 4;
    T *y = static_cast<T *>(y_);
    const T *x = static_cast<const T *>(x_);
    const size_t n = (size_t)(N * D);
    if (mask->p == 0 && accumulate) {
        add<T>(k, y, x, n);
        return;
    }
    Queued queued(k, "dropout");
    if (n == 0 || (mask->p == 0 && y == x))
        return;
    if (mask->p == 0) {
        queued.check(cudaMemcpyAsync(y, x, n * sizeof *y, cudaMemcpyDeviceToDevice, k->stream));
        return;
    }
    const Draw draw = {mask->seed, mask->step, az_rng_word(AZ_RNG_DROPOUT, mask->module),
                       (unsigned)ceil(mask->p * 0x1p24), (float)(1.0 / (1.0 - mask->p))};
    const bool packed = is_aligned(y, x) && D % (4 * W) == 0;
    const int64_t groups = packed ? D / (4 * W) : (D + 3) / 4;
    const unsigned threads = row_threads(groups);
    const int64_t chunks = (groups + threads - 1) / threads;
    const dim3 blocks((unsigned)N, (unsigned)(chunks < 65535 ? chunks : 65535));
    if (packed)
        drop_row<T, W, true><<<blocks, threads, 0, k->stream>>>(y, x, accumulate, draw,
                                                                mask->sample, mask->pos, D);
    else
        drop_row<T, 1, false><<<blocks, threads, 0, k->stream>>>(y, x, accumulate, draw,
                                                                 mask->sample, mask->pos, D);
}

template <class T> cudaError_t load_elem()
{
    constexpr int W = WIDTH<T>;
    return load_kernel(gate_forward<T, W>, gate_forward<T, 1>, gate_backward<T, W>,
                       gate_backward<T, 1>, add_elements<T, W>, add_elements<T, 1>,
                       convert<T, float, 8>, convert<T, float, 1>, convert<float, float, 8>,
                       convert<float, float, 1>, convert<float, az_f16, 8>,
                       convert<float, az_f16, 1>, convert<float, __nv_bfloat16, 8>,
                       convert<float, __nv_bfloat16, 1>, drop_row<T, W / 4, true>,
                       drop_row<T, 1, false>);
}

#define INSTANTIATE(T)                                                                             \
    template void silu_gate_forward<T>(az_kern_self *, void *, const void *, const void *,         \
                                       size_t);                                                    \
    template void silu_gate_backward<T>(az_kern_self *, void *, void *, const void *,              \
                                        const void *, const void *, size_t);                       \
    template void add<T>(az_kern_self *, void *, const void *, size_t);                            \
    template void narrow<T>(az_kern_self *, void *, const float *, size_t);                        \
    template void dropout<T>(az_kern_self *, void *, const void *, bool, const az_mask *, int64_t, \
                             int64_t);                                                             \
    template cudaError_t load_elem<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
