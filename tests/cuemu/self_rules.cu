/* self_rules: the stand-in keeps CUDA's rules: what threads of a block and lanes of a warp see of
 * each other, the order of streams, error codes, and what NCCL's collectives compute. Exit code 1
 * and the line of the first that does not hold. */
#include <vector>

#include "self.h"

#define EXPECT(condition)                                       \
    do {                                                        \
        if (!(condition))                                       \
            WRONG("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

namespace {

const unsigned ALL = 0xffffffffu;

template <class T> std::vector<T> fetch(const T *d, size_t n)
{
    std::vector<T> h(n);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(h.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
    return h;
}

/* ---- blocks and shared memory ---- */

__global__ void transpose(float *out, const float *in, int w, int h)
{
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < w && y < h)
        tile[threadIdx.y][threadIdx.x] = in[y * w + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < h && y < w)
        out[y * h + x] = tile[threadIdx.x][threadIdx.y];
}

void check_transpose()
{
    const int w = 45, h = 37;
    float *a = device<float>(w * h), *b = device<float>(w * h);
    std::vector<float> in(w * h);
    for (int i = 0; i < w * h; i++)
        in[i] = (float)i;
    CU(cudaMemcpy(a, in.data(), sizeof(float) * w * h, cudaMemcpyHostToDevice));
    transpose<<<dim3(3, 3), dim3(16, 16)>>>(b, a, w, h);
    const auto out = fetch(b, w * h);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            EXPECT(out[x * h + y] == in[y * w + x]);
    CU(cudaFree(a));
    CU(cudaFree(b));
}

/* Memory comes as NaN: what is not written is seen. */
__global__ void look_at_fresh(float *out)
{
    __shared__ float fixed[32];
    extern __shared__ float chosen[];
    out[threadIdx.x] = fixed[threadIdx.x] + chosen[threadIdx.x];
}

void check_fresh()
{
    float *a = device<float>(32);
    for (float v : fetch(a, 32))
        EXPECT(v != v);
    CU(cudaMemset(a, 0, 32 * sizeof *a));
    look_at_fresh<<<1, 32, 32 * sizeof(float)>>>(a);
    for (float v : fetch(a, 32))
        EXPECT(v != v);
    CU(cudaFree(a));
}

__global__ void count_cube(int *out)
{
    const int id = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    atomicAdd(&out[b * 24 + id], 1 + id + b);
}

void check_cube()
{
    int *d = device<int>(24 * 12);
    CU(cudaMemset(d, 0, 24 * 12 * sizeof *d));
    count_cube<<<dim3(2, 3, 2), dim3(4, 3, 2)>>>(d);
    const auto out = fetch(d, 24 * 12);
    for (int b = 0; b < 12; b++)
        for (int i = 0; i < 24; i++)
            EXPECT(out[b * 24 + i] == 1 + i + b);
    CU(cudaFree(d));
}

__device__ unsigned ticket;

/* The last block to end sums what all have left. */
__global__ void sum_by_last_block(float *out, float *part, const float *in)
{
    __shared__ bool last;
    __shared__ float s[64];
    s[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    for (int k = 32; k > 0; k >>= 1) {
        if ((int)threadIdx.x < k)
            s[threadIdx.x] += s[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        part[blockIdx.x] = s[0];
        __threadfence();
        last = atomicAdd(&ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned i = 0; i < gridDim.x; i++)
            sum += part[i];
        *out = sum;
        atomicExch(&ticket, 0u);
    }
}

void check_last_block()
{
    const int n = 20;
    float *in = device<float>(n * 64), *part = device<float>(n), *out = device<float>(1);
    const std::vector<float> ones(n * 64, 1.0f);
    CU(cudaMemcpy(in, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice));
    sum_by_last_block<<<n, 64>>>(out, part, in);
    EXPECT(fetch(out, 1)[0] == n * 64);
    CU(cudaFree(in));
    CU(cudaFree(part));
    CU(cudaFree(out));
}

/* ---- warps ---- */

__global__ void shuffle(int *o)
{
    const int t = threadIdx.x, n = blockDim.x;
    o[0 * n + t] = __shfl_sync(ALL, t, 3);
    o[1 * n + t] = __shfl_up_sync(ALL, t, 2);
    o[2 * n + t] = __shfl_down_sync(ALL, t, 2);
    o[3 * n + t] = __shfl_xor_sync(ALL, t, 5);
    o[4 * n + t] = __shfl_sync(ALL, t, 9, 8); /* segments of 8 */
    o[5 * n + t] = __shfl_up_sync(ALL, t, 3, 8);
    o[6 * n + t] = __shfl_down_sync(ALL, t, 3, 8);
    o[7 * n + t] = (int)__ballot_sync(ALL, t % 3 == 0);
    const unsigned half = t % 32 < 16 ? 0xffffu : 0xffff0000u; /* two groups in a warp */
    int v = t;
    if (t % 32 < 16) {
        for (int k = 8; k > 0; k >>= 1)
            v += __shfl_xor_sync(half, v, k);
    } else {
        for (int k = 1; k < 16; k <<= 1)
            v += __shfl_xor_sync(half, v, k);
    }
    o[8 * n + t] = v;
    const long long big = __shfl_xor_sync(ALL, (long long)t << 40, 1);
    o[9 * n + t] = (int)(big >> 40);
}

void check_shuffles()
{
    const int n = 64;
    int *d = device<int>(10 * n);
    shuffle<<<1, n>>>(d);
    const auto o = fetch(d, 10 * n);
    for (int t = 0; t < n; t++) {
        const int w = t & ~31, l = t & 31, s = t & ~7, sl = t & 7;
        unsigned ballot = 0;
        int sum = 0;
        for (int i = 0; i < 32; i++)
            ballot |= (unsigned)((w + i) % 3 == 0) << i;
        for (int i = 0; i < 16; i++)
            sum += (t & ~15) + i;
        EXPECT(o[0 * n + t] == w + 3);
        EXPECT(o[1 * n + t] == (l < 2 ? t : t - 2));
        EXPECT(o[2 * n + t] == (l > 29 ? t : t + 2));
        EXPECT(o[3 * n + t] == (t ^ 5));
        EXPECT(o[4 * n + t] == s + 1);
        EXPECT(o[5 * n + t] == (sl < 3 ? t : t - 3));
        EXPECT(o[6 * n + t] == (sl > 4 ? t : t + 3));
        EXPECT((unsigned)o[7 * n + t] == ballot);
        EXPECT(o[8 * n + t] == sum);
        EXPECT(o[9 * n + t] == (t ^ 1));
    }
    CU(cudaFree(d));
}

/* A warp that leaves early, a last one that is not full, a vote of the block. */
__global__ void vote(int *o)
{
    const int t = threadIdx.x;
    if (t < 32)
        return;
    const int c = __syncthreads_count(t % 2);
    const unsigned b = __ballot_sync(ALL, 1); /* lanes that have left do not count */
    o[t] = c * 1000 + __popc(b);
}

void check_votes()
{
    int *d = device<int>(80);
    vote<<<1, 80>>>(d);
    const auto o = fetch(d, 80);
    for (int t = 32; t < 80; t++)
        EXPECT(o[t] == 24 * 1000 + (t < 64 ? 32 : 16));
    CU(cudaFree(d));
}

/* ---- streams and events ---- */

void count_up(void *n)
{
    ++*static_cast<int *>(n);
}

void check_streams()
{
    int n = 0;
    int *d = device<int>(1);
    cudaStream_t s;
    CU(cudaStreamCreate(&s)); /* a blocking one: ordered with stream 0 */
    CU(cudaMemsetAsync(d, 0, sizeof *d, s));
    count_cube<<<1, 1>>>(d);                                          /* after the memset, */
    CU(cudaMemcpyAsync(&n, d, sizeof n, cudaMemcpyDeviceToHost, s)); /* before the copy */
    CU(cudaStreamSynchronize(s));
    EXPECT(n == 1);
    void *arguments[] = {&d};
    CU(cudaLaunchKernel(count_cube, dim3(1), dim3(1), arguments, 0, s));
    CU(cudaStreamDestroy(s)); /* what is queued is done */
    EXPECT(fetch(d, 1)[0] == 2);
    CU(cudaFree(d));
}

void check_events()
{
    int n = 0;
    float ms = -1;
    cudaStream_t s, other;
    cudaEvent_t begin, end;
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaEventCreate(&begin));
    CU(cudaEventCreate(&end));
    CU(cudaStreamWaitEvent(other, end, 0)); /* never recorded: no wait */
    CU(cudaStreamSynchronize(other));
    CU(cudaEventRecord(begin, s));
    CU(cudaLaunchHostFunc(s, count_up, &n));
    CU(cudaEventRecord(end, s));
    while (cudaEventQuery(end) == cudaErrorNotReady)
        (void)cudaGetLastError();
    EXPECT(n == 1);
    CU(cudaEventElapsedTime(&ms, begin, end));
    EXPECT(ms >= 0);
    /* A wait is for the record made last before it. */
    for (int i = 0; i < 20; i++) {
        CU(cudaLaunchHostFunc(s, count_up, &n));
        CU(cudaEventRecord(end, s));
        CU(cudaStreamWaitEvent(other, end, 0));
        CU(cudaLaunchHostFunc(other, count_up, &n));
        CU(cudaEventRecord(begin, other));
        CU(cudaStreamWaitEvent(s, begin, 0));
    }
    CU(cudaEventSynchronize(begin));
    EXPECT(n == 41);
    CU(cudaStreamDestroy(s));
    CU(cudaStreamDestroy(other));
    CU(cudaEventDestroy(begin));
    CU(cudaEventDestroy(end));
}

/* ---- errors ---- */

void check_errors()
{
    int n = 0;
    int *d = device<int>(1), *big = nullptr;
    int *host = pinned<int>(1);
    EXPECT(cudaMemcpy(d, &n, sizeof n, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(d, &n, 2 * sizeof n, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    EXPECT(cudaMemsetAsync(d, 0, 2 * sizeof n) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    count_cube<<<1, 2048>>>(d);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    count_cube<<<0, 1>>>(d);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    count_cube<<<1, 1, 60 * 1024>>>(d); /* more than 48 KiB must be asked for */
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    CU(cudaFuncSetAttribute(count_cube, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * 1024));
    count_cube<<<1, 1, 60 * 1024>>>(d);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(cudaFree((char *)d + 1) == cudaErrorInvalidValue);
    EXPECT(cudaFree(host) == cudaErrorInvalidValue && cudaFreeHost(d) == cudaErrorInvalidValue);
    setenv("CUEMU_MEMORY", "1000", 1);
    EXPECT(cudaMalloc(&big, 1000) == cudaErrorMemoryAllocation && big == nullptr);
    unsetenv("CUEMU_MEMORY");
    (void)cudaGetLastError();
    CU(cudaFree(d));
    CU(cudaFreeHost(host));
}

/* ---- NCCL ---- */

int collect(int rank, int n, ncclUniqueId id)
{
    const int count = 7;
    long long *host = pinned<long long>(n * count), *d = device<long long>(n * count);
    ncclComm_t comm;
    cudaStream_t s;
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(ncclCommInitRank(&comm, n, id, rank));
    auto put = [&] { /* place i of rank r: 1000 r + i */
        for (int i = 0; i < n * count; i++)
            host[i] = 1000 * rank + i;
        CU(cudaMemcpyAsync(d, host, n * count * sizeof *d, cudaMemcpyHostToDevice, s));
    };
    auto get = [&] {
        CU(cudaMemcpyAsync(host, d, n * count * sizeof *d, cudaMemcpyDeviceToHost, s));
        CU(cudaStreamSynchronize(s));
    };
    const long long ranks = n * (n - 1) / 2 * 1000;
    put();
    OK(ncclAllGather(d + rank * count, d, count, ncclInt64, comm, s));
    get();
    for (int i = 0; i < n * count; i++)
        EXPECT(host[i] == 1000 * (i / count) + i);
    put();
    OK(ncclAllReduce(d, d, n * count, ncclInt64, ncclSum, comm, s));
    get();
    for (int i = 0; i < n * count; i++)
        EXPECT(host[i] == ranks + n * i);
    put();
    OK(ncclReduceScatter(d, d + rank * count, count, ncclInt64, ncclSum, comm, s));
    get();
    for (int i = rank * count; i < (rank + 1) * count; i++)
        EXPECT(host[i] == ranks + n * i);
    put();
    OK(ncclGroupStart());
    for (int root = 0; root < n; root++)
        OK(ncclReduce(d + root * count, d + root * count, count, ncclInt64, ncclSum, root, comm,
                      s));
    OK(ncclGroupEnd());
    get();
    for (int i = 0; i < n * count; i++)
        EXPECT(host[i] == (i / count == rank ? ranks + n * i : 1000 * rank + i));
    put();
    OK(ncclBroadcast(d, d, n * count, ncclInt64, n - 1, comm, s));
    get();
    for (int i = 0; i < n * count; i++)
        EXPECT(host[i] == 1000 * (n - 1) + i);
    OK(ncclCommDestroy(comm));
    CU(cudaFreeHost(host));
    CU(cudaFree(d));
    CU(cudaStreamDestroy(s));
    return 0;
}

} // namespace

int main()
{
    if (on_ranks(3, collect) != 0)
        return 1;
    check_transpose();
    check_fresh();
    check_cube();
    check_last_block();
    check_shuffles();
    check_votes();
    check_streams();
    check_events();
    check_errors();
    return 0;
}
