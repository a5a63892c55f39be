/* Products, and the linear layer on weights that stay in the type of their file.
 *
 * cuBLAS counts columns first: what it is asked for is C' = op(B)' op(A)', so the operands change
 * places. Operands in bf16 are multiplied on tensor cores and summed in f32; those in f32 are
 * multiplied as f32, not as TF32.
 *
 * A weight of the activations' type is read where it lies, in one product. Of any other a piece is
 * converted into scratch at a time: rows of it forward, columns backward, so that an element of the
 * result is one sum and is rounded once. The length of a piece is a constant, because products of
 * another shape may be summed in another order. */
#include <limits.h>

#include "kern/kern_cuda_gemm.h"

namespace az_cuda {
namespace {

/* Longer dimensions are cut: cuBLAS counts with int. */
constexpr int64_t LIMIT = (int64_t)1 << 30;

/* C[m,n] *= beta. What C held does not matter where beta is 0. */
template <class T>
__global__ void __launch_bounds__(BLOCK) scale_rows(T *c, int64_t M, int64_t N, int64_t ld,
                                                    float beta)
{
    const int64_t i = (int64_t)flat_index();
    if (i >= M * N)
        return;
    T *p = c + i / N * ld + i % N;
    *p = from_f32<T>(beta == 0 ? 0.0f : beta * to_f32(*p));
}

/* y[n,:] = b */
template <class T>
__global__ void __launch_bounds__(BLOCK) fill_rows(T *__restrict__ y, const void *__restrict__ b,
                                                   az_dtype type, int64_t N, int64_t F)
{
    const int64_t i = (int64_t)flat_index();
    if (i < N * F)
        y[i] = from_f32<T>(load_weight<1>(b, type, i % F).at[0]);
}

/* to[rows,cols] = a piece, from element first on, of a weight with rows of width elements. A thread
 * takes W neighbours of a row. */
template <class T, int W>
__global__ void __launch_bounds__(BLOCK)
    convert_piece(T *__restrict__ to, const void *__restrict__ weight, az_dtype type, int64_t first,
                  int64_t rows, int64_t cols, int64_t width)
{
    const int64_t i = (int64_t)flat_index() * W;
    if (i < rows * cols)
        store_f32(to + i, load_weight<W>(weight, type, first + i / cols * width + i % cols));
}

cublasOperation_t op_of(bool trans)
{
    return trans ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/* One call of cuBLAS, for the part of the product that begins at a, b, c. */
template <class T>
void multiply_part(const Queued &queued, az_kern_self *k, const Product &p, int64_t M, int64_t N,
                   int64_t K, const void *a, const void *b, float beta, void *c)
{
    queued.check(cublasGemmStridedBatchedEx(
        k->blas, op_of(p.trans_b), op_of(p.trans_a), (int)N, (int)M, (int)K, &p.alpha, b,
        BLAS_TYPE<T>, (int)p.B.ld, p.B.stride, a, BLAS_TYPE<T>, (int)p.A.ld, p.A.stride, &beta, c,
        p.c_f32 ? CUDA_R_32F : BLAS_TYPE<T>, (int)p.C.ld, p.C.stride, p.batch, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
}

template <class T> const void *element(const Matrix &m, bool trans, int64_t row, int64_t col)
{
    return static_cast<const T *>(m.data) + (trans ? col * m.ld + row : row * m.ld + col);
}

/* Parts of the sum over K are added to C in their order. */
template <class T>
void multiply_limited(const Queued &queued, az_kern_self *k, const Product &p, int64_t limit)
{
    for (int64_t m = 0; m < p.M; m += limit)
        for (int64_t n = 0; n < p.N; n += limit)
            for (int64_t i = 0; i < p.K; i += limit)
                multiply_part<T>(queued, k, p, az_min_i64(limit, p.M - m),
                                 az_min_i64(limit, p.N - n), az_min_i64(limit, p.K - i),
                                 element<T>(p.A, p.trans_a, m, i), element<T>(p.B, p.trans_b, i, n),
                                 i == 0 ? p.beta : 1.0f,
                                 const_cast<void *>(p.c_f32 ? element<float>(p.C, false, m, n)
                                                            : element<T>(p.C, false, m, n)));
}

template <class T>
void gemm_limited(az_kern_self *k, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                  float alpha, const void *A, int64_t lda, const void *B, int64_t ldb, float beta,
                  void *C, int64_t ldc, bool c_f32, int64_t limit)
{
    Queued queued(k, "product");
    if (M == 0 || N == 0)
        return;
    if (lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX)
        k->host->fail(k->host->context, "product", "rows of 2^31 elements or more");
    const Product p = {M,           N,           K,    trans_a,     trans_b, alpha,
                       {A, lda, 0}, {B, ldb, 0}, beta, {C, ldc, 0}, c_f32,   1};
    if (K > 0)
        multiply_limited<T>(queued, k, p, limit);
    else if (c_f32)
        scale_rows<float><<<flat_blocks((size_t)(M * N)), BLOCK, 0, k->stream>>>(
            static_cast<float *>(C), M, N, ldc, beta);
    else
        scale_rows<T><<<flat_blocks((size_t)(M * N)), BLOCK, 0, k->stream>>>(static_cast<T *>(C), M,
                                                                             N, ldc, beta);
}

/* ---- linear ---- */

/* The part of a weight that a product takes: rows from f, columns from d, of them all there are if
 * the type is that of the activations, else what scratch has room for. */
struct Piece {
    int64_t f, rows, d, cols;
};

template <class T> bool is_direct(az_view W)
{
    return W.dtype == (sizeof(T) == sizeof(float) ? AZ_F32 : AZ_BF16);
}

/* Rows of width elements that a piece of at most so many elements has: a multiple of 8 where it can
 * be, so that what follows in the result is aligned for tensor cores. */
int64_t piece_rows(az_kern_self *k, int64_t width, size_t elements)
{
    const int64_t n = (int64_t)elements / (width > 0 ? width : 1);
    if (n == 0)
        k->host->fail(k->host->context, "linear",
                      "a weight that is not of the activations' type and is more than 2^24 wide");
    return n < 8 ? n : n / 8 * 8;
}

/* Where the piece lies as activations: in the weight itself, or in scratch, where it is put. */
template <class T>
Matrix load_piece(az_kern_self *k, const Piece &p, az_view W, void *scratch)
{
    const int64_t first = p.f * W.cols + p.d;
    if (is_direct<T>(W))
        return {static_cast<const T *>(W.data) + first, W.cols, 0};
    T *to = static_cast<T *>(scratch);
    const size_t n = (size_t)(p.rows * p.cols);
    if (is_aligned(to, W.data) && p.cols % 8 == 0 && W.cols % 8 == 0 && p.d % 8 == 0)
        convert_piece<T, 8><<<flat_blocks(n / 8), BLOCK, 0, k->stream>>>(to, W.data, W.dtype, first,
                                                                         p.rows, p.cols, W.cols);
    else
        convert_piece<T, 1><<<flat_blocks(n), BLOCK, 0, k->stream>>>(to, W.data, W.dtype, first,
                                                                     p.rows, p.cols, W.cols);
    return {to, p.cols, 0};
}

template <class Y>
void queue_bias(az_kern_self *k, void *y, az_view b, int64_t N, int64_t F)
{
    fill_rows<Y><<<flat_blocks((size_t)(N * F)), BLOCK, 0, k->stream>>>(static_cast<Y *>(y), b.data,
                                                                        b.dtype, N, F);
}

/* y[N,F] = x[N,D] W[F,D]' + b[F]   (numerics, eq. 4) */
template <class T>
void forward_limited(az_kern_self *k, void *y, bool y_f32, const void *x, az_view W, az_view b,
                     int64_t N, void *scratch, size_t elements)
{
    Queued queued(k, "linear forward");
    const int64_t F = W.rows, D = W.cols, step = is_direct<T>(W) ? F : piece_rows(k, D, elements);
    const bool biased = b.data != nullptr;
    if (N == 0)
        return;
    if (biased && y_f32)
        queue_bias<float>(k, y, b, N, F);
    else if (biased)
        queue_bias<T>(k, y, b, N, F);
    for (int64_t f = 0; f < F; f += step) {
        const Piece p = {f, az_min_i64(step, F - f), 0, D};
        const Matrix w = load_piece<T>(k, p, W, scratch);
        void *to = static_cast<char *>(y) + (size_t)f * (y_f32 ? sizeof(float) : sizeof(T));
        multiply<T>(queued, k, {N, p.rows, D, false, true, 1.0f, {x, D, 0}, w, biased ? 1.0f : 0.0f,
                                {to, F, 0}, y_f32, 1});
    }
}

/* dx[N,D] (+)= dy[N,F] W[F,D]   (numerics, eq. 5) */
template <class T>
void backward_limited(az_kern_self *k, void *dx, const void *dy, az_view W, bool add, int64_t N,
                      void *scratch, size_t elements)
{
    Queued queued(k, "linear backward");
    const int64_t F = W.rows, D = W.cols, step = is_direct<T>(W) ? D : piece_rows(k, F, elements);
    if (N == 0)
        return;
    for (int64_t d = 0; d < D; d += step) {
        const Piece p = {0, F, d, az_min_i64(step, D - d)};
        const Matrix w = load_piece<T>(k, p, W, scratch);
        multiply<T>(queued, k, {N, p.cols, F, false, false, 1.0f, {dy, F, 0}, w, add ? 1.0f : 0.0f,
                                {static_cast<T *>(dx) + d, D, 0}, false, 1});
    }
}

} // namespace

template <class T> void multiply(const Queued &queued, az_kern_self *k, const Product &p)
{
    multiply_limited<T>(queued, k, p, LIMIT);
}

template <class T>
void gemm(az_kern_self *k, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, float alpha,
          const void *A, int64_t lda, const void *B, int64_t ldb, float beta, void *C, int64_t ldc,
          bool c_f32)
{
    gemm_limited<T>(k, trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, c_f32,
                    LIMIT);
}

template <class T>
void linear_forward(az_kern_self *k, void *y, bool y_f32, const void *x, az_view W, az_view b,
                    int64_t N, void *scratch)
{
    forward_limited<T>(k, y, y_f32, x, W, b, N, scratch, AZ_CUDA_LINEAR_ELEMENTS);
}

template <class T>
void linear_backward(az_kern_self *k, void *dx, const void *dy, az_view W, bool add, int64_t N,
                     void *scratch)
{
    backward_limited<T>(k, dx, dy, W, add, N, scratch, AZ_CUDA_LINEAR_ELEMENTS);
}

template <class T> cudaError_t load_gemm()
{
    return load_kernel(scale_rows<T>, scale_rows<float>, fill_rows<T>, fill_rows<float>,
                       convert_piece<T, 8>, convert_piece<T, 1>);
}

#define INSTANTIATE(T)                                                                             \
    template void multiply<T>(const Queued &, az_kern_self *, const Product &);                    \
    template void gemm<T>(az_kern_self *, bool, bool, int64_t, int64_t, int64_t, float,            \
                          const void *, int64_t, const void *, int64_t, float, void *, int64_t,    \
                          bool);                                                                   \
    template void linear_forward<T>(az_kern_self *, void *, bool, const void *, az_view, az_view,  \
                                    int64_t, void *);                                              \
    template void linear_backward<T>(az_kern_self *, void *, const void *, az_view, bool, int64_t, \
                                     void *);                                                      \
    template cudaError_t load_gemm<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda

/* For the test of what is cut: the same in f32 with limits of its choice. */
extern "C" {
#define EXPORT(name, function)                          \
    extern decltype(&az_cuda::function<float>) const name; \
    decltype(&az_cuda::function<float>) const name = az_cuda::function<float>;
EXPORT(az_cuda_gemm_limited, gemm_limited)
EXPORT(az_cuda_forward_limited, forward_limited)
EXPORT(az_cuda_backward_limited, backward_limited)
#undef EXPORT
}
