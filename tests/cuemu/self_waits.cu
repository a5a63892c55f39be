/* self_waits [NAME]: a small model on two ranks, whose layers are gathered into two buffers on one
 * stream while another one computes; gradients are reduced and scattered, the parts are updated.
 * All numbers are small integers, so that every sum is exact, and the result is compared with that
 * of a plain loop. NAME leaves one wait out, which must be found. */
#include <cmath>
#include <vector>

#include <cublas_v2.h>

#include "self.h"

namespace {

enum { L = 6, D = 32, B = 4, STEPS = 3 };

const char *left_out = "";

bool waits(const char *name)
{
    return strcmp(left_out, name) != 0;
}

/* ---- what is computed, on the host ---- */

float input_at(int rank, int step, int i)
{
    return (float)((i * 5 + rank * 3 + step) % 7);
}

float weight_at(int layer, int i)
{
    return (float)((i * 3 + layer * 2) % 5);
}

__host__ __device__ inline float wrap(float v, float by)
{
    return v - by * floorf(v / by);
}

struct Reference {
    int n;
    std::vector<float> w[L];
    std::vector<std::vector<float>> x; /* of each rank, after the last layer */
    explicit Reference(int ranks) : n(ranks), x(ranks)
    {
        for (int l = 0; l < L; l++)
            for (int i = 0; i < D * D; i++)
                w[l].push_back(weight_at(l, i));
    }
    void step(int at)
    {
        std::vector<float> gradient[L];
        for (int r = 0; r < n; r++) {
            std::vector<float> in(D * B), y(D * B);
            for (int i = 0; i < D * B; i++)
                in[i] = input_at(r, at, i);
            for (int l = 0; l < L; l++) {
                gradient[l].resize(D * D);
                for (int b = 0; b < B; b++)
                    for (int i = 0; i < D; i++) {
                        y[b * D + i] = 0;
                        for (int k = 0; k < D; k++)
                            y[b * D + i] += w[l][k * D + i] * in[b * D + k];
                        y[b * D + i] = wrap(y[b * D + i], 7);
                    }
                for (int b = 0; b < B; b++)
                    for (int k = 0; k < D; k++)
                        for (int i = 0; i < D; i++)
                            gradient[l][k * D + i] += y[b * D + i] * in[b * D + k];
                in = y;
            }
            x[r] = in;
        }
        for (int l = 0; l < L; l++)
            for (int i = 0; i < D * D; i++)
                w[l][i] = wrap(w[l][i] + gradient[l][i], 5);
    }
};

/* ---- the same on devices ---- */

__global__ void reduce_to(float *x, int n, float by)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = wrap(x[i], by);
}

__global__ void update(float *w, const float *gradient, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        w[i] = wrap(w[i] + gradient[i], 5);
}

struct Model {
    int rank, n, part;
    ncclComm_t comm;
    cublasHandle_t blas;
    cudaStream_t compute, exchange;
    cudaEvent_t gathered[2], used[2], ready[2], reduced[2], copied;
    float *w[L], *x[L + 1], *buffer[2], *gradient[2], *mine[2];
    float *host_in, *host_out;
};

void multiply(const Model &m, cublasOperation_t tb, int rows, int columns, int k, const float *a,
              const float *b, float *c)
{
    const float one = 1, zero = 0;
    OK(cublasGemmEx(m.blas, CUBLAS_OP_N, tb, rows, columns, k, &one, a, CUDA_R_32F, D, b,
                    CUDA_R_32F, D, &zero, c, CUDA_R_32F, D, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT));
}

void gather(const Model &m, int l)
{
    const int b = l % 2;
    if (waits("used"))
        CU(cudaStreamWaitEvent(m.exchange, m.used[b], 0));
    OK(ncclAllGather(m.w[l], m.buffer[b], m.part, ncclFloat, m.comm, m.exchange));
    CU(cudaEventRecord(m.gathered[b], m.exchange));
}

/* In two halves through one pinned block, which may not be filled anew before it has been read. */
void put_input(const Model &m, int step)
{
    const int half = D * B / 2;
    for (int h = 0; h < 2; h++) {
        if (h > 0 && waits("copied"))
            CU(cudaEventSynchronize(m.copied));
        for (int i = 0; i < half; i++)
            m.host_in[i] = input_at(m.rank, step, h * half + i);
        CU(cudaMemcpyAsync(m.x[0] + h * half, m.host_in, half * sizeof(float),
                           cudaMemcpyHostToDevice, m.compute));
        CU(cudaEventRecord(m.copied, m.compute));
    }
    CU(cudaEventSynchronize(m.copied));
}

