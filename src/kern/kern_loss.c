/* Cross entropy over a vocabulary that comes in column pieces: a running maximum and the sum of
 * exponentials relative to it, per row. Rows are independent; within a row sums are in double, in
 * the order of the pieces. */
#include <config.h>

#include <math.h>

#include "kern/kern_priv.h"

#define LANES 16

/* Independent maxima side by side are vector code, one running maximum is not. */
AZ_HOT float az_kern_largest(const float *x, int64_t n)
{
    float m[LANES], best = -INFINITY;
    for (int j = 0; j < LANES; j++)
        m[j] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    for (int j = 0; j < LANES; j++)
        best = m[j] > best ? m[j] : best;
    return best;
}

AZ_HOT static double sum_exp(const float *x, float shift, int64_t n)
{
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++)
        s += (double)az_kern_expf(x[i] - shift);
    return s;
}

AZ_HOT static void to_gradient(float *x, float shift, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = az_kern_expf(x[i] - shift) * scale;
}

void az_kern_loss_begin_cpu(float *max, double *sum, float *hit, int64_t N)
{
    for (int64_t n = 0; n < N; n++) {
        max[n] = -INFINITY;
        sum[n] = 0;
        hit[n] = 0;
    }
}

/* (numerics, eq. 15) */
void az_kern_loss_fold_cpu(float *max, double *sum, float *hit, const float *logits,
                           const int32_t *label, int64_t col0, int64_t N, int64_t C)
{
#pragma omp parallel for schedule(static) if (N * C > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        const float *row = logits + n * C;
        float m = az_kern_largest(row, C);
        if (!(m > max[n]))
            m = max[n];
        else
            sum[n] *= exp((double)max[n] - (double)m);
        /* All logits -inf so far: the shift must be finite for exp(-inf - shift) = 0. */
        sum[n] += sum_exp(row, m == -INFINITY ? 0.0f : m, C);
        max[n] = m;
        if (label[n] >= col0 && label[n] - col0 < C)
            hit[n] = row[label[n] - col0];
    }
}

/* (numerics, eq. 16) */
double az_kern_loss_end_cpu(const float *max, const double *sum, const float *hit, float *opt_each,
                            int64_t N)
{
    double total = 0;
    for (int64_t n = 0; n < N; n++) {
        double each = log(sum[n]) + ((double)max[n] - (double)hit[n]);
        if (opt_each != NULL)
            opt_each[n] = (float)each;
        total += each;
    }
    return total;
}

/* (numerics, eq. 17) */
void az_kern_loss_backward_cpu(float *logits, const float *max, const double *sum,
                               const int32_t *label, double scale, int64_t col0, int64_t N,
                               int64_t C)
{
#pragma omp parallel for schedule(static) if (N * C > AZ_KERN_PARALLEL)
    for (int64_t n = 0; n < N; n++) {
        float *row = logits + n * C;
        to_gradient(row, max[n], (float)(scale / sum[n]), C);
        if (label[n] >= col0 && label[n] - col0 < C)
            row[label[n] - col0] -= (float)scale;
    }
}
