/* data: division, order, steps, micro-batches, dealing. */
#include <config.h>

#include <math.h>

#include "data/data_priv.h"
#include "tests/unit/store_util.h"

/* A dataset of samples of these lengths; token t of sample i is 100 i + t, every second position is
 * a target. */
static void make_set(az_dataset *set, const int *lengths, int64_t n)
{
    int64_t tokens = 0;
    *set = (az_dataset){.n = n};
    for (int64_t i = 0; i < n; i++)
        tokens += lengths[i];
    set->start = az_alloc((size_t)n + 1, sizeof *set->start, "test");
    set->ids = az_alloc((size_t)tokens, sizeof *set->ids, "test");
    set->labels = az_alloc((size_t)tokens, sizeof *set->labels, "test");
    set->targets = az_alloc((size_t)n, sizeof *set->targets, "test");
    for (int64_t i = 0; i < n; i++) {
        set->start[i + 1] = set->start[i] + lengths[i];
        set->longest = az_max_i64(set->longest, lengths[i]);
        for (int t = 0; t < lengths[i]; t++) {
            set->ids[set->start[i] + t] = (int32_t)(100 * i + t);
            set->labels[set->start[i] + t] = t % 2 == 1 ? (int32_t)(50 * i + t) : AZ_NO_LABEL;
            set->targets[i] += t % 2 == 1;
        }
        set->n_targets += set->targets[i];
    }
    set->n_tokens = tokens;
}

/* n samples of 2 to 40 tokens. */
static void make_random_set(az_dataset *set, int64_t n, uint32_t seed)
{
    int lengths[512];
    assert_true(n <= 512);
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        az_philox(w, seed, (uint32_t)i, 0, 0, 0);
        lengths[i] = 2 + (int)(w[0] % 39);
    }
    make_set(set, lengths, n);
}

static void test_permute(void **state)
{
    (void)state;
    uint32_t order[1000], again[1000];
    bool seen[1000] = {false};
    az_data_permute(order, 1000, 7, AZ_RNG_ORDER, 0);
    for (int i = 0; i < 1000; i++) {
        assert_true(order[i] < 1000 && !seen[order[i]]);
        seen[order[i]] = true;
    }
    az_data_permute(again, 1000, 7, AZ_RNG_ORDER, 0);
    assert_memory_equal(order, again, sizeof order);
    az_data_permute(again, 1000, 7, AZ_RNG_ORDER, 1);
    assert_memory_not_equal(order, again, sizeof order);
    az_data_permute(again, 1000, 8, AZ_RNG_ORDER, 0);
    assert_memory_not_equal(order, again, sizeof order);
    az_data_permute(again, 1000, 7, AZ_RNG_SPLIT, 0);
    assert_memory_not_equal(order, again, sizeof order);
    /* The 24 orders of four, 24,000 times: chi-square with 23 degrees, 1e-6 quantile. */
    int count[256] = {0};
    double chi = 0;
    for (uint32_t epoch = 0; epoch < 24000; epoch++) {
        az_data_permute(order, 4, 3, AZ_RNG_ORDER, epoch);
        count[order[0] << 6 | order[1] << 4 | order[2] << 2 | order[3]]++;
    }
    for (int i = 0; i < 256; i++)
        chi += count[i] > 0 ? pow(count[i] - 1000, 2) / 1000 : 0;
    assert_true(chi < 70);
    az_data_permute(order, 1, 3, AZ_RNG_ORDER, 0);
    assert_int_equal(order[0], 0);
}

/* (samples, batch, micro-batch, epochs, max_steps) -> steps an epoch, steps, micro-batches in the
 * last step of an epoch, samples in it. */
