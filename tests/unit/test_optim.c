/* optim: the schedule against its formulas, a step against torch's formulas in double, clipping,
 * order of sums, values that are not finite or would leave fixed point. */
#include <config.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kern/kern.h"
#include "optim/optim.h"
#include "tests/unit/tol.h"

enum { N = 2 * AZ_PARAMS_BLOCK + 77, FIRST = 1000 };

static az_comm *self;
static const int64_t off[] = {0, FIRST, N}; /* two layers */

/* Parameters p, which the optimizer changes in place. */
static az_params *open_params(float **out_p, const float *opt_values)
{
    az_params *params;
    int64_t first, n;
    assert_int_equal(az_params_create(&params, &(az_spans){2, off}, AZ_PARAMS_REPLICATED,
                                      AZ_PROGRESS_AUTO, az_kern_get_cpu(), NULL, self),
                     AZ_OK);
    *out_p = az_params_get_slice(params, &first, &n);
    assert_true(first == 0 && n == N);
    if (opt_values != NULL)
        memcpy(*out_p, opt_values, N * sizeof **out_p);
    return params;
}

static void add(az_optim *optim, const float *g)
{
    az_optim_add(optim, 1, g + FIRST);
    az_optim_end_unit(optim, 1);
    az_optim_add(optim, 0, g);
    az_optim_end_unit(optim, 0);
}

static void assert_near(double got, double expected, double tol)
{
    if (!(fabs(got - expected) <= tol))
        fail_msg("%.17g, expected %.17g", got, expected);
}

static void test_schedule(void **state)
{
    (void)state;
    az_lr lr = {AZ_LR_COSINE, 2e-3, 0, 4, 20};
    for (int s = 0; s < 4; s++) /* [19]: one schedule step a step, from zero */
        assert_near(az_lr_get(&lr, s), 2e-3 * s / 4, 1e-18);
    for (int s = 4; s < 20; s++)
        assert_near(az_lr_get(&lr, s), 1e-3 * (1 + cos(acos(-1) * (s - 4) / 16)), 1e-17);
    lr.kind = AZ_LR_LINEAR;
    lr.floor = 1e-3;
    assert_near(az_lr_get(&lr, 4), 2e-3, 1e-18);
    assert_near(az_lr_get(&lr, 12), 1.5e-3, 1e-18);
    assert_near(az_lr_get(&lr, 20), 1e-3, 1e-18);
    assert_near(az_lr_get(&lr, 99), 1e-3, 1e-18); /* past the end it stays */
    lr.kind = AZ_LR_CONSTANT;
    assert_near(az_lr_get(&lr, 19), 2e-3, 1e-18);
    lr = (az_lr){AZ_LR_LINEAR, 1, 0, 0, 1}; /* no warm-up, one step */
    assert_near(az_lr_get(&lr, 0), 1, 0);
}

static void fill(float *g, uint64_t seed, float scale)
{
    for (int i = 0; i < N; i++) {
        uint32_t u[4];
        az_philox(u, seed, (uint32_t)i, 0, 0, 0);
        g[i] = scale * (2 * az_u32_to_unit(u[0]) - 1);
    }
}

/* Two steps of two micro-batches against AdamW written out in double; the second is clipped. */
static void check_step(az_reduce reduce)
{
    static float g[2][N], start[N];
    float *p;
    static double ref[N], m[N], v[N];
    const az_optim_options o = {0.9, 0.99, 1e-8, 0.1, 20.0};
    const double lr = 0.01;
    az_optim *optim;
    fill(start, 1, 1);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int i = 0; i < N; i++)
        ref[i] = (double)start[i];
    az_params *params = open_params(&p, start);
    assert_int_equal(az_optim_create(&optim, params, &o, reduce, self), AZ_OK);
    for (int t = 1; t <= 2; t++) {
        double norm = 0;
        az_optim_begin(optim, 2);
        for (int k = 0; k < 2; k++) {
            fill(g[k], (uint64_t)(10 * t + k), t == 1 ? 0.01f : 10.0f);
            add(optim, g[k]);
            az_optim_add_loss(optim, 0.25 * (k + 1));
        }
        for (int i = 0; i < N; i++)
            norm += pow((double)g[0][i] + (double)g[1][i], 2);
        norm = sqrt(norm);
        az_optim_result r = az_optim_step(optim, lr);
        assert_true(r.finite);
        assert_near(r.loss, 0.75, 1e-15);
        assert_near(r.grad_norm, norm, TOL_KERNEL_F32 * norm);
        assert_near(r.clip, fmin(20 / (norm + 1e-6), 1), TOL_KERNEL_F32);
        assert_true(t == 1 ? r.clip == 1 : r.clip < 0.2);
        for (int i = 0; i < N; i++) {
            const double x = ((double)g[0][i] + (double)g[1][i]) * r.clip;
            m[i] = 0.9 * m[i] + 0.1 * x;
            v[i] = 0.99 * v[i] + 0.01 * x * x;
            ref[i] -= lr * 0.1 * ref[i];
            ref[i] -= lr / (1 - pow(0.9, t)) * m[i] / (sqrt(v[i]) / sqrt(1 - pow(0.99, t)) + 1e-8);
            assert_near((double)p[i], ref[i], 1e-6);
        }
    }
    assert_true(az_optim_has_gradient(optim, 5, 1));
    az_optim_destroy(optim);
    az_params_destroy(params);
}

