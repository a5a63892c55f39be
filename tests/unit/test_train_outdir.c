/* The claim on an output directory: the text of DIR/lock and its parsing, what follows from lock
 * and text, a claim and its end, what is swept away and what is not. */
#include <config.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/holder.h"
#include "train/outdir.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/adze-outdir-XXXXXX");
    return mkdtemp(dir) == NULL || chdir(dir) != 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return chdir("/") != 0 || system(command) != 0;
}

static void check_name(const az_holder *h, const char *expected)
{
    az_str name = {0};
    assert_int_equal(az_holder_add_name(&name, h), AZ_OK);
    assert_string_equal(name.s, expected);
    az_str_fini(&name);
}

static void text_there_and_back(void **state)
{
    (void)state;
    char text[AZ_HOLDER_BYTES];
    az_holder self, back,
        given = {.host = "node1",
                 .pid = 77,
                 .job = "123",
                 .restarts = 2,
                 .boot = "b-1",
                 .space = "pid:[4]",
                 .time = "2026-11-30T12:00:00Z"};
    const size_t n = az_holder_write(text, &given);
    assert_string_equal(text, "host: node1\npid: 77\njob: 123\nrestarts: 2\nboot: b-1\n"
                              "space: pid:[4]\ntime: 2026-11-30T12:00:00Z\n");
    assert_true(n == strlen(text) && az_holder_parse(&back, text, n));
    assert_memory_equal(&back, &given, sizeof back);
    check_name(&back, "job 123 on node1 (pid 77) since 2026-11-30T12:00:00Z");
    given.job[0] = '\0';
    check_name(&given, "a process on node1 (pid 77) since 2026-11-30T12:00:00Z");
    check_name(NULL, "another process");

    setenv("SLURM_JOB_ID", "4711", 1);
    setenv("SLURM_RESTART_COUNT", "3", 1);
    az_holder_set_self(&self);
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_RESTART_COUNT");
    assert_string_equal(self.job, "4711");
    assert_true(self.restarts == 3 && self.pid == getpid() && self.host[0] != '\0');
    assert_true(az_holder_parse(&back, text, az_holder_write(text, &self)));
    assert_memory_equal(&back, &self, sizeof back);
    assert_false(az_holder_is_dead(&self, &self));
}

/* Whatever is in the file: nobody, or what can be made of it. */
static void garbage(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *name; /* NULL: names nobody */
    } cases[] = {
        {"", 0, NULL},
        {"\0\0\0\0", 4, NULL},
        {"host: a\n", 8, NULL},
        {"pid: 3\n", 7, NULL},
        {"host: \npid: 3\n", 14, NULL},
        {"host: a\npid: -3\n", 16, NULL},
        {"host: a\npid: 99999999999999999999\n", 34, NULL},
        {"host: a\npid: 99999999999\n", 25, NULL},
        {"host: a\npid: 3x\n", 16, NULL},
        {"host: a\npid: \n", 14, NULL},
        {"nonsense\nhost: a\r\npid: 3", 24, "a process on a (pid 3)"},
        {"job: 5\nhost: a\x1b[1mb\npid: 3\ncolour: red\n", 40, "job 5 on a [1mb (pid 3)"},
        {"\xff\xfe\nhost: a\npid: 3\ntime: x\0y\n", 28, "a process on a (pid 3) since x y"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        az_holder h;
        const bool named = az_holder_parse(&h, cases[i].text, cases[i].bytes);
        if (named != (cases[i].name != NULL))
            fail_msg("case %zu", i);
        if (named)
            check_name(&h, cases[i].name);
    }
    /* A line as long as can be. */
    az_holder h;
    char *much = malloc(70000);
    memset(much, 'a', 70000);
    assert_false(az_holder_parse(&h, much, 70000));
    memcpy(much, "pid: 3\nhost: ", 13);
    assert_true(az_holder_parse(&h, much, 70000));
    assert_int_equal(strlen(h.host), sizeof h.host - 1);
    free(much);
}

