/* dev: queued work and its order. On the CPU it is done at once, and events have nothing to order.
 */
#include <config.h>

#include <string.h>

#include "dev/dev_priv.h"

/* What the events of the CPU point at. */
static char nothing;

static void copy(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes,
                 az_copy_kind kind)
{
    if (bytes == 0)
        return;
    if (dev->backend == NULL)
        memcpy(dst, src, bytes);
    else
        dev->backend->copy(dev->self, queue, dst, src, bytes, kind);
}

void az_dev_copy_in(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes)
{
    copy(dev, queue, dst, src, bytes, AZ_COPY_IN);
}

void az_dev_copy_out(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes)
{
    copy(dev, queue, dst, src, bytes, AZ_COPY_OUT);
}

void az_dev_copy(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes)
{
    copy(dev, queue, dst, src, bytes, AZ_COPY_WITHIN);
}

void az_dev_fill(az_dev *dev, az_queue queue, void *dst, int byte, size_t bytes)
{
    if (bytes == 0)
        return;
    if (dev->backend == NULL)
        memset(dst, byte, bytes);
    else
        dev->backend->fill(dev->self, queue, dst, byte, bytes);
}

az_err az_dev_create_event(az_event **out_event, az_dev *dev)
{
    char text[256] = "";
    void *event = &nothing;
    *out_event = NULL;
    if (dev->backend != NULL &&
        dev->backend->create_event(dev->self, &event, text, sizeof text) != 0)
        return az_fail(AZ_EENV, "GPU %s: no event can be made: %s", dev->info.pci, text);
    *out_event = event;
    return AZ_OK;
}

void az_dev_destroy_event(az_dev *dev, az_event *opt_event)
{
    if (opt_event != NULL && dev->backend != NULL)
        dev->backend->destroy_event(dev->self, opt_event);
}

void az_dev_record(az_dev *dev, az_event *event, az_queue queue)
{
    if (dev->backend != NULL)
        dev->backend->record(dev->self, event, queue);
}

void az_dev_wait(az_dev *dev, az_queue queue, az_event *event)
{
    if (dev->backend == NULL)
        return;
    if (queue == AZ_QUEUE_COMPUTE)
        az_dev_time_operation(dev, "waiting for another queue");
    dev->backend->wait(dev->self, queue, event);
}

bool az_dev_is_done(az_dev *dev, az_event *event)
{
    return dev->backend == NULL || dev->backend->is_done(dev->self, event) != 0;
}

double az_dev_get_seconds(az_dev *dev, az_event *begin, az_event *end)
{
    return dev->backend != NULL ? dev->backend->get_seconds(dev->self, begin, end) : 0;
}

void az_dev_set_waiting(az_dev *dev, az_dev_waiting *opt_waiting, void *context)
{
    dev->waiting = opt_waiting;
    dev->waiting_context = context;
}

static void begin_waiting(az_dev *dev, az_sync why)
{
    az_dev_time_operation(dev, "waiting for the host");
    dev->syncs[why]++;
    if (dev->waiting != NULL)
        dev->waiting(dev->waiting_context, true);
}

static void end_waiting(az_dev *dev)
{
    if (dev->waiting != NULL)
        dev->waiting(dev->waiting_context, false);
}

void az_dev_sync_event(az_dev *dev, az_event *event, az_sync why)
{
    if (dev->backend == NULL)
        return;
    begin_waiting(dev, why);
    dev->backend->sync_event(dev->self, event);
    end_waiting(dev);
}

void az_dev_sync(az_dev *dev, az_queue queue, az_sync why)
{
    if (dev->backend == NULL)
        return;
    begin_waiting(dev, why);
    dev->backend->sync(dev->self, queue);
    end_waiting(dev);
}

int64_t az_dev_count_syncs(const az_dev *dev, az_sync why)
{
    return dev->syncs[why];
}

const char *az_dev_sync_name(az_sync why)
{
    static const char *const names[AZ_N_SYNCS] = {
        [AZ_SYNC_START] = "start", [AZ_SYNC_LOSS] = "loss",   [AZ_SYNC_LOGITS] = "logits",
        [AZ_SYNC_NORM] = "norm",   [AZ_SYNC_STAGE] = "stage", [AZ_SYNC_SAVE] = "save"};
    return names[why];
}
