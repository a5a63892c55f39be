/* model/block: a layer whose activations are there in part gives the bits of a layer whose
 * activations are all there; its output may take its input's place. */
#include <config.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/block.h"

enum { D = 12, F = 20, H = 4, G = 2, K = 4, N = 9, R = 3, LONGEST = 5 };

static const az_config config = {
    .D = D, .F = F, .V = 10, .L = 1, .H = H, .G = G, .K = K, .norm_eps = 1e-5, .rope_theta = 1e4};
static const int64_t in[AZ_N_LINEARS] = {D, D, D, H *K, D, D, F};
static const int64_t out[AZ_N_LINEARS] = {H * K, G *K, G *K, D, F, F, D};

static az_arena arena;
static float *x, *y, *d0, *d, *grad, *norm1, *norm2, *rope;
static float *weight[AZ_N_LINEARS], *bias[AZ_N_LINEARS], *pairs;
static az_acts acts;
static az_work work;
static az_layer layer;
static const az_kern *cpu;
static const int32_t pos[N] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
static const uint32_t sample[N] = {7, 7, 7, 7, 7, 2, 2, 2, 2};
static const az_seq seqs[] = {{0, 5, 0, 5}, {5, 4, 5, 4}};
static const az_tokens tokens = {
    .N = N,
    .pos = pos,
    .seqs = seqs,
    .n_seqs = 2,
    .dropout = {.p = 0.25, .seed = 5, .step = 3, .sample = sample, .pos = pos}};
static const az_numeric f32 = {false, AZ_F32};
static const int64_t all[AZ_N_LINEARS] = {R, R, R, R, R, R, R};

static float *take(int64_t n)
{
    return az_arena_take(&arena, (size_t)n, sizeof(float));
}

static void carve(void)
{
    x = take(N * D);
    y = take(N * D);
    d0 = take(N * D);
    d = take(N * D);
    norm1 = take(D);
    norm2 = take(D);
    rope = take(LONGEST * K);
    grad = take(AZ_N_LINEARS * R * (D + F + H * K));
    pairs = take(AZ_N_LINEARS * R * (D + F + H * K));
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        weight[i] = take(in[i] * out[i]);
        bias[i] = take(out[i]);
    }
    az_acts_carve(&acts, &arena, &config, N, all, AZ_STAGES_ALL, f32);
    work.rope = rope;
    az_work_carve(&work, &arena, &config, N, LONGEST, all, true, f32);
}

static void fill_random(float *v, int64_t n, uint32_t stream, float size)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u[4];
        az_philox(u, 11, (uint32_t)i, 0, stream, 0);
        v[i] = size * ((float)u[0] / 2147483648.0f - 1);
    }
}

static int set_up(void **state)
{
    (void)state;
    cpu = az_kern_get_cpu();
    carve();
    if (az_arena_init(&arena, "test") != AZ_OK)
        return -1;
    carve();
    fill_random(x, N * D, 1, 1);
    fill_random(d0, N * D, 2, 1);
    fill_random(norm1, D, 3, 1);
    fill_random(norm2, D, 4, 1);
    fill_random(pairs, AZ_N_LINEARS * R * (D + F + H * K), 5, 0.5f);
    az_config_fill_rope(rope, &config, LONGEST);
    layer.norm1 = (az_view){norm1, AZ_F32, 1, D};
    layer.norm2 = (az_view){norm2, AZ_F32, 1, D};
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        fill_random(weight[i], in[i] * out[i], 10 + (uint32_t)i, 0.5f);
        fill_random(bias[i], out[i], 20 + (uint32_t)i, 0.5f);
        layer.weight[i] = (az_view){weight[i], AZ_F32, out[i], in[i]};
        layer.bias[i] = (az_view){bias[i], AZ_F32, 1, out[i]};
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    az_arena_fini(&arena);
    return az_mem_get_total().blocks != 0;
}

/* Adapters on the linears of a set of bits: all A, then all B, one behind the other. Returns the
 * elements of their gradients. */
static int64_t fill_adapters(az_adapter *ads, int64_t *ranks, unsigned adapted)
{
    int64_t n = 0;
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        ads[i] = (az_adapter){0};
        ranks[i] = (adapted >> i & 1) != 0 ? R : 0;
        if (ranks[i] == 0)
            continue;
        ads[i] = (az_adapter){.R = R,
                              .in = in[i],
                              .out = out[i],
                              .scale = 1.5f,
                              .A = pairs + n,
                              .dA = grad + n,
                              .module = (uint32_t)i};
        n += R * in[i];
    }
    for (int i = 0; i < AZ_N_LINEARS; i++)
        if (ranks[i] > 0) {
            ads[i].B = pairs + n;
            ads[i].dB = grad + n;
            n += R * out[i];
        }
    az_layer_stack(ads);
    return n;
}

