/* pass: the order of units. */
#include <config.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program),
    };
    return cmocka_run_group_tests_name("pass", tests, NULL, NULL) != 0;
}
