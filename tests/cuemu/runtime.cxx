/* cuemu: memory, streams and events.  Nothing asynchronous runs when it is
 * called: it is queued, and the queues advance at synchronisation points
 * and, at random, in other calls.                                         */
#include "cuemu.h"
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#ifdef CUEMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

using namespace cuemu;

namespace
{

struct Op {
    std::function<bool()> step;
    std::shared_ptr<Done> after, finished;
    std::string what;
    const void *caller;
    char token;
    bool broken = false; /* the one that fails, CUEMU_FAIL */
};

} // namespace

struct CUstream_st {
    std::deque<Op *> q;
    unsigned flags = 0;
    int id = 0;
    unsigned priority = 0; /* of the fuzzer, redrawn now and then */
    bool polled = false;   /* its head has said "not yet" in this round */
    bool destroyed = false;
    void *tsan = nullptr;
};
struct CUevent_st {
    std::shared_ptr<Done> last;
};

namespace
{

struct Alloc {
    size_t bytes;
    bool pinned;
    int serial;
    bool registered = false;
};

std::recursive_mutex mutex;
std::map<uintptr_t, Alloc> allocs;
std::vector<CUstream_st *> &streams = *new std::vector<CUstream_st *>; /* there to the last */
CUstream_st *legacy_stream;
std::map<const void *, int> max_shared;
cudaError_t last_error = cudaSuccess;
cudaError_t sticky = cudaSuccess; /* once an operation has failed: what every call returns */
char stopped;                     /* token: after a failure the device does nothing any more */
uint64_t fails_at, operations;    /* CUEMU_FAIL: the n-th operation, counted from 1 */
Rng rng;
/* The policy depends on the seed only, hence is the same on all ranks. */
unsigned eagerness; /* per mille of calls in which the queues advance */
enum { UNIFORM, PRIORITIES, STARVE_ONE } policy;
unsigned starved; /* STARVE_ONE: this stream (modulo their number) */
double patience;  /* seconds given to a collective before others go on */
bool trace;
uint64_t launches, api_calls;
int api_depth;
const void *api_caller;
int alloc_serial, stream_serial;
size_t live_bytes;

/* ---- device memory is out of the host's reach between operations ------- */

#ifdef CUEMU_ASAN
void expose(bool on)
{
    for (auto &a : allocs)
        if (!a.second.pinned) {
            if (on)
                ASAN_UNPOISON_MEMORY_REGION((void *)a.first, a.second.bytes);
            else
                ASAN_POISON_MEMORY_REGION((void *)a.first, a.second.bytes);
        }
}
#elif !defined(CUEMU_TSAN)
const size_t arena_bytes = (size_t)1 << 36;
char *arena;
size_t arena_top;
std::map<size_t, size_t> holes;
/* The arena lies in pages of 2 MiB where there are such: protecting small ones costs
 * milliseconds. */
const size_t huge = (size_t)1 << 21;
size_t whole_pages(size_t n)
{
    return (n + huge - 1) / huge * huge;
}
void expose(bool on)
{
    static const char *p = getenv("CUEMU_PROTECT"); /* 0: large tests */
    if (p && *p == '0')
        return;
    if (arena_top &&
        mprotect(arena, whole_pages(arena_top), on ? PROT_READ | PROT_WRITE : PROT_NONE))
        die("mprotect failed");
}
#else
void expose(bool)
{
}
#endif

int exposed;
struct DeviceSection {
    DeviceSection()
    {
        if (!exposed++)
            expose(true);
    }
    ~DeviceSection()
    {
        if (!--exposed)
            expose(false);
    }
};
struct HostSection { /* host callbacks run inside a device section */
    int was = exposed;
    HostSection()
    {
        if (was)
            expose(false);
    }
    ~HostSection()
    {
        if (was)
            expose(true);
    }
};

double now()
{
#ifdef CUEMU_TSAN /* its interceptor would see all contexts write here */
    static thread_local timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
#else
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

CUstream_st *new_stream(unsigned flags)
{
    CUstream_st *s = new CUstream_st;
    s->flags = flags;
    s->id = stream_serial++;
    s->priority = rng.below(1000);
#ifdef CUEMU_TSAN
    s->tsan = __tsan_create_fiber(0);
    __tsan_set_fiber_name(s->tsan, ("stream " + std::to_string(s->id)).c_str());
#endif
    streams.push_back(s);
    return s;
}

#if !defined(CUEMU_ASAN) && !defined(CUEMU_TSAN)
void on_fault(int, siginfo_t *si, void *)
{
    static const char text[] = "cuemu: host code touches device memory outside an operation\n";
    char *p = (char *)si->si_addr;
    if (p >= arena && p < arena + arena_top && !exposed)
        if (write(2, text, sizeof text - 1) < 0) {
        }
} /* returning runs into the default action */
#endif

void report_leaks()
{
    for (auto &a : allocs)
        fprintf(stderr, "cuemu: never freed: %s allocation %d of %zu bytes\n",
                a.second.pinned ? "pinned" : "device", a.second.serial, a.second.bytes);
    if (!allocs.empty())
        _exit(3);
}

/* CUEMU_FAIL=n: the n-th operation of each process fails; r:n: of rank r. */
void read_fail(int rank)
{
    const char *s = getenv("CUEMU_FAIL");
    const char *colon = s ? strchr(s, ':') : nullptr;
    if (s && (!colon || atoi(s) == rank))
        fails_at = strtoull(colon ? colon + 1 : s, nullptr, 10);
}

void init()
{
    static bool done;
    if (done)
        return;
    done = true;
    const char *rank = getenv("PMI_RANK");
    read_fail(rank ? atoi(rank) : 0);
    rng.seed(seed(), rank ? (uint64_t)atoi(rank) : 0);
    Rng common;
    common.seed(seed(), 0xc0ffee);
    static const unsigned choices[] = {0, 0, 100, 500};
    eagerness = choices[common.below(4)];
    policy = (decltype(policy))common.below(3);
    starved = common.below(1000);
    patience = common.below(2) ? 0 : 0.005;
    trace = getenv("CUEMU_TRACE") != nullptr;
    if (getenv("CUEMU_LEAKS"))
        atexit(report_leaks);
#if !defined(CUEMU_ASAN) && !defined(CUEMU_TSAN)
    struct sigaction a = {};
    a.sa_sigaction = on_fault;
    a.sa_flags = SA_SIGINFO | SA_RESETHAND;
    sigaction(SIGSEGV, &a, nullptr);
#endif
    legacy_stream = new_stream(0);
}

cudaError_t fail(cudaError_t e)
{
    return last_error = status() ? sticky : e;
}

CUstream_st *resolve(cudaStream_t s)
{
    return s ? s : legacy_stream;
}

char *device_alloc(size_t n)
{
#if defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
    void *p = nullptr;
    return posix_memalign(&p, 256, n) ? nullptr : (char *)p;
#else
    n = (n + 4095) / 4096 * 4096;
    if (!arena) {
        arena = (char *)mmap(nullptr, arena_bytes + huge, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        arena = (char *)whole_pages((uintptr_t)arena);
        madvise(arena, arena_bytes, MADV_HUGEPAGE);
    }
    for (auto &h : holes)
        if (h.second >= n) {
            size_t at = h.first, rest = h.second - n;
            holes.erase(at);
            if (rest)
                holes[at + n] = rest;
            return arena + at;
        }
    if (arena_top + n > arena_bytes)
        return nullptr;
    arena_top += n;
    mprotect(arena, whole_pages(arena_top), PROT_READ | PROT_WRITE);
    return arena + arena_top - n;
#endif
}

void device_free(char *p, size_t n)
{
#if defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
#ifdef CUEMU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, n);
#endif
    free(p);
    (void)n;
#else
    n = (n + 4095) / 4096 * 4096;
    madvise(p, n, MADV_DONTNEED);
    holes[(size_t)(p - arena)] = n;
#endif
}

/* The allocation that holds p, or nullptr. */
const Alloc *find(const void *p, size_t n, uintptr_t *base = nullptr)
{
    auto it = allocs.upper_bound((uintptr_t)p);
    if (it == allocs.begin())
        return nullptr;
    --it;
    if ((uintptr_t)p + n > it->first + it->second.bytes)
        return nullptr;
    if ((uintptr_t)p >= it->first + it->second.bytes)
        return nullptr;
    if (base)
        *base = it->first;
    return &it->second;
}

/* ---- the queues -------------------------------------------------------- */

void dump()
{
    for (CUstream_st *s : streams)
        if (!s->q.empty())
            fprintf(stderr, "cuemu: stream %d: %zu queued, next: %s%s\n", s->id, s->q.size(),
                    s->q.front()->what.c_str(),
                    s->q.front()->after && !s->q.front()->after->done ? " (waits for an event)"
                                                                      : "");
}

/* Runs one step of one operation; false if no stream can advance. */
bool progress()
{
    static double idle_since;
    std::vector<CUstream_st *> can;
    bool polled = false;
    for (CUstream_st *s : streams) {
        if (s->q.empty())
            continue;
        Op *op = s->q.front();
        if (op->after && !op->after->done)
            continue;
        if (s->polled)
            polled = true;
        else
            can.push_back(s);
    }
    if (can.empty()) {
        if (!polled)
            return false;
        for (CUstream_st *s : streams)
            s->polled = false;
        if (!idle_since)
            idle_since = now();
        static const double limit = getenv("CUEMU_TIMEOUT") ? atof(getenv("CUEMU_TIMEOUT")) : 60;
        if (now() - idle_since > limit) {
            dump();
            die("no progress for %g s: do all ranks make the same NCCL calls?", limit);
        }
        sched_yield();
        return true;
    }
    CUstream_st *s = can[0];
    if (!seed()) {
        for (CUstream_st *c : can)
            if (c->q.front()->finished->when < s->q.front()->finished->when)
                s = c;
    } else if (policy == PRIORITIES) {
        if (rng.below(12) == 0)
            can[rng.below((unsigned)can.size())]->priority = rng.below(1000);
        for (CUstream_st *c : can)
            if (c->priority > s->priority)
                s = c;
    } else {
        s = can[rng.below((unsigned)can.size())];
        if (policy == STARVE_ONE && can.size() > 1 && s == streams[starved % streams.size()])
            s = can[s == can[0] ? 1 : 0];
    }
    Op *op = s->q.front();
#ifdef CUEMU_TSAN
    void *here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s->tsan, 1);
    hb_acquire(&op->token);
    if (op->after)
        hb_acquire(op->after.get());
    __tsan_func_entry(op->caller); /* reports then show who queued it */
#endif
    if (op->broken)
        sticky = last_error = cudaErrorIllegalAddress;
    bool over = sticky || !op->step || op->step(); /* nothing is done any more after a failure */
    if (!over && patience > 0) {
        double end = now() + patience;
        while (!(over = op->step()) && now() < end)
            sched_yield();
    }
    if (over) {
        hb_release(op->finished.get());
        hb_release(&stopped);
    }
#ifdef CUEMU_TSAN
    __tsan_func_exit();
    __tsan_switch_to_fiber(here, 1);
#endif
    if (!over) {
        s->polled = true;
        return true;
    }
    if (trace)
        fprintf(stderr, "cuemu: stream %d: %s\n", s->id, op->what.c_str());
    s->q.pop_front();
    op->finished->done = true;
    op->finished->when = now();
    for (CUstream_st *c : streams)
        c->polled = false;
    idle_since = 0;
#ifndef CUEMU_TSAN /* there freeing would look like a race with the op */
    delete op;
#endif
    return true;
}

template <class F> void run_until(F over)
{
    if (over())
        return;
    DeviceSection d;
    while (!over())
        if (!progress()) {
            dump();
            die("the streams wait for one another");
        }
}

void sync_stream(CUstream_st *s)
{
    std::shared_ptr<Done> end = enqueue(s, "(sync)", nullptr);
    run_until([&] { return end->done; });
    hb_acquire(end.get());
}

void sync_all()
{
    for (size_t i = 0; i < streams.size(); i++)
        sync_stream(streams[i]);
    for (size_t i = streams.size(); i-- > 0;)
        if (streams[i]->destroyed) {
            delete streams[i];
            streams.erase(streams.begin() + (long)i);
        }
}

/* Lets the device run ahead of the host by a random amount. */
void maybe_progress()
{
    if (exposed)
        return; /* called from inside an operation */
    if (!seed()) {
        DeviceSection d;
        for (int i = 0; i < 64 && progress(); i++) {
        }
    } else if (rng.below(1000) < eagerness) {
        DeviceSection d;
        for (unsigned n = 1 + rng.below(4); n-- && progress();) {
        }
    }
}

} // namespace

namespace cuemu
{

void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("cuemu: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

uint64_t seed()
{
    static const uint64_t s =
        getenv("CUEMU_SEED") ? strtoull(getenv("CUEMU_SEED"), nullptr, 10) : 0;
    return s;
}

cudaError_t status()
{
    if (sticky)
        hb_acquire(&stopped);
    return sticky;
}

void lock(const void *caller)
{
    mutex.lock();
    init();
    api_calls++;
    if (!api_depth++)
        api_caller = caller;
}
void unlock()
{
    api_depth--;
    mutex.unlock();
}

void start_helper()
{
    static bool started;
    if (started)
        return;
    started = true;
    static bool ended; /* the process is at its end: the queues go */
    atexit([] {
        mutex.lock();
        ended = true;
        mutex.unlock();
    });
    std::thread([] {
        for (uint64_t seen = 0;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (!mutex.try_lock())
                continue; /* the host is inside the API */
            if (ended) {
                mutex.unlock();
                return;
            }
            if (api_calls == seen) {
                DeviceSection d;
                for (int i = 0; i < 100 && progress(); i++) {
                }
            }
            seen = api_calls;
            mutex.unlock();
        }
    }).detach();
}

static std::shared_ptr<Done> push(CUstream_st *s, const char *what, std::function<bool()> step,
                                  std::shared_ptr<Done> after)
{
    Op *op =
        new Op{std::move(step), std::move(after), std::make_shared<Done>(), what, api_caller, 0};
    op->finished->when = now(); /* when queued, until it is done */
    op->broken = op->step && ++operations == fails_at;
    hb_release(&op->token);
    s->q.push_back(op);
#ifdef CUEMU_TSAN
    static std::vector<std::shared_ptr<Done>> keep; /* addresses are tokens */
    keep.push_back(op->finished);
#endif
    return op->finished;
}

/* Whether later work may have to wait for what is in the stream.  For
 * ThreadSanitizer finished work counts too: it must see the dependency.   */
static bool pending(CUstream_st *s)
{
#ifdef CUEMU_TSAN
    (void)s;
    return true;
#else
    return !s->q.empty();
#endif
}

std::shared_ptr<Done> enqueue(cudaStream_t stream, const char *what, std::function<bool()> step,
                              std::shared_ptr<Done> after)
{
    CUstream_st *s = resolve(stream);
    /* The legacy stream and the blocking streams wait for each other. */
    if (s == legacy_stream) {
        for (CUstream_st *o : streams)
            if (o != s && !(o->flags & cudaStreamNonBlocking) && pending(o))
                push(s, "(legacy wait)", nullptr, push(o, "(mark)", nullptr, nullptr));
    } else if (!(s->flags & cudaStreamNonBlocking) && pending(legacy_stream)) {
        push(s, "(legacy wait)", nullptr, push(legacy_stream, "(mark)", nullptr, nullptr));
    }
    std::shared_ptr<Done> d = push(s, what, std::move(step), std::move(after));
    maybe_progress();
    return d;
}

void use(const void *p, size_t bytes, bool write, const char *what)
{
    if (!bytes)
        return;
    const Alloc *a = find(p, bytes);
    if (!a)
        die("%s: %zu bytes at %p are not inside one live allocation", what, bytes, p);
#ifdef CUEMU_TSAN
    if (write)
        __tsan_write_range((void *)p, bytes);
    else
        __tsan_read_range((void *)p, bytes);
#endif
    (void)write;
}

cudaError_t alloc(void **out, size_t n, bool pinned, cudaStream_t *stream)
{
    Lock l;
    *out = nullptr;
    if (!n)
        return cudaSuccess;
    const char *cap = getenv("CUEMU_MEMORY"); /* simulated capacity in bytes */
    if (!pinned && cap && live_bytes + n > strtoull(cap, nullptr, 10))
        return fail(cudaErrorMemoryAllocation);
    void *p = nullptr;
    if (pinned) {
        if (posix_memalign(&p, 4096, n))
            p = nullptr;
    } else
        p = device_alloc(n);
    if (!p)
        return fail(cudaErrorMemoryAllocation);
    DeviceSection d;
    memset(p, 0xff, n); /* NaN in every floating-point type */
    allocs[(uintptr_t)p] = {n, pinned, alloc_serial++, false};
    if (!pinned)
        live_bytes += n;
    *out = p;
    (void)stream; /* usable at once, which is more than what is promised */
    return status();
}

cudaError_t func_attribute(const void *k, cudaFuncAttribute, int v)
{
    Lock l;
    if (v < 0 || v > 227 * 1024)
        return fail(cudaErrorInvalidValue);
    max_shared[k] = v;
    return cudaSuccess;
}

void check_pointer_argument(const void *p, int i, const Config &c)
{
    Lock l;
    if (p && !find(p, 0))
        die("%s:%d: kernel argument %d (%p) is no device or pinned memory", c.file, c.line, i, p);
}

cudaError_t launch(const void *k, ThreadFn fn, std::shared_ptr<void> call, const Config &c)
{
    Lock l;
    uint64_t threads = (uint64_t)c.block.x * c.block.y * c.block.z;
    if (!threads || threads > 1024 || c.block.z > 64 || !c.grid.x || !c.grid.y || !c.grid.z ||
        c.grid.y > 65535 || c.grid.z > 65535)
        return fail(cudaErrorInvalidConfiguration);
    auto it = max_shared.find(k);
    if (c.shmem > (it == max_shared.end() ? 48 * 1024 : (size_t)it->second))
        return fail(cudaErrorInvalidValue);
    const char *base = strrchr(c.file, '/');
    char what[160];
    snprintf(what, sizeof what, "kernel of %s:%d", base ? base + 1 : c.file, c.line);
    Grid g{c.file, c.line, fn, nullptr, c.grid, c.block, c.shmem, launches++, api_caller};
    enqueue(c.stream, what, [g, call]() mutable {
        g.call = call.get();
        run_grid(g);
        return true;
    });
    return status();
}

} // namespace cuemu

/* ---- the C API --------------------------------------------------------- */

namespace
{

struct Copy {
    char *d;
    const char *s;
    size_t dp, sp, w, h;
};

__attribute__((always_inline)) inline cudaError_t copy(const Copy &c, cudaMemcpyKind kind,
                                                       cudaStream_t st, bool wait)
{
    Lock l;
    if (!c.w || !c.h)
        return status();
    size_t dn = c.dp * (c.h - 1) + c.w, sn = c.sp * (c.h - 1) + c.w;
    const Alloc *d = find(c.d, 0), *s = find(c.s, 0);
    bool ddev = d && !d->pinned, sdev = s && !s->pinned;
    if (c.w > c.dp || c.w > c.sp)
        return fail(cudaErrorInvalidValue);
    if (kind != cudaMemcpyDefault &&
        (ddev != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
         sdev != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
        return fail(cudaErrorInvalidValue);
    if ((d && !find(c.d, dn)) || (s && !find(c.s, sn)))
        return fail(cudaErrorInvalidValue);
    enqueue(st, "memcpy", [c, dn, sn, d, s] {
        if (d && !find(c.d, dn))
            die("memcpy: the target was freed");
        if (s && !find(c.s, sn))
            die("memcpy: the source was freed");
        for (size_t i = 0; i < c.h; i++)
            memmove(c.d + i * c.dp, c.s + i * c.sp, c.w);
        return true;
    });
    if (wait || !d || !s)
        sync_stream(resolve(st)); /* pageable: no overlap */
    return status();
}

__attribute__((always_inline)) inline cudaError_t set(void *p, int v, size_t n, cudaStream_t st)
{
    Lock l;
    if (!n)
        return status();
    if (!find(p, n))
        return fail(cudaErrorInvalidValue);
    enqueue(st, "memset", [=] {
        if (!find(p, n))
            die("memset: the memory was freed");
        memset(p, v, n);
        return true;
    });
    return status();
}

void release(void *p)
{
    auto it = allocs.find((uintptr_t)p);
    if (it->second.pinned)
        free(p);
    else {
        live_bytes -= it->second.bytes;
        device_free((char *)p, it->second.bytes);
    }
    allocs.erase(it);
}

__attribute__((always_inline)) inline cudaError_t free_now(void *p, bool pinned)
{
    Lock l;
    if (!p)
        return status();
    auto it = allocs.find((uintptr_t)p);
    if (it == allocs.end() || it->second.pinned != pinned || it->second.registered)
        return fail(cudaErrorInvalidValue);
    sync_all();
    release(p);
    return status();
}

bool known(cudaStream_t s)
{
    if (!s)
        return true;
    for (CUstream_st *o : streams)
        if (o == s)
            return !o->destroyed;
    return false;
}

} // namespace

namespace
{
int device = -1; /* that the process uses */

std::vector<int> visible_devices()
{
    const char *all = getenv("CUEMU_DEVICES"), *list = getenv("CUDA_VISIBLE_DEVICES");
    int n = all ? atoi(all) : 4;
    std::vector<int> v;
    if (!list)
        for (int i = 0; i < n; i++)
            v.push_back(i);
    while (list && *list) {
        char *end;
        long d = strtol(list, &end, 10);
        if (end == list || d < 0 || d >= n)
            break;
        v.push_back((int)d);
        list = *end == ',' ? end + 1 : "";
    }
    return v;
}
} // namespace

#define CHECK_STREAM(s) \
    if (!known(s))      \
    return fail(cudaErrorInvalidResourceHandle)

namespace
{
struct ErrorText {
    cudaError_t code;
    const char *name, *text;
};
const ErrorText *text_of(cudaError_t e)
{
#define ERROR(name, text) {name, #name, text}
    static const ErrorText texts[] = {
        ERROR(cudaSuccess, "no error"),
        ERROR(cudaErrorInvalidValue, "invalid argument"),
        ERROR(cudaErrorMemoryAllocation, "out of memory"),
        ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
        ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
        ERROR(cudaErrorInsufficientDriver,
              "CUDA driver version is insufficient for CUDA runtime version"),
        ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
        ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
        ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
        ERROR(cudaErrorNotReady, "device not ready"),
        ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
        ERROR(cudaErrorHostMemoryAlreadyRegistered,
              "part or all of the requested memory range is already mapped"),
        ERROR(cudaErrorHostMemoryNotRegistered,
              "pointer does not correspond to a registered memory region")};
#undef ERROR
    static const ErrorText unknown = {e, "unrecognized error code", "unrecognized error code"};
    for (const ErrorText &t : texts)
        if (t.code == e)
            return &t;
    return &unknown;
}
} // namespace

extern "C" {

const char *cudaGetErrorName(cudaError_t e)
{
    return text_of(e)->name;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return text_of(e)->text;
}

cudaError_t cudaGetLastError(void)
{
    Lock l;
    cudaError_t e = last_error;
    last_error = status(); /* such a one stays */
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    Lock l;
    return last_error;
}

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 12040;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 12040;
    return cudaSuccess;
}

/* The machine has CUEMU_DEVICES devices (default 4); a process sees those that
 * CUDA_VISIBLE_DEVICES lists.  It may use one of them.                      */
cudaError_t cudaGetDeviceCount(int *n)
{
    std::vector<int> v = visible_devices();
    *n = (int)v.size();
    return *n ? status() : fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int d)
{
    Lock l;
    if (d < 0 || d >= (int)visible_devices().size())
        return fail(cudaErrorInvalidDevice);
    if (device >= 0 && device != d)
        die("a process may use one device only");
    device = d;
    return status();
}
cudaError_t cudaGetDevice(int *d)
{
    *d = device < 0 ? 0 : device;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b)
{
    const char *p = getenv("CUEMU_PEERS");
    *can = a != b && !(p && *p == '0');
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned)
{
    Lock l;
    if (!p || !n)
        return fail(cudaErrorInvalidValue);
    if (find(p, 0))
        return fail(cudaErrorHostMemoryAlreadyRegistered);
    allocs[(uintptr_t)p] = {n, true, alloc_serial++, true};
    return status();
}
cudaError_t cudaHostUnregister(void *p)
{
    Lock l;
    auto it = allocs.find((uintptr_t)p);
    if (it == allocs.end() || !it->second.registered)
        return fail(cudaErrorHostMemoryNotRegistered);
    sync_all();
    allocs.erase(it);
    return status();
}
static size_t capacity()
{
    const char *cap = getenv("CUEMU_MEMORY");
    return cap ? strtoull(cap, nullptr, 10) : (size_t)1 << 36;
}
/* CUEMU_TAKEN: bytes that another program takes after this one has asked for the first time. */
cudaError_t cudaMemGetInfo(size_t *f, size_t *t)
{
    Lock l;
    static bool asked;
    const char *taken = asked ? getenv("CUEMU_TAKEN") : nullptr;
    asked = true;
    const char *context = getenv("CUEMU_CONTEXT"); // from the start on
    *t = capacity();
    *f = *t - live_bytes - (taken ? strtoull(taken, nullptr, 10) : 0) -
         (context ? strtoull(context, nullptr, 10) : 0);
    return status();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    std::vector<int> v = visible_devices();
    if (d < 0 || d >= (int)v.size())
        return fail(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    memset(p->uuid.bytes, 0xc0, sizeof p->uuid.bytes);
    p->uuid.bytes[15] = (char)v[d];
    p->pciBusID = 0x10 + v[d];
    strcpy(p->name, "cuemu (CPU)");
    p->totalGlobalMem = capacity();
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = 227 * 1024;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->major = 9;
    p->multiProcessorCount = 4;
    return status();
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int)
{
    *v = a == cudaDevAttrMaxThreadsPerBlock    ? 1024
         : a == cudaDevAttrMultiProcessorCount ? 4
                                               : 227 * 1024;
    return status();
}

cudaError_t cudaDeviceSynchronize(void)
{
    Lock l;
    sync_all();
    return status();
}
cudaError_t cudaFree(void *p)
{
    return free_now(p, false);
}
cudaError_t cudaFreeHost(void *p)
{
    return free_now(p, true);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    Lock l;
    CHECK_STREAM(s);
    enqueue(s, "free", [p] {
        release(p);
        return true;
    });
    return status();
}

cudaError_t cudaMemcpy(void *d, const void *s, size_t n, cudaMemcpyKind k)
{
    return copy({(char *)d, (const char *)s, n, n, n, 1}, k, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t st)
{
    return copy({(char *)d, (const char *)s, n, n, n, 1}, k, st, false);
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h,
                              cudaMemcpyKind k, cudaStream_t st)
{
    return copy({(char *)d, (const char *)s, dp, sp, w, h}, k, st, false);
}
cudaError_t cudaMemset(void *p, int v, size_t n)
{
    return set(p, v, n, nullptr);
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s)
{
    return set(p, v, n, s);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    Lock l;
    *s = new_stream(flags);
    return status();
}
cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int)
{
    return cudaStreamCreateWithFlags(s, f);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *lo, int *hi)
{
    *lo = 0;
    *hi = -5;
    return status();
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Lock l;
    if (!s || !known(s))
        return fail(cudaErrorInvalidResourceHandle);
    s->destroyed = true; /* what is queued still runs; sync_all() deletes it */
    return status();
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    Lock l;
    CHECK_STREAM(s);
    sync_stream(resolve(s));
    return status();
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    Lock l;
    CHECK_STREAM(s);
    {
        DeviceSection d;
        progress();
    }
    if (!resolve(s)->q.empty())
        return fail(cudaErrorNotReady); /* it must be cleared, as on a GPU */
    sync_stream(resolve(s));
    return status();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    Lock l;
    CHECK_STREAM(s);
    if (e->last)
        enqueue(s, "wait for an event", nullptr, e->last);
    return status();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data)
{
    Lock l;
    CHECK_STREAM(s);
    enqueue(s, "host function", [=] {
        HostSection h;
        f(data);
        return true;
    });
    return status();
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = new CUevent_st;
    return status();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    return cudaEventCreate(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return status();
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    Lock l;
    CHECK_STREAM(s);
    e->last = enqueue(s, "record of an event", nullptr);
    return status();
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    Lock l;
    if (!e->last)
        return status();
    run_until([&] { return e->last->done; });
    hb_acquire(e->last.get());
    return status();
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    Lock l;
    if (!e->last)
        return status();
    {
        DeviceSection d;
        progress();
    }
    if (!e->last->done)
        return fail(cudaErrorNotReady);
    hb_acquire(e->last.get());
    return status();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    Lock l;
    if (!a->last || !b->last)
        return fail(cudaErrorInvalidResourceHandle);
    if (!a->last->done || !b->last->done)
        return cudaErrorNotReady;
    *ms = (float)(1e3 * (b->last->when - a->last->when));
    return status();
}

} // extern "C"
