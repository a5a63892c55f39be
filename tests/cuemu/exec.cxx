/* cuemu: runs a grid.  Each CUDA thread is a fiber; a fiber that ends
 * without having waited takes the next thread, so that kernels without
 * synchronisation run as a plain loop.                                    */
#include "cuemu.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <vector>
#if !defined(__x86_64__) || defined(CUEMU_UCONTEXT)
#include <ucontext.h>
#endif
#ifdef CUEMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

const int warpSize = 32;

namespace cuemu
{

CUEMU_THREAD_LOCAL Current cur;

namespace
{

#if defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
const size_t stack_bytes = 256 << 10;
#else
const size_t stack_bytes = 64 << 10;
#endif
const size_t page = 4096;
#ifdef CUEMU_TSAN
/* As many contexts as this, and as two blocks: one of another block is used anew as late as may
 * be, but each costs a megabyte and its making. */
const size_t few_contexts = 256, max_contexts = 2048;
#endif

struct Fiber {
#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
    void *sp = nullptr;
#else
    ucontext_t uc;
#endif
    char *stack = nullptr;
    size_t size = 0;
    void *fake = nullptr; /* AddressSanitizer's fake stack */
    void *tsan = nullptr;
    int lane = -1;
    bool waited = false;
};

enum State : unsigned char { UNSTARTED, READY, RUNNING, AT_BARRIER, AT_WARP, DONE };

struct Lane { /* one CUDA thread of the block being run */
    State st;
    WarpOp op;
    unsigned mask;
    uint64_t value, result;
    int arg, width;
    const char *file;
    int line;
    Fiber *fiber;
    char *token;
};

struct SharedVar {
    const void *key;
    char *mem;
    size_t bytes;
};

/* Happens-before within a block.  Every block has its own, freed with it, so
 * that nothing is ordered between blocks.                                 */
struct Tokens {
    char barrier[2], warp[32][8];
};

struct Block { /* per OS thread */
    const Grid *g = nullptr;
    int n = 0, alive = 0, waiting = 0, votes = 0, vote_result = 0, next = 0;
    bool random = false;
    Rng rng;
    std::vector<Lane> lane;
    std::vector<int> order;
    int ready[1024]; /* a ring; a lane is in it at most once */
    unsigned ready_head = 0, ready_tail = 0;
    std::vector<Fiber *> idle;
#ifdef CUEMU_TSAN
    Fiber *spent[max_contexts]; /* a ring */
    size_t contexts = 0, spent_head = 0, spent_tail = 0;
#endif
    Fiber main, *starting = nullptr;
    std::vector<SharedVar> vars;
    char *dyn = nullptr;
    char tok_start, tok_end;
    Tokens *tok = nullptr;
    unsigned barriers = 0, warp_ops = 0;
    unsigned here[32], gone[32]; /* lanes of each warp: waiting, exited */
};

thread_local Block *blk;

/* ---- fibers ------------------------------------------------------------ */

void worker(Fiber *);

#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
extern "C" void cuemu_switch(void **save, void *load);
__asm__(".text\n.globl cuemu_switch\n.type cuemu_switch,@function\n"
        "cuemu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n"
        "  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n"
        "  popq %rbx\n  popq %rbp\n  ret\n"
        ".size cuemu_switch,.-cuemu_switch\n");
#endif

void switch_to(Fiber *from, Fiber *to)
{
#ifdef CUEMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
#endif
#ifdef CUEMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 1);
#endif
#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
    cuemu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->uc, &to->uc);
#endif
#ifdef CUEMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

void fiber_entry()
{
    Block *b = blk;
#ifdef CUEMU_ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!b->main.size) { /* the first fiber is entered from the main stack */
        b->main.stack = (char *)bottom;
        b->main.size = size;
    }
#endif
    worker(b->starting);
}

/* Lets f start in fiber_entry(). */
void prepare(Fiber *f)
{
#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
    void **sp = (void **)(f->stack + f->size) - 2;
    *sp = (void *)fiber_entry; /* popped by ret, leaving rsp 8 mod 16 */
    f->sp = sp - 6;
#else
    getcontext(&f->uc);
    f->uc.uc_stack.ss_sp = f->stack;
    f->uc.uc_stack.ss_size = f->size;
    makecontext(&f->uc, fiber_entry, 0);
#endif
}

Fiber *new_fiber()
{
    Fiber *f = new Fiber;
    f->size = stack_bytes;
    char *m = (char *)mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        die("no memory for a fiber stack");
    mprotect(m, page, PROT_NONE);
    f->stack = m + page;
    prepare(f);
    return f;
}

/* A fiber for a thread that starts now. */
Fiber *fresh_fiber(Block *b)
{
#ifdef CUEMU_TSAN
    /* A context keeps the order of what it did before, so they are used in
     * turn: a block shares none with the blocks just before it.  They must
     * descend from the launch, not from a fellow thread.                     */
    if (b->contexts < std::max(few_contexts, (size_t)b->n * 2)) {
        b->contexts++;
        void *here = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(b->main.tsan, 1);
        Fiber *f = new_fiber();
        f->tsan = __tsan_create_fiber(0);
        __tsan_switch_to_fiber(here, 1);
        return f;
    }
    return b->spent[b->spent_head++ % max_contexts];
#else
    if (b->idle.empty())
        return new_fiber();
    Fiber *f = b->idle.back();
    b->idle.pop_back();
    return f;
#endif
}

/* ---- scheduling of one block ------------------------------------------- */

void set_tid(int t)
{
    unsigned x = cur.bdim.x, y = cur.bdim.y, u = (unsigned)t;
    cur.tid = {u % x, u / x % y, u / (x * y)};
}

/* Makes every lane for which in(t) holds ready, in a random order. */
template <class F> void wake(Block *b, int lo, int hi, F in)
{
    unsigned first = b->ready_tail;
    for (int t = lo; t < hi; t++)
        if (in(t)) {
            b->lane[t].st = READY;
            b->ready[b->ready_tail++ & 1023] = t;
        }
    if (b->random)
        for (unsigned n = b->ready_tail - first; n > 1; n--)
            std::swap(b->ready[(first + n - 1) & 1023], b->ready[(first + b->rng.below(n)) & 1023]);
}

void release_barrier(Block *b)
{
    const Lane *a = nullptr;
    for (int t = 0; t < b->n; t++)
        if (b->lane[t].st == AT_BARRIER) {
            if (a && (a->line != b->lane[t].line || strcmp(a->file, b->lane[t].file)))
                die("%s:%d: divergent barrier: threads of block (%u,%u,%u) wait at "
                    "%s:%d and at %s:%d",
                    b->g->file, b->g->line, cur.bid.x, cur.bid.y, cur.bid.z, a->file, a->line,
                    b->lane[t].file, b->lane[t].line);
            a = &b->lane[t];
        }
    b->waiting = 0;
    b->barriers++;
    b->vote_result = b->votes;
    b->votes = 0;
    wake(b, 0, b->n, [&](int t) { return b->lane[t].st == AT_BARRIER; });
}

/* Completes the warp operation that lane t waits in, if all lanes that its
 * mask names and that have not exited are there.                          */
void try_warp(Block *b, int t)
{
    int base = t & ~31, end = std::min(base + 32, b->n), w = t >> 5;
    const Lane &me = b->lane[t];
    unsigned mask = me.mask, in = mask & ~b->gone[w];
    if ((in & b->here[w]) != in)
        return;
    for (int u = base; u < end; u++) {
        const Lane &o = b->lane[u];
        if ((in >> (u - base) & 1) && (o.mask != mask || o.op != me.op))
            die("%s:%d: warp operations do not match: thread %d is at %s:%d "
                "with mask %08x, thread %d at %s:%d with mask %08x",
                b->g->file, b->g->line, t, me.file, me.line, mask, u, o.file, o.line, o.mask);
    }
    unsigned ballot = 0;
    for (int u = base; u < end; u++)
        if (in >> (u - base) & 1)
            ballot |= (unsigned)(b->lane[u].value & 1) << (u - base);
    for (int u = base; u < end; u++) {
        Lane &o = b->lane[u];
        if (!(in >> (u - base) & 1))
            continue;
        int l = u - base, seg = l & ~(o.width - 1), src = l;
        switch (o.op) {
        case SHFL:
            src = seg + (o.arg & (o.width - 1));
            break;
        case SHFL_UP:
            src = l - o.arg < seg ? l : l - o.arg;
            break;
        case SHFL_DOWN:
            src = l + o.arg >= seg + o.width ? l : l + o.arg;
            break;
        case SHFL_XOR:
            src = l ^ o.arg;
            if (src >= seg + o.width)
                src = l;
            break;
        case SYNC:
            break;
        case BALLOT:
            o.result = ballot;
            continue;
        }
        /* a lane that takes no part delivers garbage: NaN */
        o.result = in >> (src & 31) & 1 ? b->lane[base + (src & 31)].value : ~(uint64_t)0;
    }
#ifdef CUEMU_TSAN
    void *here = __tsan_get_current_fiber();
    char *token = &b->tok->warp[base >> 5][b->warp_ops++ & 7];
    for (int u = base; u < end; u++)
        if (in >> (u - base) & 1) {
            __tsan_switch_to_fiber(b->lane[u].fiber->tsan, 1);
            __tsan_release(token);
            b->lane[u].token = token;
        }
    __tsan_switch_to_fiber(here, 1);
#endif
    b->here[w] &= ~in;
    wake(b, base, end, [&](int u) { return in >> (u - base) & 1; });
}

/* A thread has exited: that may complete what the others wait in. */
void finish(Block *b, int t)
{
    b->lane[t].st = DONE;
    b->alive--;
    hb_release(&b->tok_end);
    if (b->waiting && b->waiting == b->alive)
        release_barrier(b);
    b->gone[t >> 5] |= 1u << (t & 31);
    int base = t & ~31;
    for (unsigned u = b->here[t >> 5]; u; u &= u - 1)
        if (b->lane[base + __builtin_ctz(u)].mask >> (t & 31) & 1) {
            try_warp(b, base + __builtin_ctz(u));
            break;
        }
}

[[noreturn]] void deadlock(Block *b)
{
    fprintf(stderr, "cuemu: %s:%d: block (%u,%u,%u) is stuck:\n", b->g->file, b->g->line, cur.bid.x,
            cur.bid.y, cur.bid.z);
    int shown = 0;
    for (int t = 0; t < b->n && shown < 12; t++) {
        Lane &l = b->lane[t];
        if (l.st == DONE && ++shown)
            fprintf(stderr, "  thread %d exited\n", t);
        if (l.st == AT_BARRIER && ++shown)
            fprintf(stderr, "  thread %d waits at the barrier %s:%d\n", t, l.file, l.line);
        if (l.st == AT_WARP && ++shown)
            fprintf(stderr, "  thread %d waits for lanes %08x at %s:%d\n", t, l.mask, l.file,
                    l.line);
    }
    die("deadlock inside a kernel");
}

/* Who runs next: a fiber whose wait is over, one that starts a thread, or
 * the main stack when all threads have exited.                            */
Fiber *next_fiber(Block *b)
{
    bool some = b->ready_head != b->ready_tail;
    if (b->next < b->n && (!some || !b->random || b->rng.below(2)))
        return b->starting = fresh_fiber(b);
    if (some)
        return b->lane[b->ready[b->ready_head++ & 1023]].fiber;
    if (b->alive)
        deadlock(b);
    return &b->main;
}

void worker(Fiber *f)
{
    for (;;) {
        Block *b = blk;
        while (b->next < b->n) {
            int t = b->order[b->next++];
            f->lane = t;
            f->waited = false;
            Lane &l = b->lane[t];
            l.fiber = f;
            l.st = RUNNING;
            set_tid(t);
            hb_acquire(&b->tok_start);
#ifdef CUEMU_TSAN
            __tsan_func_entry(b->g->caller);
#endif
            b->g->fn(b->g->call);
#ifdef CUEMU_TSAN
            __tsan_func_exit();
#endif
            finish(b, t);
            if (f->waited)
                break;
#ifdef CUEMU_TSAN
            break; /* every CUDA thread keeps a fiber of its own */
#endif
        }
#ifdef CUEMU_TSAN
        b->spent[b->spent_tail++ % max_contexts] = f;
#else
        b->idle.push_back(f);
#endif
        Fiber *to = next_fiber(b);
        if (to != f)
            switch_to(f, to); /* else it goes on with another thread */
    }
}

void park(Block *b, Lane &l)
{
    Fiber *f = l.fiber;
    f->waited = true;
    Fiber *to = next_fiber(b);
    if (to != f)
        switch_to(f, to);
    l.st = RUNNING;
    set_tid(f->lane);
}

/* Shared memory starts as NaN in every type.  Under ThreadSanitizer it must
 * be memory that no thread of an earlier block has touched, and neither
 * malloc nor memset may be seen to write it.                              */
char *shared_memory(size_t n)
{
#ifdef CUEMU_TSAN
    const size_t total = (size_t)8 << 30;
    static char *arena = (char *)syscall(SYS_mmap, 0, total, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static std::atomic<size_t> used;
    size_t at = used.fetch_add((n + 255) / 128 * 128);
    if (at + n > total)
        die("shared memory arena is used up");
    for (size_t i = 0; i < n; i++)
        ((volatile char *)arena)[at + i] = -1;
    return arena + at;
#else
    void *m = nullptr; /* exact size, so that AddressSanitizer sees its end */
    if (posix_memalign(&m, 128, n))
        die("no memory for shared variables");
    memset(m, 0xff, n);
    return (char *)m;
#endif
}

void free_shared(void *p)
{
#ifndef CUEMU_TSAN
    free(p);
#endif
    (void)p;
}

void run_block(const Grid &g, uint64_t index)
{
    Block *b = blk;
    int n = (int)(g.block.x * g.block.y * g.block.z);
    cur.bid = {(unsigned)(index % g.grid.x), (unsigned)(index / g.grid.x % g.grid.y),
               (unsigned)(index / g.grid.x / g.grid.y)};
    cur.bdim = {g.block.x, g.block.y, g.block.z};
    cur.gdim = {g.grid.x, g.grid.y, g.grid.z};
    b->g = &g;
    b->n = b->alive = n;
    b->waiting = b->votes = b->next = 0;
    b->random = seed() != 0;
    b->rng.seed(seed(), g.serial << 32 ^ index);
    b->lane.assign((size_t)n, Lane{UNSTARTED, SYNC, 0, 0, 0, 0, 0, "", 0, nullptr, nullptr});
    b->ready_head = b->ready_tail = 0;
    for (int w = 0; w < 32; w++) {
        int k = n - 32 * w; /* threads in this warp; the others do not exist */
        b->here[w] = 0;
        b->gone[w] = k >= 32 ? 0 : k <= 0 ? ~0u : ~0u << k;
    }
    b->order.resize((size_t)n);
    for (int t = 0; t < n; t++)
        b->order[t] = t;
    if (b->random) {
        if (b->rng.below(4) == 0) /* a quarter of the blocks: plain reversal */
            for (int t = 0; t < n; t++)
                b->order[t] = n - 1 - t;
        else
            for (int t = n - 1; t > 0; t--)
                std::swap(b->order[t], b->order[b->rng.below((unsigned)t + 1)]);
    }
    b->dyn = g.shmem ? shared_memory(g.shmem) : nullptr;
#ifdef CUEMU_TSAN
    b->vars.clear();
#else
    for (SharedVar &v : b->vars)
        memset(v.mem, 0xff, v.bytes);
#endif

#ifdef CUEMU_TSAN
    b->main.tsan = __tsan_get_current_fiber();
#endif
    Tokens tokens;
    b->tok = &tokens;
#ifdef CUEMU_TSAN
    b->tok = new Tokens;
#endif
    switch_to(&b->main, next_fiber(b)); /* comes back when all have exited */
#ifdef CUEMU_TSAN
    delete b->tok;
#endif
    if (b->dyn)
        free_shared(b->dyn);
}

} // namespace

/* ---- called by kernels ------------------------------------------------- */

static Lane &self()
{
    if (!blk || !blk->g)
        die("device function called outside a kernel");
    unsigned t = cur.tid.x + cur.bdim.x * (cur.tid.y + cur.bdim.y * cur.tid.z);
    return blk->lane[t];
}

int barrier_count(int pred, const char *file, int line)
{
    Block *b = blk;
    Lane &l = self();
    l.st = AT_BARRIER;
    l.file = file;
    l.line = line;
    char *token = &b->tok->barrier[b->barriers & 1];
    hb_release(token);
    b->votes += pred != 0;
    if (++b->waiting == b->alive)
        release_barrier(b);
    park(b, l);
    hb_acquire(token);
    return b->vote_result;
}

void barrier(const char *file, int line)
{
    barrier_count(0, file, line);
}

uint64_t warp_op(WarpOp op, unsigned mask, uint64_t value, int arg, int width, const char *file,
                 int line)
{
    Block *b = blk;
    Lane &l = self();
    int t = l.fiber->lane;
    if (!(mask >> (t & 31) & 1))
        die("%s:%d: thread %d is not in its own mask %08x", file, line, t, mask);
    l.st = AT_WARP;
    l.op = op;
    l.mask = mask;
    l.value = value;
    l.arg = arg;
    l.width = width;
    l.file = file;
    l.line = line;
    b->here[t >> 5] |= 1u << (t & 31);
    try_warp(b, t);
    park(b, l);
    hb_acquire(l.token);
    return l.result;
}

unsigned active_mask()
{
    self();
    return ~0u; /* the strongest claim a kernel may not rely on */
}

void fence()
{
    static char token;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    hb_release(&token);
    hb_acquire(&token);
}

void *shared_slot(const void *key, size_t bytes)
{
    Block *b = blk;
    self();
    for (SharedVar &v : b->vars)
        if (v.key == key)
            return v.mem;
    char *m = shared_memory(bytes);
    b->vars.push_back({key, m, bytes});
    return m;
}

void *dynamic_shared()
{
    self();
    if (!blk->dyn)
        die("kernel uses dynamic shared memory, launched with none");
    return blk->dyn;
}

void run_grid(const Grid &g)
{
    uint64_t blocks = (uint64_t)g.grid.x * g.grid.y * g.grid.z;
    Rng r;
    r.seed(seed(), g.serial);
    /* i -> (a i + c) mod blocks visits every block once if gcd(a,blocks)=1 */
    uint64_t a = 1, c = 0;
    if (seed()) {
        auto gcd = [](uint64_t x, uint64_t y) {
            while (y) {
                uint64_t m = x % y;
                x = y;
                y = m;
            }
            return x;
        };
        c = r.below((unsigned)std::min<uint64_t>(blocks, 1u << 30));
        do
            a = 1 + r.below((unsigned)std::min<uint64_t>(blocks, 1u << 30));
        while (gcd(a, blocks) != 1);
    }
#ifdef _OPENMP
    static const int threads = getenv("CUEMU_THREADS") ? atoi(getenv("CUEMU_THREADS")) : 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
    {
        if (!blk) {
            blk = new Block;
            blk->vars.reserve(64);
            blk->idle.reserve(4096);
            blk->lane.reserve(1024);
            blk->order.reserve(1024);
        }
        Block *b = blk;
        hb_release(&b->tok_start);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 4)
#endif
        for (uint64_t i = 0; i < blocks; i++)
            run_block(g, (uint64_t)(((unsigned __int128)a * i + c) % blocks));
        /* The next kernel has variables of its own. */
        for (SharedVar &v : b->vars)
            free_shared(v.mem);
        b->vars.clear();
        b->g = nullptr;
        hb_acquire(&b->tok_end);
    }
}

} // namespace cuemu
