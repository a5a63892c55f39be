/* Dropout: against plain loops, its statistics, what its mask depends on and what not. */
#include <config.h>

#include "kern/kern_priv.h"
#include "kern_test.h"

static void fill_rows(uint32_t *sample, int32_t *pos, int64_t N)
{
    for (int64_t n = 0; n < N; n++) {
        sample[n] = (uint32_t)(5 + n / 10 * 3);
        pos[n] = (int32_t)(n % 10);
    }
}

static void check_dropout(int64_t N, int64_t D, double p, bool accumulate)
{
    size_t n = (size_t)(N * D);
    float *x = random_floats(n, 1), *y = random_floats(n, 2);
    double *xd = widened(x, n), *yd = widened(y, n);
    uint32_t *sample = az_alloc((size_t)N, sizeof *sample, "test");
    int32_t *pos = az_alloc((size_t)N, sizeof *pos, "test");
    fill_rows(sample, pos, N);
    az_kern_dropout_cpu(y, x, accumulate, p, 0x123456789abcdef0u, 7, 11, sample, pos, N, D);
    az_kern_dropout_ref(yd, xd, accumulate, p, 0x123456789abcdef0u, 7, 11, sample, pos, N, D);
    CHECK_ERROR(error_of(y, yd, n), TOL_KERNEL_F32);
    if (!accumulate) { /* in place */
        az_kern_dropout_cpu(x, x, false, p, 0x123456789abcdef0u, 7, 11, sample, pos, N, D);
        assert_memory_equal(x, y, n * sizeof *x);
    }
    az_free(x);
    az_free(y);
    az_free(xd);
    az_free(yd);
    az_free(sample);
    az_free(pos);
}

static void test_dropout(void **state)
{
    static const int64_t sizes[] = {1, 7, 33, 100};
    static const double rates[] = {0.0, 0.05, 0.5, 0.9, 0x1p-24, 1 - 0x1p-24};
    (void)state;
    for (size_t r = 0; r < COUNT(rates); r++)
        for (size_t n = 0; n < COUNT(sizes); n++) {
            for (size_t d = 0; d < COUNT(sizes); d++) {
                check_dropout(sizes[n], sizes[d], rates[r], false);
                check_dropout(sizes[n], sizes[d], rates[r], true);
            }
            check_dropout(sizes[n], 1031, rates[r], true);
        }
}

/* The share that is kept lies within 4 sigma of 1 - p, over all, per column and per row; what is
 * kept is scaled by 1 / (1 - p) exactly. */
static void test_rate(void **state)
{
    static const double rates[] = {0.05, 0.1, 0.5, 0.9};
    (void)state;
    enum { N = 1000, D = 260 };
    float *x = floats(N * D), *y = floats(N * D);
    uint32_t *sample = az_alloc(N, sizeof *sample, "test");
    int32_t *pos = az_alloc(N, sizeof *pos, "test");
    fill_rows(sample, pos, N);
    for (int i = 0; i < N * D; i++)
        x[i] = 1;
    for (size_t r = 0; r < COUNT(rates); r++) {
        double p = rates[r], kept = 0, sigma = sqrt(p * (1 - p)), component[4] = {0};
        az_kern_dropout_cpu(y, x, false, p, 42, 1, 0, sample, pos, N, D);
        for (int i = 0; i < N * D; i++) {
            assert_true(y[i] == 0.0f || y[i] == (float)(1 / (1 - p)));
            kept += y[i] != 0.0f ? 1 : 0;
            component[i % D % 4] += y[i] != 0.0f ? 1 : 0;
        }
        CHECK_ERROR(fabs(kept / (N * D) - (1 - p)) / sigma * sqrt(N * D), 4);
        for (int c = 0; c < 4; c++)
            CHECK_ERROR(fabs(component[c] / (N * D / 4) - (1 - p)) / sigma * sqrt(N * D / 4), 4);
    }
    az_free(x);
    az_free(y);
    az_free(sample);
    az_free(pos);
}

/* The words are base's Philox on every kind of CPU, also where the counter wraps. */
static void test_words(void **state)
{
    (void)state;
    enum { N = 100 };
    uint32_t words[4 * 128], want[4];
    for (int widest = 0; widest <= 512; widest += 256)
        for (uint32_t a0 = 7; a0 > 0; a0 = a0 == 7 ? 0xffffffe0u : 0) {
            az_kern_fill_words(words, 0xfedcba9876543210u, a0, 5, 0xfffffff0u, 9, N, widest);
            for (uint32_t j = 0; j < N; j++) {
                az_philox(want, 0xfedcba9876543210u, a0 + j, 5, 0xfffffff0u, 9);
                assert_memory_equal(words + 4 * j, want, sizeof want);
            }
        }
}

/* A row's mask is the same in another batch, at another place and by itself; it differs for another
 * seed, step, module, sample and position. */
