/* self_kernels NAME: one deliberately wrong kernel, or one wrong use of one, which the stand-in
 * must find; "right" has no fault. The tests of kernels are worth what this finds. */
#include <vector>

#include "self.h"

namespace {

enum { THREADS = 256, N = 4096 };
const unsigned ALL = 0xffffffffu;

cudaStream_t stream;
float *p, *q;           /* N numbers on the device; q: zeros */
std::vector<float> on_host(N); /* what is in p */

/* ---- out of bounds ---- */

__global__ void write_one_too_far(float *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        out[i] = 1.0f;
}

__global__ void overflow_dynamic(float *out, int n)
{
    extern __shared__ float buffer[];
    for (int i = threadIdx.x; i <= n; i += blockDim.x)
        buffer[i] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0)
        out[0] = buffer[0];
}

__global__ void overflow_static(float *out, int n)
{
    __shared__ float buffer[64];
    for (int i = threadIdx.x; i <= n; i += blockDim.x)
        buffer[i] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0)
        out[0] = buffer[0];
}

__global__ void misalign(float *out)
{
    *reinterpret_cast<float4 *>(out + 1) = make_float4(1, 2, 3, 4);
}

__global__ void add_scaled(float *y, const float *x, float a, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += a * x[i];
}

/* ---- barriers and masks ---- */

/* Turns each block's numbers round; wait: with the barrier that this needs. */
__global__ void turn_round(float *out, const float *in, bool wait)
{
    __shared__ float buffer[THREADS];
    const int at = blockIdx.x * THREADS;
    buffer[threadIdx.x] = in[at + threadIdx.x];
    if (wait)
        __syncthreads();
    out[at + threadIdx.x] = buffer[THREADS - 1 - threadIdx.x];
}

/* Sums over n pieces; the second barrier of the loop keeps the buffer while it is being read. */
__global__ void sum_pieces(float *out, const float *in, int n, bool wait)
{
    __shared__ float buffer[THREADS];
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        buffer[threadIdx.x] = in[i * THREADS + threadIdx.x];
        __syncthreads();
        sum += buffer[(threadIdx.x + 77) % THREADS];
        if (wait)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

/* Lane 0 hands a value to the others of its warp through shared memory. */
__global__ void hand_on(float *out, const float *in, bool wait)
{
    __shared__ float value[THREADS / 32];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0)
        value[warp] = in[threadIdx.x];
    if (wait)
        __syncwarp();
    out[threadIdx.x] = value[warp];
}

__global__ void diverge(float *out)
{
    if (threadIdx.x < 32) {
        out[0] = 1.0f;
        __syncthreads();
    } else {
        __syncthreads();
        out[1] = 1.0f;
    }
}

__global__ void name_absent_lanes(float *out)
{
    float v = 1.0f;
    if (threadIdx.x < 16)
        v += __shfl_xor_sync(ALL, v, 1);
    else
        __syncthreads();
    out[threadIdx.x] = v;
}

__global__ void shuffle_from_outside(float *out)
{
    float v = (float)threadIdx.x;
    if (threadIdx.x < 16)
        v = __shfl_sync(0xffffu, v, 20); /* lane 20 takes no part */
    out[threadIdx.x] = v;
}

/* ---- blocks ---- */

__global__ void add_from_all_blocks(float *out)
{
    if (threadIdx.x == 0)
        *out += 1.0f;
}

__device__ unsigned ticket;

/* The last block reads what others wrote; fence: with what makes that visible. */
__global__ void read_in_last_block(float *out, float *part, bool fence)
{
    if (threadIdx.x != 0)
        return;
    part[blockIdx.x] = 1.0f;
    if (fence)
        __threadfence();
    if (atomicAdd(&ticket, 1u) == gridDim.x - 1) {
        float sum = 0.0f;
        for (unsigned i = 0; i < gridDim.x; i++)
            sum += part[i];
        *out = sum;
    }
}

/* ---- the cases ---- */

std::vector<float> fetch(const float *d, int n)
{
    std::vector<float> h(n);
    CU(cudaStreamSynchronize(stream));
    CU(cudaMemcpy(h.data(), d, n * sizeof(float), cudaMemcpyDeviceToHost));
    return h;
}

void run_turn_round(bool wait)
{
    turn_round<<<N / THREADS, THREADS, 0, stream>>>(q, p, wait);
    const auto r = fetch(q, N);
    for (int i = 0; i < N; i++)
        if (r[i] != on_host[i / THREADS * THREADS + THREADS - 1 - i % THREADS])
            WRONG("number %d", i);
}

void run_sum_pieces(bool wait)
{
    sum_pieces<<<1, THREADS, 0, stream>>>(q, p, 8, wait);
    const auto r = fetch(q, THREADS);
    for (int t = 0; t < THREADS; t++) {
        float sum = 0;
        for (int i = 0; i < 8; i++)
            sum += on_host[i * THREADS + (t + 77) % THREADS];
        if (r[t] != sum)
            WRONG("sum %d", t);
    }
}

