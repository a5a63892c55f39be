/* fabric_lost HOW: GPUs that bring data to each other, until rank 1 is stopped, killed or busy with
 * something else, or NCCL fails. The watchdog ends it; fabric_lost.sh judges. HOW = open: the
 * fabric is opened, and what fails is said. */
#include <config.h>

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "comm/fabric.h"
#include "comm/watch.h"
#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"

enum { BYTES = 4096, TURN = 5, TURNS = 1000000 };

static void fail(void *context, const char *text)
{
    az_watch_fail(context, text);
}

static void get_lost(const char *how)
{
    if (strcmp(how, "stopped") == 0)
        kill(getpid(), SIGSTOP);
    if (strcmp(how, "killed") == 0)
        kill(getpid(), SIGKILL);
    while (strcmp(how, "busy") == 0)
        pause();
}

static void run(az_comm *comm, az_dev *dev, az_fabric *fabric, const char *how)
{
    char *whole;
    CHECK(az_dev_alloc((void **)&whole, dev, az_fabric_room(BYTES, az_comm_n_positions(comm)),
                       "test") == AZ_OK);
    az_watch_set_deadline(comm, AZ_PHASE_STEP, 2);
    for (int i = 0; i < TURNS; i++) {
        az_watch_enter(comm, AZ_PHASE_STEP, i);
        if (i == TURN && az_comm_rank(comm) == 1)
            get_lost(how);
        az_dev_mark(dev, AZ_QUEUE_GATHER, "turn", i);
        az_fabric_gather(fabric, whole, BYTES, AZ_GATHER_ALL);
        az_dev_sync(dev, AZ_QUEUE_GATHER, AZ_SYNC_LOSS);
    }
}

int main(int argc, char **argv)
{
    az_comm *comm;
    az_dev *dev;
    az_fabric *fabric;
    const char *how = argc > 1 ? argv[1] : "open";
    const char *internode = argc > 2 ? argv[2] : "mpi";
    az_fabric_options options = {.internode = strcmp(internode, "nccl") == 0 ? AZ_INTERNODE_NCCL
                                                                             : AZ_INTERNODE_MPI};
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK ||
        az_dev_open_gpu(&dev, az_comm_node_rank(comm), fail, comm) != AZ_OK)
        return 99;
    const az_err err = az_fabric_create(&fabric, dev, &options, comm);
    if (err != AZ_OK && az_comm_rank(comm) == 0)
        fprintf(stderr, "code %d: %s\n", err, az_err_message());
    if (err == AZ_OK && strcmp(how, "open") != 0)
        run(comm, dev, fabric, how);
    if (err == AZ_OK)
        az_fabric_destroy(fabric);
    az_dev_close(dev);
    az_comm_fini(comm);
    return n_failed != 0;
}
