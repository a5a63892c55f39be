/* adze: starts what the command needs, runs it, says what went wrong, ends the program. Nothing
 * else ends it. */
#include <config.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cmd/cmd.h"
#include "comm/comm.h"
#include "comm/watch.h"
#include "kern/kern.h"
#include "store/hdf5.h"
#include "train/device.h"

/* The rank that a launcher gave to this process, 0 without one. Commands that are not parallel do
 * not start MPI; under a launcher only the first process does their work. */
static int launched_rank(void)
{
    static const char *const names[] = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL)
            return atoi(rank);
    }
    return 0;
}

static az_err unknown_command(const char *name)
{
    az_err err = AZ_OK;
    az_str all = {0};
    const az_cmd *near = az_cmd_nearest(name);
    if (near != NULL)
        return az_fail(AZ_EINPUT, "%.80s: unknown command; did you mean %s?", name, near->name);
    for (int i = 0; i < az_n_cmds; i++)
        AZ_TRY(az_str_add(&all, "%s%s", i > 0 ? ", " : "", az_cmds[i].name));
    err = az_fail(AZ_EINPUT, "%.80s: unknown command; there are %s", name, all.s);
out:
    az_str_fini(&all);
    return err;
}

/* "adze COMMAND --help" is "adze help COMMAND". */
static bool asks_for_help(int argc, char **argv)
{
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

/* Output that did not arrive (a full disk behind a pipe or a file) is a failure too. */
static az_err check_output(void)
{
    const int e = az_log_flush();
    return e == 0 ? AZ_OK : az_fail(AZ_EENV, "cannot write to standard output: %s", strerror(e));
}

/* All that is to be said: the rest of the output, and the failure. Returns the code of the program.
 */
static az_err conclude(az_err err)
{
    const az_err output = check_output();
    if (err == AZ_OK)
        err = output;
    if (err != AZ_OK && err != AZ_ENOFIT && az_log_is_speaker())
        fprintf(stderr, "adze: %s%s\n", err == AZ_ESTOP ? "" : "error: ", az_err_message());
    return err;
}

/* Nothing is left to be done when MPI ends, as that may hang: the watchdog then ends the process
 * with this code. */
static az_err run_parallel(const az_cmd *cmd, int argc, char **argv)
{
    az_err err;
    az_comm *comm = NULL;
    az_stop_install();
    AZ_TRY(az_comm_init(&comm, &argc, &argv));
    err = az_comm_agree(comm, cmd->run(comm, argc, argv));
out:
    err = conclude(err);
    if (comm != NULL)
        az_watch_set_code(comm, err);
    az_comm_fini(comm);
    return err;
}

static az_err say_version(void)
{
    az_err err;
    const char *hdf5;
    bool slow;
    az_str gpus = {0};
    AZ_TRY(az_hdf5_check(&hdf5));
    AZ_TRY(az_device_list(&gpus));
    az_say("adze %s (%s; HDF5 %s; %s; GPUs: %s)", PACKAGE_VERSION, az_comm_library(), hdf5,
           az_kern_blas_describe(&slow), gpus.s);
out:
    az_str_fini(&gpus);
    return err;
}

/* opt_cmd: NULL for options, and for names that are none. */
static az_err run_serial(const az_cmd *opt_cmd, int argc, char **argv)
{
    const char *name = argv[0];
    char *help[] = {(char[]){"help"}, argv[0]};
    if (launched_rank() != 0) {
        az_log_set_speaker(false);
        return AZ_OK;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        return say_version();
    }
    if (opt_cmd == NULL)
        return unknown_command(name);
    if (asks_for_help(argc, argv))
        return az_cmd_help(NULL, 2, help);
    return opt_cmd->run(NULL, argc, argv);
}

/* argv[0] is the name of the command. */
static az_err run_command(int argc, char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    const az_cmd *cmd = az_cmd_find(name);
    if (cmd != NULL && cmd->parallel && !asks_for_help(argc, argv))
        return run_parallel(cmd, argc, argv);
    return conclude(run_serial(cmd, argc, argv));
}

/* A standard stream that the caller has closed must not become the first file that is opened: what
 * is printed would go into it. Opened the wrong way round, so that using it fails as before. */
static void open_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
            return;
}

/* In debug builds a block that is still there is a bug, and said. */
static az_err check_memory(void)
{
#ifdef AZ_DEBUG
    const char *label;
    size_t bytes, peak;
    if (az_mem_get_total().blocks == 0)
        return AZ_OK;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (bytes > 0)
            fprintf(stderr, "adze: bug: %zu bytes for %s were not freed\n", bytes, label);
    return AZ_EENV;
#else
    return AZ_OK;
#endif
}

int main(int argc, char **argv)
{
    az_err err, later;
    open_streams();
    signal(SIGXFSZ, SIG_IGN);  /* a file that grows too large is a write that fails, and is said */
    az_kern_blas_remedy(argv); /* may execute the program again */
    if (argc < 2)
        err = conclude(az_fail(AZ_EINPUT, "no command; `adze help` lists them"));
    else
        err = run_command(argc - 1, argv + 1);
    later = check_memory();
    return err != AZ_OK ? err : later;
}
