/* pass: the order of units, memory and operations from the sizes alone. */
#include <config.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/block.h"
#include "pass/pass.h"

static void expect_program(const az_pass_units *units, bool training, const int *expected, int n)
{
    int program[32];
    assert_int_equal(az_pass_list_program(NULL, units, training), n);
    assert_int_equal(az_pass_list_program(program, units, training), n);
    assert_memory_equal(program, expected, (size_t)n * sizeof *program);
}

#define EXPECT(units, training, ...)                            \
    expect_program(units, training, (const int[]){__VA_ARGS__}, \
                   (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static void test_program(void **state)
{
    (void)state;
    /* embedding 0 1, layers 2 3 4, norm 5, head 6 7 */
    az_pass_units u = {.n_embed = 2, .n_layers = 3, .n_head = 2, .lowest = 0};
    EXPECT(&u, true, 0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 4, 3, 2);
    EXPECT(&u, false, 0, 1, 2, 3, 4, 5, 6, 7);
    u.lowest = 2; /* nothing goes back below it */
    EXPECT(&u, true, 0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 4);
    u.lowest = -1;
    EXPECT(&u, true, 0, 1, 2, 3, 4, 5, 6, 7, 6, 7);
    u.lowest = 1;
    u.tied = true; /* the head's pieces are the embedding's */
    EXPECT(&u, true, 0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 4, 3);
    u.n_embed = u.n_head = 1; /* a head of one piece is passed once */
    EXPECT(&u, true, 0, 1, 2, 3, 4, 0, 3, 2);
    u.tied = false;
    EXPECT(&u, true, 0, 1, 2, 3, 4, 5, 3, 2);
}

/* Two layers' adapters on q and v, and none. */
enum { LAYERS = 4, R = 2 };
static const az_config config = {
    .D = 64, .F = 160, .V = 500, .L = LAYERS, .H = 4, .G = 2, .K = 16, .norm_eps = 1e-5};

static size_t measure(const az_lora *lora, int lowest, int n_head, int group, az_level level)
{
    const az_level levels[LAYERS] = {level, level, level, level};
    const az_pass_units units = {.n_embed = n_head,
                                 .n_layers = LAYERS,
                                 .n_head = n_head,
                                 .lowest = lowest,
                                 .head_rows = az_ceil_div(config.V, n_head)};
    const az_pass_limits limits = {.tokens = 100, .targets = 40, .longest = 50, .sequences = 3};
    az_pass_options options = {.forward = limits, .opt_levels = levels};
    if (lowest >= 0) {
        options.backward = limits;
        options.backward.group = group;
    }
    const az_pass_sizes sizes =
        az_pass_measure(&config, lora, &units, &options, (az_numeric){false, AZ_F32});
    return sizes.device + sizes.host;
}

/* What one more micro-batch takes, and what a level takes, in f32. Nothing is allocated. */
static void test_measure(void **state)
{
    (void)state;
    enum { N = 100, D = 64, HK = 64, GK = 32, F = 160, H = 4, ALIGN = 4096 };
    static az_linear linears[LAYERS * AZ_N_LINEARS];
    static int pair_of[LAYERS * AZ_N_LINEARS];
    az_pair pairs[4];
    az_lora lora = {
        .linears = linears, .n_linears = LAYERS * AZ_N_LINEARS, .pairs = pairs, .pair_of = pair_of};
    for (int i = 0; i < lora.n_linears; i++) {
        const int layer = i / AZ_N_LINEARS, kind = i % AZ_N_LINEARS;
        linears[i] = (az_linear){.in = D, .out = kind == AZ_V ? GK : D, .layer = layer};
        pair_of[i] = -1;
        if (layer < 2 || (kind != AZ_Q && kind != AZ_V))
            continue;
        pairs[lora.n_pairs] = (az_pair){
            .linear = i, .R = R, .a_off = lora.n_elements, .b_off = lora.n_elements + R * D};
        lora.n_elements += R * (D + linears[i].out);
        pair_of[i] = lora.n_pairs++;
    }
    const size_t calls = az_mem_get_total().calls;
    const int64_t one = (int64_t)measure(&lora, 2, 1, 1, AZ_LEVEL_RECOMPUTE),
                  two = (int64_t)measure(&lora, 2, 1, 2, AZ_LEVEL_RECOMPUTE),
                  cheap = (int64_t)measure(&lora, 2, 1, 1, AZ_LEVEL_CHEAP),
                  keep = (int64_t)measure(&lora, 2, 1, 1, AZ_LEVEL_KEEP),
                  pieces = (int64_t)measure(&lora, 2, 2, 1, AZ_LEVEL_RECOMPUTE),
                  two_pieces = (int64_t)measure(&lora, 2, 2, 2, AZ_LEVEL_RECOMPUTE);
    const int64_t products = N * (2 * HK + 2 * GK + H + D + 2 * F + 2 * R);
    /* Two adapted layers' inputs, and what passes. */
    assert_in_range(two - one, 4 * N * 3 * D, 4 * N * 3 * D + ALIGN);
    assert_in_range(cheap - one, 4 * 2 * products, 4 * 2 * products + 2 * ALIGN);
    assert_in_range(keep - cheap, 4 * 2 * N * D, 4 * 2 * N * D + ALIGN);
    /* Targets, their norms and gradients, if the head comes in pieces. */
    assert_in_range(two_pieces - pieces, 4 * (3 * N + 3 * 40) * D,
                    4 * (3 * N + 3 * 40) * D + 2 * ALIGN);
    /* Millions of micro-batches are not counted one by one: each takes what the third one takes. */
    for (int n_head = 1; n_head <= 2; n_head++)
        for (int level = AZ_LEVEL_RECOMPUTE; level <= AZ_LEVEL_KEEP; level++) {
            const int64_t third = (int64_t)measure(&lora, 2, n_head, 3, (az_level)level) -
                                  (int64_t)measure(&lora, 2, n_head, 2, (az_level)level);
            const int64_t all = (int64_t)measure(&lora, 2, n_head, 5000002, (az_level)level) -
                                (int64_t)measure(&lora, 2, n_head, 2, (az_level)level);
            assert_in_range(all, 5000000 * (third - 256), 5000000 * (third + 256));
        }
    assert_true(measure(&(az_lora){0}, -1, 1, 1, AZ_LEVEL_KEEP) < (size_t)one);
    assert_int_equal(az_mem_get_total().calls, calls);
}

static void test_flops(void **state)
{
    (void)state;
    const int64_t none[AZ_N_LINEARS] = {0}, down[AZ_N_LINEARS] = {[AZ_DOWN] = 8};
    int64_t all[AZ_N_LINEARS];
    for (int i = 0; i < AZ_N_LINEARS; i++)
        all[i] = 8;
    const double D = 64, F = 160, HK = 64, GK = 32, keys = 10;
    const double W = 2 * D * HK + 2 * D * GK + 3 * D * F;
    const double P = 8 * (2 * (D + HK) + 2 * (D + GK) + 3 * (D + F));
    az_flops f = az_flops_of_layer(&config, none, keys, false);
    assert_true(f.forward == 2 * W + 4 * HK * keys);
    assert_true(f.backward == 2 * W + 10 * HK * keys);
    assert_true(f.recompute[AZ_LEVEL_RECOMPUTE] == f.forward - 2 * D * F);
    assert_true(f.recompute[AZ_LEVEL_CHEAP] == 0 && f.recompute[AZ_LEVEL_KEEP] == 0);
    f = az_flops_of_layer(&config, all, keys, false);
    assert_true(f.forward == 2 * W + 4 * HK * keys + 2 * P);
    assert_true(f.backward == 2 * W + 10 * HK * keys + 4 * P);
    f = az_flops_of_layer(&config, down, keys, true); /* the pair's own gradients alone */
    assert_true(f.backward == 2 * 8 * (F + 2 * D));
    f = az_flops_of_head(&config, 1);
    assert_true(f.forward == 2 * D * 500 && f.backward == f.forward && f.recompute[0] == 0);
    assert_true(az_flops_of_head(&config, 2).recompute[AZ_LEVEL_KEEP] == f.forward);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests_name("pass", tests, NULL, NULL) != 0;
}
