/* What is said when work on a GPU has failed: the operation may have been queued long before, so
 * the message names what was behind the last mark that its queue has passed. Memory that is refused
 * is not such a failure. */
#include <config.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"

/* The operation that fails, of those that fail() queues: the second copy. */
#define FAILS "7"

static void look_at(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
    CHECK(strncmp(text, "GPU 0000:10:00.0: ", 18) == 0);
    CHECK(strstr(text, " failed: an illegal memory access was encountered; compute queue, "
                       "begun: turn 2: fill, copy") != NULL);
    CHECK(strstr(text, "gather queue") == NULL); /* it had done all */
    CHECK(strstr(text, "turn 1") == NULL);
    _exit(n_failed == 0 ? 0 : 1);
}

static void fail(void)
{
    enum { BYTES = 64 };
    az_dev *dev;
    char *device, *host;
    setenv("CUEMU_FAIL", FAILS, 1);
    CHECK(az_dev_open_gpu(&dev, 0, look_at, NULL) == AZ_OK);
    CHECK(az_dev_alloc((void **)&device, dev, 2 * BYTES, "test") == AZ_OK);
    CHECK(az_dev_alloc_host((void **)&host, dev, BYTES, "test") == AZ_OK);
    memset(host, 0, BYTES);
    az_dev_copy_in(dev, AZ_QUEUE_GATHER, device, host, BYTES);
    az_dev_mark(dev, AZ_QUEUE_GATHER, "start", 0);
    az_dev_sync(dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
    az_dev_mark(dev, AZ_QUEUE_COMPUTE, "turn", 1);
    az_dev_copy(dev, AZ_QUEUE_COMPUTE, device + BYTES, device, BYTES);
    az_dev_mark(dev, AZ_QUEUE_COMPUTE, "turn", 2);
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, device, 1, BYTES);
    az_dev_copy(dev, AZ_QUEUE_COMPUTE, device + BYTES, device, BYTES);
    az_dev_mark(dev, AZ_QUEUE_COMPUTE, "turn", 3);
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, host, device + BYTES, BYTES);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_LOSS);
    fprintf(stderr, "the failure was not noticed\n");
    _exit(1);
}

/* Too little memory is said, and what is queued afterwards is not taken for a failure. */
static void run_out(void)
{
    az_dev *dev;
    void *first, *second;
    setenv("CUEMU_MEMORY", "1000000", 1);
    dev = open_gpu(0);
    CHECK(az_dev_alloc(&first, dev, 600000, "test") == AZ_OK);
    CHECK(az_dev_alloc(&second, dev, 600000, "test") == AZ_EENV);
    CHECK(strstr(az_err_message(), "out of memory") != NULL);
    az_dev_mark(dev, AZ_QUEUE_COMPUTE, "turn", 1);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    az_dev_free(dev, first);
    az_dev_close(dev);
    _exit(n_failed == 0 ? 0 : 1);
}

/* In a process of its own. */
static int run(void (*test)(void))
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0)
        test();
    return child < 0 || waitpid(child, &status, 0) != child ? 1 : status;
}

int main(void)
{
    if (!is_stand_in())
        return 77; /* a GPU does not fail when it is asked to */
    CHECK(run(fail) == 0);
    CHECK(run(run_out) == 0);
    return n_failed != 0;
}
