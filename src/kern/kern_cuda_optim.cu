/* Exact sums and AdamW. Gradients become whole numbers of units of 2^-50, the same ones as on the
 * CPU; what is counted is counted with integers, so that no order changes a result. */
#include <cmath>

#include "kern/kern_cuda.h"

namespace az_cuda {
namespace {

/* Sums and moments are read and written in packs of this many. */
constexpr int W = 4;

/* (numerics, eq. 18). The magnitude is below 2^13, so that the conversion is exact but for the
 * rounding, to the nearest, ties to even. */
template <int N>
__global__ void __launch_bounds__(BLOCK)
    add_fixed(int64_t *__restrict__ sum, const float *__restrict__ x, size_t n, double limit,
              unsigned long long *__restrict__ overflow)
{
    const size_t i = flat_index() * N;
    if (i >= n)
        return;
    const Pack<float, N> value = load_pack<float, N>(x + i);
    Pack<int64_t, N> s = load_pack<int64_t, N>(sum + i);
    int bad = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const double v = (double)value.at[j];
        const bool good = fabs(v) < limit;
        bad += !good;
        s.at[j] = (int64_t)((uint64_t)s.at[j] + (uint64_t)llrint(good ? v * 0x1p50 : 0.0));
    }
    store_pack(sum + i, s);
    if (bad > 0)
        atomicAdd(overflow, (unsigned long long)bad);
}

template <int N>
__global__ void __launch_bounds__(BLOCK)
    add_integers(int64_t *__restrict__ y, const int64_t *__restrict__ x, size_t n)
{
    const size_t i = flat_index() * N;
    if (i >= n)
        return;
    const Pack<int64_t, N> a = load_pack<int64_t, N>(x + i);
    Pack<int64_t, N> b = load_pack<int64_t, N>(y + i);
#pragma unroll
    for (int j = 0; j < N; j++)
        b.at[j] = (int64_t)((uint64_t)b.at[j] + (uint64_t)a.at[j]);
    store_pack(y + i, b);
}

/* Element i of a block goes to the sum of thread i mod BLOCK.   (numerics, eq. 19) */
__global__ void __launch_bounds__(BLOCK)
    sum_squares(double *__restrict__ out, const int64_t *__restrict__ g, size_t n, size_t block)
{
    __shared__ double shared[BLOCK / 32];
    const size_t begin = (size_t)blockIdx.x * block,
                 length = n - begin < block ? n - begin : block;
    double s = 0;
    for (size_t i = threadIdx.x; i < length; i += BLOCK) {
        const double x = (double)g[begin + i] * AZ_FIXED_UNIT;
        s += x * x;
    }
    s = reduce_block(s, shared, Sum());
    if (threadIdx.x == 0)
        out[blockIdx.x] = s;
}

/* What is the same for all elements of an update. */
struct Factors {
    double unit, beta1, beta2, rate, decay, root, eps;
};

/* (numerics, eq. 20-23) */
template <int N>
__global__ void __launch_bounds__(BLOCK)
    update(float *__restrict__ p, float *__restrict__ m, float *__restrict__ v,
           const int64_t *__restrict__ fixed, Factors f, size_t n)
{
    const size_t i = flat_index() * N;
    if (i >= n)
        return;
    const Pack<int64_t, N> g_ = load_pack<int64_t, N>(fixed + i);
    Pack<float, N> p_ = load_pack<float, N>(p + i), m_ = load_pack<float, N>(m + i),
                   v_ = load_pack<float, N>(v + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const double g = (double)g_.at[j] * f.unit,
                     a = f.beta1 * (double)m_.at[j] + (1.0 - f.beta1) * g,
                     b = f.beta2 * (double)v_.at[j] + (1.0 - f.beta2) * g * g;
        p_.at[j] =
            (float)((double)p_.at[j] * f.decay - f.rate * a / (sqrt(b) * f.root + f.eps));
        m_.at[j] = (float)a;
        v_.at[j] = (float)b;
    }
    store_pack(p + i, p_);
    store_pack(m + i, m_);
    store_pack(v + i, v_);
}

} // namespace

/* ---- entries ---- */

void fixed_add(az_kern_self *k, int64_t *sum, const float *x, size_t n, double limit,
               int64_t *overflow, bool)
{
    Queued queued(k, "fixed add");
    unsigned long long *count = reinterpret_cast<unsigned long long *>(overflow);
    const size_t body = is_aligned(sum, x) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        add_fixed<W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(sum, x, done, limit, count);
    if (rest > 0)
        add_fixed<1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(sum + done, x + done, rest,
                                                                 limit, count);
}

void add_i64(az_kern_self *k, int64_t *y, const int64_t *x, size_t n)
{
    Queued queued(k, "add integers");
    const size_t body = is_aligned(y, x) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        add_integers<W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(y, x, done);
    if (rest > 0)
        add_integers<1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(y + done, x + done, rest);
}

void square_blocks(az_kern_self *k, double *out, const int64_t *g, size_t n, size_t block)
{
    Queued queued(k, "square blocks");
    if (n > 0)
        sum_squares<<<(unsigned)((n + block - 1) / block), BLOCK, 0, k->stream>>>(out, g, n,
                                                                                  block);
}

void adamw(az_kern_self *k, float *p, float *m, float *v, const int64_t *fixed, double clip,
           size_t n, const az_adamw *o)
{
    Queued queued(k, "adamw");
    const double t = (double)o->t;
    const Factors f = {AZ_FIXED_UNIT * clip,
                       o->beta1,
                       o->beta2,
                       o->lr / (1.0 - std::pow(o->beta1, t)),
                       1.0 - o->lr * o->weight_decay,
                       1.0 / std::sqrt(1.0 - std::pow(o->beta2, t)),
                       o->eps};
    const size_t body = is_aligned(p, m, v, fixed) ? n / W : 0, done = body * W, rest = n - done;
    if (body > 0)
        update<W><<<flat_blocks(body), BLOCK, 0, k->stream>>>(p, m, v, fixed, f, done);
    if (rest > 0)
        update<1><<<flat_blocks(rest), BLOCK, 0, k->stream>>>(p + done, m + done, v + done,
                                                              fixed + done, f, rest);
}

cudaError_t load_optim()
{
    return load_kernel(add_fixed<W>, add_fixed<1>, add_integers<W>, add_integers<1>, sum_squares,
                       update<W>, update<1>);
}

} // namespace az_cuda
