/* dev: opening a device. */
#include <config.h>

#include <stdio.h>

#include "dev/dev_priv.h"

static void note(void *context, az_queue queue, const char *operation)
{
    az_dev *dev = context;
    az_trail *trail = &dev->trails[queue];
    const uint32_t i = trail->n_operations++ % AZ_DEV_TRAIL;
    trail->operations[i] = operation;
    trail->at[i] = trail->n_marks;
    if (queue == AZ_QUEUE_COMPUTE)
        az_dev_time_operation(dev, operation);
}

static void fail(void *context, const char *operation, const char *what)
{
    az_dev *dev = context;
    static char text[4096];
    static char trail[3072];
    az_dev_describe_trail(dev, trail, sizeof trail);
    snprintf(text, sizeof text, "GPU %s: %s failed: %s%s", dev->info.pci, operation, what, trail);
    dev->fail(dev->fail_context, text);
}

az_dev *az_dev_get_cpu(void)
{
    static az_dev cpu;
    return &cpu;
}

az_err az_dev_open_gpu(az_dev **out_dev, int index, az_dev_fail *on_fail, void *context)
{
    az_err err;
    char text[512] = "";
    az_dev *dev = NULL;
    *out_dev = NULL;
    const az_dev_backend *backend = az_dev_open_backend(text, sizeof text);
    if (backend == NULL)
        return az_fail(AZ_EENV, "no GPU can be used: %s", text);
    AZ_TRY(AZ_NEW(dev, 1, "devices"));
    dev->host = (az_backend_host){note, fail, dev};
    dev->fail = on_fail;
    dev->fail_context = context;
    if (backend->describe(index, &dev->info, text, sizeof text) != 0 ||
        backend->open(&dev->self, index, &dev->host, text, sizeof text) != 0)
        AZ_TRY(az_fail(AZ_EENV, "GPU %d cannot be used: %s", index, text));
    dev->backend = backend;
    *out_dev = dev;
    dev = NULL;
out:
    az_free(dev);
    return err;
}

void az_dev_close(az_dev *opt_dev)
{
    if (opt_dev == NULL || opt_dev->backend == NULL)
        return;
    AZ_ASSERT(opt_dev->n_blocks == 0);
    az_dev_end_times(opt_dev);
    opt_dev->backend->close(opt_dev->self);
    az_free(opt_dev->blocks);
    az_free(opt_dev);
}

bool az_dev_is_gpu(const az_dev *dev)
{
    return dev->backend != NULL;
}

const az_gpu_info *az_dev_get_info(const az_dev *dev)
{
    return &dev->info;
}

bool az_dev_can_reach(const az_dev *dev, int index)
{
    return dev->backend != NULL && dev->backend->can_reach(dev->self, index) != 0;
}

const void *az_dev_get_table(const az_dev *dev, const char *name)
{
    return dev->backend != NULL ? az_dev_find_table(name) : NULL;
}

void *az_dev_get_self(const az_dev *dev)
{
    return dev->self;
}

const az_backend_host *az_dev_get_host(const az_dev *dev)
{
    return &dev->host;
}
