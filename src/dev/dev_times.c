/* dev: how long each operation of a GPU's compute queue takes. An event goes into the queue before
 * each operation; what lies between two belongs to the first, from when it can begin to when the
 * next one can. Nothing waits for the events: times are read when they have long passed, from a
 * ring that holds more than a pass. */
#include <config.h>

#include <string.h>

#include "dev/dev_priv.h"

enum { RING = 1 << 15, NAMES = 64 };

struct az_dev_timing {
    az_event *events[RING];
    const char *names[RING];
    int64_t begun, added; /* events recorded, and intervals that are in the sums */
    az_dev_time sums[NAMES];
    int n_sums;
};

az_err az_dev_start_times(az_dev *dev)
{
    az_err err = AZ_OK;
    if (dev->backend == NULL || dev->timing != NULL)
        return AZ_OK;
    AZ_TRY(AZ_NEW(dev->timing, 1, "times"));
    for (int i = 0; i < RING; i++)
        AZ_TRY(az_dev_create_event(&dev->timing->events[i], dev));
out:
    if (err != AZ_OK)
        az_dev_end_times(dev);
    return err;
}

void az_dev_end_times(az_dev *dev)
{
    if (dev->timing == NULL)
        return;
    for (int i = 0; i < RING; i++)
        az_dev_destroy_event(dev, dev->timing->events[i]);
    az_free(dev->timing);
    dev->timing = NULL;
}

/* The last place is for all names beyond the table. */
static void add(az_dev_timing *t, const char *name, double seconds)
{
    int i = 0;
    while (i < t->n_sums && strcmp(t->sums[i].name, name) != 0)
        i++;
    if (i == NAMES)
        i = NAMES - 1;
    else if (i == t->n_sums)
        t->sums[t->n_sums++] = (az_dev_time){.name = name};
    t->sums[i].seconds += seconds;
    t->sums[i].n++;
}

/* Intervals that are over go into the sums. */
static void add_done(az_dev *dev)
{
    az_dev_timing *t = dev->timing;
    while (t->added + 1 < t->begun && az_dev_is_done(dev, t->events[(t->added + 1) % RING])) {
        az_event *begin = t->events[t->added % RING], *end = t->events[(t->added + 1) % RING];
        add(t, t->names[t->added % RING], az_dev_get_seconds(dev, begin, end));
        t->added++;
    }
}

void az_dev_time_operation(az_dev *dev, const char *operation)
{
    az_dev_timing *t = dev->timing;
    if (t == NULL)
        return;
    if (t->begun - t->added >= RING - 1)
        add_done(dev);
    if (t->begun - t->added == RING)
        return;
    /* The last one that has room stands for all that come until there is some again. */
    t->names[t->begun % RING] = t->begun - t->added < RING - 1 ? operation : "not told apart";
    az_dev_record(dev, t->events[t->begun % RING], AZ_QUEUE_COMPUTE);
    t->begun++;
}

const az_dev_time *az_dev_get_times(az_dev *dev, int *out_n)
{
    *out_n = 0;
    if (dev->timing == NULL)
        return NULL;
    add_done(dev);
    *out_n = dev->timing->n_sums;
    return dev->timing->sums;
}
