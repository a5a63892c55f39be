/* base: errors, bugs, lists of faults, log, memory, arenas. */
#include <config.h>

#include "base_util.h"

#include <signal.h>
#include <sys/wait.h>

static void the_first_message_wins(void **state)
{
    (void)state;
    assert_string_equal(az_err_message(), "");
    assert_int_equal(az_fail(AZ_EINPUT, "first %d", 1), AZ_EINPUT);
    assert_int_equal(az_fail(AZ_EENV, "second"), AZ_EENV);
    assert_string_equal(az_err_message(), "first 1");
    az_err_clear();
    assert_string_equal(az_err_message(), "");
    assert_int_equal(az_fail(AZ_ELOST, "third"), AZ_ELOST);
    assert_string_equal(az_err_message(), "third");
}

static void a_long_message_is_cut(void **state)
{
    (void)state;
    char *text = test_malloc(AZ_ERR_MAX + 100);
    memset(text, 'x', AZ_ERR_MAX + 99);
    text[AZ_ERR_MAX + 99] = '\0';
    az_fail(AZ_EINPUT, "%s", text);
    assert_int_equal(strlen(az_err_message()), AZ_ERR_MAX - 1);
    assert_string_equal(az_err_message() + AZ_ERR_MAX - 4, "...");
    az_err_clear();
    text[AZ_ERR_MAX - 1] = '\0';
    az_fail(AZ_EINPUT, "%s", text); /* just fits */
    assert_string_equal(az_err_message(), text);
    test_free(text);
}

static void a_place_comes_in_front(void **state)
{
    (void)state;
    char *text = test_malloc(AZ_ERR_MAX);
    assert_int_equal(az_err_place(AZ_OK, "f"), AZ_OK);
    assert_string_equal(az_err_message(), "");
    assert_int_equal(az_err_place(az_fail(AZ_EENV, "disk"), "f"), AZ_EENV);
    assert_string_equal(az_err_message(), "disk");
    az_err_clear();
    assert_int_equal(az_err_place(az_fail(AZ_EINPUT, "bad"), "file:1"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "file:1: bad");
    az_err_place(AZ_EINPUT, "\x1b[31mred"); /* a name must not steer the terminal */
    assert_string_equal(az_err_message(), "?[31mred: file:1: bad");
    az_err_clear();
    memset(text, 'x', AZ_ERR_MAX - 1);
    text[AZ_ERR_MAX - 1] = '\0';
    az_fail(AZ_EINPUT, "%s", text + 3);
    az_err_place(AZ_EINPUT, "f"); /* just fits */
    assert_int_equal(strlen(az_err_message()), AZ_ERR_MAX - 1);
    assert_int_equal(az_err_message()[AZ_ERR_MAX - 2], 'x');
    az_err_place(AZ_EINPUT, "g");
    assert_int_equal(strlen(az_err_message()), AZ_ERR_MAX - 1);
    assert_memory_equal(az_err_message(), "g: f: x", 7);
    assert_string_equal(az_err_message() + AZ_ERR_MAX - 4, "...");
    az_err_clear();
    az_fail(AZ_EINPUT, "short");
    az_err_place(AZ_EINPUT, text); /* no place for it */
    assert_string_equal(az_err_message(), "short");
    test_free(text);
}

static az_err three_calls(int failing, int *calls)
{
    az_err err;
    *calls = 1;
    AZ_TRY(failing == 1 ? AZ_EENV : AZ_OK);
    *calls = 2;
    AZ_TRY(failing == 2 ? AZ_EINPUT : AZ_OK);
    *calls = 3;
out:
    return err;
}

static void try_goes_to_the_exit(void **state)
{
    (void)state;
    int calls;
    assert_int_equal(three_calls(0, &calls), AZ_OK);
    assert_int_equal(calls, 3);
    assert_int_equal(three_calls(1, &calls), AZ_EENV);
    assert_int_equal(calls, 1);
    assert_int_equal(three_calls(2, &calls), AZ_EINPUT);
    assert_int_equal(calls, 2);
}

static void a_bug_aborts_with_its_place(void **state)
{
    (void)state;
    char text[512];
    int status;
    capture c = capture_begin(2);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        AZ_ASSERT(1 + 1 == 2);
        AZ_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    capture_end(&c, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "adze: bug at "));
    assert_non_null(strstr(text, "test_base_core.c:"));
    assert_non_null(strstr(text, "1 + 1 == 3 does not hold"));
}

