/* Bus: SIGBUS of memory that stands for a file. The handler only looks through a list, writes and
 * waits: what needs more is done by a thread that watches. */
#include <config.h>

#include "base/bus.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

/* How long the handler waits for the thread that watches (ms). */
enum { WAIT = 20000 };

typedef struct range {
    const char *start;
    size_t bytes;
    char *message;
    _Atomic(struct range *) next;
} range;

static _Atomic(range *) ranges; /* changed by the main thread, read by the handler in any thread */
static _Atomic(const char *) failure;
static atomic_int watchers;
static struct sigaction before;

static const range *find(const char *address)
{
    const range *r = atomic_load(&ranges);
    while (r != NULL && (address < r->start || address >= r->start + r->bytes))
        r = atomic_load(&r->next);
    return r;
}

static void write_all(const char *s)
{
    size_t n = strlen(s);
    while (n > 0) {
        const ssize_t done = write(STDERR_FILENO, s, n);
        if (done <= 0)
            return;
        s += done;
        n -= (size_t)done;
    }
}

/* Not ours: whoever was asked before, or the default when the access is made again. */
static void hand_on(int number, siginfo_t *info, void *context)
{
    if ((before.sa_flags & SA_SIGINFO) != 0)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        sigaction(SIGBUS, &before, NULL);
}

/* The access would fail again: this thread goes no further. */
static void on_bus(int number, siginfo_t *info, void *context)
{
    const range *r = find(info->si_addr);
    const char *none = NULL;
    if (r == NULL) {
        hand_on(number, info, context);
        return;
    }
    const bool first = atomic_compare_exchange_strong(&failure, &none, r->message);
    const bool watched = atomic_load(&watchers) > 0;
    if (!first || watched)
        for (int waited = 0; waited < WAIT; waited += 100)
            poll(NULL, 0, 100);
    if (first) {
        write_all("adze: error: ");
        write_all(r->message);
        write_all("\n");
    }
    _exit(AZ_EENV);
}

/* Each time, as libraries may have put theirs in the place. */
static void install(void)
{
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &old);
    if ((old.sa_flags & SA_SIGINFO) == 0 || old.sa_sigaction != on_bus)
        before = old;
}

az_err az_bus_add(const void *start, size_t bytes, const char *message)
{
    range *r;
    if (AZ_NEW(r, 1, "text") != AZ_OK)
        return AZ_EENV;
    r->start = start;
    r->bytes = bytes;
    r->message = az_strdup(message, "text");
    if (r->message == NULL) {
        az_free(r);
        return AZ_EENV;
    }
    install();
    atomic_store(&r->next, atomic_load(&ranges));
    atomic_store(&ranges, r);
    return AZ_OK;
}

void az_bus_remove(const void *start)
{
    _Atomic(range *) *at = &ranges;
    range *r = atomic_load(at);
    while (r != NULL && r->start != start) {
        at = &r->next;
        r = atomic_load(at);
    }
    if (r == NULL)
        return;
    atomic_store(at, atomic_load(&r->next));
    az_free(r->message);
    az_free(r);
}

void az_bus_set_watched(bool watched)
{
    atomic_fetch_add(&watchers, watched ? 1 : -1);
}

const char *az_bus_get_failure(void)
{
    return atomic_load(&failure);
}