static void test_arithmetic(void **state)
{
    (void)state;
    static const struct {
        int n, batch, micro;
        double epochs;
        int64_t max_steps, per_epoch, steps;
        int last_micro, last_samples;
    } cases[] = {
        {8, 8, 1, 1, 0, 1, 1, 8, 8},         {8, 8, 8, 3, 0, 1, 3, 1, 8},
        {8, 4, 2, 2, 0, 2, 4, 2, 4},         {9, 4, 2, 1, 0, 3, 3, 1, 1},
        {11, 4, 2, 1, 0, 3, 3, 2, 3},        {7, 16, 2, 1, 0, 1, 1, 4, 7},
        {7, 16, 16, 10, 0, 1, 10, 1, 7},     {1, 1, 1, 1, 0, 1, 1, 1, 1},
        {10, 3, 2, 1, 0, 4, 4, 1, 1},        {100, 8, 3, 1, 0, 13, 13, 2, 4},
        {100, 8, 3, 0.5, 0, 13, 7, 2, 4},    {100, 8, 3, 2.5, 0, 13, 33, 2, 4},
        {100, 8, 3, 1, 5, 13, 5, 2, 4},      {100, 8, 3, 0.001, 1000, 13, 1000, 2, 4},
        {100, 8, 3, 0.0001, 0, 13, 1, 2, 4}, {100, 1, 1, 0.07, 0, 100, 7, 1, 1},
        {30, 1, 1, 0.1, 0, 30, 3, 1, 1},     {30, 1, 1, 0.7, 0, 30, 21, 1, 1},
        {3, 1, 1, 1e6, 0, 3, 3000000, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        az_dataset set;
        az_schedule *s;
        az_step step;
        az_batching how = {.batch_size = cases[i].batch, .micro_batch_size = cases[i].micro};
        make_random_set(&set, cases[i].n, 1);
        assert_int_equal(az_schedule_create(&s, &set, &how, 0, 2, 0), AZ_OK);
        assert_int_equal(az_schedule_get_steps_per_epoch(s), cases[i].per_epoch);
        assert_int_equal(az_schedule_count_steps(s, cases[i].epochs, cases[i].max_steps),
                         cases[i].steps);
        az_schedule_set_step(s, cases[i].per_epoch - 1, &step);
        assert_int_equal(step.n_micro, cases[i].last_micro);
        assert_int_equal(step.n_samples, cases[i].last_samples);
        assert_int_equal(step.n_rounds, (cases[i].last_micro + 1) / 2);
        az_schedule_destroy(s);
        az_data_fini(&set);
    }
}

/* All ranks' micro-batches of a step are the samples of the step, each once, and hold what the
 * dataset says. Returns the sum of tokens. */
static int64_t check_step(const az_dataset *set, az_schedule **ranks, int n_ranks, int64_t step,
                          int *seen)
{
    az_step s, other;
    int64_t max_tokens, max_targets, tokens = 0, targets = 0;
    int max_sequences, samples = 0;
    az_schedule_set_step(ranks[0], step, &s);
    az_schedule_get_max(ranks[0], &max_tokens, &max_sequences, &max_targets);
    for (int r = 0; r < n_ranks; r++) {
        az_schedule_set_step(ranks[r], step, &other);
        assert_memory_equal(&s, &other, sizeof s);
        for (int k = 0; k < s.n_rounds; k++) {
            az_batch b;
            az_schedule_get_batch(ranks[r], k, &b);
            assert_true(b.N <= max_tokens && b.B <= max_sequences && b.n_targets <= max_targets);
            assert_true((b.B == 0) == (b.N == 0) && b.start[b.B] == b.N);
            int64_t at = 0;
            for (int q = 0; q < b.B; q++) {
                int64_t i = b.sample[b.start[q]], first = set->start[i];
                assert_int_equal(b.start[q + 1] - b.start[q], set->start[i + 1] - first);
                seen[i]++;
                samples++;
                for (int64_t t = b.start[q], p = 0; t < b.start[q + 1]; t++, p++) {
                    assert_int_equal(b.ids[t], set->ids[first + p]);
                    assert_int_equal(b.pos[t], p);
                    assert_int_equal(b.sample[t], i);
                    if (p == 0 || set->labels[first + p] == AZ_NO_LABEL)
                        continue;
                    assert_true(at < b.n_targets);
                    assert_int_equal(b.rows[at], t - 1);
                    assert_int_equal(b.labels[at++], set->labels[first + p]);
                }
            }
            assert_int_equal(at, b.n_targets);
            tokens += b.N;
            targets += b.n_targets;
        }
    }
    assert_int_equal(tokens, s.n_tokens);
    assert_int_equal(targets, s.n_targets);
    assert_int_equal(samples, s.n_samples);
    assert_true(s.idle >= 0 && s.idle < 1);
    return tokens;
}

static void check_epochs(const az_dataset *set, const az_batching *how, int n_ranks, int64_t *first)
{
    az_schedule *ranks[8];
    int seen[512] = {0};
    for (int r = 0; r < n_ranks; r++)
        assert_int_equal(az_schedule_create(&ranks[r], set, how, 1e-3, n_ranks, r), AZ_OK);
    const int64_t n_steps = az_schedule_get_steps_per_epoch(ranks[0]);
    int64_t k = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t tokens = 0;
        for (int64_t step = 0; step < n_steps; step++) {
            const int64_t *samples, *micro;
            az_step s;
            tokens += check_step(set, ranks, n_ranks, epoch * n_steps + step, seen);
            az_schedule_set_step(ranks[0], epoch * n_steps + step, &s);
            az_schedule_get_samples(ranks[0], &samples, &micro);
            /* The micro-batches are the same on any number of ranks. */
            for (int m = 0; m < s.n_micro; m++)
                for (int64_t i = micro[m]; i < micro[m + 1]; i++, k++) {
                    int64_t code = samples[i] << 20 | m;
                    if (n_ranks == 1)
                        first[k] = code;
                    assert_int_equal(first[k], code);
                }
        }
        assert_int_equal(tokens, set->n_tokens);
        for (int64_t i = 0; i < set->n; i++)
            assert_int_equal(seen[i], epoch + 1);
    }
    for (int r = 0; r < n_ranks; r++)
        az_schedule_destroy(ranks[r]);
}

