/* Rows: embedding, norm, rotary embedding, rows brought together and put back. A block works on one
 * row, its threads on packs of 16 bytes of activations where the rows can be cut into them, else on
 * single elements. Sums run in f32, over a row, in an order that its width alone decides. */
#include "kern/kern_cuda.h"

namespace az_cuda {
namespace {

/* Row blockIdx.x of x is that of a table that its id names, if piece holds it. */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    embed_row(T *__restrict__ x, const void *__restrict__ piece, az_dtype type, int64_t row0,
              int64_t rows, const int32_t *__restrict__ ids, int64_t D)
{
    const int64_t n = blockIdx.x, row = ids[n] - row0;
    if (row < 0 || row >= rows)
        return;
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W)
        store_f32(x + n * D + d, load_weight<W>(piece, type, row * D + d));
}

/* ---- norm ---- */

/* 1 / sqrt(mean(x^2) + eps), in every thread. */
template <class T, int W>
__device__ inline float inverse_norm(const T *x, float eps, int64_t D, float *shared)
{
    float s = 0;
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W) {
        const Pack<float, W> v = load_f32<W>(x + d);
#pragma unroll
        for (int j = 0; j < W; j++)
            s += v.at[j] * v.at[j];
    }
    return 1.0f / sqrtf(reduce_block(s, shared, Sum()) / (float)D + eps);
}

/* (numerics, eq. 6) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    norm_forward(T *__restrict__ y, const T *__restrict__ x, const void *__restrict__ w,
                 az_dtype type, float eps, int64_t D)
{
    __shared__ float shared[BLOCK / 32];
    const int64_t at = blockIdx.x * D;
    const float r = inverse_norm<T, W>(x + at, eps, D, shared);
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W) {
        const Pack<float, W> weight = load_weight<W>(w, type, d);
        Pack<float, W> v = load_f32<W>(x + at + d);
#pragma unroll
        for (int j = 0; j < W; j++)
            v.at[j] = v.at[j] * r * weight.at[j];
        store_f32(y + at + d, v);
    }
}

/* dx += r w dy - r^3 / D x sum(x w dy)   (numerics, eq. 7) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    norm_backward(T *__restrict__ dx, const T *__restrict__ dy, const T *__restrict__ x,
                  const void *__restrict__ w, az_dtype type, float eps, int64_t D)
{
    __shared__ float shared[BLOCK / 32];
    const int64_t at = blockIdx.x * D;
    const float r = inverse_norm<T, W>(x + at, eps, D, shared);
    float dot = 0;
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W) {
        const Pack<float, W> weight = load_weight<W>(w, type, d), v = load_f32<W>(x + at + d),
                             g = load_f32<W>(dy + at + d);
#pragma unroll
        for (int j = 0; j < W; j++)
            dot += v.at[j] * r * weight.at[j] * g.at[j];
    }
    const float c = reduce_block(dot, shared, Sum()) / (float)D * r * r;
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W) {
        const Pack<float, W> weight = load_weight<W>(w, type, d), v = load_f32<W>(x + at + d),
                             g = load_f32<W>(dy + at + d);
        Pack<float, W> sum = load_f32<W>(dx + at + d);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum.at[j] += g.at[j] * weight.at[j] * r - v.at[j] * c;
        store_f32(dx + at + d, sum);
    }
}

/* ---- rotary embedding ---- */

/* The heads of row blockIdx.x, two packs of a head at a time, half its width apart.
 * (numerics, eq. 8) */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    rotate_row(T *__restrict__ x, const int32_t *__restrict__ pos, const float *__restrict__ table,
               int heads, int K, float sign)
{
    const int64_t n = blockIdx.x;
    const int half = K / 2, packs = half / W;
    const float *angle = table + (int64_t)pos[n] * K;
    for (int i = threadIdx.x; i < heads * packs; i += blockDim.x) {
        const int head = i / packs, j0 = i % packs * W;
        T *low = x + (n * heads + head) * K + j0, *high = low + half;
        const Pack<float, W> a = load_f32<W>(low), b = load_f32<W>(high);
        const Pack<float, W> cosine = load_f32<W>(angle + j0);
        const Pack<float, W> sine = load_f32<W>(angle + half + j0);
        Pack<float, W> to_low, to_high;
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float s = sign * sine.at[j];
            to_low.at[j] = a.at[j] * cosine.at[j] - b.at[j] * s;
            to_high.at[j] = b.at[j] * cosine.at[j] + a.at[j] * s;
        }
        store_f32(low, to_low);
        store_f32(high, to_high);
    }
}

/* ---- rows brought together and put back ---- */

/* Row i of y is row rows[i] of x, or with back row rows[i] of y is row i of x. */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    move_row(T *__restrict__ y, const T *__restrict__ x, const int64_t *__restrict__ rows,
             bool back, int64_t D)
{
    const int64_t i = blockIdx.x, row = rows[i];
    T *to = y + (back ? row : i) * D;
    const T *from = x + (back ? i : row) * D;
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W)
        store_pack(to + d, load_pack<T, W>(from + d));
}

template <class T>
void queue_move(az_kern_self *k, T *y, const T *x, const int64_t *rows, bool back, int64_t n,
                int64_t D)
{
    constexpr int W = WIDTH<T>;
    if (n == 0 || D == 0)
        return;
    if (is_aligned(y, x) && D % W == 0)
        move_row<T, W><<<(unsigned)n, row_threads(D / W), 0, k->stream>>>(y, x, rows, back, D);
    else
        move_row<T, 1><<<(unsigned)n, row_threads(D), 0, k->stream>>>(y, x, rows, back, D);
}

} // namespace

