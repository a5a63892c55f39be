/* dev: where arrays lie and kernels run: the host's own memory and cores, or one GPU.
 *
 * A rank opens one device. What runs on a GPU is queued and done later, in order within a queue
 * (backend.h lists them); events order queues among each other, and the host waits only where it
 * needs a value, which is counted by reason. On the CPU, the trivial device, everything is done at
 * once: there events order nothing, and host and device memory are the same kind.
 *
 * Work on a GPU that fails (an illegal address, a lost device) cannot be mended: the job ends, with
 * the operations that were queued and not known to be done (az_dev_fail). What returns a code fails
 * with AZ_EENV. All Local. */
#ifndef AZ_DEV_DEV_H
#define AZ_DEV_DEV_H

#include "base/base.h"
#include "dev/backend.h"

typedef struct az_dev az_dev;
typedef struct az_event az_event;

/* ---- devices ---- */

/* The GPUs that this process may use, in the driver's order; free with az_free. None is no failure:
 * *out_n is 0, and out_why [size] says why: no backend, no library of CUDA's, no driver, no device.
 */
az_err az_dev_list_gpus(az_gpu_info **out_gpus, int *out_n, char *out_why, size_t size);
/* Versions of CUDA and of the driver, for the banner; "" without a backend. */
void az_dev_describe_backend(char *text, size_t size);

/* The CPU; need not be closed. */
az_dev *az_dev_get_cpu(void);
/* What is called, with a text, when work on the device has failed; it must not return. */
typedef void az_dev_fail(void *context, const char *text);
/* A GPU by its number in az_dev_list_gpus. */
az_err az_dev_open_gpu(az_dev **out_dev, int index, az_dev_fail *fail, void *context);
void az_dev_close(az_dev *opt_dev);
bool az_dev_is_gpu(const az_dev *dev);
/* Of a GPU. */
const az_gpu_info *az_dev_get_info(const az_dev *dev);
/* Whether it can read the memory of another GPU of this process's list directly. */
bool az_dev_can_reach(const az_dev *dev, int index);
/* A table of the backend by its name (AZ_BACKEND_KERN, ...), and the backend's own device for it.
 */
const void *az_dev_get_table(const az_dev *dev, const char *name);
void *az_dev_get_self(const az_dev *dev);
const az_backend_host *az_dev_get_host(const az_dev *dev);

/* ---- memory ---- */

/* Device memory, aligned to 256 bytes, zeroed on the CPU only; counted in the memory report under
 * category, a string literal ("GPU " is put before it on a GPU). bytes may be 0. */
az_err az_dev_alloc(void **out, az_dev *dev, size_t bytes, const char *category);
void az_dev_free(az_dev *dev, void *opt_p);
/* Host memory that copies can run from and to while the host goes on, zeroed. */
az_err az_dev_alloc_host(void **out, az_dev *dev, size_t bytes, const char *category);
void az_dev_free_host(az_dev *dev, void *opt_p);
/* The same for memory that is there, shared by a node's ranks, say. Page-aligned. */
az_err az_dev_pin(az_dev *dev, void *p, size_t bytes);
void az_dev_unpin(az_dev *dev, void *p);
/* An arena (base/mem.h) in device memory: between the two carvings. */
az_err az_dev_arena_init(az_dev *dev, az_arena *arena, const char *category);
void az_dev_arena_fini(az_dev *dev, az_arena *arena);
/* The most bytes of the GPU's memory that were held here at a time; 0 on the CPU. */
size_t az_dev_get_most(const az_dev *dev);
/* Bytes of the GPU's memory that are free, and all of it. */
az_err az_dev_get_memory(az_dev *dev, size_t *out_free, size_t *out_total);

/* ---- queued work ---- */

/* From host to device, from device to host, within the device. Host memory that is not pinned makes
 * the host wait. Ranges do not overlap. */
void az_dev_copy_in(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes);
void az_dev_copy_out(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes);
void az_dev_copy(az_dev *dev, az_queue queue, void *dst, const void *src, size_t bytes);
void az_dev_fill(az_dev *dev, az_queue queue, void *dst, int byte, size_t bytes);
/* From here on the queue does `what` (a string literal) number i, for messages. */
void az_dev_mark(az_dev *dev, az_queue queue, const char *what, int64_t i);

/* ---- order ---- */

az_err az_dev_create_event(az_event **out_event, az_dev *dev);
void az_dev_destroy_event(az_dev *dev, az_event *opt_event);
/* The event stands for all that is in the queue now. */
void az_dev_record(az_dev *dev, az_event *event, az_queue queue);
/* What is put into the queue from now on waits for what the event stands for; one that was never
 * recorded stands for nothing. */
void az_dev_wait(az_dev *dev, az_queue queue, az_event *event);
bool az_dev_is_done(az_dev *dev, az_event *event);
/* Seconds that lie between two events, which must be done. 0 on the CPU. */
double az_dev_get_seconds(az_dev *dev, az_event *begin, az_event *end);

/* Why the host waits. */
typedef enum {
    AZ_SYNC_START,  /* what is done once in a run: loading, looks at the first step, the end */
    AZ_SYNC_LOSS,   /* losses of a pass */
    AZ_SYNC_LOGITS, /* of generation */
    AZ_SYNC_NORM,   /* squares of the gradient: the norm decides on the update */
    AZ_SYNC_STAGE,  /* a message between nodes that goes through the host */
    AZ_SYNC_SAVE,   /* a checkpoint, an adapter */
    AZ_N_SYNCS
} az_sync;
/* What is called before (true) and after (false) the host waits for a GPU; NULL: nothing. */
typedef void az_dev_waiting(void *context, bool waits);
void az_dev_set_waiting(az_dev *dev, az_dev_waiting *opt_waiting, void *context);
void az_dev_sync_event(az_dev *dev, az_event *event, az_sync why);
void az_dev_sync(az_dev *dev, az_queue queue, az_sync why);
/* How often so far, and a word for it. */
int64_t az_dev_count_syncs(const az_dev *dev, az_sync why);
const char *az_dev_sync_name(az_sync why);

/* ---- times of operations ---- */

/* From now on the operations of a GPU's compute queue are timed, each by an event before it. Does
 * nothing on the CPU. */
az_err az_dev_start_times(az_dev *dev);
typedef struct {
    const char *name;
    double seconds; /* from when it could begin to when the next one could */
    int64_t n;
} az_dev_time;
/* Sums by name over what is done, borrowed; of no length where nothing is timed. */
const az_dev_time *az_dev_get_times(az_dev *dev, int *out_n);

#endif