void forward(const Model &m)
{
    gather(m, 0);
    for (int l = 0; l < L; l++) {
        if (l + 1 < L)
            gather(m, l + 1); /* while this layer computes */
        if (waits("gathered"))
            CU(cudaStreamWaitEvent(m.compute, m.gathered[l % 2], 0));
        multiply(m, CUBLAS_OP_N, D, B, D, m.buffer[l % 2], m.x[l], m.x[l + 1]);
        CU(cudaEventRecord(m.used[l % 2], m.compute));
        reduce_to<<<1, D * B, 0, m.compute>>>(m.x[l + 1], D * B, 7);
        CU(cudaGetLastError());
    }
}

void backward(const Model &m)
{
    for (int l = L - 1; l >= 0; l--) {
        const int b = l % 2;
        if (waits("reduced"))
            CU(cudaStreamWaitEvent(m.compute, m.reduced[b], 0));
        multiply(m, CUBLAS_OP_T, D, D, B, m.x[l + 1], m.x[l], m.gradient[b]);
        CU(cudaEventRecord(m.ready[b], m.compute));
        if (waits("ready"))
            CU(cudaStreamWaitEvent(m.exchange, m.ready[b], 0));
        OK(ncclReduceScatter(m.gradient[b], m.mine[b], m.part, ncclFloat, ncclSum, m.comm,
                             m.exchange));
        CU(cudaEventRecord(m.reduced[b], m.exchange));
        update<<<(m.part + 127) / 128, 128, 0, m.exchange>>>(m.w[l], m.mine[b], m.part);
        CU(cudaGetLastError());
    }
}

void create(Model *m, int rank, int n, ncclUniqueId id)
{
    m->rank = rank;
    m->n = n;
    m->part = D * D / n;
    OK(ncclCommInitRank(&m->comm, n, id, rank));
    CU(cudaStreamCreateWithFlags(&m->compute, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&m->exchange, cudaStreamNonBlocking));
    OK(cublasCreate(&m->blas));
    OK(cublasSetStream(m->blas, m->compute));
    CU(cudaEventCreateWithFlags(&m->copied, cudaEventDisableTiming));
    for (int b = 0; b < 2; b++) {
        for (cudaEvent_t *e : {&m->gathered[b], &m->used[b], &m->ready[b], &m->reduced[b]})
            CU(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
        m->buffer[b] = device<float>(D * D);
        m->gradient[b] = device<float>(D * D);
        m->mine[b] = device<float>(m->part);
    }
    m->host_in = pinned<float>(D * B / 2);
    m->host_out = pinned<float>(D * B);
    for (int l = 0; l <= L; l++)
        m->x[l] = device<float>(D * B);
    for (int l = 0; l < L; l++) {
        std::vector<float> w(m->part);
        for (int i = 0; i < m->part; i++)
            w[i] = weight_at(l, rank * m->part + i);
        m->w[l] = device<float>(m->part);
        CU(cudaMemcpyAsync(m->w[l], w.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice,
                           m->exchange));
    }
}

void destroy(Model *m)
{
    OK(ncclCommDestroy(m->comm));
    OK(cublasDestroy(m->blas));
    for (int b = 0; b < 2; b++) {
        for (cudaEvent_t e : {m->gathered[b], m->used[b], m->ready[b], m->reduced[b]})
            CU(cudaEventDestroy(e));
        for (float *p : {m->buffer[b], m->gradient[b], m->mine[b]})
            CU(cudaFree(p));
    }
    for (int l = 0; l <= L; l++)
        CU(cudaFree(m->x[l]));
    for (int l = 0; l < L; l++)
        CU(cudaFree(m->w[l]));
    CU(cudaFreeHost(m->host_in));
    CU(cudaFreeHost(m->host_out));
    CU(cudaEventDestroy(m->copied));
    CU(cudaStreamDestroy(m->compute));
    CU(cudaStreamDestroy(m->exchange));
}

int run(int rank, int n, ncclUniqueId id)
{
    Model m;
    Reference reference(n);
    create(&m, rank, n, id);
    for (int step = 0; step < STEPS; step++) {
        put_input(m, step);
        forward(m);
        backward(m);
        CU(cudaMemcpyAsync(m.host_out, m.x[L], D * B * sizeof(float), cudaMemcpyDeviceToHost,
                           m.compute));
        if (waits("final"))
            CU(cudaStreamSynchronize(m.compute));
        reference.step(step);
        for (int i = 0; i < D * B; i++)
            if (m.host_out[i] != reference.x[rank][i])
                WRONG("rank %d, step %d: number %d", rank, step, i);
        CU(cudaStreamSynchronize(m.compute));
    }
    CU(cudaDeviceSynchronize());
    for (int l = 0; l < L; l++) {
        std::vector<float> w(m.part);
        CU(cudaMemcpy(w.data(), m.w[l], m.part * sizeof(float), cudaMemcpyDeviceToHost));
        for (int i = 0; i < m.part; i++)
            if (w[i] != reference.w[l][rank * m.part + i])
                WRONG("rank %d: weight %d of layer %d", rank, i, l);
    }
    destroy(&m);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1)
        left_out = argv[1];
    return on_ranks(2, run);
}
