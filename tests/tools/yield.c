/* Preloaded by the tests: Debian's MPICH (ch4:ucx) polls without ever yielding, so that with more
 * ranks than cores every message costs a scheduler tick (a barrier of 8 ranks on 2 cores: 37 ms;
 * with this 30 us). Its MPI_Finalize can hang over TCP with the endpoints' last flush, which is
 * left out. With another MPI neither function is called.
 *
 * YIELD_US makes a rank sleep so many microseconds instead of yielding: a training that lasts long
 * enough to be interrupted, with little work for the machine. */
#include <config.h>

#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

/* Fruitless polls before the core is given away. */
#define SPIN 20

unsigned ucp_worker_progress(void *worker);
void *ucp_disconnect_nb(void *endpoint);

unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*next)(void *);
    static __thread int fruitless;
    static unsigned nap;
    if (next == NULL) {
        const char *us = getenv("YIELD_US");
        nap = us != NULL ? (unsigned)atoi(us) : 0;
        next = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
    }
    unsigned n = next(worker);
    fruitless = n > 0 ? 0 : fruitless + 1;
    if (fruitless >= SPIN) {
        fruitless = 0;
        if (nap > 0)
            usleep(nap);
        else
            sched_yield();
    }
    return n;
}

void *ucp_disconnect_nb(void *endpoint)
{
    (void)endpoint;
    return NULL;
}
