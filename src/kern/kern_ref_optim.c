/* Plain twins: cross entropy and AdamW. */
#include <config.h>

#include <math.h>

#include "kern/kern_ref.h"

/* log of the sum of exp(x). */
static double log_sum_exp(const double *x, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

double az_kern_loss_ref(const double *logits, const int32_t *label, int64_t N, int64_t V)
{
    double total = 0;
    for (int64_t n = 0; n < N; n++)
        total += log_sum_exp(logits + n * V, V) - logits[n * V + label[n]];
    return total;
}

void az_kern_loss_backward_ref(double *dlogits, const double *logits, const int32_t *label,
                               double scale, int64_t N, int64_t V)
{
    for (int64_t n = 0; n < N; n++) {
        double lse = log_sum_exp(logits + n * V, V);
        for (int64_t i = 0; i < V; i++)
            dlogits[n * V + i] = scale * (exp(logits[n * V + i] - lse) - (i == label[n] ? 1 : 0));
    }
}

void az_kern_adamw_ref(double *p, double *m, double *v, const double *g, size_t n,
                       const az_adamw *o)
{
    double c1 = 1 - pow(o->beta1, (double)o->t), c2 = 1 - pow(o->beta2, (double)o->t);
    for (size_t i = 0; i < n; i++) {
        p[i] -= o->lr * o->weight_decay * p[i];
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g[i];
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g[i] * g[i];
        p[i] -= o->lr * (m[i] / c1) / (sqrt(v[i] / c2) + o->eps);
    }
}
