/* cuemu internals, shared by the parts of the shim. */
#ifndef CUEMU_H
#define CUEMU_H
#include <cuda_runtime.h>

#if defined(__SANITIZE_ADDRESS__)
#define CUEMU_ASAN 1
#endif
#if defined(CUEMU_TSAN) /* the shim itself is built without -fsanitize=thread */
extern "C" {
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_set_fiber_name(void *fiber, const char *name);
void __tsan_func_entry(const void *caller);
void __tsan_func_exit(void);
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void __tsan_read_range(void *addr, unsigned long size);
void __tsan_write_range(void *addr, unsigned long size);
}
#endif

namespace cuemu
{

[[noreturn]] void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* xorshift generator; each user owns one, so that results depend on the
 * seed only and not on which OS thread ran first.                        */
struct Rng {
    uint64_t s = 1;
    void seed(uint64_t a, uint64_t b)
    {
        s = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xbf58476d1ce4e5b9u;
        for (int i = 0; i < 8; i++)
            below(2);
    }
    unsigned below(unsigned n)
    {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        return (unsigned)((s >> 32) % n);
    }
};

/* CUEMU_SEED: 0 runs everything at once and in order. */
uint64_t seed();

struct Grid {
    const char *file;
    int line; /* of the launch */
    ThreadFn fn;
    const void *call;
    dim3 grid, block;
    size_t shmem;
    uint64_t serial;
    const void *caller;
};
void run_grid(const Grid &);

/* Completion of one queued operation; an event points at one of these. */
struct Done {
    bool done = false;
    double when = 0;
};

/* step() does a part of the operation and returns true when it is over. */
std::shared_ptr<Done> enqueue(cudaStream_t, const char *what, std::function<bool()> step,
                              std::shared_ptr<Done> after = nullptr);

/* cudaSuccess, or the error of an operation that has failed: then of every call. */
cudaError_t status();

/* Operations call this on every device range they touch on behalf of a
 * library: dies unless it lies in one live device allocation.             */
void use(const void *p, size_t bytes, bool write, const char *what);

/* Happens-before edges for ThreadSanitizer, nothing otherwise. */
inline void hb_release(void *token)
{
#ifdef CUEMU_TSAN
    __tsan_release(token);
#endif
    (void)token;
}
inline void hb_acquire(void *token)
{
#ifdef CUEMU_TSAN
    __tsan_acquire(token);
#endif
    (void)token;
}

/* The one lock around host API calls; notes where the API was called from. */
void lock(const void *caller);
void unlock();
struct Lock {
    __attribute__((always_inline)) Lock()
    {
        lock(__builtin_return_address(0));
    }
    ~Lock()
    {
        unlock();
    }
};

/* Starts a thread that runs queued operations while the host is busy with
 * something else, such as waiting in MPI for a rank that waits for us.    */
void start_helper();

} // namespace cuemu
#endif
