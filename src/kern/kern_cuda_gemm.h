/* Inside kern, for its CUDA sources: products as attention queues them, many of one shape at once.
 * C++. */
#ifndef AZ_KERN_KERN_CUDA_GEMM_H
#define AZ_KERN_KERN_CUDA_GEMM_H

#include "kern/kern_cuda.h"

namespace az_cuda
{

/* Matrices of one shape, row-major as they lie: ld elements from row to row, stride from matrix to
 * matrix. */
struct Matrix {
    const void *data;
    int64_t ld, stride;
};

/* For each of batch: C[M,N] = alpha op(A) op(B) + beta C, op the transpose where trans_ is set. A,
 * B and C are of the activations' type, C f32 with c_f32. M, N and K are not 0, no ld is above
 * INT_MAX; matrices C do not overlap. */
struct Product {
    int64_t M, N, K;
    bool trans_a, trans_b;
    float alpha;
    Matrix A, B;
    float beta;
    Matrix C;
    bool c_f32;
    int batch;
};

template <class T> constexpr cudaDataType BLAS_TYPE = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;

/* kern_cuda_gemm.cu */
template <class T> void multiply(const Queued &queued, az_kern_self *k, const Product &p);

} // namespace az_cuda

#endif