void run_hand_on(bool wait)
{
    hand_on<<<1, THREADS, 0, stream>>>(q, p, wait);
    const auto r = fetch(q, THREADS);
    for (int t = 0; t < THREADS; t++)
        if (r[t] != on_host[t / 32 * 32])
            WRONG("thread %d", t);
}

void run_last_block(bool fence)
{
    read_in_last_block<<<N / THREADS, 32, 0, stream>>>(q, q + 1, fence);
    if (fetch(q, 1)[0] != N / THREADS)
        WRONG("sum");
}

void run_outside()
{
    shuffle_from_outside<<<1, 32, 0, stream>>>(q);
    if (!(fetch(q, 1)[0] == 20))
        WRONG("a lane that takes no part");
}

void read_pinned(bool wait)
{
    float *host = pinned<float>(N);
    memset(host, 0, N * sizeof *host);
    CU(cudaMemcpyAsync(host, p, N * sizeof *host, cudaMemcpyDeviceToHost, stream));
    if (wait)
        CU(cudaStreamSynchronize(stream));
    if (host[7] != on_host[7])
        WRONG("read before it was there");
    CU(cudaStreamSynchronize(stream));
    CU(cudaFreeHost(host));
}

void run_right()
{
    run_turn_round(true);
    run_sum_pieces(true);
    run_hand_on(true);
    run_last_block(true);
    read_pinned(true);
    add_scaled<<<N / THREADS, THREADS, 0, stream>>>(q, p, 1, N);
    CU(cudaGetLastError());
}

bool run_without_barrier(const char *name)
{
    if (strcmp(name, "no-barrier") == 0)
        run_turn_round(false);
    else if (strcmp(name, "loop-barrier") == 0)
        run_sum_pieces(false);
    else if (strcmp(name, "no-warp-barrier") == 0)
        run_hand_on(false);
    else if (strcmp(name, "divergent") == 0)
        diverge<<<1, 64, 0, stream>>>(p);
    else if (strcmp(name, "mask") == 0)
        name_absent_lanes<<<1, 32, 0, stream>>>(p);
    else if (strcmp(name, "lane") == 0)
        run_outside();
    else if (strcmp(name, "block-race") == 0)
        add_from_all_blocks<<<8, 32, 0, stream>>>(q);
    else if (strcmp(name, "no-fence") == 0)
        run_last_block(false);
    else if (strcmp(name, "stale") == 0)
        read_pinned(false);
    else
        return false;
    return true;
}

void run(const char *name)
{
    if (run_without_barrier(name))
        return;
    if (strcmp(name, "global") == 0) {
        write_one_too_far<<<N / 64 + 1, 64, 0, stream>>>(p, N);
    } else if (strcmp(name, "dynamic") == 0) {
        overflow_dynamic<<<1, 64, 64 * sizeof(float), stream>>>(p, 64);
    } else if (strcmp(name, "static") == 0) {
        overflow_static<<<1, 64, 0, stream>>>(p, 64);
    } else if (strcmp(name, "align") == 0) {
        misalign<<<1, 1, 0, stream>>>(p);
    } else if (strcmp(name, "host-pointer") == 0) {
        add_scaled<<<1, THREADS, 0, stream>>>(on_host.data(), p, 1, THREADS);
    } else if (strcmp(name, "host-read") == 0) {
        printf("%g\n", p[0]);
    } else if (strcmp(name, "freed") == 0) {
        CU(cudaFree(p));
        add_scaled<<<1, THREADS, 0, stream>>>(q, p, 1, THREADS);
    } else if (strcmp(name, "shape") == 0) {
        add_scaled<<<1, 2048, 0, stream>>>(q, p, 1, N);
        CU(cudaGetLastError());
    } else if (strcmp(name, "leak") == 0) {
        p = device<float>(3);
    } else {
        WRONG("no case %s", name);
    }
}

} // namespace

int main(int argc, char **argv)
{
    for (int i = 0; i < N; i++)
        on_host[i] = (float)(i * 7919 % 1021);
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    p = device<float>(N);
    q = device<float>(N);
    CU(cudaMemcpyAsync(p, on_host.data(), N * sizeof *p, cudaMemcpyHostToDevice, stream));
    CU(cudaMemsetAsync(q, 0, N * sizeof *q, stream));
    if (argc < 2 || strcmp(argv[1], "right") == 0)
        run_right();
    else
        run(argv[1]);
    CU(cudaStreamSynchronize(stream));
    CU(cudaFree(p));
    CU(cudaFree(q));
    CU(cudaStreamDestroy(stream));
    return 0;
}
