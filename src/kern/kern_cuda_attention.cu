/* Causal attention with grouped heads, forward and backward, on tensor cores: products of cuBLAS
 * over tiles of queries, one call for many heads, and kernels of ours between them.
 *
 * A tile is some queries of one sequence against the keys that the last of them sees. The H/G heads
 * that share a key head are stacked: their queries lie one below the other in scratch, so that a
 * key head has one product of n H/G rows, and its gradient is one sum. What lies right as it came
 * is read in place: keys and values always, queries where heads are not grouped, or all one group.
 * Short sequences are taken together: their queries and keys are copied side by side, padded with
 * zeros to the longest of them, and go as one batch.
 *
 * Scratch has room for TILE queries of all heads. The tiles of a long sequence are taller and have
 * fewer key heads: an eighth of it, so that keys are read, and dk and dv added to, a few times
 * only, while not much is computed that the causal mask hides.
 *
 * Scores are f32; probabilities and the gradients of scores are of the activations' type, as the
 * tensor cores want them. dk and dv of a sequence of several tiles are summed in f32, beginning
 * with the last tile, which sees all keys.
 *
 * Contents: batches, stacking, rows of scores, products, entries. */
#include "kern/kern_cuda_gemm.h"

namespace az_cuda {
namespace {

/* ---- batches ---- */

/* n queries from row q_row on against keys from row k_row on; the first query sees the first seen
 * of them, the last sees all. */
struct Tile {
    int64_t q_row, k_row;
    int n, keys, seen;
};

/* A sequence that is taken together with others has rows of 8 keys at least. */
constexpr int MOST_TILES = AZ_CUDA_TOGETHER / 8;

/* Tiles that go as one, each padded to n queries and keys keys, for key heads g0 to g0 + groups.
 * ld: of their scores. */
struct Batch {
    int count, n, keys, ld, g0, groups;
    Tile tiles[MOST_TILES];
};

Tile tile_at(const az_seq &seq, int64_t q0, int64_t rows)
{
    const int64_t n = az_min_i64(rows, seq.q_len - q0), seen = seq.k_len - seq.q_len + q0 + 1;
    return {seq.q_row + q0, seq.k_row, (int)n, (int)(seen + n - 1), (int)seen};
}

void add_tile(Batch *b, const Tile &tile)
{
    b->tiles[b->count++] = tile;
    b->n = b->n > tile.n ? b->n : tile.n;
    b->keys = b->keys > tile.keys ? b->keys : tile.keys;
    b->ld = (int)az_cuda_attention_row(b->keys);
}

bool has_room(const Batch &b, const az_seq &seq)
{
    const int64_t keys = az_max_i64(b.keys, seq.k_len);
    return seq.q_len <= AZ_CUDA_TILE &&
           (b.count + 1) * az_cuda_attention_row(keys) <= AZ_CUDA_TOGETHER;
}

/* Fill b with tiles of the first of n sequences that can be taken together, and return how many
 * these are. At least one is, with all or, if it is long, none of its tiles. */
int take_together(Batch *b, const az_seq *seqs, int n, int G)
{
    int i = 0;
    b->count = b->n = b->keys = b->ld = b->g0 = 0;
    b->groups = G;
    for (; i < n && (seqs[i].q_len == 0 || has_room(*b, seqs[i])); i++)
        if (seqs[i].q_len > 0)
            add_tile(b, tile_at(seqs[i], 0, AZ_CUDA_TILE));
    return i > 0 ? i : 1;
}

/* How a sequence that goes by itself is cut: rows of a tile, key heads of a batch. */
struct Cut {
    int64_t rows;
    int groups;
};

Cut cut_of(const az_seq &seq, int G)
{
    const int64_t tall = az_min_i64(az_max_i64(seq.q_len / (8 * AZ_CUDA_TILE), 1),
                                    az_min_i64(G, 8));
    return {AZ_CUDA_TILE * tall, (int)(G / tall)};
}

void take_tile(Batch *b, const az_seq &seq, int64_t q0, int g0, const Cut &cut, int G)
{
    b->count = b->n = b->keys = 0;
    b->g0 = g0;
    b->groups = (int)az_min_i64(cut.groups, G - g0);
    add_tile(b, tile_at(seq, q0, cut.rows));
}

/* ---- stacking ---- */

enum Side { QUERIES, KEYS };

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

/* ---- rows of scores ---- */

/* What the kernels of rows need to know of a call. */
struct Heads {
    int H, G, K;
    float scale;
};

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

/* ---- products ---- */

/* A call, and the pieces of its scratch. */
template <class T> struct Call {
    az_kern_self *k;
    const Queued *queued;
    Heads s;
    int heads;
    float *scores, *dscores, *dk_sum, *dv_sum;
    T *p, *ds, *q, *dout, *y, *key, *v, *dk, *dv;
};

template <class T>
Call<T> call_of(az_kern_self *k, const Queued *queued, const az_seq *seqs, int n_seqs, int H, int G,
                int64_t K, void *scratch)
{
    int64_t longest = 0;
    for (int i = 0; i < n_seqs; i++)
        longest = az_max_i64(longest, seqs[i].k_len);
    const az_dtype act = sizeof(T) == sizeof(float) ? AZ_F32 : AZ_BF16;
    const az_cuda_attention a = az_cuda_attention_lay_out(act, longest, H, G, K);
    char *const from = static_cast<char *>(scratch);
    auto floats = [&](size_t at) { return reinterpret_cast<float *>(from + at); };
    auto acts = [&](size_t at) { return reinterpret_cast<T *>(from + at); };
    return {k, queued, {H, G, (int)K, (float)(1.0 / sqrt((double)K))}, H / G,
            floats(a.scores), floats(a.dscores), floats(a.dk), floats(a.dv),
            acts(a.p), acts(a.ds), acts(a.q), acts(a.dout), acts(a.y), acts(a.k), acts(a.v),
            acts(a.dk), acts(a.dv)};
}

template <class T, class V, bool BACK>
void queue_stack(const Call<T> &c, const Batch &b, Side side, const T *const lying[2],
                 T *const stacked[2], int n_arrays)
{
    const int heads = side == QUERIES ? c.heads : 1,
              width = (int)(c.s.K * sizeof(T) / sizeof(V));
    const size_t n = (size_t)b.count * (side == QUERIES ? b.n : b.keys) * b.groups * heads * width;
    Arrays<V> arrays = {};
    for (int i = 0; i < n_arrays; i++) {
        arrays.lying[i] = reinterpret_cast<V *>(const_cast<T *>(lying[i]));
        arrays.stacked[i] = reinterpret_cast<V *>(stacked[i]);
    }
    stack_rows<V, BACK><<<dim3(flat_blocks(n), n_arrays), BLOCK, 0, c.k->stream>>>(
        arrays, b, side, c.s.G, heads, width);
}

/* One or two arrays (second: null); 16 bytes at a time where rows allow it. */
template <bool BACK, class T>
void move_rows(const Call<T> &c, const Batch &b, Side side, const T *lying, T *stacked,
               const T *lying2, T *stacked2)
{
    const T *const from[2] = {lying, lying2};
    T *const to[2] = {stacked, stacked2};
    const int n_arrays = lying2 == nullptr ? 1 : 2;
    if (c.s.K * sizeof(T) % sizeof(uint4) == 0 && is_aligned(lying, lying2))
        queue_stack<T, uint4, BACK>(c, b, side, from, to, n_arrays);
    else
        queue_stack<T, T, BACK>(c, b, side, from, to, n_arrays);
}

/* The stacked queries' rows, or keys' rows, as the products take them. */
template <class T> Matrix stacked(const Call<T> &c, const Batch &b, Side side, const T *x)
{
    return {x, c.s.K, (int64_t)(side == QUERIES ? b.n * c.heads : b.keys) * c.s.K};
}

/* The rows of a batch of one tile where they lie: of keys, or of queries where heads are not
 * grouped, or all one group. */
template <class T> Matrix lying(const Call<T> &c, const Batch &b, Side side, const T *x)
{
    const int64_t first = side == QUERIES ? b.tiles[0].q_row * c.s.H : b.tiles[0].k_row * c.s.G;
    return {x + (first + b.g0) * c.s.K, (int64_t)c.s.G * c.s.K, c.s.K};
}

template <class T> bool lies_right(const Call<T> &c, const Batch &b)
{
    return b.count == 1 && (c.heads == 1 || c.s.G == 1);
}

/* Where the products read queries, and put what they make for queries. */
template <class T>
Matrix queries_of(const Call<T> &c, const Batch &b, const T *x, const T *in_stack)
{
    return lies_right(c, b) ? lying(c, b, QUERIES, x) : stacked(c, b, QUERIES, in_stack);
}

template <class T> Matrix rows_of(const Call<T> &c, const Batch &b, const void *scores)
{
    return {scores, b.ld, (int64_t)b.n * c.heads * b.ld};
}

/* Threads for all rows of scores, 32 * warps each. */
template <class T> unsigned row_blocks(const Call<T> &c, const Batch &b, int warps)
{
    return flat_blocks((size_t)b.count * b.groups * b.n * c.heads * 32 * warps);
}

/* C[n H/G, keys] = A[n H/G, K] B[keys, K]' for each tile and key head. */
template <class T> void score(const Call<T> &c, const Batch &b, Matrix A, Matrix B, float *C)
{
    multiply<T>(*c.queued, c.k,
                {(int64_t)b.n * c.heads, b.keys, c.s.K, false, true, 1.0f, A, B, 0.0f,
                 rows_of(c, b, C), true, b.count * b.groups});
}

/* C[n H/G, K] = P[n H/G, keys] B[keys, K] */
template <class T> void combine(const Call<T> &c, const Batch &b, const T *P, Matrix B, Matrix C)
{
    multiply<T>(*c.queued, c.k,
                {(int64_t)b.n * c.heads, c.s.K, b.keys, false, false, 1.0f, rows_of(c, b, P), B,
                 0.0f, C, false, b.count * b.groups});
}

/* C[keys, K] (+)= P[n H/G, keys]' B[n H/G, K] */
template <class T>
void collect(const Call<T> &c, const Batch &b, const T *P, Matrix B, Matrix C, bool c_f32,
             bool add)
{
    multiply<T>(*c.queued, c.k,
                {b.keys, c.s.K, (int64_t)b.n * c.heads, true, false, 1.0f, rows_of(c, b, P), B,
                 add ? 1.0f : 0.0f, C, c_f32, b.count * b.groups});
}

/* ---- entries ---- */

/* Rows longer than this have a block each: those of a GPU's warps would not stay in its cache. */
constexpr int LONG_ROW = 1024;

template <class T> void queue_softmax(const Call<T> &c, const Batch &b, float *lse)
{
    if (b.ld > LONG_ROW)
        softmax<T, BLOCK / 32><<<row_blocks(c, b, BLOCK / 32), BLOCK, 0, c.k->stream>>>(
            c.p, lse, c.scores, b, c.s);
    else
        softmax<T, 1><<<row_blocks(c, b, 1), BLOCK, 0, c.k->stream>>>(c.p, lse, c.scores, b, c.s);
}

template <class T>
void forward(const Call<T> &c, const Batch &b, T *out, float *lse, const T *q, Matrix key, Matrix v)
{
    const bool stack = !lies_right(c, b);
    if (stack)
        move_rows<false, T>(c, b, QUERIES, q, c.q, nullptr, nullptr);
    score(c, b, queries_of(c, b, q, c.q), key, c.scores);
    queue_softmax(c, b, lse);
    combine(c, b, c.p, v, queries_of<T>(c, b, out, c.y));
    if (stack)
        move_rows<true, T>(c, b, QUERIES, out, c.y, nullptr, nullptr);
}

/* Where a tile's part of dk and dv goes. */
struct Sums {
    Matrix dk, dv;
    bool f32, add;
};

template <class T>
void backward(const Call<T> &c, const Batch &b, T *dq, const Sums &to, const T *dout, const T *out,
              const float *lse, const T *q, Matrix key, Matrix v)
{
    const bool stack = !lies_right(c, b);
    const Matrix q_rows = queries_of(c, b, q, c.q), dout_rows = queries_of(c, b, dout, c.dout);
    if (stack)
        move_rows<false, T>(c, b, QUERIES, q, c.q, dout, c.dout);
    score(c, b, q_rows, key, c.scores);
    score(c, b, dout_rows, v, c.dscores);
    softmax_backward<T><<<row_blocks(c, b, 1), BLOCK, 0, c.k->stream>>>(
        c.p, c.ds, c.scores, c.dscores, lse, dout, out, b, c.s);
    collect(c, b, c.p, dout_rows, to.dv, to.f32, to.add);
    collect(c, b, c.ds, q_rows, to.dk, to.f32, to.add);
    combine(c, b, c.ds, key, queries_of<T>(c, b, dq, c.y));
    if (stack)
        move_rows<true, T>(c, b, QUERIES, dq, c.y, nullptr, nullptr);
}

template <class T>
void forward_sequence(const Call<T> &c, const az_seq &seq, T *out, float *lse, const T *q,
                      const T *key, const T *v)
{
    const Cut cut = cut_of(seq, c.s.G);
    Batch b;
    for (int g0 = 0; g0 < c.s.G; g0 += cut.groups)
        for (int64_t q0 = 0; q0 < seq.q_len; q0 += cut.rows) {
            take_tile(&b, seq, q0, g0, cut, c.s.G);
            forward(c, b, out, lse, q, lying(c, b, KEYS, key), lying(c, b, KEYS, v));
        }
}

/* Sums are dk and dv themselves where these are f32, or there is one tile. */
template <class T>
void backward_sequence(const Call<T> &c, const az_seq &seq, T *dq, T *dk, T *dv, const T *dout,
                       const T *out, const float *lse, const T *q, const T *key, const T *v)
{
    const Cut cut = cut_of(seq, c.s.G);
    const int64_t row = (int64_t)c.s.G * c.s.K, last = (seq.q_len - 1) / cut.rows * cut.rows;
    const bool apart = last > 0 && sizeof(T) != sizeof(float);
    Batch b;
    for (int g0 = 0; g0 < c.s.G; g0 += cut.groups)
        for (int64_t q0 = last; q0 >= 0; q0 -= cut.rows) {
            take_tile(&b, seq, q0, g0, cut, c.s.G);
            Sums to = {lying<T>(c, b, KEYS, dk), lying<T>(c, b, KEYS, dv), apart, q0 < last};
            if (apart) {
                to.dk.data = c.dk_sum + g0 * c.s.K;
                to.dv.data = c.dv_sum + g0 * c.s.K;
            }
            backward(c, b, dq, to, dout, out, lse, q, lying(c, b, KEYS, key),
                     lying(c, b, KEYS, v));
        }
    if (apart) {
        narrow<T>(c.k, dk + seq.k_row * row, c.dk_sum, (size_t)(seq.k_len * row));
        narrow<T>(c.k, dv + seq.k_row * row, c.dv_sum, (size_t)(seq.k_len * row));
    }
}

template <class T>
void backward_together(const Call<T> &c, const Batch &b, T *dq, T *dk, T *dv, const T *dout,
                       const T *out, const float *lse, const T *q, const T *key, const T *v)
{
    const Sums to = {stacked(c, b, KEYS, c.dk), stacked(c, b, KEYS, c.dv), false, false};
    move_rows<false, T>(c, b, KEYS, key, c.key, v, c.v);
    backward(c, b, dq, to, dout, out, lse, q, stacked(c, b, KEYS, c.key),
             stacked(c, b, KEYS, c.v));
    move_rows<true, T>(c, b, KEYS, dk, c.dk, dv, c.dv);
}

/* Keys that no query sees have no gradient. */
template <class T> void clear_keys(const Call<T> &c, const az_seq &seq, T *dk, T *dv)
{
    const size_t row = (size_t)c.s.G * c.s.K, bytes = (size_t)seq.k_len * row * sizeof(T);
    if (seq.q_len > 0 || seq.k_len == 0)
        return;
    c.queued->check(cudaMemsetAsync(dk + seq.k_row * row, 0, bytes, c.k->stream));
    c.queued->check(cudaMemsetAsync(dv + seq.k_row * row, 0, bytes, c.k->stream));
}

} // namespace

/* (numerics, eq. 12) */
template <class T>
void attention_forward(az_kern_self *k, void *out_, float *lse, const void *q_, const void *key_,
                       const void *v_, const az_seq *seqs, int n_seqs, int H, int G, int64_t K,
                       void *scratch)
{
    Queued queued(k, "attention forward");
    const Call<T> c = call_of<T>(k, &queued, seqs, n_seqs, H, G, K, scratch);
    T *out = static_cast<T *>(out_);
    const T *q = static_cast<const T *>(q_), *key = static_cast<const T *>(key_),
            *v = static_cast<const T *>(v_);
    Batch b;
    for (int i = 0, n; i < n_seqs; i += n) {
        n = take_together(&b, seqs + i, n_seqs - i, G);
        if (b.count > 1) {
            move_rows<false, T>(c, b, KEYS, key, c.key, v, c.v);
            forward(c, b, out, lse, q, stacked(c, b, KEYS, c.key), stacked(c, b, KEYS, c.v));
            continue;
        }
        for (int j = i; j < i + n; j++)
            forward_sequence(c, seqs[j], out, lse, q, key, v);
    }
}

/* (numerics, eq. 14) */
template <class T>
void attention_backward(az_kern_self *k, void *dq_, void *dk_, void *dv_, const void *dout_,
                        const void *out_, const float *lse, const void *q_, const void *key_,
                        const void *v_, const az_seq *seqs, int n_seqs, int H, int G, int64_t K,
                        void *scratch)
{
    Queued queued(k, "attention backward");
    const Call<T> c = call_of<T>(k, &queued, seqs, n_seqs, H, G, K, scratch);
    T *dq = static_cast<T *>(dq_), *dk = static_cast<T *>(dk_), *dv = static_cast<T *>(dv_);
    const T *q = static_cast<const T *>(q_), *key = static_cast<const T *>(key_),
            *v = static_cast<const T *>(v_), *dout = static_cast<const T *>(dout_),
            *out = static_cast<const T *>(out_);
    Batch b;
    for (int i = 0; i < n_seqs; i++)
        clear_keys(c, seqs[i], dk, dv);
    for (int i = 0, n; i < n_seqs; i += n) {
        n = take_together(&b, seqs + i, n_seqs - i, G);
        if (b.count > 1) {
            backward_together(c, b, dq, dk, dv, dout, out, lse, q, key, v);
            continue;
        }
        for (int j = i; j < i + n; j++)
            if (seqs[j].q_len > 0)
                backward_sequence(c, seqs[j], dq, dk, dv, dout, out, lse, q, key, v);
    }
}

template <class T> cudaError_t load_attention()
{
    return load_kernel(stack_rows<uint4, false>, stack_rows<uint4, true>, stack_rows<T, false>,
                       stack_rows<T, true>, softmax<T, 1>,
                       softmax<T, BLOCK / 32>, softmax_backward<T>);
}

#define INSTANTIATE(T)                                                                             \
    template void attention_forward<T>(az_kern_self *, void *, float *, const void *,              \
                                       const void *, const void *, const az_seq *, int, int, int,  \
                                       int64_t, void *);                                           \
    template void attention_backward<T>(az_kern_self *, void *, void *, void *, const void *,      \
                                        const void *, const float *, const void *, const void *,   \
                                        const void *, const az_seq *, int, int, int, int64_t,      \
                                        void *);                                                   \
    template cudaError_t load_attention<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
