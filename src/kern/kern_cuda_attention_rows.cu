/* Attention: rows copied side by side for products, and rows of scores. A batch is small enough to
 * be handed to a kernel as an argument. */
#include "kern/kern_cuda_attention.h"

namespace az_cuda {
namespace {

/* ---- stacking ---- */

/* One array, or two that are copied alike, as they lie and stacked. */
template <class V> struct Arrays {
    V *lying[2], *stacked[2];
};

/* stacked[tile, g, i, head, :] = lying[row + i, g0 + g, head, :], rows of G key heads, heads of
 * width elements; with BACK the other way round. What pads a tile becomes 0. */
template <class V, bool BACK>
__global__ void __launch_bounds__(BLOCK)
    stack_rows(const __grid_constant__ Arrays<V> arrays, const __grid_constant__ Batch b,
               Side side, int G, int heads, int width)
{
    const unsigned i = (unsigned)flat_index(), n = side == QUERIES ? b.n : b.keys;
    const unsigned row = i / width / heads, head = i / width % heads, g = row / n % b.groups;
    if (row >= b.count * b.groups * n)
        return;
    const Tile &tile = b.tiles[row / n / b.groups];
    const int at = (int)(row % n), length = side == QUERIES ? tile.n : tile.keys;
    const int64_t first = side == QUERIES ? tile.q_row : tile.k_row;
    V *const stacked = arrays.stacked[blockIdx.y] + i,
      *const lying = arrays.lying[blockIdx.y] +
                     (((first + at) * G + b.g0 + g) * heads + head) * width + i % width;
    if (!BACK)
        *stacked = at < length ? *lying : V{};
    else if (at < length)
        *lying = *stacked;
}

template <class T, class V, bool BACK>
void queue_stack(az_kern_self *k, const Batch &b, Side side, const Heads &s,
                 const T *const lying[2], T *const stacked[2], int n_arrays)
{
    const int heads = side == QUERIES ? s.H / s.G : 1,
              width = (int)(s.K * sizeof(T) / sizeof(V));
    const size_t n = (size_t)b.count * (side == QUERIES ? b.n : b.keys) * b.groups * heads * width;
    Arrays<V> arrays = {};
    for (int i = 0; i < n_arrays; i++) {
        arrays.lying[i] = reinterpret_cast<V *>(const_cast<T *>(lying[i]));
        arrays.stacked[i] = reinterpret_cast<V *>(stacked[i]);
    }
    stack_rows<V, BACK><<<dim3(flat_blocks(n), n_arrays), BLOCK, 0, k->stream>>>(
        arrays, b, side, s.G, heads, width);
}

/* ---- rows of scores ---- */

/* A row of stacked queries. */
struct Row {
    int64_t q_row; /* in q, out and lse: query and head */
    int seen;      /* keys; 0 of a row that pads its tile */
};

__device__ inline Row row_at(unsigned w, const Batch &b, const Heads &s)
{
    const unsigned heads = s.H / s.G, n = b.n, head = w % heads, g = w / heads / n % b.groups;
    const int i = (int)(w / heads % n);
    const Tile &tile = b.tiles[w / heads / n / b.groups];
    return {(tile.q_row + i) * s.H + (b.g0 + g) * heads + head, i < tile.n ? tile.seen + i : 0};
}

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
/* Elements that a lane takes at a time. */
constexpr int W = 8;

struct Largest {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

/* What combine makes of the x of the WARPS warps that share a row: one, or all of the block. */
template <int WARPS, class C> __device__ inline float reduce_row(float x, float *shared, C combine)
{
    if constexpr (WARPS > 1) {
        return reduce_block(x, shared, combine);
    } else {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
        return x;
    }
}

/* p = softmax of the scaled scores over the keys that are seen, 0 behind them; lse   (numerics, eq.
 * 12). A row is read twice, the second time from a cache, if not too many are under way: a long one
 * has a block, a short one a warp. A thread's sum is kept for its own largest score. Powers of 2:
 * what scores are scaled with has log2(e) in it. */
template <class T, int WARPS>
__global__ void __launch_bounds__(BLOCK)
    softmax(T *__restrict__ p, float *__restrict__ lse, const float *__restrict__ scores,
            const __grid_constant__ Batch b, Heads s)
{
    __shared__ float shared[BLOCK / 32];
    const int64_t w = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / (32 * WARPS);
    const int lane = threadIdx.x % (32 * WARPS);
    if (w >= (int64_t)b.count * b.groups * b.n * (s.H / s.G))
        return;
    const Row row = row_at((unsigned)w, b, s);
    const float unit = s.scale * LOG2_E;
    const float *x = scores + w * b.ld;
    float top = -INFINITY, sum = 0;
    for (int j = lane * W; j < row.seen; j += 32 * WARPS * W) {
        Pack<float, W> v = load_f32<W>(x + j);
        float largest = -INFINITY;
#pragma unroll
        for (int e = 0; e < W; e++) {
            v.at[e] = j + e < row.seen ? v.at[e] : -INFINITY;
            largest = fmaxf(largest, v.at[e]);
        }
        if (largest > top) {
            sum *= exp2f((top - largest) * unit);
            top = largest;
        }
#pragma unroll
        for (int e = 0; e < W; e++)
            sum += exp2f((v.at[e] - top) * unit);
    }
    const float row_top = reduce_row<WARPS>(top, shared, Largest());
    sum = reduce_row<WARPS>(sum * exp2f((top - row_top) * unit), shared, Sum());
    const float factor = 1.0f / sum;
    for (int j = lane * W; j < b.ld; j += 32 * WARPS * W) {
        Pack<float, W> v = {};
        if (j < row.seen)
            v = load_f32<W>(x + j);
#pragma unroll
        for (int e = 0; e < W; e++)
            v.at[e] = j + e < row.seen ? exp2f((v.at[e] - row_top) * unit) * factor : 0.0f;
        store_f32(p + w * b.ld + j, v);
    }
    if (lane == 0 && row.seen > 0)
        lse[row.q_row] = row_top * s.scale + LN_2 * log2f(sum);
}

/* p = exp(score - lse); ds = p (dp - sum of dout out) scale   (numerics, eq. 14). dscores holds dp.
 * A row has a warp. */
template <class T>
__global__ void __launch_bounds__(BLOCK)
    softmax_backward(T *__restrict__ p, T *__restrict__ ds, const float *__restrict__ scores,
                     const float *__restrict__ dscores, const float *__restrict__ lse,
                     const T *__restrict__ dout, const T *__restrict__ out,
                     const __grid_constant__ Batch b, Heads s)
{
    const int64_t w = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (w >= (int64_t)b.count * b.groups * b.n * (s.H / s.G))
        return;
    const Row row = row_at((unsigned)w, b, s);
    float delta = 0, shift = 0;
    if (row.seen > 0) {
        shift = lse[row.q_row];
        for (int d = lane; d < s.K; d += 32)
            delta += to_f32(dout[row.q_row * s.K + d]) * to_f32(out[row.q_row * s.K + d]);
    }
    delta = reduce_row<1>(delta, nullptr, Sum());
    for (int j = lane * W; j < b.ld; j += 32 * W) {
        Pack<float, W> x = {}, y = {};
        if (j < row.seen) {
            x = load_f32<W>(scores + w * b.ld + j);
            y = load_f32<W>(dscores + w * b.ld + j);
        }
#pragma unroll
        for (int e = 0; e < W; e++) {
            const bool sees = j + e < row.seen;
            x.at[e] = sees ? exp2f((x.at[e] * s.scale - shift) * LOG2_E) : 0.0f;
            y.at[e] = sees ? x.at[e] * (y.at[e] - delta) * s.scale : 0.0f;
        }
        store_f32(p + w * b.ld + j, x);
        store_f32(ds + w * b.ld + j, y);
    }
}

/* Threads for all rows of scores, 32 * warps each. */
unsigned row_blocks(const Batch &b, const Heads &s, int warps)
{
    return flat_blocks((size_t)b.count * b.groups * b.n * (s.H / s.G) * 32 * warps);
}

/* Rows longer than this have a block each: those of a GPU's warps would not stay in its cache. */
constexpr int LONG_ROW = 1024;

} // namespace

/* ---- entries ---- */

/* 16 bytes at a time where rows allow it. */
template <class T, bool BACK>
void move_rows(az_kern_self *k, const Batch &b, Side side, const Heads &s, const T *lying,
               T *stacked, const T *lying2, T *stacked2)
{
    const T *const from[2] = {lying, lying2};
    T *const to[2] = {stacked, stacked2};
    const int n_arrays = lying2 == nullptr ? 1 : 2;
    if (s.K * sizeof(T) % sizeof(uint4) == 0 && is_aligned(lying, lying2))
        queue_stack<T, uint4, BACK>(k, b, side, s, from, to, n_arrays);
    else
        queue_stack<T, T, BACK>(k, b, side, s, from, to, n_arrays);
}

template <class T>
void softmax_rows(az_kern_self *k, T *p, float *lse, const float *scores, const Batch &b,
                  const Heads &s)
{
    if (b.ld > LONG_ROW)
        softmax<T, BLOCK / 32><<<row_blocks(b, s, BLOCK / 32), BLOCK, 0, k->stream>>>(
            p, lse, scores, b, s);
    else
        softmax<T, 1><<<row_blocks(b, s, 1), BLOCK, 0, k->stream>>>(p, lse, scores, b, s);
}

template <class T>
void softmax_rows_backward(az_kern_self *k, T *p, T *ds, const float *scores, const float *dscores,
                           const float *lse, const T *dout, const T *out, const Batch &b,
                           const Heads &s)
{
    softmax_backward<T><<<row_blocks(b, s, 1), BLOCK, 0, k->stream>>>(p, ds, scores, dscores, lse,
                                                                      dout, out, b, s);
}

template <class T> cudaError_t load_attention()
{
    return load_kernel(stack_rows<uint4, false>, stack_rows<uint4, true>, stack_rows<T, false>,
                       stack_rows<T, true>, softmax<T, 1>,
                       softmax<T, BLOCK / 32>, softmax_backward<T>);
}

#define INSTANTIATE(T)                                                                             \
    template void move_rows<T, false>(az_kern_self *, const Batch &, Side, const Heads &,          \
                                      const T *, T *, const T *, T *);                             \
    template void move_rows<T, true>(az_kern_self *, const Batch &, Side, const Heads &,           \
                                     const T *, T *, const T *, T *);                              \
    template void softmax_rows<T>(az_kern_self *, T *, float *, const float *, const Batch &,      \
                                  const Heads &);                                                  \
    template void softmax_rows_backward<T>(az_kern_self *, T *, T *, const float *, const float *, \
                                           const float *, const T *, const T *, const Batch &,     \
                                           const Heads &);                                         \
    template cudaError_t load_attention<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
