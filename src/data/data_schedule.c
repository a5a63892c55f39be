/* data/schedule: samples become steps, steps become micro-batches, micro-batches go to ranks.
 *
 * Everything here is a function of the dataset, the batching and the number of ranks, so all ranks
 * compute the same without a word. Only dealing knows the ranks: what is in a micro-batch does not
 * depend on them. All buffers are made at create.
 *
 * Contents: limits and create; order and micro-batches of a step; dealing; one micro-batch. */
#include <config.h>

#include "data/data_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct az_schedule {
    const az_dataset *set;
    az_batching how;
    double attention_cost;
    int n_ranks, rank;
    int64_t n_steps, epoch; /* steps an epoch; the epoch that order holds, -1: none */
    uint32_t *order;        /* [n] samples of the epoch */
    int64_t max_tokens, max_targets;
    int max_sequences;
    /* the step */
    int64_t max_samples;
    int64_t *samples, *micro_start; /* [max_samples], [max_samples + 1] */
    int n_micro, n_rounds;
    double *cost, *load;               /* [max_samples], [n_ranks] */
    int *by_cost, *at_rank, *at_round; /* [max_samples] */
    int *own;                          /* [max_samples] this rank's micro-batch of a round, or -1 */
    bool *busy;                        /* [n_ranks] has one of this round */
    /* the batch */
    int64_t *start, *rows;
    int32_t *ids, *pos, *labels;
    uint32_t *sample;
};

static int64_t length_of(const az_dataset *set, int64_t i)
{
    return set->start[i + 1] - set->start[i];
}

/* ---- limits and create */

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sum of the m largest of v[n], sorted upwards. */
static int64_t sum_largest(const int64_t *v, int64_t n, int64_t m)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < m; i++)
        sum += v[n - 1 - i];
    return sum;
}

static az_err find_limits(az_schedule *s)
{
    az_err err;
    const az_dataset *set = s->set;
    const int64_t n = set->n, budget = s->how.micro_batch_tokens;
    int64_t *v = NULL, m = s->max_samples;
    AZ_TRY(AZ_NEW(v, (size_t)n, "schedule"));
    for (int64_t i = 0; i < n; i++)
        v[i] = length_of(set, i);
    qsort(v, (size_t)n, sizeof *v, compare);
    if (s->how.micro_batch_size > 0) {
        m = az_min_i64(m, s->how.micro_batch_size);
        s->max_tokens = sum_largest(v, n, m);
    } else {
        int64_t most = 0;
        for (int64_t sum = 0; most < m && (sum += v[most]) <= budget;)
            most++;
        s->max_tokens = az_max_i64(az_min_i64(budget, sum_largest(v, n, m)), v[n - 1]);
        m = az_max_i64(most, 1);
    }
    for (int64_t i = 0; i < n; i++)
        v[i] = set->targets[i];
    qsort(v, (size_t)n, sizeof *v, compare);
    s->max_sequences = (int)m;
    s->max_targets = az_min_i64(sum_largest(v, n, m), s->max_tokens);
out:
    az_free(v);
    return err;
}

az_err az_schedule_create(az_schedule **out_schedule, const az_dataset *set,
                          const az_batching *batching, double attention_cost, int n_ranks, int rank)
{
    az_err err;
    az_schedule *s = NULL;
    *out_schedule = NULL;
    AZ_ASSERT(set->n > 0 && batching->batch_size > 0 && n_ranks > 0);
    AZ_ASSERT((batching->micro_batch_size > 0) != (batching->micro_batch_tokens > 0));
    AZ_TRY(AZ_NEW(s, 1, "schedule"));
    *s = (az_schedule){.set = set,
                       .how = *batching,
                       .attention_cost = attention_cost,
                       .n_ranks = n_ranks,
                       .rank = rank,
                       .n_steps = az_ceil_div(set->n, batching->batch_size),
                       .epoch = -1,
                       .max_samples = az_min_i64(set->n, batching->batch_size)};
    AZ_ASSERT(s->max_samples < INT32_MAX);
    AZ_TRY(find_limits(s));
    const size_t m = (size_t)s->max_samples, tokens = (size_t)s->max_tokens,
                 targets = (size_t)s->max_targets;
    AZ_TRY(AZ_NEW(s->order, (size_t)set->n, "schedule"));
    AZ_TRY(AZ_NEW(s->samples, m, "schedule"));
    AZ_TRY(AZ_NEW(s->micro_start, m + 1, "schedule"));
    AZ_TRY(AZ_NEW(s->cost, m, "schedule"));
    AZ_TRY(AZ_NEW(s->by_cost, m, "schedule"));
    AZ_TRY(AZ_NEW(s->at_rank, m, "schedule"));
    AZ_TRY(AZ_NEW(s->at_round, m, "schedule"));
    AZ_TRY(AZ_NEW(s->own, m, "schedule"));
    AZ_TRY(AZ_NEW(s->load, (size_t)n_ranks, "schedule"));
    AZ_TRY(AZ_NEW(s->busy, (size_t)n_ranks, "schedule"));
    AZ_TRY(AZ_NEW(s->start, (size_t)s->max_sequences + 1, "schedule"));
    AZ_TRY(AZ_NEW(s->ids, tokens, "schedule"));
    AZ_TRY(AZ_NEW(s->pos, tokens, "schedule"));
    AZ_TRY(AZ_NEW(s->sample, tokens, "schedule"));
    AZ_TRY(AZ_NEW(s->rows, targets, "schedule"));
    AZ_TRY(AZ_NEW(s->labels, targets, "schedule"));
    *out_schedule = s;
    s = NULL;
out:
    az_schedule_destroy(s);
    return err;
}

