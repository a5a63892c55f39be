/* data/set: random orders of samples; a dataset's end and its division in two. */
#include <config.h>

#include "data/data_priv.h"

#include <math.h>
#include <string.h>

/* Fisher and Yates, from the end. j in [0, i] without bias: Lemire, "Fast Random Integer Generation
 * in an Interval" (ACM TOMACS 29, 2019): the high word of x * s, where x is drawn again if the low
 * word is below 2^32 mod s. Words of attempt k are Philox at (number, i, k). */
static uint32_t draw(uint32_t s, uint64_t seed, az_rng_purpose purpose, uint32_t number, uint32_t i)
{
    const uint32_t least = -s % s;
    for (uint32_t k = 0;; k++) {
        uint32_t words[4];
        az_philox(words, seed, number, i, k, az_rng_word(purpose, 0));
        for (int w = 0; w < 4; w++) {
            uint64_t m = (uint64_t)words[w] * s;
            if ((uint32_t)m >= least)
                return (uint32_t)(m >> 32);
        }
    }
}

void az_data_permute(uint32_t *order, int64_t n, uint64_t seed, az_rng_purpose purpose,
                     uint32_t number)
{
    AZ_ASSERT(n < UINT32_MAX);
    for (int64_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (uint32_t i = (uint32_t)n; i-- > 1;) {
        uint32_t j = draw(i + 1, seed, purpose, number, i), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

void az_data_fini(az_dataset *set)
{
    az_free(set->start);
    az_free(set->ids);
    az_free(set->labels);
    az_free(set->targets);
    *set = (az_dataset){0};
}

uint64_t az_data_hash(const az_dataset *set)
{
    const size_t n = (size_t)set->n, tokens = (size_t)set->n_tokens;
    AZ_ASSERT(set->start[0] == 0 && set->start[n] == set->n_tokens);
    uint64_t h = az_hash64(set->start, (n + 1) * sizeof *set->start, 0);
    h = az_hash64(set->ids, tokens * sizeof *set->ids, h);
    return az_hash64(set->labels, tokens * sizeof *set->labels, h);
}

/* Copy sample i of from to the end of to, whose arrays have room. from may be to. */
static void move_sample(az_dataset *to, const az_dataset *from, int64_t i)
{
    const int64_t start = from->start[i], length = from->start[i + 1] - start, at = to->n_tokens;
    const int32_t targets = from->targets[i];
    memmove(to->ids + at, from->ids + start, (size_t)length * sizeof *to->ids);
    memmove(to->labels + at, from->labels + start, (size_t)length * sizeof *to->labels);
    to->start[to->n] = at;
    to->targets[to->n++] = targets;
    to->n_tokens += length;
    to->n_targets += targets;
    to->longest = az_max_i64(to->longest, length);
}

az_err az_data_split(az_dataset *set, az_dataset *held_out, double fraction, uint64_t seed)
{
    az_err err;
    uint32_t *order = NULL;
    unsigned char *is_out = NULL;
    *held_out = (az_dataset){0};
    if (set->n < 2)
        return az_fail(AZ_EINPUT, "%lld samples cannot be divided into training and evaluation",
                       (long long)set->n);
    AZ_ASSERT(fraction > 0 && fraction < 1);
    const int64_t n = set->n,
                  n_out = az_min_i64(n - 1, az_max_i64(1, llround(fraction * (double)n)));
    int64_t tokens = 0;
    AZ_TRY(AZ_NEW(order, (size_t)n, "dataset loading"));
    AZ_TRY(AZ_NEW(is_out, (size_t)n, "dataset loading"));
    az_data_permute(order, n, seed, AZ_RNG_SPLIT, 0);
    for (int64_t i = 0; i < n_out; i++) {
        is_out[order[i]] = 1;
        tokens += set->start[order[i] + 1] - set->start[order[i]];
    }
    AZ_TRY(AZ_NEW(held_out->start, (size_t)n_out + 1, "dataset"));
    AZ_TRY(AZ_NEW(held_out->ids, (size_t)tokens, "dataset"));
    AZ_TRY(AZ_NEW(held_out->labels, (size_t)tokens, "dataset"));
    AZ_TRY(AZ_NEW(held_out->targets, (size_t)n_out, "dataset"));
    az_dataset kept = *set;
    kept.n = kept.n_tokens = kept.n_targets = kept.longest = 0;
    /* Samples that are kept move towards the front, over what has been read. */
    for (int64_t i = 0; i < n; i++)
        move_sample(is_out[i] ? held_out : &kept, set, i);
    kept.start[kept.n] = kept.n_tokens;
    held_out->start[held_out->n] = held_out->n_tokens;
    *set = kept;
out:
    if (err != AZ_OK)
        az_data_fini(held_out);
    az_free(order);
    az_free(is_out);
    return err;
}
