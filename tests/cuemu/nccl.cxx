/* cuemu: NCCL between processes of one machine, over shared memory.
 *
 * Every rank owns a slot.  A collective copies its input to the slot, posts
 * it, and completes once all ranks have posted; it never blocks, so that
 * other streams go on meanwhile.  What the ranks posted must match.       */
#include "cuemu.h"
#include <nccl.h>
#include <cuda_bf16.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <vector>

namespace
{

using namespace cuemu;

enum Kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE };
const char *const kind_name[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast", "Reduce"};
const int max_ranks = 64;

struct What {
    int kind, type, op, root;
    size_t count;
};
struct Slot {
    std::atomic<uint64_t> posted, consumed;
    What what;
};
struct Shared {
    std::atomic<int> attached;
    Slot slot[max_ranks];
};

size_t slot_bytes()
{
    const char *s = getenv("CUEMU_NCCL_SLOT_MB");
    return (size_t)(s ? atoi(s) : 64) << 20;
}
/* CUEMU_NCCL_FAIL=n: the network fails at the n-th call of a communicator, counted from 0. */
uint64_t fails_from()
{
    const char *s = getenv("CUEMU_NCCL_FAIL");
    return s ? strtoull(s, nullptr, 10) : UINT64_MAX;
}
size_t header_bytes()
{
    return (sizeof(Shared) + 4095) / 4096 * 4096;
}

size_t size_of(int t)
{
    switch (t) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

template <class T> T combine(T a, T b, int op)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default:
        return a + b;
    }
}

/* out[i] = reduction over the ranks' in[r][i], in the order of the ranks */
template <class T, class Acc, class Get, class Put>
void reduce(void *out, const std::vector<const char *> &in, size_t n, int op, Get get, Put put)
{
    for (size_t i = 0; i < n; i++) {
        Acc a = get(((const T *)in[0])[i]);
        for (size_t r = 1; r < in.size(); r++)
            a = combine<Acc>(a, get(((const T *)in[r])[i]), op);
        if (op == ncclAvg)
            a = a / (Acc)in.size();
        ((T *)out)[i] = put(a);
    }
}
template <class T> void reduce(void *out, const std::vector<const char *> &in, size_t n, int op)
{
    auto id = [](T v) { return v; };
    reduce<T, T>(out, in, n, op, id, id);
}

void reduce(void *out, const std::vector<const char *> &in, size_t n, int op, int type)
{
    switch (type) {
    case ncclFloat32:
        reduce<float>(out, in, n, op);
        break;
    case ncclFloat64:
        reduce<double>(out, in, n, op);
        break;
    case ncclInt32:
        reduce<int32_t>(out, in, n, op);
        break;
    case ncclUint32:
        reduce<uint32_t>(out, in, n, op);
        break;
    case ncclInt64:
        reduce<int64_t>(out, in, n, op);
        break;
    case ncclUint64:
        reduce<uint64_t>(out, in, n, op);
        break;
    case ncclInt8:
        reduce<int8_t>(out, in, n, op);
        break;
    case ncclUint8:
        reduce<uint8_t>(out, in, n, op);
        break;
    case ncclBfloat16:
        reduce<unsigned short, float>(out, in, n, op, cuemu_bf16_to_float, cuemu_float_to_bf16);
        break;
    default:
        die("NCCL data type %d is not supported", type);
    }
}

int group_depth;
std::vector<std::function<void()>> group;

} // namespace

struct ncclComm {
    int rank, n;
    Shared *sh;
    size_t bytes;
    std::atomic<uint64_t> calls;
    std::shared_ptr<cuemu::Done> last; /* calls of one communicator are ordered */
    std::atomic<bool> aborted;
    ncclComm *next; /* of those aborted */
    char *data(int r)
    {
        return (char *)sh + header_bytes() + (size_t)r * slot_bytes();
    }
};

