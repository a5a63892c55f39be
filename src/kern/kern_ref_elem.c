/* Plain twins: linear, rows and elements, dropout. */
#include <config.h>

#include <math.h>

#include "kern/kern_ref.h"

void az_kern_linear_forward_ref(double *y, const double *x, const double *W, const double *opt_b,
                                int64_t N, int64_t D, int64_t F)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t f = 0; f < F; f++) {
            double s = opt_b != NULL ? opt_b[f] : 0;
            for (int64_t d = 0; d < D; d++)
                s += x[n * D + d] * W[f * D + d];
            y[n * F + f] = s;
        }
}

void az_kern_linear_backward_ref(double *dx, const double *dy, const double *W, bool add, int64_t N,
                                 int64_t D, int64_t F)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            double s = add ? dx[n * D + d] : 0;
            for (int64_t f = 0; f < F; f++)
                s += dy[n * F + f] * W[f * D + d];
            dx[n * D + d] = s;
        }
}

void az_kern_embed_ref(double *x, const double *table, const int32_t *ids, int64_t N, int64_t D)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++)
            x[n * D + d] = table[ids[n] * D + d];
}

static double inverse_rms(const double *x, double eps, int64_t D)
{
    double s = 0;
    for (int64_t d = 0; d < D; d++)
        s += x[d] * x[d];
    return 1 / sqrt(s / (double)D + eps);
}

void az_kern_rmsnorm_forward_ref(double *y, const double *x, const double *w, double eps, int64_t N,
                                 int64_t D)
{
    for (int64_t n = 0; n < N; n++) {
        double r = inverse_rms(x + n * D, eps, D);
        for (int64_t d = 0; d < D; d++)
            y[n * D + d] = x[n * D + d] * r * w[d];
    }
}

void az_kern_rmsnorm_backward_ref(double *dx, const double *dy, const double *x, const double *w,
                                  double eps, int64_t N, int64_t D)
{
    for (int64_t n = 0; n < N; n++) {
        double r = inverse_rms(x + n * D, eps, D), dot = 0;
        for (int64_t d = 0; d < D; d++)
            dot += dy[n * D + d] * w[d] * x[n * D + d];
        for (int64_t d = 0; d < D; d++)
            dx[n * D + d] += r * w[d] * dy[n * D + d] - r * r * r / (double)D * x[n * D + d] * dot;
    }
}

void az_kern_rope_ref(double *x, const int32_t *pos, const double *table, int64_t N, int heads,
                      int64_t K, bool inverse)
{
    for (int64_t n = 0; n < N; n++)
        for (int h = 0; h < heads; h++)
            for (int64_t j = 0; j < K / 2; j++) {
                double c = table[pos[n] * K + j], s = table[pos[n] * K + K / 2 + j];
                double *a = &x[(n * heads + h) * K + j], *b = a + K / 2, low = *a, high = *b;
                if (inverse)
                    s = -s;
                *a = low * c - high * s;
                *b = high * c + low * s;
            }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void az_kern_silu_gate_forward_ref(double *a, const double *g, const double *u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] = g[i] * sigmoid(g[i]) * u[i];
}

void az_kern_silu_gate_backward_ref(double *dg, double *du, const double *da, const double *g,
                                    const double *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double s = sigmoid(g[i]);
        dg[i] = da[i] * u[i] * (s + g[i] * s * (1 - s));
        du[i] = da[i] * g[i] * s;
    }
}

void az_kern_dropout_ref(double *y, const double *x, bool accumulate, double p, uint64_t seed,
                         uint32_t step, uint32_t module, const uint32_t *sample, const int32_t *pos,
                         int64_t N, int64_t D)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            uint32_t words[4], element = (uint32_t)(pos[n] * az_ceil_div(D, 4) + d / 4);
            az_philox(words, seed, element, sample[n], step, az_rng_word(AZ_RNG_DROPOUT, module));
            bool keep = (double)az_u32_to_unit(words[d % 4]) >= p;
            double value = keep ? x[n * D + d] / (1 - p) : 0;
            y[n * D + d] = (accumulate ? y[n * D + d] : 0) + value;
        }
}