static void faults_become_one_message(void **state)
{
    (void)state;
    az_faults faults = {0};
    assert_int_equal(az_faults_report(&faults, "file"), AZ_OK);
    assert_int_equal(az_faults_add(&faults, "one %d\x1b", 1), AZ_OK);
    assert_int_equal(az_faults_report(&faults, "file"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "file: one 1?");
    az_err_clear();
    az_fail(AZ_EINPUT, "file: two");
    assert_int_equal(az_faults_take(&faults, AZ_EINPUT, "file"), AZ_OK);
    assert_string_equal(az_err_message(), "");
    assert_int_equal(az_faults_take(&faults, AZ_OK, "file"), AZ_OK);
    assert_int_equal(az_faults_take(&faults, AZ_EENV, "file"), AZ_EENV);
    assert_int_equal(az_faults_report(&faults, "file"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "file: 2 faults:\n  one 1?\n  two");
    az_err_clear();
    for (int i = 0; i < AZ_FAULTS_MAX; i++)
        az_faults_add(&faults, "more");
    assert_int_equal(az_faults_report(&faults, "file"), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "file: 42 faults:\n"));
    assert_non_null(strstr(az_err_message(), "\n  and 2 more"));
    az_faults_fini(&faults);
    assert_int_equal(faults.n, 0);
    assert_null(faults.text.s);
}

static void only_the_speaker_speaks(void **state)
{
    (void)state;
    char out[64], err[64];
    assert_true(az_log_is_speaker());
    capture c = capture_begin(1), d = capture_begin(2);
    az_say("a %d", 1);
    az_warn("b %d", 2);
    az_log_set_speaker(false);
    az_say("c");
    az_warn("d");
    az_log_set_speaker(true);
    capture_end(&d, err, sizeof err);
    capture_end(&c, out, sizeof out);
    assert_string_equal(out, "a 1\n");
    assert_string_equal(err, "adze: warning: b 2\n");
    double t = az_now();
    assert_true(t > 0 && az_now() >= t);
}

static size_t bytes_of(const char *label, size_t *out_peak)
{
    const char *name;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &name, &bytes, &peak); i++)
        if (strcmp(name, label) == 0) {
            *out_peak = peak;
            return bytes;
        }
    *out_peak = 0;
    return 0;
}

static void memory_is_counted(void **state)
{
    (void)state;
    size_t peak;
    az_mem_total start = az_mem_get_total(), now;
    char *a = az_alloc(10, 3, "test a"), *b = az_alloc(0, 8, "test b");
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    for (int i = 0; i < 30; i++)
        assert_int_equal(a[i], 0);
    now = az_mem_get_total();
    assert_int_equal(now.blocks, start.blocks + 2);
    assert_int_equal(now.bytes, start.bytes + 30);
    assert_int_equal(now.calls, start.calls + 2);
    assert_int_equal(bytes_of("test a", &peak), 30);
    memset(a, 1, 30);
    a = az_realloc(a, 100, 1, "test a");
    assert_non_null(a);
    for (int i = 0; i < 100; i++)
        assert_int_equal(a[i], i < 30);
    assert_int_equal(bytes_of("test a", &peak), 100);
    assert_int_equal(peak, 130); /* both copies were there */
    a = az_realloc(a, 7, 1, "test a");
    assert_int_equal(bytes_of("test a", &peak), 7);
    assert_int_equal(a[6], 1);
    char *s = az_strdup("text", "test a");
    assert_string_equal(s, "text");
    assert_int_equal(bytes_of("test a", &peak), 12);
    az_free(s);
    az_free(a);
    az_free(b);
    az_free(NULL);
    now = az_mem_get_total();
    assert_int_equal(now.blocks, start.blocks);
    assert_int_equal(now.bytes, start.bytes);
    assert_true(now.peak_bytes >= start.bytes + 130);
    assert_int_equal(bytes_of("test a", &peak), 0);
}

