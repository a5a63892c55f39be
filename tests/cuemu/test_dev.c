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

/* Each operation of the compute queue is timed, and what the queue waits for. */
static void time_operations(az_dev *dev)
{
    enum { N = 100 };
    int *device, *host, n;
    az_event *event, *used;
    CHECK(az_dev_get_times(dev, &n) == NULL && n == 0);
    CHECK(az_dev_start_times(dev) == AZ_OK);
    CHECK(az_dev_alloc((void **)&device, dev, 2 * N * sizeof(int), "test") == AZ_OK);
    CHECK(az_dev_alloc_host((void **)&host, dev, N * sizeof(int), "test") == AZ_OK);
    CHECK(az_dev_create_event(&event, dev) == AZ_OK);
    CHECK(az_dev_create_event(&used, dev) == AZ_OK);
    for (int turn = 0; turn < 50; turn++) {
        az_dev_wait(dev, AZ_QUEUE_COPY, used);
        az_dev_copy_in(dev, AZ_QUEUE_COPY, device, host, N * sizeof(int)); /* not counted */
        az_dev_record(dev, event, AZ_QUEUE_COPY);
        az_dev_wait(dev, AZ_QUEUE_COMPUTE, event);
        az_dev_copy(dev, AZ_QUEUE_COMPUTE, device + N, device, N * sizeof(int));
        az_dev_copy(dev, AZ_QUEUE_COMPUTE, device + N, device, N * sizeof(int));
        az_dev_fill(dev, AZ_QUEUE_COMPUTE, device, 0, N * sizeof(int));
        az_dev_record(dev, used, AZ_QUEUE_COMPUTE);
    }
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    const az_dev_time *times = az_dev_get_times(dev, &n);
    CHECK(n == 3);
    for (int i = 0; i < n; i++) {
        CHECK(times[i].n == (strcmp(times[i].name, "copy") == 0 ? 100 : 50));
        CHECK(times[i].seconds >= 0 && times[i].seconds < 10);
    }
    az_dev_destroy_event(dev, event);
    az_dev_destroy_event(dev, used);
    az_dev_free(dev, device);
    az_dev_free_host(dev, host);
}

int main(void)
{
    az_dev *dev;
    az_gpu_info *gpus;
    int n;
    char why[512] = "";
    CHECK(az_dev_list_gpus(&gpus, &n, why, sizeof why) == AZ_OK);
    CHECK(n >= (is_stand_in() ? 2 : 1));
    CHECK(n < 2 || strcmp(gpus[0].uuid, gpus[1].uuid) != 0);
    az_free(gpus);
    pass_on(az_dev_get_cpu());
    dev = open_gpu(n - 1);
    pass_on(dev);
    time_operations(dev);
    az_dev_close(dev);
    return n_failed != 0;
}