static void test_ranks(void **state)
{
    (void)state;
    static const az_batching hows[] = {
        {.batch_size = 16, .micro_batch_size = 3, .shuffle = true, .seed = 5},
        {.batch_size = 16, .micro_batch_tokens = 64, .shuffle = true, .seed = 5},
        {.batch_size = 1000, .micro_batch_tokens = 30, .shuffle = true, .seed = 6},
        {.batch_size = 7, .micro_batch_size = 7},
        {.batch_size = 1, .micro_batch_size = 1, .shuffle = true},
    };
    static const int sizes[] = {1, 7, 100, 257};
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++)
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            az_dataset set;
            int64_t first[1024];
            make_random_set(&set, sizes[n], (uint32_t)n);
            for (int ranks = 1; ranks <= 8; ranks++)
                check_epochs(&set, &hows[h], ranks, first);
            az_data_fini(&set);
        }
}

static void expect_micro(const int *lengths, int n, const az_batching *how, const int *starts)
{
    az_dataset set;
    az_schedule *s;
    az_step step;
    const int64_t *samples, *micro;
    make_set(&set, lengths, n);
    assert_int_equal(az_schedule_create(&s, &set, how, 0, 1, 0), AZ_OK);
    az_schedule_set_step(s, 0, &step);
    az_schedule_get_samples(s, &samples, &micro);
    for (int m = 0; m <= step.n_micro; m++)
        assert_int_equal(micro[m], starts[m]);
    for (int i = 0; i < n; i++)
        assert_int_equal(samples[i], i); /* not shuffled */
    az_schedule_destroy(s);
    az_data_fini(&set);
}

static void test_budget(void **state)
{
    (void)state;
    const az_batching by_tokens = {.batch_size = 100, .micro_batch_tokens = 10};
    const az_batching by_number = {.batch_size = 100, .micro_batch_size = 3};
    const int lengths[] = {4, 6, 2, 9, 12, 3, 3, 4, 1, 30, 10};
    expect_micro(lengths, 11, &by_tokens, (const int[]){0, 2, 3, 4, 5, 8, 9, 10, 11});
    expect_micro(lengths, 11, &by_number, (const int[]){0, 3, 6, 9, 11});
}