static void too_much_memory_is_a_failure(void **state)
{
    (void)state;
    double *p;
    char *kept = az_alloc(4, 1, "test");
    assert_null(az_alloc(SIZE_MAX / 2, 3, "test a"));
    assert_memory_equal(az_err_message(), "out of memory: ", 15);
    assert_non_null(strstr(az_err_message(), "for test a"));
    az_err_clear();
    assert_int_equal(AZ_NEW(p, (size_t)1 << 60, "test a"), AZ_EENV);
    assert_null(p);
    memcpy(kept, "abc", 4);
    assert_null(az_realloc(kept, SIZE_MAX, 2, "test"));
    assert_string_equal(kept, "abc");
    az_free(kept);
}

static void the_nth_allocation_fails(void **state)
{
    (void)state;
    void *p[4];
    az_mem_set_fault(2);
    for (int i = 0; i < 4; i++) {
        p[i] = az_alloc(1, 1, "test");
        assert_int_equal(p[i] == NULL, i == 2);
    }
    for (int i = 0; i < 4; i++)
        az_free(p[i]);
    az_mem_set_fault(0);
    az_mem_set_fault(-1);
    p[0] = az_alloc(1, 1, "test");
    assert_non_null(p[0]);
    az_free(p[0]);
}

/* The two passes of carving: pieces of the second lie where the first has counted. */
static char *carve(az_arena *arena, int64_t **out_second)
{
    char *first = az_arena_take(arena, 5, 1);
    *out_second = az_arena_take(arena, 3, sizeof **out_second);
    return first;
}

static void an_arena_is_carved_twice(void **state)
{
    (void)state;
    az_mem_total start = az_mem_get_total();
    az_arena arena = {0};
    int64_t *second;
    assert_null(carve(&arena, &second));
    assert_null(second);
    size_t counted = arena.used;
    assert_int_equal(az_arena_init(&arena, "test"), AZ_OK);
    assert_int_equal(arena.size, counted);
    char *first = carve(&arena, &second);
    assert_int_equal(arena.used, counted);
    assert_int_equal((uintptr_t)first % 64, 0);
    assert_int_equal((uintptr_t)second % 64, 0);
    assert_true((char *)second >= first + 5);
    assert_true((char *)(second + 3) <= arena.base + arena.size);
    assert_int_equal(az_mem_get_total().calls, start.calls + 1);
#ifdef AZ_DEBUG
    for (char *gap = first + 5; gap < first + 5 + 64 && gap < (char *)second; gap++)
        assert_int_equal((unsigned char)*gap, 0xa5);
#endif
    az_arena_fini(&arena);
    assert_null(arena.base);
    assert_int_equal(az_mem_get_total().blocks, start.blocks);

    carve(&arena, &second);
    az_mem_set_fault(0);
    assert_int_equal(az_arena_init(&arena, "test"), AZ_EENV);
    az_arena_fini(&arena);
}

static void an_arena_is_not_overrun(void **state)
{
    (void)state;
    char text[512];
    int status;
    capture c = capture_begin(2);
    pid_t child = fork();
    if (child == 0) {
        az_arena arena = {0};
        signal(SIGABRT, SIG_DFL);
        az_arena_take(&arena, 64, 1);
        if (az_arena_init(&arena, "test") != AZ_OK)
            _exit(1);
        az_arena_take(&arena, 64, 1);
        az_arena_take(&arena, 1, 1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    capture_end(&c, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_first_message_wins, clear_error),
        cmocka_unit_test_setup(a_long_message_is_cut, clear_error),
        cmocka_unit_test_setup(a_place_comes_in_front, clear_error),
        cmocka_unit_test_setup(try_goes_to_the_exit, clear_error),
        cmocka_unit_test_setup(a_bug_aborts_with_its_place, clear_error),
        cmocka_unit_test_setup(faults_become_one_message, clear_error),
        cmocka_unit_test_setup(only_the_speaker_speaks, clear_error),
        cmocka_unit_test_setup(memory_is_counted, clear_error),
        cmocka_unit_test_setup(too_much_memory_is_a_failure, clear_error),
        cmocka_unit_test_setup(the_nth_allocation_fails, clear_error),
        cmocka_unit_test_setup(an_arena_is_carved_twice, clear_error),
        cmocka_unit_test_setup(an_arena_is_not_overrun, clear_error),
    };
    return cmocka_run_group_tests_name("base core", tests, NULL, NULL) != 0;
}