static void test_step(void **state)
{
    (void)state;
    check_step(AZ_REDUCE_STEP);
    check_step(AZ_REDUCE_UNIT);
}

/* The sum does not depend on the order in which micro-batches come, nor on when it is reduced. */
static void test_order(void **state)
{
    (void)state;
    static float g[5][N];
    float *p[3];
    az_params *params[3];
    const az_optim_options o = {0.9, 0.999, 1e-8, 0, 1.0};
    for (int k = 0; k < 5; k++)
        fill(g[k], (uint64_t)k, powf(10, (float)(k - 2)));
    for (int way = 0; way < 3; way++) {
        az_optim *optim;
        params[way] = open_params(&p[way], NULL);
        assert_int_equal(az_optim_create(&optim, params[way], &o,
                                         way < 2 ? AZ_REDUCE_STEP : AZ_REDUCE_UNIT, self),
                         AZ_OK);
        az_optim_begin(optim, 5);
        for (int k = 0; k < 5; k++)
            add(optim, g[way == 0 ? k : 4 - k]);
        assert_true(az_optim_step(optim, 0.1).finite);
        assert_memory_equal(p[0], p[way], sizeof g[0]);
        az_optim_destroy(optim);
    }
    for (int way = 0; way < 3; way++)
        az_params_destroy(params[way]);
}

/* NaN, infinity, and what could wrap when all micro-batches are summed: nothing is updated, and it
 * is said. */
static void test_not_finite(void **state)
{
    (void)state;
    static float g[N], before[N];
    float *p;
    const float bad[] = {NAN, INFINITY, -INFINITY, 8192, -5000};
    const az_optim_options o = {0.9, 0.999, 1e-8, 0.1, 1.0};
    az_optim *optim;
    fill(before, 3, 1);
    az_params *params = open_params(&p, before);
    assert_int_equal(az_optim_create(&optim, params, &o, AZ_REDUCE_STEP, self), AZ_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fill(g, 4, 1);
        g[N - 1] = bad[i];
        az_optim_begin(optim, 2);
        add(optim, g);
        az_optim_result r = az_optim_step(optim, 0.1);
        assert_false(r.finite);
        assert_true(isnan(r.loss) && isnan(r.grad_norm));
        assert_memory_equal(p, before, sizeof before);
    }
    az_optim_begin(optim, 2);
    az_optim_add_loss(optim, NAN);
    assert_false(az_optim_step(optim, 0.1).finite);
    /* One micro-batch alone may use the whole range, and the next step is as if nothing had been.
     */
    g[N - 1] = 8191;
    az_optim_begin(optim, 1);
    add(optim, g);
    assert_true(az_optim_step(optim, 0.1).finite);
    az_optim_destroy(optim);
    az_params_destroy(params);
}

/* Blocks of memory that cannot be had; what is taken is what was measured. */
static void check_memory(az_reduce reduce)
{
    const az_optim_options o = {0.9, 0.999, 1e-8, 0.1, 1.0};
    const size_t blocks = az_mem_get_total().blocks;
    az_params *params = NULL;
    az_optim *optim = NULL;
    for (long n = 0;; n++) {
        az_mem_set_fault(n);
        az_err err = az_params_create(&params, &(az_spans){2, off}, AZ_PARAMS_REPLICATED,
                                      AZ_PROGRESS_AUTO, az_kern_get_cpu(), NULL, self);
        if (err == AZ_OK)
            err = az_optim_create(&optim, params, &o, reduce, self);
        az_mem_set_fault(-1);
        if (err == AZ_OK)
            break;
        assert_int_equal(err, AZ_EENV);
        assert_non_null(strstr(az_err_message(), "out of memory"));
        az_err_clear();
        az_params_destroy(params);
        assert_int_equal(az_mem_get_total().blocks, blocks);
    }
    az_optim_destroy(optim);
    az_params_destroy(params);
    assert_int_equal(az_mem_get_total().blocks, blocks);
}

static void test_memory(void **state)
{
    (void)state;
    check_memory(AZ_REDUCE_STEP);
    check_memory(AZ_REDUCE_UNIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule), cmocka_unit_test(test_step),
        cmocka_unit_test(test_order),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_memory),
    };
    if (az_comm_create_self(&self) != AZ_OK)
        return 99;
    int failed = cmocka_run_group_tests_name("optim", tests, NULL, NULL);
    az_comm_fini(self);
    return failed != 0;
}