/* The bounds hold what can occur: the longest together; many short ones; one that is too long. */
static void test_limits(void **state)
{
    (void)state;
    az_dataset set;
    az_schedule *s;
    int64_t tokens, targets;
    int sequences;
    const int lengths[] = {2, 3, 40, 5, 6, 7};
    make_set(&set, lengths, 6);
    az_batching how = {.batch_size = 4, .micro_batch_size = 2};
    assert_int_equal(az_schedule_create(&s, &set, &how, 0, 1, 0), AZ_OK);
    az_schedule_get_max(s, &tokens, &sequences, &targets);
    assert_int_equal(tokens, 47);
    assert_int_equal(sequences, 2);
    assert_int_equal(targets, 23);
    az_schedule_destroy(s);
    how = (az_batching){.batch_size = 4, .micro_batch_tokens = 16};
    assert_int_equal(az_schedule_create(&s, &set, &how, 0, 1, 0), AZ_OK);
    az_schedule_get_max(s, &tokens, &sequences, &targets);
    assert_int_equal(tokens, 40);
    assert_int_equal(sequences, 4);
    assert_int_equal(targets, 28);
    az_schedule_destroy(s);
    how.micro_batch_tokens = 64;
    assert_int_equal(az_schedule_create(&s, &set, &how, 0, 1, 0), AZ_OK);
    az_schedule_get_max(s, &tokens, &sequences, &targets);
    assert_int_equal(tokens, 58);
    az_schedule_destroy(s);
    az_data_fini(&set);
}

static void test_deal(void **state)
{
    (void)state;
    az_dataset set;
    az_schedule *s;
    az_step step;
    /* Longest first: rounds (50, 40), (30, 20), (10); the second round's longer one goes to the
     * rank that had the 40. */
    const int lengths[] = {10, 20, 30, 40, 50};
    const int rank_of[] = {0, 0, 1, 1, 0}, round_of[] = {2, 1, 1, 0, 0};
    make_set(&set, lengths, 5);
    const az_batching how = {.batch_size = 5, .micro_batch_size = 1};
    assert_int_equal(az_schedule_create(&s, &set, &how, 0, 2, 0), AZ_OK);
    az_schedule_set_step(s, 0, &step);
    assert_int_equal(step.n_rounds, 3);
    assert_true(fabs(step.idle - (1 - 150.0 / (2 * 90))) < 1e-12);
    for (int m = 0; m < 5; m++) {
        int rank, round;
        az_schedule_get_place(s, m, &rank, &round);
        assert_int_equal(round, round_of[m]);
        assert_int_equal(rank, rank_of[m]);
    }
    az_schedule_destroy(s);
    /* More ranks than micro-batches: the others have none. */
    assert_int_equal(az_schedule_create(&s, &set, &how, 0, 8, 7), AZ_OK);
    az_batch b;
    az_schedule_set_step(s, 0, &step);
    assert_int_equal(step.n_rounds, 1);
    az_schedule_get_batch(s, 0, &b);
    assert_int_equal(b.B, 0);
    assert_int_equal(b.N, 0);
    assert_int_equal(b.n_targets, 0);
    assert_true(fabs(step.idle - (1 - 150.0 / (8 * 50))) < 1e-12);
    az_schedule_destroy(s);
    az_data_fini(&set);
}

/* Steps may be asked for in any order, and cost no memory. */
static void test_any_order(void **state)
{
    (void)state;
    az_dataset set;
    az_schedule *s;
    az_step step, again;
    az_batch b;
    int64_t there[64];
    const int64_t *samples, *micro;
    make_random_set(&set, 200, 9);
    const az_batching how = {
        .batch_size = 64, .micro_batch_tokens = 100, .shuffle = true, .seed = 1};
    assert_int_equal(az_schedule_create(&s, &set, &how, 1e-3, 3, 1), AZ_OK);
    size_t calls = az_mem_get_total().calls;
    az_schedule_set_step(s, 9, &step);
    az_schedule_get_samples(s, &samples, &micro);
    memcpy(there, samples, sizeof there);
    for (int64_t k = 0; k < 12; k++) {
        az_schedule_set_step(s, k, &again);
        for (int r = 0; r < again.n_rounds; r++)
            az_schedule_get_batch(s, r, &b);
    }
    az_schedule_set_step(s, 9, &again);
    assert_memory_equal(&step, &again, sizeof step);
    assert_memory_equal(there, samples, sizeof there);
    assert_int_equal(az_mem_get_total().calls, calls);
    az_schedule_destroy(s);
    az_data_fini(&set);
}