static void test_dependence(void **state)
{
    (void)state;
    enum { N = 40, D = 101 };
    float *x = floats(N * D), *y = floats(N * D), *z = floats(D);
    uint32_t sample[N], other;
    int32_t pos[N], place;
    fill_rows(sample, pos, N);
    for (int i = 0; i < N * D; i++)
        x[i] = 1;
    az_kern_dropout_cpu(y, x, false, 0.5, 42, 3, 2, sample, pos, N, D);
    for (int n = N - 1; n >= 0; n--) {
        az_kern_dropout_cpu(z, x, false, 0.5, 42, 3, 2, &sample[n], &pos[n], 1, D);
        assert_memory_equal(z, y + n * D, D * sizeof *z);
    }
    for (int what = 0; what < 6; what++) {
        other = sample[4] + (what == 0);
        place = pos[4] + (what == 1);
        az_kern_dropout_cpu(z, x, false, 0.5,
                            what == 2   ? 43
                            : what == 5 ? 42 + ((uint64_t)1 << 32)
                                        : 42,
                            3 + (what == 3), 2 + (what == 4), &other, &place, 1, D);
        int equal = 0;
        for (int d = 0; d < D; d++)
            equal += z[d] == y[4 * D + d];
        assert_true(equal > D / 4 && equal < 3 * D / 4);
    }
    az_free(x);
    az_free(y);
    az_free(z);
}

/* p = 0 is the identity, to the bit, also for what is not finite. */
static void test_off(void **state)
{
    (void)state;
    uint32_t sample[1] = {1};
    int32_t pos[1] = {1};
    float x[5] = {1, -2.5f, INFINITY, NAN, 0x1p-149f}, y[5], sum[5] = {1, 1, 1, 1, 1};
    az_kern_dropout_cpu(y, x, false, 0, 1, 1, 1, sample, pos, 1, 5);
    assert_memory_equal(x, y, sizeof x);
    az_kern_dropout_cpu(x, x, false, 0, 1, 1, 1, sample, pos, 1, 5);
    assert_memory_equal(x, y, sizeof x);
    az_kern_dropout_cpu(sum, x, true, 0, 1, 1, 1, sample, pos, 1, 5);
    assert_true(sum[0] == 2 && sum[1] == -1.5f && isinf(sum[2]) && isnan(sum[3]) && sum[4] == 1);
}

/* What is dropped is dropped: NaN does not shine through; what is kept does. */
static void test_nan(void **state)
{
    (void)state;
    enum { D = 200 };
    uint32_t sample[1] = {3};
    int32_t pos[1] = {2};
    float x[D], y[D], z[D];
    int dropped = 0;
    for (int d = 0; d < D; d++) {
        x[d] = 1;
        z[d] = NAN;
    }
    az_kern_dropout_cpu(y, x, false, 0.5, 9, 9, 9, sample, pos, 1, D);
    az_kern_dropout_cpu(z, z, false, 0.5, 9, 9, 9, sample, pos, 1, D);
    for (int d = 0; d < D; d++) {
        assert_true(isnan(z[d]) == (y[d] != 0.0f));
        dropped += y[d] == 0.0f;
    }
    assert_true(dropped > 50 && dropped < 150);
}

/* The gradient is the same operation on dy: differences under the mask. */
enum { REF_N = 4, REF_D = 9 };

typedef struct {
    double *x;
    const uint32_t *sample;
    const int32_t *pos;
} drop_case;

static void drop_of(double *y, void *ctx)
{
    drop_case *c = ctx;
    az_kern_dropout_ref(y, c->x, false, 0.4, 5, 6, 7, c->sample, c->pos, REF_N, REF_D);
}

static void test_difference(void **state)
{
    (void)state;
    const uint32_t sample[REF_N] = {1, 1, 2, 3};
    const int32_t pos[REF_N] = {0, 1, 0, 5};
    double x[REF_N * REF_D], dy[REF_N * REF_D], diff[REF_N * REF_D];
    float dyf[REF_N * REF_D], dx[REF_N * REF_D];
    for (size_t i = 0; i < COUNT(x); i++) {
        x[i] = normal(8, i);
        dyf[i] = (float)normal(9, i);
        dy[i] = (double)dyf[i];
    }
    drop_case c = {x, sample, pos};
    differences(diff, x, COUNT(x), drop_of, &c, dy, COUNT(dy));
    az_kern_dropout_cpu(dx, dyf, false, 0.4, 5, 6, 7, sample, pos, REF_N, REF_D);
    CHECK_ERROR(error_of(dx, diff, COUNT(x)), TOL_DIFFERENCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),    cmocka_unit_test(test_words),
        cmocka_unit_test(test_rate),       cmocka_unit_test(test_dependence),
        cmocka_unit_test(test_off),        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_difference),
    };
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
