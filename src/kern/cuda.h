/* kern/cuda: sizes that the host's plan and the kernels of GPUs have in common. C and C++. */
#ifndef AZ_KERN_CUDA_H
#define AZ_KERN_CUDA_H

#include "base/num.h"

/* Elements of the piece of a weight that is converted at a time, where its type is not that of the
 * activations. */
#define AZ_CUDA_LINEAR_ELEMENTS ((size_t)1 << 24)
/* Query rows of a tile of attention. */
#define AZ_CUDA_TILE 128
/* Keys, padded, of short sequences that are taken together. */
#define AZ_CUDA_TOGETHER 512

/* Keys in a row of scores: padded, so that rows begin at 16 bytes in any type. */
static inline int64_t az_cuda_attention_row(int64_t keys)
{
    return (keys + 7) / 8 * 8;
}

/* Scratch of attention: where its pieces begin, in bytes. */
typedef struct {
    size_t scores, dscores; /* f32: of a tile for all heads */
    size_t p, ds;           /* act: probabilities, and gradients of scores */
    size_t q, dout, y;      /* act: rows of a tile, by key heads; y: the result, or dq */
    size_t k, v;            /* act: keys of sequences that are taken together */
    size_t dk, dv;          /* their gradients in act, or those of one sequence in f32 */
    size_t bytes;           /* of all */
} az_cuda_attention;

static inline size_t az_cuda_take(size_t *bytes, size_t n, size_t each)
{
    const size_t at = *bytes;
    *bytes += (n * each + 255) / 256 * 256;
    return at;
}

/* For sequences of at most longest keys; linear in longest. */
static inline az_cuda_attention az_cuda_attention_lay_out(az_dtype act, int64_t longest, int H,
                                                          int G, int64_t K)
{
    const int64_t row = az_max_i64(az_cuda_attention_row(longest), AZ_CUDA_TOGETHER);
    const size_t each = az_dtype_bytes(act), tile = (size_t)(H * AZ_CUDA_TILE * row),
                 queries = (size_t)(AZ_CUDA_TOGETHER * H * K),
                 keys = (size_t)(AZ_CUDA_TOGETHER * G * K), sums = (size_t)(row * G * K);
    az_cuda_attention a;
    a.bytes = 0;
    a.scores = az_cuda_take(&a.bytes, tile, sizeof(float));
    a.dscores = az_cuda_take(&a.bytes, tile, sizeof(float));
    a.p = az_cuda_take(&a.bytes, tile, each);
    a.ds = az_cuda_take(&a.bytes, tile, each);
    a.q = az_cuda_take(&a.bytes, queries, each);
    a.dout = az_cuda_take(&a.bytes, queries, each);
    a.y = az_cuda_take(&a.bytes, queries, each);
    a.k = az_cuda_take(&a.bytes, keys, each);
    a.v = az_cuda_take(&a.bytes, keys, each);
    a.dk = az_cuda_take(&a.bytes, sums, sizeof(float));
    a.dv = az_cuda_take(&a.bytes, sums, sizeof(float));
    return a;
}

static inline size_t az_cuda_attention_scratch(az_dtype act, int64_t longest, int H, int G,
                                               int64_t K)
{
    return az_cuda_attention_lay_out(act, longest, H, G, K).bytes;
}

#endif