namespace
{

bool all(ncclComm_t c, std::atomic<uint64_t> Slot::*m, uint64_t at_least)
{
    for (int r = 0; r < c->n; r++)
        if ((c->sh->slot[r].*m).load(std::memory_order_acquire) < at_least)
            return false;
    return true;
}

bool step(ncclComm_t c, uint64_t seq, const What &w, const void *send, void *recv, bool &posted)
{
    if (c->aborted)
        return true;
    if (seq >= fails_from())
        return false; /* as if the peer had gone: until it is aborted */
    Slot &mine = c->sh->slot[c->rank];
    size_t esize = size_of(w.type);
    size_t in = w.count * esize * (w.kind == REDUCE_SCATTER ? (size_t)c->n : 1);
    size_t out = w.count * esize * (w.kind == ALL_GATHER ? (size_t)c->n : 1);
    bool sends = w.kind != BROADCAST || w.root == c->rank;
    if (!posted) {
        if (!all(c, &Slot::consumed, seq))
            return false;
        if (in > slot_bytes())
            die("NCCL call too large: raise CUEMU_NCCL_SLOT_MB");
        if (sends) {
            use(send, in, false, kind_name[w.kind]);
            memcpy(c->data(c->rank), send, in);
        }
        mine.what = w;
        mine.posted.store(seq + 1, std::memory_order_release);
        posted = true;
        return false;
    }
    if (!all(c, &Slot::posted, seq + 1))
        return false;
    for (int r = 0; r < c->n; r++) {
        const What &o = c->sh->slot[r].what;
        if (o.kind != w.kind || o.type != w.type || o.op != w.op || o.root != w.root ||
            o.count != w.count)
            die("NCCL call %llu: rank %d calls %s of %zu (type %d), rank %d %s of "
                "%zu (type %d)",
                (unsigned long long)seq, c->rank, kind_name[w.kind], w.count, w.type, r,
                kind_name[o.kind], o.count, o.type);
    }
    if (w.kind != REDUCE || w.root == c->rank)
        use(recv, out, true, kind_name[w.kind]);
    size_t part = w.count * esize;
    std::vector<const char *> from;
    for (int r = 0; r < c->n; r++)
        from.push_back(c->data(r) + (w.kind == REDUCE_SCATTER ? (size_t)c->rank * part : 0));
    if (w.kind == ALL_GATHER)
        for (int r = 0; r < c->n; r++)
            memcpy((char *)recv + (size_t)r * part, from[(size_t)r], part);
    else if (w.kind == BROADCAST)
        memcpy(recv, from[(size_t)w.root], part);
    else if (w.kind != REDUCE || w.root == c->rank)
        reduce(recv, from, w.count, w.op, w.type);
    mine.consumed.store(seq + 1, std::memory_order_release);
    return true;
}

__attribute__((always_inline)) inline ncclResult_t call(What w, const void *send, void *recv,
                                                        ncclComm_t c, cudaStream_t s)
{
    Lock l;
    if (!c || c->aborted || w.root < 0 || w.root >= c->n)
        return ncclInvalidArgument;
    auto go = [=] {
        uint64_t seq = c->calls++;
        char what[64];
        snprintf(what, sizeof what, "NCCL %s of %zu, call %llu", kind_name[w.kind], w.count,
                 (unsigned long long)seq);
        c->last = enqueue(
            s, what, [=, posted = false]() mutable { return step(c, seq, w, send, recv, posted); },
            c->last);
    };
    if (group_depth)
        group.push_back(go);
    else
        go();
    return status() ? ncclUnhandledCudaError : ncclSuccess;
}

} // namespace

extern "C" {

const char *ncclGetErrorString(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    }
    return "unknown result code";
}
const char *ncclGetLastError(ncclComm_t)
{
    return "";
}
ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* The id names a memory file of its creator, so nothing is left behind. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    int fd = memfd_create("cuemu-nccl", MFD_CLOEXEC);
    if (fd < 0)
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), fd);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId id, int rank)
{
    if (n < 1 || n > max_ranks || rank < 0 || rank >= n)
        return ncclInvalidArgument;
    int fd = open(id.internal, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return ncclSystemError;
    size_t bytes = header_bytes() + (size_t)n * slot_bytes();
    if (ftruncate(fd, (off_t)bytes))
        return ncclSystemError;
    void *m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        return ncclSystemError;
    ncclComm_t c = new ncclComm{rank, n, (Shared *)m, bytes, 0, nullptr, {false}, nullptr};
    c->sh->attached++;
    time_t end = time(nullptr) + 60;
    while (c->sh->attached < n) {
        if (time(nullptr) > end)
            cuemu::die("ncclCommInitRank: not all ranks came");
        sched_yield();
    }
    *out = c;
    cuemu::start_helper();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!c)
        return ncclSuccess;
    cudaDeviceSynchronize();
    munmap(c->sh, c->bytes);
    delete c;
    return ncclSuccess;
}
/* From any thread, also while another one waits for the device: it takes no lock. What is queued
 * ends without effect on this rank; what it points at stays, for it may still be in a queue. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    static std::atomic<ncclComm *> all;
    if (c && !c->aborted.exchange(true))
        c->next = all.exchange(c);
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    *r = c->calls > fails_from() ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    cuemu::Lock l;
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void)
{
    cuemu::Lock l;
    if (!group_depth)
        return ncclInvalidUsage;
    if (--group_depth)
        return ncclSuccess;
    std::vector<std::function<void()>> g;
    g.swap(group);
    for (auto &f : g)
        f();
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t st)
{
    return call({ALL_GATHER, t, 0, 0, n}, s, r, c, st);
}
ncclResult_t ncclReduceScatter(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t st)
{
    return call({REDUCE_SCATTER, t, op, 0, n}, s, r, c, st);
}
ncclResult_t ncclAllReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t st)
{
    return call({ALL_REDUCE, t, op, 0, n}, s, r, c, st);
}
ncclResult_t ncclReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t st)
{
    return call({REDUCE, t, op, root, n}, s, r, c, st);
}
ncclResult_t ncclBroadcast(const void *s, void *r, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t st)
{
    return call({BROADCAST, t, 0, root, n}, s, r, c, st);
}

} // extern "C"
