/* dev, inside: a device. */
#ifndef AZ_DEV_PRIV_H
#define AZ_DEV_PRIV_H

#include "dev/dev.h"

/* Operations remembered of a queue, for the message when one has failed. */
#define AZ_DEV_TRAIL 256
/* Marks remembered of a queue. */
#define AZ_DEV_MARKS 64

/* What was put into one queue of late. */
typedef struct {
    const char *operations[AZ_DEV_TRAIL];
    uint32_t at[AZ_DEV_TRAIL]; /* the mark before each */
    uint32_t n_operations;
    struct {
        const char *what;
        int64_t i;
    } marks[AZ_DEV_MARKS];
    uint32_t n_marks;
} az_trail;

/* A block of device or pinned memory, so that it can be taken off the report when it goes. */
typedef struct {
    void *p;
    size_t bytes;
    const char *category;
} az_dev_block;

typedef struct az_dev_timing az_dev_timing;

struct az_dev {
    const az_dev_backend *backend; /* NULL: the CPU */
    void *self;
    az_gpu_info info;
    az_backend_host host;
    az_trail trails[AZ_N_QUEUES];
    az_dev_block *blocks;
    size_t n_blocks;
    size_t held, most_held; /* bytes of the GPU's memory: now, and the most so far */
    az_dev_fail *fail;
    void *fail_context;
    az_dev_waiting *waiting;
    void *waiting_context;
    int64_t syncs[AZ_N_SYNCS];
    az_dev_timing *timing; /* NULL: operations are not timed */
};

/* The backend's table, opened once a process; NULL and why where there is none. */
const az_dev_backend *az_dev_open_backend(char *out_why, size_t size);
const void *az_dev_find_table(const char *name);
/* The text for a failure, with what was queued: appended to out. */
void az_dev_describe_trail(const az_dev *dev, char *out, size_t size);
/* From here on the compute queue does an operation (a string literal); nothing if it is not timed.
 */
void az_dev_time_operation(az_dev *dev, const char *operation);
void az_dev_end_times(az_dev *dev);

#endif
