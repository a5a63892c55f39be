/* comm: collectives between GPUs, through NCCL. */
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>
#include <nccl.h>

#include "comm/backend.h"

extern "C" const az_dev_backend az_backend_dev;

struct az_nccl {
    const az_backend_host *host;
    void *dev_self;
    ncclComm_t comm;
};

namespace {

static_assert(NCCL_UNIQUE_ID_BYTES == AZ_NCCL_ID_BYTES, "the id's size");

/* The failure in text, with what NCCL says of it; 0 if there is none. */
int describe_error(ncclResult_t r, ncclComm_t comm, char *text, size_t size)
{
    if (r == ncclSuccess || r == ncclInProgress)
        return 0;
    const char *last = ncclGetLastError(comm);
    const bool more = last != nullptr && *last != '\0';
    snprintf(text, size, "NCCL: %s%s%s", ncclGetErrorString(r), more ? ": " : "",
             more ? last : "");
    return -1;
}

/* Queued work may not fail. */
void check_queued(az_nccl *c, ncclResult_t r, const char *operation)
{
    char text[512];
    if (describe_error(r, c->comm, text, sizeof text) != 0)
        c->host->fail(c->host->context, operation, text);
}

cudaStream_t begin(az_nccl *c, az_queue queue, const char *operation)
{
    c->host->note(c->host->context, queue, operation);
    return static_cast<cudaStream_t>(az_backend_dev.get_stream(c->dev_self, queue));
}

void get_version(char *text, size_t size)
{
    int v = 0;
    ncclGetVersion(&v);
    snprintf(text, size, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

int make_id(char id[AZ_NCCL_ID_BYTES], char *text, size_t size)
{
    ncclUniqueId made;
    const int failed = describe_error(ncclGetUniqueId(&made), nullptr, text, size);
    if (failed == 0)
        memcpy(id, made.internal, AZ_NCCL_ID_BYTES);
    return failed;
}

int create(az_nccl **out, void *dev_self, const az_backend_host *host,
           const char id[AZ_NCCL_ID_BYTES], int n, int rank, char *text, size_t size)
{
    ncclUniqueId made;
    ncclComm_t comm = nullptr;
    *out = nullptr;
    memcpy(made.internal, id, AZ_NCCL_ID_BYTES);
    if (describe_error(ncclCommInitRank(&comm, n, made, rank), nullptr, text, size) != 0)
        return -1;
    *out = new az_nccl{host, dev_self, comm};
    return 0;
}

void destroy(az_nccl *c)
{
    ncclCommDestroy(c->comm);
    delete c;
}

void abort_communicator(az_nccl *c)
{
    ncclCommAbort(c->comm);
    delete c;
}

int check(az_nccl *c, char *text, size_t size)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t r = ncclCommGetAsyncError(c->comm, &state);
    return describe_error(r != ncclSuccess ? r : state, c->comm, text, size);
}

void allgather(az_nccl *c, az_queue queue, const void *send, void *recv, size_t bytes_each)
{
    cudaStream_t stream = begin(c, queue, "all-gather");
    check_queued(c, ncclAllGather(send, recv, bytes_each, ncclUint8, c->comm, stream),
                 "all-gather");
}

void begin_group(az_nccl *c)
{
    check_queued(c, ncclGroupStart(), "group of collectives");
}

void end_group(az_nccl *c)
{
    check_queued(c, ncclGroupEnd(), "group of collectives");
}

void broadcast(az_nccl *c, az_queue queue, void *buffer, size_t bytes, int root)
{
    cudaStream_t stream = begin(c, queue, "broadcast");
    check_queued(c, ncclBroadcast(buffer, buffer, bytes, ncclUint8, root, c->comm, stream),
                 "broadcast");
}

void reduce_i64(az_nccl *c, az_queue queue, int64_t *buffer, size_t n, int root)
{
    cudaStream_t stream = begin(c, queue, "sum");
    check_queued(c, ncclReduce(buffer, buffer, n, ncclInt64, ncclSum, root, c->comm, stream),
                 "sum");
}

} // namespace

extern "C" const az_nccl_backend az_backend_nccl = {
    get_version, make_id,   create,      destroy,   abort_communicator, check,
    allgather,   begin_group, end_group, broadcast, reduce_i64};
