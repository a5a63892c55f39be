/* cuemu: cuBLAS on the CPU.  bf16 operands are widened to float, which is
 * exact, and products are accumulated in float as with CUBLAS_COMPUTE_32F. */
#include "cuemu.h"
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <stdlib.h>
#include <vector>
#ifdef CUEMU_CBLAS
#include <cblas.h>
#endif

struct cublasContext {
    cudaStream_t stream = nullptr;
    bool device_scalars = false;
};

namespace
{

using namespace cuemu;

struct Matrix {
    void *p;
    cudaDataType type;
    int ld;
    long long stride;
};

size_t size_of(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

/* dst[c * rows + r] = src(r, c); src is stored by columns, ld apart. */
void load(float *dst, const Matrix &m, long long at, int rows, int cols, bool transposed)
{
    int sr = transposed ? cols : rows, sc = transposed ? rows : cols;
    const char *base = (const char *)m.p + (size_t)at * size_of(m.type);
    for (int c = 0; c < sc; c++) {
        const char *col = base + (size_t)c * m.ld * size_of(m.type);
        use(col, (size_t)sr * size_of(m.type), false, "GEMM input");
        for (int r = 0; r < sr; r++) {
            float v = m.type == CUDA_R_32F ? ((const float *)col)[r]
                                           : cuemu_bf16_to_float(((const unsigned short *)col)[r]);
            dst[transposed ? (size_t)r * rows + c : (size_t)c * rows + r] = v;
        }
    }
}

/* c += a b; c is m x n, a m x k, b k x n, all packed by columns. */
void multiply(float *c, const float *a, const float *b, int m, int n, int k)
{
#ifdef CUEMU_CBLAS
    cblas_sgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, m, b, k, 1, c, m);
#else
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++) {
            float s = b[(size_t)j * k + p];
            const float *ap = a + (size_t)p * m;
            float *cj = c + (size_t)j * m;
            for (int i = 0; i < m; i++)
                cj[i] += s * ap[i];
        }
#endif
}

void gemm(bool ta, bool tb, int m, int n, int k, float alpha, const Matrix &A, const Matrix &B,
          float beta, const Matrix &C, int batch)
{
    std::vector<float> a((size_t)m * k), b((size_t)k * n), c((size_t)m * n);
    for (int t = 0; t < batch; t++) {
        load(a.data(), A, A.stride * t, m, k, ta);
        load(b.data(), B, B.stride * t, k, n, tb);
        std::fill(c.begin(), c.end(), 0.0f);
        multiply(c.data(), a.data(), b.data(), m, n, k);
        for (int j = 0; j < n; j++) {
            char *col =
                (char *)C.p + (size_t)(C.stride * t + (long long)j * C.ld) * size_of(C.type);
            use(col, (size_t)m * size_of(C.type), true, "GEMM output");
            for (int i = 0; i < m; i++) {
                float v = alpha * c[(size_t)j * m + i];
                if (C.type == CUDA_R_32F) {
                    float *o = (float *)col + i;
                    *o = beta == 0 ? v : v + beta * *o; /* beta = 0 must not read C */
                } else {
                    unsigned short *o = (unsigned short *)col + i;
                    if (beta != 0)
                        v += beta * cuemu_bf16_to_float(*o);
                    *o = cuemu_float_to_bf16(v);
                }
            }
        }
    }
}

bool type_ok(cudaDataType t)
{
    return t == CUDA_R_32F || t == CUDA_R_16BF;
}

__attribute__((always_inline)) inline cublasStatus_t
start(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
      const void *alpha, const Matrix &A, const Matrix &B, const void *beta, const Matrix &C,
      int batch, cublasComputeType_t type)
{
    Lock l;
    if (!h)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || !alpha || !beta ||
        A.ld < std::max(1, ta == CUBLAS_OP_N ? m : k) ||
        B.ld < std::max(1, tb == CUBLAS_OP_N ? k : n) || C.ld < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!type_ok(A.type) || A.type != B.type || !type_ok(C.type) ||
        (A.type == CUDA_R_32F && C.type != CUDA_R_32F) ||
        (type != CUBLAS_COMPUTE_32F && type != CUBLAS_COMPUTE_32F_FAST_TF32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!m || !n || !batch)
        return CUBLAS_STATUS_SUCCESS;
    const float *pa = (const float *)alpha, *pb = (const float *)beta;
    bool dev = h->device_scalars;
    float va = dev ? 0 : *pa, vb = dev ? 0 : *pb;
    char what[96];
    snprintf(what, sizeof what, "GEMM %dx%dx%d x%d", m, n, k, batch);
    enqueue(h->stream, what, [=] {
        if (dev) {
            use(pa, 4, false, "GEMM alpha");
            use(pb, 4, false, "GEMM beta");
        }
        gemm(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, dev ? *pa : va, A, B, dev ? *pb : vb, C,
             batch);
        return true;
    });
    return status() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

const char *cublasGetStatusString(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown";
}
cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t h, cublasPointerMode_t m)
{
    h->device_scalars = m == CUBLAS_POINTER_MODE_DEVICE;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType at,
                                          int lda, long long sA, const void *B, cudaDataType bt,
                                          int ldb, long long sB, const void *beta, void *C,
                                          cudaDataType ct, int ldc, long long sC, int batch,
                                          cublasComputeType_t type, cublasGemmAlgo_t)
{
    return start(h, ta, tb, m, n, k, alpha, {(void *)A, at, lda, sA}, {(void *)B, bt, ldb, sB},
                 beta, {C, ct, ldc, sC}, batch, type);
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void *alpha, const void *A, cudaDataType at,
                            int lda, const void *B, cudaDataType bt, int ldb, const void *beta,
                            void *C, cudaDataType ct, int ldc, cublasComputeType_t type,
                            cublasGemmAlgo_t)
{
    return start(h, ta, tb, m, n, k, alpha, {(void *)A, at, lda, 0}, {(void *)B, bt, ldb, 0}, beta,
                 {C, ct, ldc, 0}, 1, type);
}

cublasStatus_t cublasSgemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                           int n, int k, const float *alpha, const float *A, int lda,
                           const float *B, int ldb, const float *beta, float *C, int ldc)
{
    return start(h, ta, tb, m, n, k, alpha, {(void *)A, CUDA_R_32F, lda, 0},
                 {(void *)B, CUDA_R_32F, ldb, 0}, beta, {C, CUDA_R_32F, ldc, 0}, 1,
                 CUBLAS_COMPUTE_32F);
}

} // extern "C"