/* The arrays of a stage become NaN: what is read of them shows. */
static void poison(unsigned stages)
{
    const struct {
        unsigned stage;
        void *array;
        int64_t width;
    } table[] = {{AZ_STAGE_NORM1, acts.n1, D},
                 {AZ_STAGE_QKV, acts.q, H * K},
                 {AZ_STAGE_QKV, acts.k, G * K},
                 {AZ_STAGE_QKV, acts.v, G * K},
                 {AZ_STAGE_QKV, acts.t[AZ_IN_QKV], 3 * R},
                 {AZ_STAGE_ATTENTION, acts.att, H * K},
                 {AZ_STAGE_ATTENTION, acts.lse, H},
                 {AZ_STAGE_O, acts.h, D},
                 {AZ_STAGE_O, acts.t[AZ_IN_O], R},
                 {AZ_STAGE_NORM2, acts.n2, D},
                 {AZ_STAGE_GATE_UP, acts.g, F},
                 {AZ_STAGE_GATE_UP, acts.u, F},
                 {AZ_STAGE_GATE_UP, acts.t[AZ_IN_GATE_UP], 2 * R},
                 {AZ_STAGE_SILU, acts.a, F},
                 {AZ_STAGE_DOWN, acts.t[AZ_IN_DOWN], R}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int64_t j = 0; (table[i].stage & stages) != 0 && j < N * table[i].width; j++)
            ((float *)table[i].array)[j] = NAN;
}

/* Forward, then backward with the activations of the stages in have only; gradients and, unless
 * lowest, d come out. */
static void run(unsigned adapted, bool lowest, unsigned have)
{
    az_adapter ads[AZ_N_LINEARS];
    int64_t ranks[AZ_N_LINEARS];
    fill_adapters(ads, ranks, adapted);
    memcpy(d, d0, N * D * sizeof *d);
    poison(AZ_STAGES_ALL);
    az_layer_forward(y, x, &config, &layer, ads, &tokens, &acts, 0, 0, &work, cpu);
    poison(AZ_STAGES_ALL & ~have);
    az_layer_forward(NULL, x, &config, &layer, ads, &tokens, &acts, have,
                     az_layer_get_stages(ranks, lowest), &work, cpu);
    az_layer_backward(d, x, &config, &layer, ads, &tokens, &acts, &work, lowest, cpu);
}

static void check(unsigned adapted, bool lowest)
{
    enum { MOST = AZ_N_LINEARS * R * (D + F + H * K) };
    static float grad_all[MOST], d_all[N * D];
    az_adapter ads[AZ_N_LINEARS];
    int64_t ranks[AZ_N_LINEARS];
    const int64_t n = fill_adapters(ads, ranks, adapted);
    const unsigned read = az_layer_get_stages(ranks, lowest), heavy = az_layer_get_heavy(read);
    run(adapted, lowest, AZ_STAGES_ALL);
    memcpy(grad_all, grad, (size_t)n * sizeof *grad);
    memcpy(d_all, d, sizeof d_all);
    for (int64_t i = 0; i < n; i++)
        assert_true(isfinite(grad_all[i]));
    const unsigned haves[] = {
        read, heavy, 0, AZ_STAGE_NORM1, AZ_STAGES_ALL & ~AZ_STAGE_O, AZ_STAGE_QKV | AZ_STAGE_SILU};
    for (size_t i = 0; i < sizeof haves / sizeof *haves; i++) {
        run(adapted, lowest, haves[i]);
        if (memcmp(grad, grad_all, (size_t)n * sizeof *grad) != 0 ||
            (!lowest && memcmp(d, d_all, sizeof d_all) != 0))
            fail_msg("adapted 0x%x, %s, have 0x%x: other bits", adapted,
                     lowest ? "lowest" : "upper", haves[i]);
    }
}

static void test_stages(void **state)
{
    (void)state;
    for (unsigned adapted = 0; adapted < 1u << AZ_N_LINEARS; adapted++) {
        check(adapted, false);
        if (adapted != 0)
            check(adapted, true);
    }
}

/* What need not be kept is not: the numbers behind doc and plan. */
static void test_which(void **state)
{
    (void)state;
    const int64_t qv[AZ_N_LINEARS] = {[AZ_Q] = R, [AZ_V] = R}, down[AZ_N_LINEARS] = {[AZ_DOWN] = R};
    const unsigned heavy = AZ_STAGE_QKV | AZ_STAGE_ATTENTION | AZ_STAGE_O | AZ_STAGE_GATE_UP;
    assert_int_equal(az_layer_get_stages(all, false), AZ_STAGES_ALL);
    assert_int_equal(az_layer_get_stages(qv, false), heavy | AZ_STAGE_NORM1);
    assert_int_equal(az_layer_get_stages(down, true), AZ_STAGE_SILU | AZ_STAGE_DOWN);
    assert_int_equal(az_layer_get_heavy(AZ_STAGES_ALL), heavy | AZ_STAGE_DOWN);
    assert_int_equal(az_layer_get_heavy(AZ_STAGE_SILU | AZ_STAGE_DOWN),
                     AZ_STAGE_GATE_UP | AZ_STAGE_DOWN);
}

static void test_in_place(void **state)
{
    (void)state;
    static float keep[N * D];
    az_adapter ads[AZ_N_LINEARS];
    int64_t ranks[AZ_N_LINEARS];
    fill_adapters(ads, ranks, 0x7f);
    memcpy(keep, x, sizeof keep);
    az_layer_forward(y, x, &config, &layer, ads, &tokens, &acts, 0, 0, &work, cpu);
    az_layer_forward(x, x, &config, &layer, ads, &tokens, &acts, 0, 0, &work, cpu);
    assert_memory_equal(x, y, sizeof keep);
    memcpy(x, keep, sizeof keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_which),
        cmocka_unit_test(test_in_place),
    };
    return cmocka_run_group_tests_name("model/block", tests, set_up, tear_down) != 0;
}
