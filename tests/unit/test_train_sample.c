/* train/sample: greedy choice, temperature and nucleus against probabilities counted by hand, and
 * that a draw depends on seed, prompt and position alone. */
#include <config.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "train/generate.h"

enum { V = 6, DRAWS = 20000 };

static az_arena arena;
static az_sampler sampler;

static int make_sampler(void **state)
{
    (void)state;
    az_sampler_carve(&sampler, &arena, V);
    if (az_arena_init(&arena, "test") != AZ_OK)
        return 1;
    az_sampler_carve(&sampler, &arena, V);
    return 0;
}

static int free_sampler(void **state)
{
    (void)state;
    az_arena_fini(&arena);
    return az_mem_get_total().blocks != 0;
}

static int32_t pick(const float *logits, double temperature, double top_p, uint64_t seed,
                    int64_t position, int64_t prompt)
{
    const az_sampling s = {.temperature = temperature, .top_p = top_p, .seed = seed};
    return az_sampler_pick(&sampler, logits, V, &s, position, prompt);
}

static void test_greedy(void **state)
{
    (void)state;
    const float logits[V] = {-3, 2, 1, 2, -8, 0};
    assert_int_equal(pick(logits, 0, 1, 1, 0, 0), 1); /* the lower of equals */
    const float low[V] = {-3e38f, -2e38f, -1e38f, -9, -8, -7};
    assert_int_equal(pick(low, 0, 1, 1, 0, 0), 5);
    /* The limits of temperature and top_p are greedy as well. */
    for (int i = 0; i < 100; i++) {
        assert_int_equal(pick(low, 1e-6, 1, 1, i, 0), 5);
        assert_int_equal(pick(logits, 1, 1e-9, 1, i, 0), 1);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    for (int i = 0; i < V; i++) {
        float logits[V] = {1, 2, 3, 4, 5, 6};
        logits[i] = NAN;
        assert_int_equal(pick(logits, 0, 1, 1, 0, 0), -1);
        assert_int_equal(pick(logits, 1, 0.5, 1, 0, 0), -1);
        logits[i] = INFINITY;
        assert_int_equal(pick(logits, 1, 1, 1, 0, 0), -1);
    }
}

/* Counts of draws against the probabilities p, within four standard deviations. */
static void check_counts(const float *logits, double temperature, double top_p, const double *p)
{
    int count[V] = {0};
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = pick(logits, temperature, top_p, 7, i, 3);
        assert_in_range(id, 0, V - 1);
        count[id]++;
    }
    for (int v = 0; v < V; v++) {
        const double sd = sqrt(DRAWS * p[v] * (1 - p[v]));
        if (!(fabs(count[v] - DRAWS * p[v]) <= 4 * sd))
            fail_msg("token %d: drawn %d times of %d, probability %g", v, count[v], DRAWS, p[v]);
    }
}

static void test_temperature(void **state)
{
    (void)state;
    const double p[V] = {0.1, 0.4, 0.05, 0.25, 0, 0.2};
    float logits[V];
    double q[V], sum = 0;
    for (int v = 0; v < V; v++)
        logits[v] = p[v] > 0 ? (float)log(p[v]) + 40 : -1000;
    check_counts(logits, 1, 1, p);
    for (int v = 0; v < V; v++)
        sum += q[v] = p[v] * p[v];
    for (int v = 0; v < V; v++)
        q[v] /= sum;
    check_counts(logits, 0.5, 1, q);
}

static void test_top_p(void **state)
{
    (void)state;
    const double p[V] = {0.1, 0.4, 0.05, 0.25, 0, 0.2};
    float logits[V];
    for (int v = 0; v < V; v++)
        logits[v] = p[v] > 0 ? (float)log(p[v]) : -1000;
    /* 0.4 is below 0.41, so the next one belongs to it; 0.4 + 0.25 reaches 0.64. */
    check_counts(logits, 1, 0.39, (const double[V]){0, 1, 0, 0, 0, 0});
    check_counts(logits, 1, 0.41, (const double[V]){0, 0.4 / 0.65, 0, 0.25 / 0.65, 0, 0});
    check_counts(logits, 1, 0.64, (const double[V]){0, 0.4 / 0.65, 0, 0.25 / 0.65, 0, 0});
    check_counts(logits, 1, 0.84, (const double[V]){0, 0.4 / 0.85, 0, 0.25 / 0.85, 0, 0.2 / 0.85});
    check_counts(logits, 1, 0.999, p);
    /* Of equals the lower ids come first. */
    const float flat[V] = {0, 0, 0, 0, 0, 0};
    check_counts(flat, 1, 0.49, (const double[V]){1. / 3, 1. / 3, 1. / 3, 0, 0, 0});
}

/* All orders of a vocabulary give the same nucleus. */
static void test_order(void **state)
{
    (void)state;
    for (int turn = 0; turn < V; turn++) {
        float logits[V];
        double p[V] = {0};
        for (int v = 0; v < V; v++)
            logits[v] = (float)((v + turn) % V);
        const double sum = 1 + exp(-1) + exp(-2);
        for (int k = 0; k < 3; k++)
            p[(V - 1 - k - turn + V) % V] = exp(-k) / sum;
        /* The softmax of 5, 4, 3 has 0.9525 of the whole. */
        check_counts(logits, 1, 0.93, p);
    }
}

static void test_counter(void **state)
{
    (void)state;
    const float flat[V] = {0, 0, 0, 0, 0, 0};
    int same[3] = {0};
    for (int i = 0; i < 600; i++) {
        int32_t a = pick(flat, 1, 1, 5, i, 2);
        assert_int_equal(a, pick(flat, 1, 1, 5, i, 2));
        same[0] += a == pick(flat, 1, 1, 6, i, 2);
        same[1] += a == pick(flat, 1, 1, 5, i + 1, 2);
        same[2] += a == pick(flat, 1, 1, 5, i, 3);
    }
    for (int k = 0; k < 3; k++) /* a sixth by chance, 9 is the standard deviation */
        assert_in_range(same[k], 100 - 37, 100 + 37);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),      cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_temperature), cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_order),       cmocka_unit_test(test_counter),
    };
    return cmocka_run_group_tests_name("train_sample", tests, make_sampler, free_sampler);
}