void az_schedule_destroy(az_schedule *opt_schedule)
{
    az_schedule *s = opt_schedule;
    if (s == NULL)
        return;
    void *const blocks[] = {s->order,   s->samples, s->micro_start, s->cost, s->by_cost,
                            s->at_rank, s->own,     s->at_round,    s->load, s->busy,
                            s->start,   s->ids,     s->pos,         s->rows, s->labels,
                            s->sample,  s};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        az_free(blocks[i]);
}

int64_t az_schedule_get_steps_per_epoch(const az_schedule *schedule)
{
    return schedule->n_steps;
}

int64_t az_schedule_count_steps(const az_schedule *schedule, double epochs, int64_t max_steps)
{
    if (max_steps > 0)
        return max_steps;
    /* 0.1 epochs of 30 steps are 3, though 0.1 * 30 is a little more in binary. */
    const double steps = ceil(epochs * (double)schedule->n_steps * (1 - 1e-12));
    return steps < 0x1p62 ? az_max_i64(1, (int64_t)steps) : (int64_t)1 << 62;
}

void az_schedule_get_max(const az_schedule *schedule, int64_t *out_tokens, int *out_sequences,
                         int64_t *out_targets)
{
    *out_tokens = schedule->max_tokens;
    *out_sequences = schedule->max_sequences;
    *out_targets = schedule->max_targets;
}

/* ---- order and micro-batches of a step */

static void set_epoch(az_schedule *s, int64_t epoch)
{
    if (epoch == s->epoch)
        return;
    if (s->how.shuffle)
        az_data_permute(s->order, s->set->n, s->how.seed, AZ_RNG_ORDER, (uint32_t)epoch);
    else if (s->epoch < 0)
        for (int64_t i = 0; i < s->set->n; i++)
            s->order[i] = (uint32_t)i;
    s->epoch = epoch;
}

/* samples[n] are cut into micro-batches in their order: so many samples, or as many as the token
 * budget takes. */
static void cut(az_schedule *s, int64_t n, az_step *step)
{
    int64_t tokens = 0, in_micro = 0; /* of the micro-batch being filled */
    s->n_micro = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t sample = s->samples[i], T = length_of(s->set, sample);
        const bool full = s->how.micro_batch_size > 0 ? in_micro == s->how.micro_batch_size
                                                      : tokens + T > s->how.micro_batch_tokens;
        if (i == 0 || full) {
            s->cost[s->n_micro] = 0;
            s->micro_start[s->n_micro++] = i;
            tokens = in_micro = 0;
        }
        tokens += T;
        in_micro++;
        s->cost[s->n_micro - 1] += (double)T + s->attention_cost * (double)T * (double)T;
        step->n_tokens += T;
        step->n_targets += s->set->targets[sample];
    }
    s->micro_start[s->n_micro] = n;
}

/* ---- dealing */

/* Whether micro-batch a is dealt before b. */
static bool is_before(const az_schedule *s, int a, int b)
{
    return s->cost[a] != s->cost[b] ? s->cost[a] > s->cost[b] : a < b;
}

static void sift_down(const az_schedule *s, int *v, int i, int n)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && is_before(s, v[child], v[child + 1]);
        if (is_before(s, v[child], v[i]))
            return;
        int t = v[i];
        v[i] = v[child];
        v[child] = t;
    }
}

/* by_cost: heapsort, the most expensive first. (qsort of the C library may allocate, and this runs
 * in each step.) */
