/* comm: the watchdog of one process. Each case is a child that stands still or does not; what it
 * ends with, says and leaves is looked at by its parent. Several ranks: tests/fault/hung.sh. */
#include <config.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch.h"

static char dir[64], said[8192];

static void pause_for(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* The child's standard error goes into said. */
static pid_t start(void (*child)(void), int *out_fd)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        alarm(30); /* a watchdog that hangs itself must not hang the test */
        child();
        _exit(0);
    }
    close(fds[1]);
    *out_fd = fds[0];
    return pid;
}

static int finish(pid_t pid, int fd)
{
    int status;
    size_t n = 0;
    ssize_t got;
    while ((got = read(fd, said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int run(void (*child)(void))
{
    int fd;
    const pid_t pid = start(child, &fd);
    return finish(pid, fd);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/adze-watch-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static char *file_path(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *table_name(void)
{
    static char name[100];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "watchdog-%s.txt", host);
    return name;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file_path("state"));
    unlink(file_path(table_name()));
    return rmdir(dir);
}

static void assert_holds(const char *name, const char *part)
{
    static char text[8192];
    const int fd = open(file_path(name), O_RDONLY);
    if (fd < 0)
        fail_msg("%s is not there", name);
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(n > 0);
    text[n] = '\0';
    if (strstr(text, part) == NULL)
        fail_msg("no \"%s\" in %s:\n%s", part, name, text);
}

static az_comm *open_comm(void)
{
    az_comm *comm;
    if (az_comm_create_self(&comm) != AZ_OK || az_watch_set_dir(comm, dir) != AZ_OK)
        _exit(99);
    return comm;
}

/* The main thread stands still with stdio's locks held. */
static void stand_still(void)
{
    flockfile(stdout);
    flockfile(stderr);
    for (;;)
        pause_for(1000);
}

static void hang(void)
{
    az_comm *comm = open_comm();
    az_watch_set_deadline(comm, AZ_PHASE_LOAD, 0.3);
    az_watch_enter(comm, AZ_PHASE_LOAD, -1);
    az_watch_enter(comm, AZ_PHASE_LOAD, 12);
    az_watch_mark(comm, "a name that is longer than others", 345);
    stand_still();
}

static void a_table_is_written(void **state)
{
    (void)state;
    const az_state earlier = {
        .state = "running", .reason = "", .step = 10, .total_steps = 20, .checkpoint = "c.h5"};
    assert_int_equal(az_state_write(dir, &earlier), AZ_OK);
    const double begin = az_now();
    assert_int_equal(run(hang), AZ_ELOST);
    assert_true(az_now() - begin < 10);
    const char *const parts[] = {"adze: watchdog on ",
                                 "no sign of life for 0 s in loading: rank 0 on ",
                                 " is waited for (loading, step 12, a name that is  345, after "
                                 "collective 0)",
                                 "<- waited for"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(said, parts[i]) == NULL)
            fail_msg("no \"%s\" in:\n%s", parts[i], said);
        assert_holds(table_name(), parts[i]);
    }
    assert_holds("state", "state: failed\nreason: no sign of life for ");
    assert_holds("state", "rank 0 on ");
    assert_holds("state", "\ncode: 4\nstep: 10\ntotal_steps: 20\ncheckpoint: c.h5\n");
    /* A second one is appended. */
    assert_int_equal(run(hang), AZ_ELOST);
    const int fd = open(file_path(table_name()), O_RDONLY);
    const ssize_t n = read(fd, said, sizeof said - 1);
    close(fd);
    said[n] = '\0';
    char *second = strstr(said + 1, "adze: watchdog on ");
    assert_non_null(second);
    assert_null(strstr(second + 1, "adze: watchdog on "));
}

/* Signs of life of each kind keep the process alive, and so does a phase without a deadline. */
static void live(void)
{
    az_comm *comm = open_comm();
    az_watch_set_deadline(comm, AZ_PHASE_STEP, 0.3);
    for (int i = 0; i < 12; i++) {
        if (i % 2 == 0)
            az_watch_enter(comm, AZ_PHASE_STEP, i);
        else
            az_watch_mark(comm, "layer", i);
        pause_for(0.1);
    }
    az_watch_enter(comm, AZ_PHASE_SAVE, -1);
    pause_for(0.9);
    az_watch_set_deadline(comm, AZ_PHASE_STEP, 0);
    az_watch_enter(comm, AZ_PHASE_STEP, 1);
    pause_for(0.9);
    az_comm_fini(comm);
    if (az_mem_get_total().blocks != 0)
        _exit(98);
}

/* A device has failed, which a thread beside the main one is told. */
static void *be_told(void *comm)
{
    az_watch_fail(comm, "GPU 0000:11:00.0: adding failed");
}

static void lose_device(void)
{
    pthread_t thread;
    az_comm *comm = open_comm();
    az_watch_enter(comm, AZ_PHASE_STEP, 1);
    if (pthread_create(&thread, NULL, be_told, comm) != 0)
        _exit(99);
    stand_still();
}

static void a_failed_device(void **state)
{
    (void)state;
    const az_state earlier = {
        .state = "running", .reason = "", .step = 10, .total_steps = 20, .checkpoint = "c.h5"};
    assert_int_equal(az_state_write(dir, &earlier), AZ_OK);
    assert_int_equal(run(lose_device), AZ_ELOST);
    assert_string_equal(said, "adze: error: GPU 0000:11:00.0: adding failed\n");
    assert_holds("state", "state: failed\nreason: GPU 0000:11:00.0: adding failed\ncode: 4\n");
}

static void signs_of_life(void **state)
{
    (void)state;
    assert_int_equal(run(live), 0);
    assert_string_equal(said, "");
}

/* A process that was stopped as a whole counts anew; one that then stands still is found. */
static void work_on(void)
{
    az_comm *comm = open_comm();
    az_watch_set_deadline(comm, AZ_PHASE_STEP, 2);
    az_watch_enter(comm, AZ_PHASE_STEP, 1);
    pause_for(1); /* the parent stops the process here */
    pause_for(0.7);
    az_comm_fini(comm);
}

static void stopped_process(void **state)
{
    (void)state;
    int fd;
    const pid_t pid = start(work_on, &fd);
    pause_for(0.5);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    pause_for(3.5);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(finish(pid, fd), 0);
    assert_string_equal(said, "");
}

/* The end is quiet, and has the code that was set. */
static void hang_at_end(void)
{
    az_comm *comm = open_comm();
    az_watch_set_code(comm, 75);
    az_watch_set_deadline(comm, AZ_PHASE_END, 0.3);
    az_watch_enter(comm, AZ_PHASE_END, -1);
    stand_still();
}

static void the_end_is_bounded(void **state)
{
    (void)state;
    assert_int_equal(run(hang_at_end), 75);
    assert_string_equal(said, "");
}

static atomic_int n_ticks;

static void count(void *context)
{
    n_ticks += *(int *)context;
}

static void nap(void *context)
{
    (void)context;
    n_ticks = 1;
    pause_for(0.5);
    n_ticks = 2;
}

static void ticks(void **state)
{
    (void)state;
    az_comm *comm;
    int two = 2;
    char long_dir[5000];
    assert_int_equal(az_comm_create_self(&comm), AZ_OK);
    assert_int_equal(az_watch_set_tick(comm, count, &two), AZ_OK);
    pause_for(2.5);
    assert_int_equal(az_watch_set_tick(comm, NULL, NULL), AZ_OK);
    assert_int_equal(n_ticks, 4);
    /* One that is under way is waited for. */
    n_ticks = 0;
    assert_int_equal(az_watch_set_tick(comm, nap, NULL), AZ_OK);
    while (n_ticks == 0)
        pause_for(0.05);
    assert_int_equal(az_watch_set_tick(comm, NULL, NULL), AZ_OK);
    assert_int_equal(n_ticks, 2);
    memset(long_dir, 'd', sizeof long_dir);
    long_dir[sizeof long_dir - 1] = '\0';
    assert_int_equal(az_watch_set_dir(comm, long_dir), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "...: the name is too long"));
    az_err_clear();
    const double begin = az_now();
    az_comm_fini(comm);
    assert_true(az_now() - begin < 0.3); /* the threads do not sleep to the end of their period */
    assert_int_equal(az_mem_get_total().blocks, 0);
}

/* Signals are the main thread's: while it has them blocked, no other thread takes them. */
static pthread_t main_thread;
static atomic_int n_here, n_elsewhere;

static void note(int signal_number)
{
    (void)signal_number;
    if (pthread_equal(pthread_self(), main_thread))
        n_here++;
    else
        n_elsewhere++;
}

static void signals(void **state)
{
    (void)state;
    az_comm *comm;
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART}, before;
    sigset_t usr1;
    main_thread = pthread_self();
    sigaction(SIGUSR1, &action, &before);
    assert_int_equal(az_comm_create_self(&comm), AZ_OK);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &usr1, NULL), 0);
    kill(getpid(), SIGUSR1);
    pause_for(0.05);
    assert_true(n_here == 0 && n_elsewhere == 0);
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL), 0);
    assert_true(n_here == 1 && n_elsewhere == 0);
    az_comm_fini(comm);
    sigaction(SIGUSR1, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_table_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_device, setup, teardown),
        cmocka_unit_test_setup_teardown(signs_of_life, setup, teardown),
        cmocka_unit_test_setup_teardown(stopped_process, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_is_bounded, setup, teardown),
        cmocka_unit_test(ticks),
        cmocka_unit_test(signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