/* ---- entries ---- */

template <class T>
void embed(az_kern_self *k, void *x_, az_view piece, int64_t row0, const int32_t *ids, int64_t N)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "embed");
    T *x = static_cast<T *>(x_);
    const int64_t D = piece.cols;
    if (N == 0 || D == 0)
        return;
    /* A row of the piece begins at 16 bytes too: its elements are not narrower than 2 bytes. */
    if (is_aligned(x, piece.data) && D % 8 == 0)
        embed_row<T, W><<<(unsigned)N, row_threads(D / W), 0, k->stream>>>(
            x, piece.data, piece.dtype, row0, piece.rows, ids, D);
    else
        embed_row<T, 1><<<(unsigned)N, row_threads(D), 0, k->stream>>>(
            x, piece.data, piece.dtype, row0, piece.rows, ids, D);
}

template <class T>
void rmsnorm_forward(az_kern_self *k, void *y_, const void *x_, az_view w, double eps, int64_t N,
                     int64_t D)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "rmsnorm forward");
    T *y = static_cast<T *>(y_);
    const T *x = static_cast<const T *>(x_);
    if (N == 0 || D == 0)
        return;
    if (is_aligned(y, x, w.data) && D % W == 0)
        norm_forward<T, W><<<(unsigned)N, row_threads(D / W), 0, k->stream>>>(
            y, x, w.data, w.dtype, (float)eps, D);
    else
        norm_forward<T, 1><<<(unsigned)N, row_threads(D), 0, k->stream>>>(y, x, w.data, w.dtype,
                                                                          (float)eps, D);
}

template <class T>
void rmsnorm_backward(az_kern_self *k, void *dx_, const void *dy_, const void *x_, az_view w,
                      double eps, int64_t N, int64_t D)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "rmsnorm backward");
    T *dx = static_cast<T *>(dx_);
    const T *dy = static_cast<const T *>(dy_), *x = static_cast<const T *>(x_);
    if (N == 0 || D == 0)
        return;
    if (is_aligned(dx, dy, x, w.data) && D % W == 0)
        norm_backward<T, W><<<(unsigned)N, row_threads(D / W), 0, k->stream>>>(
            dx, dy, x, w.data, w.dtype, (float)eps, D);
    else
        norm_backward<T, 1><<<(unsigned)N, row_threads(D), 0, k->stream>>>(
            dx, dy, x, w.data, w.dtype, (float)eps, D);
}

template <class T>
void rope(az_kern_self *k, void *x_, const int32_t *pos, const float *table, int64_t N, int heads,
          int64_t K, bool inverse)
{
    constexpr int W = WIDTH<T>;
    Queued queued(k, "rope");
    T *x = static_cast<T *>(x_);
    const float sign = inverse ? -1.0f : 1.0f;
    if (N == 0 || K < 2)
        return;
    if (is_aligned(x, table) && K % (2 * W) == 0)
        rotate_row<T, W><<<(unsigned)N, row_threads(heads * (K / 2 / W)), 0, k->stream>>>(
            x, pos, table, heads, (int)K, sign);
    else
        rotate_row<T, 1><<<(unsigned)N, row_threads(heads * (K / 2)), 0, k->stream>>>(
            x, pos, table, heads, (int)K, sign);
}

template <class T>
void gather_rows(az_kern_self *k, void *y, const void *x, const int64_t *rows, int64_t n, int64_t D)
{
    Queued queued(k, "gather rows");
    queue_move(k, static_cast<T *>(y), static_cast<const T *>(x), rows, false, n, D);
}

template <class T>
void scatter_rows(az_kern_self *k, void *y, const void *x, const int64_t *rows, int64_t n,
                  int64_t D)
{
    Queued queued(k, "scatter rows");
    queue_move(k, static_cast<T *>(y), static_cast<const T *>(x), rows, true, n, D);
}

template <class T> cudaError_t load_rows()
{
    constexpr int W = WIDTH<T>;
    return load_kernel(embed_row<T, W>, embed_row<T, 1>, norm_forward<T, W>, norm_forward<T, 1>,
                       norm_backward<T, W>, norm_backward<T, 1>, rotate_row<T, W>,
                       rotate_row<T, 1>, move_row<T, W>, move_row<T, 1>);
}

#define INSTANTIATE(T)                                                                             \
    template void embed<T>(az_kern_self *, void *, az_view, int64_t, const int32_t *, int64_t);    \
    template void rmsnorm_forward<T>(az_kern_self *, void *, const void *, az_view, double,        \
                                     int64_t, int64_t);                                            \
    template void rmsnorm_backward<T>(az_kern_self *, void *, const void *, const void *, az_view, \
                                      double, int64_t, int64_t);                                   \
    template void rope<T>(az_kern_self *, void *, const int32_t *, const float *, int64_t, int,    \
                          int64_t, bool);                                                          \
    template void gather_rows<T>(az_kern_self *, void *, const void *, const int64_t *, int64_t,   \
                                 int64_t);                                                         \
    template void scatter_rows<T>(az_kern_self *, void *, const void *, const int64_t *, int64_t,  \
                                  int64_t);                                                        \
    template cudaError_t load_rows<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
