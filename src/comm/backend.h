/* comm/backend: collectives between GPUs, as a backend offers them. C and C++.
 *
 * Exported under the name AZ_BACKEND_NCCL, where the backend was built with NCCL. Functions that
 * return int return 0, or have described the failure in text; queued ones go to host->fail. All
 * ranks of a communicator call the same functions in the same order, into queues that they name
 * alike. */
#ifndef AZ_COMM_BACKEND_H
#define AZ_COMM_BACKEND_H

#include "dev/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AZ_NCCL_ID_BYTES 128

typedef struct az_nccl az_nccl; /* a communicator */

typedef struct {
    /* "2.21.5" */
    void (*get_version)(char *text, size_t size);
    /* A new id, on one rank, to be handed to the others. */
    int (*make_id)(char id[AZ_NCCL_ID_BYTES], char *text, size_t size);
    /* Collective over n ranks. */
    int (*create)(az_nccl **out, void *dev_self, const az_backend_host *host,
                  const char id[AZ_NCCL_ID_BYTES], int n, int rank, char *text, size_t size);
    void (*destroy)(az_nccl *nccl);
    /* Give up what is under way and let the communicator go: instead of destroy, which would wait
     * for ranks that do not come any more. */
    void (*abort)(az_nccl *nccl);
    /* 0, or what has gone wrong in the background in text. From any thread. */
    int (*check)(az_nccl *nccl, char *text, size_t size);
    /* Rank i's bytes_each bytes to recv + i * bytes_each, on all; send may be its place in recv. */
    void (*allgather)(az_nccl *nccl, az_queue queue, const void *send, void *recv,
                      size_t bytes_each);
    /* Between begin_group and end_group calls are one operation. */
    void (*begin_group)(az_nccl *nccl);
    void (*end_group)(az_nccl *nccl);
    /* root's bytes to all, in place. */
    void (*broadcast)(az_nccl *nccl, az_queue queue, void *buffer, size_t bytes, int root);
    /* Sums of n integers over all ranks to root's buffer, in place; others' are undefined then. */
    void (*reduce_i64)(az_nccl *nccl, az_queue queue, int64_t *buffer, size_t n, int root);
} az_nccl_backend;

#ifdef __cplusplus
}
#endif
#endif
