/* A GPU as dev shows it: what there is, memory, copies, the order that events make. */
#include <config.h>

#include <string.h>

#include "dev/dev.h"
#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"

/* A value goes from queue to queue, each of which waits for the one before. */
static void pass_on(az_dev *dev)
{
    enum { N = 1000 };
    int *device[2];
    int *host;
    az_event *in, *within;
    CHECK(az_dev_alloc((void **)&device[0], dev, N * sizeof(int), "test") == AZ_OK);
    CHECK(az_dev_alloc((void **)&device[1], dev, N * sizeof(int), "test") == AZ_OK);
    CHECK(az_dev_alloc_host((void **)&host, dev, 2 * N * sizeof(int), "test") == AZ_OK);
    CHECK(az_dev_create_event(&in, dev) == AZ_OK);
    CHECK(az_dev_create_event(&within, dev) == AZ_OK);
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < N; i++)
            host[i] = turn * N + i;
        az_dev_copy_in(dev, AZ_QUEUE_COPY, device[0], host, N * sizeof(int));
        az_dev_record(dev, in, AZ_QUEUE_COPY);
        az_dev_wait(dev, AZ_QUEUE_COMPUTE, in);
        az_dev_copy(dev, AZ_QUEUE_COMPUTE, device[1], device[0], N * sizeof(int));
        az_dev_mark(dev, AZ_QUEUE_COMPUTE, "turn", turn);
        az_dev_record(dev, within, AZ_QUEUE_COMPUTE);
        az_dev_wait(dev, AZ_QUEUE_GATHER, within);
        az_dev_copy_out(dev, AZ_QUEUE_GATHER, host + N, device[1], N * sizeof(int));
        az_dev_sync(dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
        CHECK(memcmp(host, host + N, N * sizeof(int)) == 0);
    }
    CHECK(az_dev_is_done(dev, in));
    CHECK(az_dev_count_syncs(dev, AZ_SYNC_START) == (az_dev_is_gpu(dev) ? 5 : 0));
    az_dev_destroy_event(dev, in);
    az_dev_destroy_event(dev, within);
    az_dev_free(dev, device[0]);
    az_dev_free(dev, device[1]);
    az_dev_free_host(dev, host);
}

int main(void)
{
    az_dev *dev;
    az_gpu_info *gpus;
    int n;
    char why[512] = "";
    CHECK(az_dev_list_gpus(&gpus, &n, why, sizeof why) == AZ_OK);
    CHECK(n >= 2);
    CHECK(strcmp(gpus[0].uuid, gpus[1].uuid) != 0);
    az_free(gpus);
    pass_on(az_dev_get_cpu());
    dev = open_gpu(1);
    pass_on(dev);
    az_dev_close(dev);
    return n_failed != 0;
}
