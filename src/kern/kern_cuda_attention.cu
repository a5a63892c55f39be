/* Causal attention with grouped heads, forward and backward, on tensor cores: products of cuBLAS
 * over tiles of queries, one call for many heads, and kernels of ours between them
 * (kern_cuda_attention_rows.cu).
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
 * Contents: batches, calls, products, tiles and sequences, entries. */
#include "kern/kern_cuda_attention.h"
#include "kern/kern_cuda_gemm.h"

namespace az_cuda {
namespace {

/* ---- batches ---- */

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

/* ---- calls ---- */

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

/* ---- products ---- */

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

/* ---- tiles and sequences ---- */

template <class T>
void forward(const Call<T> &c, const Batch &b, T *out, float *lse, const T *q, Matrix key, Matrix v)
{
    const bool stack = !lies_right(c, b);
    if (stack)
        move_rows<T, false>(c.k, b, QUERIES, c.s, q, c.q, nullptr, nullptr);
    score(c, b, queries_of(c, b, q, c.q), key, c.scores);
    softmax_rows(c.k, c.p, lse, c.scores, b, c.s);
    combine(c, b, c.p, v, queries_of<T>(c, b, out, c.y));
    if (stack)
        move_rows<T, true>(c.k, b, QUERIES, c.s, out, c.y, nullptr, nullptr);
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
        move_rows<T, false>(c.k, b, QUERIES, c.s, q, c.q, dout, c.dout);
    score(c, b, q_rows, key, c.scores);
    score(c, b, dout_rows, v, c.dscores);
    softmax_rows_backward(c.k, c.p, c.ds, c.scores, c.dscores, lse, dout, out, b, c.s);
    collect(c, b, c.p, dout_rows, to.dv, to.f32, to.add);
    collect(c, b, c.ds, q_rows, to.dk, to.f32, to.add);
    combine(c, b, c.ds, key, queries_of<T>(c, b, dq, c.y));
    if (stack)
        move_rows<T, true>(c.k, b, QUERIES, c.s, dq, c.y, nullptr, nullptr);
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
    move_rows<T, false>(c.k, b, KEYS, c.s, key, c.key, v, c.v);
    backward(c, b, dq, to, dout, out, lse, q, stacked(c, b, KEYS, c.key),
             stacked(c, b, KEYS, c.v));
    move_rows<T, true>(c.k, b, KEYS, c.s, dk, c.dk, dv, c.dv);
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

/* ---- entries ---- */

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
            move_rows<T, false>(c.k, b, KEYS, c.s, key, c.key, v, c.v);
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

#define INSTANTIATE(T)                                                                             \
    template void attention_forward<T>(az_kern_self *, void *, float *, const void *,              \
                                       const void *, const void *, const az_seq *, int, int, int,  \
                                       int64_t, void *);                                           \
    template void attention_backward<T>(az_kern_self *, void *, void *, void *, const void *,      \
                                        const void *, const float *, const void *, const void *,   \
                                        const void *, const az_seq *, int, int, int, int64_t,      \
                                        void *);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