static void test_split(void **state)
{
    (void)state;
    static const struct {
        int n;
        double fraction;
        int out;
    } cases[] = {{100, 0.1, 10}, {100, 0.999, 99}, {2, 0.01, 1}, {2, 0.99, 1}, {7, 0.5, 4}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        az_dataset set, all, out;
        bool seen[128] = {false};
        make_random_set(&all, cases[k].n, 4);
        make_random_set(&set, cases[k].n, 4);
        assert_int_equal(az_data_split(&set, &out, cases[k].fraction, 11), AZ_OK);
        assert_int_equal(out.n, cases[k].out);
        assert_int_equal(set.n + out.n, all.n);
        assert_int_equal(set.n_tokens + out.n_tokens, all.n_tokens);
        assert_int_equal(set.n_targets + out.n_targets, all.n_targets);
        assert_int_equal(az_max_i64(set.longest, out.longest), all.longest);
        const az_dataset *parts[] = {&set, &out};
        for (int p = 0; p < 2; p++) {
            int64_t before = -1;
            for (int64_t i = 0; i < parts[p]->n; i++) {
                int64_t start = parts[p]->start[i], length = parts[p]->start[i + 1] - start;
                int64_t from = parts[p]->ids[start] / 100;
                assert_true(from > before && !seen[from]);
                before = from;
                seen[from] = true;
                assert_int_equal(length, all.start[from + 1] - all.start[from]);
                assert_int_equal(parts[p]->targets[i], all.targets[from]);
                assert_memory_equal(parts[p]->ids + start, all.ids + all.start[from],
                                    (size_t)length * sizeof *all.ids);
                assert_memory_equal(parts[p]->labels + start, all.labels + all.start[from],
                                    (size_t)length * sizeof *all.labels);
            }
        }
        az_data_fini(&set);
        az_data_fini(&out);
        az_data_fini(&all);
    }
    az_dataset set, out;
    make_random_set(&set, 1, 4);
    expect_failure(az_data_split(&set, &out, 0.5, 1), AZ_EINPUT,
                   "1 samples cannot be divided into training and evaluation");
    az_data_fini(&set);
}

/* The hash of a dataset: each id, label and beginning of a sample, and nothing else. */
static void test_hash(void **state)
{
    (void)state;
    az_dataset set, out, same;
    make_random_set(&set, 9, 4);
    make_random_set(&same, 9, 4);
    const uint64_t h = az_data_hash(&set);
    same.n_cut = 3;
    assert_true(az_data_hash(&same) == h);
    for (int64_t t = 0; t < set.n_tokens; t++) {
        set.ids[t] ^= 1;
        assert_true(az_data_hash(&set) != h);
        set.ids[t] ^= 1;
        set.labels[t] ^= 1;
        assert_true(az_data_hash(&set) != h);
        set.labels[t] ^= 1;
    }
    for (int64_t i = 1; i < set.n; i++) {
        set.start[i]++;
        assert_true(az_data_hash(&set) != h);
        set.start[i]--;
    }
    assert_true(az_data_hash(&set) == h);
    assert_int_equal(az_data_split(&set, &out, 0.5, 1), AZ_OK);
    assert_true(az_data_hash(&set) != h && az_data_hash(&set) != az_data_hash(&out));
    az_data_fini(&set);
    az_data_fini(&out);
    az_data_fini(&same);
}

static az_err create_once(void *context)
{
    az_schedule *s;
    const az_batching how = {.batch_size = 4, .micro_batch_tokens = 30, .shuffle = true};
    az_err err = az_schedule_create(&s, context, &how, 0, 3, 1);
    az_schedule_destroy(s);
    return err;
}

static az_err split_once(void *context)
{
    az_dataset out;
    az_err err = az_data_split(context, &out, 0.5, 1);
    az_data_fini(&out);
    return err;
}

static void test_memory(void **state)
{
    (void)state;
    az_dataset set;
    make_random_set(&set, 20, 2);
    try_all_allocations(create_once, &set);
    try_all_allocations(split_once, &set);
    assert_int_equal(set.n, 10);
    az_data_fini(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permute),   cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_ranks),     cmocka_unit_test(test_budget),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_deal),
        cmocka_unit_test(test_any_order), cmocka_unit_test(test_split),
        cmocka_unit_test(test_hash),      cmocka_unit_test(test_memory),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