static void sort_by_cost(az_schedule *s)
{
    int *v = s->by_cost, n = s->n_micro;
    for (int i = 0; i < n; i++)
        v[i] = i;
    for (int i = n / 2; i-- > 0;)
        sift_down(s, v, i, n);
    for (int end = n; end-- > 1;) {
        int t = v[0];
        v[0] = v[end];
        v[end] = t;
        sift_down(s, v, 0, end);
    }
}

/* In each round all ranks gather the same units, so a round takes as long as its longest
 * micro-batch. The sum of the rounds is least if the n_ranks longest share the first round, the
 * next ones the second, and so on; within a round the longest goes to the least loaded rank, which
 * evens out the sums. Returns the idle share. */
static double deal(az_schedule *s)
{
    double sum = 0, time = 0;
    s->n_rounds = (s->n_micro + s->n_ranks - 1) / s->n_ranks;
    sort_by_cost(s);
    memset(s->load, 0, (size_t)s->n_ranks * sizeof *s->load);
    for (int k = 0; k < s->n_micro; k++) {
        const int m = s->by_cost[k], round = k / s->n_ranks;
        if (k % s->n_ranks == 0) {
            memset(s->busy, 0, (size_t)s->n_ranks * sizeof *s->busy);
            time += s->cost[m];
            s->own[round] = -1;
        }
        int to = -1;
        for (int r = 0; r < s->n_ranks; r++)
            if (!s->busy[r] && (to < 0 || s->load[r] < s->load[to]))
                to = r;
        s->busy[to] = true;
        s->load[to] += s->cost[m];
        sum += s->cost[m];
        s->at_rank[m] = to;
        s->at_round[m] = round;
        if (to == s->rank)
            s->own[round] = m;
    }
    return fmax(0, 1 - sum / (time * s->n_ranks));
}

void az_schedule_set_step(az_schedule *schedule, int64_t step, az_step *out_step)
{
    az_schedule *s = schedule;
    const int64_t first = step % s->n_steps * s->how.batch_size,
                  n = az_min_i64(s->how.batch_size, s->set->n - first);
    *out_step = (az_step){.n_samples = n};
    set_epoch(s, step / s->n_steps);
    for (int64_t i = 0; i < n; i++)
        s->samples[i] = s->order[first + i];
    cut(s, n, out_step);
    out_step->idle = deal(s);
    out_step->n_micro = s->n_micro;
    out_step->n_rounds = s->n_rounds;
}

void az_schedule_get_samples(const az_schedule *schedule, const int64_t **out_samples,
                             const int64_t **out_micro_start)
{
    *out_samples = schedule->samples;
    *out_micro_start = schedule->micro_start;
}

void az_schedule_get_place(const az_schedule *schedule, int m, int *out_rank, int *out_round)
{
    AZ_ASSERT(m >= 0 && m < schedule->n_micro);
    *out_rank = schedule->at_rank[m];
    *out_round = schedule->at_round[m];
}

/* ---- one micro-batch */

void az_schedule_get_batch(az_schedule *schedule, int round, az_batch *out_batch)
{
    az_schedule *s = schedule;
    const az_dataset *set = s->set;
    AZ_ASSERT(round >= 0 && round < s->n_rounds);
    const int m = s->own[round];
    *out_batch = (az_batch){.start = s->start,
                            .ids = s->ids,
                            .pos = s->pos,
                            .sample = s->sample,
                            .rows = s->rows,
                            .labels = s->labels};
    s->start[0] = 0;
    if (m < 0)
        return;
    int64_t N = 0, n_targets = 0;
    for (int64_t i = s->micro_start[m]; i < s->micro_start[m + 1]; i++) {
        const int64_t sample = s->samples[i], first = set->start[sample],
                      T = length_of(set, sample);
        for (int64_t t = 0; t < T; t++) {
            const int32_t label = set->labels[first + t];
            s->ids[N + t] = set->ids[first + t];
            s->pos[N + t] = (int32_t)t;
            s->sample[N + t] = (uint32_t)sample;
            if (t > 0 && label != AZ_NO_LABEL) {
                s->rows[n_targets] = N + t - 1;
                s->labels[n_targets++] = label;
            }
        }
        N += T;
        s->start[++out_batch->B] = N;
    }
    AZ_ASSERT(N <= s->max_tokens && out_batch->B <= s->max_sequences);
    AZ_ASSERT(n_targets <= s->max_targets);
    out_batch->N = N;
    out_batch->n_targets = n_targets;
}
