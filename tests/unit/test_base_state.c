/* base: the state file. What it holds; texts that would break its lines; failures by their message;
 * what a failed run keeps of an earlier state; two threads at once. */
#include <config.h>

#include "base_util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/state.h"

static char dir[64], text[4096];

static int setup(void **state)
{
    (void)state;
    unsetenv("SLURM_JOB_ID");
    strcpy(dir, "/tmp/adze-state-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    char path[80];
    snprintf(path, sizeof path, "%s/state", dir);
    unlink(path);
    return rmdir(dir); /* fails if a temporary file is left */
}

static const char *read_state(void)
{
    char path[80];
    snprintf(path, sizeof path, "%s/state", dir);
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(n > 0);
    text[n] = '\0';
    return text;
}

static void assert_line(const char *line)
{
    char whole[2048];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    const char *s = read_state();
    if (strstr(s, whole) == NULL && strncmp(s, whole + 1, strlen(whole + 1)) != 0)
        fail_msg("no line \"%s\" in:\n%s", line, s);
}

static const az_state example = {.state = "requeue",
                                 .reason = "SIGUSR1",
                                 .code = 75,
                                 .step = 120,
                                 .total_steps = 500,
                                 .checkpoint = "checkpoint-000120.h5"};

static void contents(void **state)
{
    (void)state;
    char host[200] = "host: ", when[32];
    const time_t now = time(NULL);
    struct tm tm;
    gethostname(host + 6, sizeof host - 6);
    assert_false(az_state_is(dir, "requeue") || az_state_exists(dir));
    setenv("SLURM_JOB_ID", "4711", 1);
    assert_int_equal(az_state_write(dir, &example), AZ_OK);
    unsetenv("SLURM_JOB_ID");
    assert_line("state: requeue");
    assert_line("reason: SIGUSR1");
    assert_line("code: 75");
    assert_line("step: 120");
    assert_line("total_steps: 500");
    assert_line("checkpoint: checkpoint-000120.h5");
    assert_line(host);
    assert_line("job: 4711");
    const char *at = strstr(text, "\ntime: ");
    assert_non_null(at);
    assert_non_null(strptime(at + 7, "%Y-%m-%dT%H:%M:%SZ\n", &tm));
    assert_true(timegm(&tm) >= now && timegm(&tm) <= time(NULL));
    az_state_format_time(when, sizeof when);
    assert_int_equal(strlen(when), 20);
    assert_true(az_state_is(dir, "requeue") && az_state_exists(dir));
    assert_false(az_state_is(dir, "req"));
    assert_false(az_state_is(dir, "requeued"));
    assert_int_equal(
        az_state_write(dir, &(az_state){.state = "done", .reason = "", .checkpoint = ""}), AZ_OK);
    assert_line("state: done");
    assert_line("reason: ");
    assert_line("checkpoint: ");
    assert_line("job: ");
}

/* A message of several lines, with what would steer a terminal, must not make lines of its own. */
static void controls(void **state)
{
    (void)state;
    az_state s = example;
    s.reason = "a.yaml:3: bad\n\tstate: done\r\x1b[31m\x7f \xc3\xa9";
    s.checkpoint = "x\ncode: 0";
    assert_int_equal(az_state_write(dir, &s), AZ_OK);
    assert_line("reason: a.yaml:3: bad  state: done  [31m  \xc3\xa9");
    assert_line("checkpoint: x code: 0");
    assert_line("state: requeue");
}

/* Cut between characters; the lines behind it are whole. */
static void long_reason(void **state)
{
    (void)state;
    char reason[5000];
    for (size_t lead = 0; lead < 2; lead++) {
        memset(reason, 'x', sizeof reason);
        for (size_t i = lead; i + 1 < sizeof reason; i += 2)
            memcpy(reason + i, "\xc3\xa9", 2);
        reason[sizeof reason - 1] = '\0';
        az_state s = example;
        s.reason = reason;
        assert_int_equal(az_state_write(dir, &s), AZ_OK);
        const char *r = strstr(read_state(), "\nreason: "), *end = strstr(r, "...\ncode: 75\n");
        assert_non_null(end);
        const size_t n = (size_t)(end - r) - 9;
        assert_true(n > 900 && n % 2 == lead && memcmp(r + 9, reason, n) == 0);
        assert_line("total_steps: 500");
        assert_true(strstr(text, "\ntime: ") != NULL && text[strlen(text) - 1] == '\n');
    }
}

static void failures(void **state)
{
    (void)state;
    char long_dir[5000];
    assert_int_equal(az_state_write("/nowhere/at/all", &example), AZ_EENV);
    assert_string_equal(az_err_message(),
                        "/nowhere/at/all/state: cannot write: No such file or directory");
    az_err_clear();
    assert_int_equal(az_state_change("/nowhere/at/all", "failed", "lost", 4), ENOENT);
    assert_string_equal(az_err_message(), ""); /* other threads leave the one message alone */
    memset(long_dir, 'd', sizeof long_dir);
    long_dir[sizeof long_dir - 1] = '\0';
    assert_int_equal(az_state_change(long_dir, "failed", "lost", 4), ENAMETOOLONG);
    assert_false(az_state_is(long_dir, "done"));
    /* A directory in its place: what was there stays, and no temporary file is left. */
    char path[80];
    snprintf(path, sizeof path, "%s/state", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(az_state_change(dir, "failed", "lost", 4), EISDIR);
    assert_int_equal(rmdir(path), 0);
    if (geteuid() == 0) /* nothing is forbidden to root */
        return;
    assert_int_equal(chmod(dir, 0555), 0);
    assert_int_equal(az_state_change(dir, "failed", "lost", 4), EACCES);
    assert_int_equal(chmod(dir, 0777), 0);
}

/* The watchdog does not know what was saved; the file does. */
static void change_keeps(void **state)
{
    (void)state;
    assert_int_equal(az_state_change(dir, "failed", "lost", 4), 0);
    assert_line("state: failed");
    assert_line("step: 0");
    assert_line("checkpoint: ");
    assert_int_equal(az_state_write(dir, &example), AZ_OK);
    assert_int_equal(az_state_change(dir, "failed", "rank 3\nlost", 4), 0);
    assert_line("state: failed");
    assert_line("reason: rank 3 lost");
    assert_line("code: 4");
    assert_line("step: 120");
    assert_line("total_steps: 500");
    assert_line("checkpoint: checkpoint-000120.h5");
    assert_true(az_state_is(dir, "failed"));
}

static void *write_often(void *reason)
{
    for (int i = 0; i < 50; i++)
        if (az_state_change(dir, "failed", reason, 4) != 0)
            return reason;
    return NULL;
}

static void two_threads(void **state)
{
    (void)state;
    pthread_t other;
    void *failed;
    char mine[] = "mine", theirs[] = "theirs";
    assert_int_equal(az_state_write(dir, &example), AZ_OK);
    assert_int_equal(pthread_create(&other, NULL, write_often, theirs), 0);
    assert_null(write_often(mine));
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    const char *s = read_state();
    assert_true(strstr(s, "\nreason: mine\n") != NULL || strstr(s, "\nreason: theirs\n") != NULL);
    assert_line("checkpoint: checkpoint-000120.h5");
}

/* Where no file can be made the one that is there is written over: a directory in the place of the
 * temporary file stands for the full disk. */
static void no_new_file(void **state)
{
    (void)state;
    char host[65] = "", path[160];
    gethostname(host, sizeof host - 1);
    const az_state first = {
        .state = "running", .reason = "a reason that is long", .checkpoint = ""};
    assert_int_equal(az_state_write(dir, &first), AZ_OK);
    snprintf(path, sizeof path, "%s/state.tmp-%s-%ld", dir, host, (long)getpid());
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(
        az_state_write(dir, &(az_state){.state = "done", .reason = "", .checkpoint = ""}), AZ_OK);
    assert_int_equal(strncmp(read_state(), "state: done\nreason: \ncode: 0\n", 29), 0);
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(contents, setup, teardown),
        cmocka_unit_test_setup_teardown(controls, setup, teardown),
        cmocka_unit_test_setup_teardown(long_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(failures, setup, teardown),
        cmocka_unit_test_setup_teardown(no_new_file, setup, teardown),
        cmocka_unit_test_setup_teardown(change_keeps, setup, teardown),
        cmocka_unit_test_setup_teardown(two_threads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