static void verdicts(void **state)
{
    (void)state;
    const az_holder self = {.host = "n1", .pid = 9, .job = "7", .restarts = 1, .boot = "b"};
    az_holder here = self, there = self, earlier = self;
    here.pid = 5;
    here.job[0] = there.job[0] = '\0';
    strcpy(there.host, "n2");
    strcpy(there.boot, "c");
    strcpy(earlier.boot, "c");
    earlier.restarts = 0;
    const struct {
        const az_holder *holder;
        az_lock lock;
        bool dead;
        az_verdict verdict;
    } cases[] = {
        {NULL, AZ_LOCK_TAKEN, false, AZ_HOLDER_THERE},
        {&here, AZ_LOCK_TAKEN, false, AZ_HOLDER_THERE},
        {&self, AZ_LOCK_TAKEN, false, AZ_HOLDER_THERE}, /* another step of the same run of the job
                                                         */
        {&earlier, AZ_LOCK_TAKEN, false, AZ_HOLDER_UNSURE},
        {NULL, AZ_LOCK_OURS, false, AZ_HOLDER_UNSURE},
        {&here, AZ_LOCK_OURS, false, AZ_HOLDER_GONE}, /* its number is another's now */
        {&there, AZ_LOCK_OURS, false, AZ_HOLDER_UNSURE},
        {&earlier, AZ_LOCK_OURS, false, AZ_HOLDER_GONE},
        {NULL, AZ_LOCK_NONE, false, AZ_HOLDER_UNSURE},
        {&here, AZ_LOCK_NONE, false, AZ_HOLDER_UNSURE},
        {&here, AZ_LOCK_NONE, true, AZ_HOLDER_GONE},
        {&there, AZ_LOCK_NONE, false, AZ_HOLDER_UNSURE},
        {&earlier, AZ_LOCK_NONE, false, AZ_HOLDER_GONE},
        {&self, AZ_LOCK_NONE, false, AZ_HOLDER_UNSURE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (az_holder_judge(cases[i].holder, &self, cases[i].lock, cases[i].dead) !=
            cases[i].verdict)
            fail_msg("case %zu", i);
    /* Without the number of the boot the name of the host must do. */
    az_holder nameless = here;
    nameless.boot[0] = '\0';
    assert_int_equal(az_holder_judge(&nameless, &self, AZ_LOCK_OURS, false), AZ_HOLDER_GONE);
    strcpy(nameless.host, "n2");
    assert_int_equal(az_holder_judge(&nameless, &self, AZ_LOCK_OURS, false), AZ_HOLDER_UNSURE);
}

/* A process that has ended, also where nobody has asked for its end yet; one whose number counts
 * elsewhere; one of another program. */
static void the_dead(void **state)
{
    (void)state;
    az_holder self, other;
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    az_holder_set_self(&self);
    other = self;
    other.pid = child;
    for (int i = 0; i < 2; i++) {
        assert_true(az_holder_is_dead(&other, &self));
        assert_false(az_holder_is_program(child));
        assert_int_equal(waitpid(child, NULL, 0), i == 0 ? child : -1);
    }
    strcat(other.space, "x");
    assert_false(az_holder_is_dead(&other, &self));
    other = self;
    other.pid = child;
    strcpy(other.boot, "another");
    assert_false(az_holder_is_dead(&other, &self));
    /* Number 1 lives, but runs something else. */
    other = self;
    other.pid = 1;
    assert_false(az_holder_is_dead(&other, &self));
    assert_false(az_holder_is_program(1));
    assert_true(az_holder_is_program((long)getpid()));
}

static void claim_and_end(void **state)
{
    (void)state;
    az_comm *comm;
    az_outdir *one = NULL, *two = NULL;
    char *text;
    size_t bytes;
    az_holder h;
    const size_t blocks = az_mem_get_total().blocks;
    az_err_clear();
    assert_int_equal(az_comm_create_self(&comm), AZ_OK);
    assert_int_equal(az_outdir_open(&one, "a/b", comm), AZ_OK);
    assert_int_equal(az_file_read(&text, &bytes, "a/b/lock"), AZ_OK);
    assert_true(az_holder_parse(&h, text, bytes) && h.pid == getpid());
    az_free(text);
    /* Held by this very process: refused all the same, and the first keeps it. */
    assert_int_equal(az_outdir_open(&two, "a/b", comm), AZ_EINPUT);
    assert_null(two);
    const char *message = az_err_message();
    if (strncmp(message, "output.dir a/b is in use by a process on ", 41) != 0 ||
        strstr(message, "; give another output.dir") == NULL)
        fail_msg("%s", message);
    az_err_clear();
    assert_true(az_file_exists("a/b/lock"));
    az_outdir_close(one);
    assert_false(az_dir_exists("a")); /* as before: nothing was written */
    assert_int_equal(az_outdir_open(&two, "a/b", comm), AZ_OK);
    /* The directory goes away and comes back while it is held: what is there is not ours. */
    assert_int_equal(system("rm -r a/b && mkdir a/b && echo x >a/b/lock && sleep 2.2"), 0);
    az_outdir_close(two);
    assert_true(az_file_exists("a/b/lock"));
    assert_int_equal(az_dir_create("d/"), AZ_OK);
    assert_int_equal(az_outdir_open(&one, "d/e/../f//", comm), AZ_OK);
    assert_int_equal(az_file_write_atomic("d/f/x", "x", 1), AZ_OK);
    az_outdir_close(one);
    assert_int_equal(az_outdir_open(&one, "d//", comm), AZ_OK);
    az_outdir_close(one);
    assert_true(az_file_exists("d/f/x") && !az_file_exists("d/f/lock"));
    /* A place that cannot be had. */
    assert_int_equal(system("rm a/b/lock && mkdir a/b/lock"), 0);
    assert_int_equal(az_outdir_open(&one, "a/b", comm), AZ_EINPUT);
    assert_string_equal(az_err_message(), "a/b/lock: cannot open: Is a directory");
    az_err_clear();
    az_comm_fini(comm);
    assert_int_equal(az_mem_get_total().blocks, blocks);
}

static void every_allocation_fails(void **state)
{
    (void)state;
    az_comm *comm;
    az_outdir *o;
    az_err_clear();
    assert_int_equal(az_comm_create_self(&comm), AZ_OK);
    const size_t blocks = az_mem_get_total().blocks;
    for (long n = 0;; n++) {
        az_mem_set_fault(n);
        az_err err = az_outdir_open(&o, "c", comm);
        az_mem_set_fault(-1);
        az_outdir_close(o);
        assert_int_equal(az_mem_get_total().blocks, blocks);
        assert_false(az_file_exists("c/lock"));
        if (err == AZ_OK)
            break;
        assert_int_equal(err, AZ_EENV);
        az_err_clear();
        assert_true(n < 100);
    }
    az_comm_fini(comm);
}

static void sweeping(void **state)
{
    (void)state;
    static const char *const goes[] = {"checkpoint-000010.h5.tmp", "adapter.h5.tmp",
                                       "run.yaml.tmp-123", "state.tmp-node-1-77",
                                       "checkpoint-000010.h5.tmp-4"};
    static const char *const stays[] = {"checkpoint-000010.h5",
                                        "notes.tmp-1",
                                        "notes.h5.tmp",
                                        "run.yaml",
                                        "run.yaml.tmp-",
                                        "state",
                                        "state.tmp-x",
                                        "lock",
                                        "x-checkpoint-1.h5.tmp",
                                        "checkpoint-mine.h5.tmp",
                                        "checkpoint-.h5.tmp",
                                        "checkpoint-.tmp",
                                        "adapter/adapter_config.json"};
    char command[400], living[100];
    assert_int_equal(system("mkdir -p s/adapter/tmp-999999999 s/adapter/tmp-999999998"), 0);
    for (size_t i = 0; i < sizeof goes / sizeof *goes; i++) {
        snprintf(command, sizeof command, "s/%s", goes[i]);
        assert_int_equal(az_file_write_atomic(command, "x", 1), AZ_OK);
    }
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++) {
        snprintf(command, sizeof command, "s/%s", stays[i]);
        assert_int_equal(az_file_write_atomic(command, "x", 1), AZ_OK);
    }
    /* An adapter in the making: of a dead process, of a dead one with other things in it, of this.
     */
    snprintf(living, sizeof living, "s/adapter/tmp-%ld", (long)getpid());
    snprintf(command, sizeof command,
             "mkdir %s && for d in %s s/adapter/tmp-99999999[89]; do "
             "touch $d/adapter_config.json $d/adapter_model.safetensors.tmp-5; done && "
             "touch s/adapter/tmp-999999998/mine",
             living, living);
    assert_int_equal(system(command), 0);
    az_outdir_sweep("s");
    for (size_t i = 0; i < sizeof goes / sizeof *goes; i++) {
        snprintf(command, sizeof command, "s/%s", goes[i]);
        if (az_file_exists(command))
            fail_msg("%s is there", goes[i]);
    }
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++) {
        snprintf(command, sizeof command, "s/%s", stays[i]);
        if (!az_file_exists(command))
            fail_msg("%s is gone", stays[i]);
    }
    assert_false(az_dir_exists("s/adapter/tmp-999999999"));
    assert_true(az_file_exists("s/adapter/tmp-999999998/mine"));
    snprintf(command, sizeof command, "%s/adapter_config.json", living);
    assert_true(az_file_exists(command));
    az_outdir_sweep("nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_there_and_back),
        cmocka_unit_test(garbage),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(the_dead),
        cmocka_unit_test(claim_and_end),
        cmocka_unit_test(every_allocation_fails),
        cmocka_unit_test(sweeping),
    };
    return cmocka_run_group_tests_name("output directory", tests, setup, teardown) != 0;
}
