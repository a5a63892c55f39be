/* dev/backend: what a backend is asked for. C and C++.
 *
 * A backend is a shared object (adze-cuda.so) that is opened when a GPU is wanted, so that the
 * program starts where there is no driver and no CUDA library, and costs nothing there. It offers
 * tables of functions, one for each module that uses it, under the names AZ_BACKEND_DEV,
 * AZ_BACKEND_KERN and AZ_BACKEND_NCCL. Functions that return int return 0, or have described the
 * failure in text. Functions of work that is queued return nothing: a failure of theirs cannot be
 * mended, and goes to host->fail, which does not return. */
#ifndef AZ_DEV_BACKEND_H
#define AZ_DEV_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change of a table. */
#define AZ_BACKEND_VERSION 1

/* The queues of a device. What is in one is done in its order; queues do not wait for each other
 * unless they are told to (events). compute: kernels. gather: bringing units and sums together.
 * copy: batches in, results out. */
typedef enum { AZ_QUEUE_COMPUTE, AZ_QUEUE_GATHER, AZ_QUEUE_COPY, AZ_N_QUEUES } az_queue;

/* What a backend calls. */
typedef struct {
    /* An operation that was queued, by its name (a string literal); told before it is. */
    void (*note)(void *context, az_queue queue, const char *operation);
    /* Work on the device has failed: what says how. Does not return. */
    void (*fail)(void *context, const char *operation, const char *what);
    void *context;
} az_backend_host;

/* A GPU as the driver shows it. */
typedef struct {
    char name[96];
    char uuid[48];    /* "GPU-8-4-4-4-12" in hexadecimal */
    char pci[16];     /* "0000:3b:00.0" */
    int major, minor; /* compute capability */
    int n_sm;         /* multiprocessors */
    size_t total_bytes;
} az_gpu_info;

typedef enum { AZ_COPY_IN, AZ_COPY_OUT, AZ_COPY_WITHIN } az_copy_kind;

typedef struct {
    int version; /* AZ_BACKEND_VERSION */
    /* Number of GPUs that this process may use, 0 and why in text where there are none. */
    int (*count)(int *out_n, char *text, size_t size);
    int (*describe)(int index, az_gpu_info *out, char *text, size_t size);
    /* "CUDA runtime 12.4, driver for 12.8" */
    void (*get_versions)(char *text, size_t size);
    /* The device with its queues. */
    int (*open)(void **out_self, int index, const az_backend_host *host, char *text, size_t size);
    void (*close)(void *self);
    /* Device memory; pinned host memory; host memory of others made pinned. */
    int (*alloc)(void *self, void **out, size_t bytes, char *text, size_t size);
    void (*free)(void *self, void *p);
    int (*alloc_host)(void *self, void **out, size_t bytes, char *text, size_t size);
    void (*free_host)(void *self, void *p);
    int (*pin)(void *self, void *p, size_t bytes, char *text, size_t size);
    void (*unpin)(void *self, void *p);
    int (*get_free)(void *self, size_t *out_free, size_t *out_total, char *text, size_t size);
    /* Whether the device can read the memory of another one of this node directly. */
    int (*can_reach)(void *self, int index);
    /* Queued. */
    void (*copy)(void *self, az_queue queue, void *dst, const void *src, size_t bytes,
                 az_copy_kind kind);
    void (*fill)(void *self, az_queue queue, void *dst, int byte, size_t bytes);
    /* The number is written to the queue's place in host memory when all before it is done. */
    void (*mark)(void *self, az_queue queue, uint32_t number);
    uint32_t (*get_mark)(void *self, az_queue queue); /* also after a failure */
    /* Events. */
    int (*create_event)(void *self, void **out, char *text, size_t size);
    void (*destroy_event)(void *self, void *event);
    void (*record)(void *self, void *event, az_queue queue);
    void (*wait)(void *self, az_queue queue, void *event);
    void (*sync_event)(void *self, void *event);
    void (*sync)(void *self, az_queue queue);
    int (*is_done)(void *self, void *event);
    double (*get_seconds)(void *self, void *begin,
                          void *end); /* between two events that are done */
    /* The queue as the driver's handle (cudaStream_t), for the backend's other tables. */
    void *(*get_stream)(void *self, az_queue queue);
} az_dev_backend;

#define AZ_BACKEND_DEV "az_backend_dev"   /* const az_dev_backend */
#define AZ_BACKEND_KERN "az_backend_kern" /* const az_kern_backend, kern/backend.h */
#define AZ_BACKEND_NCCL "az_backend_nccl" /* const az_nccl_backend, comm/backend.h */

#ifdef __cplusplus
}
#endif
#endif
