/* train/sample: one token from logits.
 *
 * Temperature and nucleus as Holtzman et al. 2020 ("The Curious Case of Neural Text Degeneration"):
 * the smallest set of most probable tokens whose probabilities reach top_p, drawn from in
 * proportion. Sums run in a fixed order in double. */
#include <config.h>

#include <math.h>

#include "train/generate.h"

void az_sampler_carve(az_sampler *sampler, az_arena *arena, int64_t V)
{
    sampler->weight = az_arena_take(arena, (size_t)V, sizeof *sampler->weight);
    sampler->heap = az_arena_take(arena, (size_t)V, sizeof *sampler->heap);
}

/* The most probable token, the lowest id of equals; -1 if a logit is not finite. */
static int32_t find_best(const float *logits, int64_t V)
{
    int64_t best = 0;
    for (int64_t i = 0; i < V; i++) {
        if (!isfinite(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

/* A number in [0, 1), 53 bits. */
static double draw(const az_sampling *s, int64_t position, int64_t prompt)
{
    uint32_t w[4];
    az_philox(w, s->seed, (uint32_t)position, (uint32_t)prompt, 0, az_rng_word(AZ_RNG_SAMPLE, 0));
    return (double)((uint64_t)(w[0] >> 5) << 26 | w[1] >> 6) * 0x1p-53;
}

/* More probable first, of equals the lower id. */
static bool is_before(const double *weight, int32_t a, int32_t b)
{
    return weight[a] > weight[b] || (weight[a] == weight[b] && a < b);
}

static void sift_down(int32_t *heap, int64_t i, int64_t n, const double *weight)
{
    const int32_t moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(weight, heap[child + 1], heap[child]))
            child++;
        if (!is_before(weight, heap[child], moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Take tokens off the heap, most probable first, until they reach mass; the k-th of them comes to
 * rest in heap[V - k]. Returns how many, and their weight. */
static int64_t take_nucleus(az_sampler *s, int64_t V, double mass, double *out_kept)
{
    int64_t left = V;
    double kept = 0;
    for (int64_t i = 0; i < V; i++)
        s->heap[i] = (int32_t)i;
    for (int64_t i = V / 2 - 1; i >= 0; i--)
        sift_down(s->heap, i, V, s->weight);
    do {
        const int32_t top = s->heap[0];
        left--;
        s->heap[0] = s->heap[left];
        sift_down(s->heap, 0, left, s->weight);
        s->heap[left] = top;
        kept += s->weight[top];
    } while (left > 0 && kept < mass);
    *out_kept = kept;
    return V - left;
}

int32_t az_sampler_pick(az_sampler *sampler, const float *logits, int64_t V,
                        const az_sampling *sampling, int64_t position, int64_t prompt)
{
    const int32_t best = find_best(logits, V);
    double total = 0;
    if (best < 0 || sampling->temperature == 0)
        return best;
    for (int64_t i = 0; i < V; i++) {
        sampler->weight[i] =
            exp(((double)logits[i] - (double)logits[best]) / sampling->temperature);
        total += sampler->weight[i];
    }
    const double u = draw(sampling, position, prompt);
    int32_t last = best;
    if (sampling->top_p < 1) {
        const int64_t n = take_nucleus(sampler, V, sampling->top_p * total, &total);
        double at = u * total;
        for (int64_t k = 1; k <= n; k++) {
            last = sampler->heap[V - k];
            if ((at -= sampler->weight[last]) < 0)
                break;
        }
        return last;
    }
    double at = u * total;
    for (int64_t i = 0; i < V; i++) {
        if (sampler->weight[i] == 0)
            continue;
        last = (int32_t)i;
        if ((at -= sampler->weight[i]) < 0)
            break;
    }
    return last;
}
