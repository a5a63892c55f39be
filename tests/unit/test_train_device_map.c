/* train: which rank uses which GPU: made-up nodes, and what is refused. */
#include <config.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "train/device_map.h"

#define MOST 8

static az_seen_gpu gpus[MOST][MOST];
static az_gpu_view views[MOST];
static int index_of[MOST];
static az_mapping mapping;

/* Rank r sees the GPUs whose numbers are the digits of list, and has cores near the nodes of memory
 * whose bits are set. GPU g is near node numa[g]. */
static void set_view(int r, const char *list, const int *numa, uint64_t near)
{
    views[r] = (az_gpu_view){.n = (int)strlen(list), .gpus = gpus[r], .numa = near};
    for (int i = 0; i < views[r].n; i++) {
        snprintf(gpus[r][i].uuid, sizeof gpus[r][i].uuid, "GPU-%c", list[i]);
        gpus[r][i].numa = numa != NULL ? numa[list[i] - '0'] : -1;
    }
}

static void all_see_all(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++)
        set_view(r, "0123", NULL, 0);
    assert_int_equal(az_device_map(index_of, &mapping, views, 4, "n1"), AZ_OK);
    for (int r = 0; r < 4; r++)
        assert_int_equal(index_of[r], r);
    assert_int_equal(mapping.n_gpus, 4);
    assert_false(mapping.narrow);
    /* Fewer ranks than GPUs. */
    assert_int_equal(az_device_map(index_of, &mapping, views, 3, "n1"), AZ_OK);
    assert_int_equal(index_of[2], 2);
    assert_int_equal(mapping.n_gpus, 4);
    assert_false(mapping.narrow);
}

/* Numbers are those of the rank's own list, which may be in another order. */
static void orders_differ(void **state)
{
    (void)state;
    set_view(0, "01", NULL, 0);
    set_view(1, "10", NULL, 0);
    assert_int_equal(az_device_map(index_of, &mapping, views, 2, "n1"), AZ_OK);
    assert_int_equal(index_of[0], 0);
    assert_int_equal(index_of[1], 0);
}

static void near_ones(void **state)
{
    (void)state;
    static const int crossed[] = {1, 1, 0, 0};
    const uint64_t near[] = {1, 1, 2, 2};
    for (int r = 0; r < 4; r++)
        set_view(r, "0123", crossed, near[r]);
    assert_int_equal(az_device_map(index_of, &mapping, views, 4, "n1"), AZ_OK);
    const int expected[] = {2, 3, 0, 1};
    assert_memory_equal(index_of, expected, sizeof expected);
    /* Half of the ranks: one on each side. */
    for (int r = 0; r < 2; r++)
        set_view(r, "0123", crossed, near[2 * r]);
    assert_int_equal(az_device_map(index_of, &mapping, views, 2, "n1"), AZ_OK);
    assert_true(index_of[0] >= 2);
    assert_true(index_of[1] < 2);
    /* A rank near both goes where there is room. */
    static const int sides[] = {0, 1, 1};
    set_view(0, "012", sides, 3);
    set_view(1, "012", sides, 1);
    set_view(2, "012", sides, 2);
    assert_int_equal(az_device_map(index_of, &mapping, views, 3, "n1"), AZ_OK);
    assert_int_equal(index_of[1], 0);
    assert_int_equal(index_of[0] + index_of[2], 3);
    /* More ranks on one side than GPUs: one of them takes a far one. */
    for (int r = 0; r < 3; r++)
        set_view(r, "012", sides, 1);
    assert_int_equal(az_device_map(index_of, &mapping, views, 3, "n1"), AZ_OK);
    assert_int_equal(index_of[0], 0);
    assert_int_equal(index_of[1] + index_of[2], 3);
}

static void one_visible_each(void **state)
{
    (void)state;
    const char *const lists[] = {"2", "0", "1"};
    for (int r = 0; r < 3; r++)
        set_view(r, lists[r], NULL, 0);
    assert_int_equal(az_device_map(index_of, &mapping, views, 3, "n1"), AZ_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(index_of[r], 0);
    assert_int_equal(mapping.n_gpus, 3);
    assert_true(mapping.narrow);
    assert_int_equal(az_device_map(index_of, &mapping, views, 1, "n1"), AZ_OK);
    assert_false(mapping.narrow);
}

/* A rank that sees little has it, though another one came first and would like it. */
static void the_first_gives_way(void **state)
{
    (void)state;
    set_view(0, "01", NULL, 0);
    set_view(1, "12", NULL, 0);
    set_view(2, "0", NULL, 0);
    assert_int_equal(az_device_map(index_of, &mapping, views, 3, "n1"), AZ_OK);
    assert_int_equal(index_of[0], 1);
    assert_int_equal(index_of[1], 1);
    assert_int_equal(index_of[2], 0);
    assert_true(mapping.narrow);
}

static void assert_refused(int n, const char *message)
{
    assert_int_equal(az_device_map(index_of, &mapping, views, n, "n1"), AZ_EINPUT);
    if (strstr(az_err_message(), message) == NULL)
        fail_msg("no \"%s\" in: %s", message, az_err_message());
    az_err_clear();
}

static void refusals(void **state)
{
    (void)state;
    for (int r = 0; r < 5; r++)
        set_view(r, "0123", NULL, 0);
    assert_refused(5, "n1 has 5 ranks, which see 4 GPUs (GPU-0, ...): each needs one of its own. "
                      "Start as many tasks as GPUs (srun or sbatch --ntasks-per-node=4)");
    set_view(0, "0", NULL, 0);
    set_view(1, "0", NULL, 0);
    assert_refused(2, "n1 has 2 ranks, which see 1 GPU (GPU-0)");
    set_view(2, "12", NULL, 0);
    assert_refused(3, "n1: local rank 1 would share the GPU GPU-0 with another rank, as it sees no "
                      "other that is free. Let each task see all GPUs of its node (srun "
                      "or sbatch --gpus-per-node=N --gpu-bind=none");
    set_view(1, "", NULL, 0);
    assert_refused(3, "n1: local rank 1 sees no GPU, as others do");
}

static void this_machine(void **state)
{
    (void)state;
    (void)az_device_find_numa();
    assert_int_equal(az_device_get_numa("ffff:ff:1f.0"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_see_all),  cmocka_unit_test(orders_differ),
        cmocka_unit_test(near_ones),    cmocka_unit_test(one_visible_each),
        cmocka_unit_test(refusals),     cmocka_unit_test(the_first_gives_way),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
