/* Inside kern, for its CUDA sources: what attention's tiles are, and the kernels that work on a
 * batch of them: rows copied side by side, and rows of scores. C++. */
#ifndef AZ_KERN_KERN_CUDA_ATTENTION_H
#define AZ_KERN_KERN_CUDA_ATTENTION_H

#include "kern/kern_cuda.h"

namespace az_cuda
{

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

enum Side { QUERIES, KEYS };

/* What the kernels need to know of a call. */
struct Heads {
    int H, G, K;
    float scale;
};

/* kern_cuda_attention_rows.cu: queued in k's stream. */

/* Rows of tiles as they lie [*, G heads of a group, K] to where they are stacked [tile, g, i, head,
 * K], padded with zeros; with BACK the other way round, without what pads. side: rows of queries,
 * H/G heads of a group, or of keys, 1. One array, or two that are copied alike (else NULL). */
template <class T, bool BACK>
void move_rows(az_kern_self *k, const Batch &b, Side side, const Heads &s, const T *lying,
               T *stacked, const T *lying2, T *stacked2);
/* p = softmax of the scaled scores over the keys that are seen, 0 behind them; lse. p and scores
 * [tile, g, i, head, ld]; lse as in ops.h. */
template <class T>
void softmax_rows(az_kern_self *k, T *p, float *lse, const float *scores, const Batch &b,
                  const Heads &s);
/* p again, from lse; ds = p (dp - sum of dout out) scale. dscores holds dp. dout and out as in
 * ops.h, the others as p. */
template <class T>
void softmax_rows_backward(az_kern_self *k, T *p, T *ds, const float *scores, const float *dscores,
                           const float *lse, const T *dout, const T *out, const Batch &b,
                           const Heads &s);

} // namespace az_cuda

#endif
