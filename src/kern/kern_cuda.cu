/* kern: the tables of operations of a GPU, and the state that they work with. */
#include <cstdio>

#include "kern/kern_cuda.h"

extern "C" const az_dev_backend az_backend_dev;

namespace {

using namespace az_cuda;

/* What cuBLAS is given to work in. NVIDIA advises 32 MiB for its newest GPUs and less before. */
constexpr size_t WORKSPACE = (size_t)32 << 20;

template <class T> az_kern_ops make_ops()
{
    az_kern_ops o{};
    o.gemm = gemm<T>;
    o.linear_forward = linear_forward<T>;
    o.linear_backward = linear_backward<T>;
    o.embed = embed<T>;
    o.rmsnorm_forward = rmsnorm_forward<T>;
    o.rmsnorm_backward = rmsnorm_backward<T>;
    o.rope = rope<T>;
    o.silu_gate_forward = silu_gate_forward<T>;
    o.silu_gate_backward = silu_gate_backward<T>;
    o.add = add<T>;
    o.dropout = dropout<T>;
    o.gather_rows = gather_rows<T>;
    o.scatter_rows = scatter_rows<T>;
    o.narrow = narrow<T>;
    o.widen = widen;
    o.attention_forward = attention_forward<T>;
    o.attention_backward = attention_backward<T>;
    o.loss_begin = loss_begin;
    o.loss_fold = loss_fold;
    o.loss_end = loss_end;
    o.loss_backward = loss_backward<T>;
    o.fixed_add = fixed_add;
    o.add_i64 = add_i64;
    o.square_blocks = square_blocks;
    o.adamw = adamw;
    return o;
}

const az_kern_ops *get_ops(az_dtype act)
{
    static const az_kern_ops f32 = make_ops<float>(), bf16 = make_ops<__nv_bfloat16>();
    return act == AZ_F32 ? &f32 : act == AZ_BF16 ? &bf16 : nullptr;
}

template <class T> cudaError_t load()
{
    cudaError_t (*const parts[])() = {load_gemm<T>, load_attention<T>, load_rows<T>,
                                      load_elem<T>, load_loss<T>,      load_optim};
    for (auto part : parts) {
        const cudaError_t e = part();
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

/* Products sum in f32, also where a long sum is cut into parts. */
cublasStatus_t set_up_blas(az_kern_self *k)
{
    const int math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    cublasStatus_t e = cublasCreate(&k->blas);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasSetStream(k->blas, k->stream);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasSetWorkspace(k->blas, k->workspace, WORKSPACE);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasSetMathMode(k->blas, static_cast<cublasMath_t>(math));
    return e;
}

/* cuBLAS loads its kernels as they are used: each kind of product is made once, so that memory
 * which is free afterwards stays free. What other sizes load besides is small. */
template <class T> cudaError_t touch_blas(az_kern_self *k)
{
    constexpr int64_t N = 128;
    void *memory = nullptr;
    const cudaError_t e = cudaMalloc(&memory, 3 * N * N * sizeof(float));
    if (e != cudaSuccess)
        return e;
    float *a = static_cast<float *>(memory), *b = a + N * N, *c = b + N * N;
    for (int kind = 0; kind < 8; kind++)
        gemm<T>(k, (kind & 1) != 0, (kind & 2) != 0, N, N, N, 1.0f, a, N, b, N, 0.0f, c, N,
                (kind & 4) != 0);
    return cudaFree(memory); /* waits for them */
}

void close_kern(az_kern_self *k)
{
    if (k->blas != nullptr)
        cublasDestroy(k->blas);
    if (k->workspace != nullptr)
        cudaFree(k->workspace);
    delete k;
}

int open_kern(az_kern_self **out_self, void *dev_self, const az_backend_host *host, az_dtype act,
              char *text, size_t size)
{
    az_kern_self *k = new az_kern_self();
    k->host = host;
    k->stream = static_cast<cudaStream_t>(az_backend_dev.get_stream(dev_self, AZ_QUEUE_COMPUTE));
    *out_self = nullptr;
    cublasStatus_t blas = CUBLAS_STATUS_SUCCESS;
    cudaError_t e = act == AZ_F32 ? load<float>() : load<__nv_bfloat16>();
    if (e == cudaSuccess)
        e = cudaMalloc(&k->workspace, WORKSPACE);
    if (e == cudaSuccess)
        blas = set_up_blas(k);
    if (e == cudaSuccess && blas == CUBLAS_STATUS_SUCCESS)
        e = act == AZ_F32 ? touch_blas<float>(k) : touch_blas<__nv_bfloat16>(k);
    if (e == cudaSuccess && blas == CUBLAS_STATUS_SUCCESS) {
        *out_self = k;
        return 0;
    }
    if (e != cudaSuccess)
        snprintf(text, size, "%s", cudaGetErrorString(e));
    else
        snprintf(text, size, "cuBLAS: %s", cublasGetStatusString(blas));
    close_kern(k);
    return -1;
}

} // namespace

extern "C" const az_kern_backend az_backend_kern = {get_ops, open_kern, close_kern};
