/* dev: what was queued of late, for the message when it has failed. A failure shows at some later
 * call. Each queue writes the number of each mark that it has passed to host memory, so what had
 * been put behind the last one passed is what may have failed. */
#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dev/dev_priv.h"

void az_dev_mark(az_dev *dev, az_queue queue, const char *what, int64_t i)
{
    if (dev->backend == NULL)
        return;
    az_trail *trail = &dev->trails[queue];
    trail->n_marks++;
    trail->marks[trail->n_marks % AZ_DEV_MARKS].what = what;
    trail->marks[trail->n_marks % AZ_DEV_MARKS].i = i;
    dev->backend->mark(dev->self, queue, trail->n_marks);
}

typedef struct {
    char *s;
    size_t size, used;
} text;

static void add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (t->used < t->size) {
        const int n = vsnprintf(t->s + t->used, t->size - t->used, format, args);
        t->used += n > 0 ? (size_t)n : 0;
    }
    va_end(args);
}

/* The operations behind the last mark that was passed, equal neighbours once. */
static void add_queue(text *t, const az_dev *dev, az_queue queue, const char *name)
{
    const az_trail *trail = &dev->trails[queue];
    const uint32_t passed = dev->backend->get_mark(dev->self, queue), n = trail->n_operations;
    const uint32_t first = n > AZ_DEV_TRAIL ? n - AZ_DEV_TRAIL : 0;
    const char *last = "";
    bool any = false;
    for (uint32_t i = first; i < n; i++) {
        const char *operation = trail->operations[i % AZ_DEV_TRAIL];
        if (trail->at[i % AZ_DEV_TRAIL] < passed)
            continue;
        if (!any && passed > 0 && trail->n_marks - passed < AZ_DEV_MARKS)
            add(t, "; %s queue, begun: %s %lld: ", name, trail->marks[passed % AZ_DEV_MARKS].what,
                (long long)trail->marks[passed % AZ_DEV_MARKS].i);
        else if (!any)
            add(t, "; %s queue: ", name);
        if (strcmp(operation, last) != 0)
            add(t, "%s%s", any ? ", " : "", operation);
        last = operation;
        any = true;
    }
}

void az_dev_describe_trail(const az_dev *dev, char *out, size_t size)
{
    static const char *const names[AZ_N_QUEUES] = {"compute", "gather", "copy"};
    text t = {out, size, 0};
    *out = '\0';
    if (dev->backend == NULL)
        return;
    for (int q = 0; q < AZ_N_QUEUES; q++)
        add_queue(&t, dev, (az_queue)q, names[q]);
}
