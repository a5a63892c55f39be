/* kern/cuda: sizes that the host's plan and the kernels of GPUs have in common. C and C++. */
#ifndef AZ_KERN_CUDA_H
#define AZ_KERN_CUDA_H

#include "base/num.h"

/* Elements of the piece of a weight that is converted at a time, where its type is not that of the
 * activations. */
#define AZ_CUDA_LINEAR_ELEMENTS ((size_t)1 << 24)
/* Query rows of a tile of attention. */
#define AZ_CUDA_TILE 128

/* Bytes of scratch of attention: scores of a tile for all heads against all keys, in f32, and the
 * same as probabilities, and their gradients, in the type of the activations; for each rows are
 * padded to 16 bytes. */
static inline size_t az_cuda_attention_scratch(az_dtype act, int64_t longest, int H, int G,
                                               int64_t K)
{
    const size_t row = ((size_t)longest + 7) / 8 * 8;
    const size_t tile = (size_t)H * AZ_CUDA_TILE * row;
    (void)G;
    (void)K;
    return 2 * tile * (sizeof(float) + az_dtype_bytes(act));
}

#endif
