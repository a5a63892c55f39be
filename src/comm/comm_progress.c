/* comm: what goes on beside the main thread.
 *
 * MPI does its work inside its own calls: a transfer that was begun and that nobody asks about
 * stands still. So it is asked about while the main thread computes, by a thread of its own, and by
 * the main thread wherever that waits. Both call MPI in turn, under one lock, and neither ever
 * blocks in it while anything is under way. Where MPI allows no second thread, or where no core is
 * to spare, the main thread alone does it: where it waits and between units. */
#include <config.h>

#include "comm/comm_priv.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* Vain looks before the core is given away, and before a rank sleeps. */
#define SPIN 32
#define YIELD 128
/* A nap, in ns: shortest and longest; that of the thread while a transfer is under way. */
#define NAP_SHORT 20000L
#define NAP_LONG 500000L
#define NAP_FLIGHT 30000L
#define SLACK 1000UL

struct az_progress {
    pthread_mutex_t lock; /* of all that follows, and around calls of MPI */
    pthread_cond_t wake;
    az_mover *movers;
    int n_open; /* changed by the main thread alone */
    bool running, stop;
    pthread_t thread;
};

static void nap(long ns)
{
    const struct timespec t = {.tv_nsec = ns};
    nanosleep(&t, NULL);
}

void az_progress_pause(int n, az_move move)
{
    if (n < SPIN)
        return;
    if (n < YIELD || move >= AZ_MOVE_FLIGHT)
        sched_yield();
    else
        nap(n < 4 * YIELD ? NAP_SHORT : 5 * NAP_SHORT);
}

/* Step all. Where nothing of ours is under way, others may still wait for something that MPI holds
 * back for them: it is given the time to send it. The lock is held. */
static az_move step_all(az_comm *comm)
{
    az_move most = AZ_MOVE_NONE;
    int found;
    for (az_mover *m = comm->progress->movers; m != NULL; m = m->next) {
        const az_move move = m->open ? m->step(m->context) : AZ_MOVE_NONE;
        most = move > most ? move : most;
    }
    if (most < AZ_MOVE_FLIGHT && !comm->alone)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm->world, &found, MPI_STATUS_IGNORE);
    return most;
}

static void *run(void *context)
{
    az_comm *comm = context;
    az_progress *g = comm->progress;
    long idle = NAP_SHORT;
    prctl(PR_SET_TIMERSLACK, SLACK); /* else naps are longer by 50 us */
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        if (g->n_open == 0) {
            pthread_cond_wait(&g->wake, &g->lock);
            continue;
        }
        const az_move move = step_all(comm);
        pthread_mutex_unlock(&g->lock);
        idle = move >= AZ_MOVE_FLIGHT ? NAP_SHORT : idle < NAP_LONG ? 2 * idle : NAP_LONG;
        if (move != AZ_MOVE_DONE)
            nap(move == AZ_MOVE_FLIGHT ? NAP_FLIGHT : idle);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* All signals are blocked in the thread, so that they reach the main one. */
static az_err start_thread(az_comm *comm)
{
    az_progress *g = comm->progress;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int e = pthread_create(&g->thread, NULL, run, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    g->running = e == 0;
    return e == 0 ? AZ_OK
                  : az_fail(AZ_EENV, "cannot start the transport's thread: %s", strerror(e));
}

/* When the last mover has gone. */
static void destroy(az_comm *comm)
{
    az_progress *g = comm->progress;
    if (g->running) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_signal(&g->wake);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
    }
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    az_free(g);
    comm->progress = NULL;
}

az_err az_progress_join(az_comm *comm, az_mover *mover, bool thread)
{
    az_err err = AZ_OK;
    AZ_ASSERT(!thread || comm->serialized);
    if (comm->progress == NULL) {
        AZ_TRY(AZ_NEW(comm->progress, 1, "communication"));
        pthread_mutex_init(&comm->progress->lock, NULL);
        pthread_cond_init(&comm->progress->wake, NULL);
    }
    if (thread && !comm->progress->running)
        err = start_thread(comm);
    if (err != AZ_OK) {
        if (comm->progress->movers == NULL)
            destroy(comm);
        goto out;
    }
    pthread_mutex_lock(&comm->progress->lock);
    mover->open = false;
    mover->next = comm->progress->movers;
    comm->progress->movers = mover;
    pthread_mutex_unlock(&comm->progress->lock);
out:
    return err;
}

void az_progress_leave(az_comm *comm, az_mover *mover)
{
    az_progress *g = comm->progress;
    AZ_ASSERT(!mover->open);
    pthread_mutex_lock(&g->lock);
    az_mover **at = &g->movers;
    while (*at != mover)
        at = &(*at)->next;
    *at = mover->next;
    pthread_mutex_unlock(&g->lock);
    if (g->movers == NULL)
        destroy(comm);
}

void az_progress_open(az_comm *comm, az_mover *mover)
{
    az_progress *g = comm->progress;
    pthread_mutex_lock(&g->lock);
    AZ_ASSERT(!mover->open);
    mover->open = true;
    g->n_open++;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void az_progress_close(az_comm *comm, az_mover *mover)
{
    az_progress *g = comm->progress;
    pthread_mutex_lock(&g->lock);
    AZ_ASSERT(mover->open);
    mover->open = false;
    g->n_open--;
    pthread_mutex_unlock(&g->lock);
}

bool az_progress_is_open(const az_comm *comm)
{
    return comm->progress != NULL && comm->progress->n_open > 0;
}

az_move az_progress_advance(az_comm *comm)
{
    az_move move = AZ_MOVE_NONE;
    if (!az_progress_is_open(comm))
        return move;
    if (pthread_mutex_trylock(&comm->progress->lock) != 0)
        return AZ_MOVE_FLIGHT;
    move = step_all(comm);
    pthread_mutex_unlock(&comm->progress->lock);
    return move;
}

void az_progress_lock(az_comm *comm)
{
    if (comm->progress != NULL)
        pthread_mutex_lock(&comm->progress->lock);
}

void az_progress_unlock(az_comm *comm)
{
    if (comm->progress != NULL)
        pthread_mutex_unlock(&comm->progress->lock);
}

void az_progress_wait(az_comm *comm, MPI_Request *request)
{
    if (!az_progress_is_open(comm)) {
        MPI_Wait(request, MPI_STATUS_IGNORE);
        return;
    }
    for (int n = 0, done = 0; !done; n++) {
        az_move move = AZ_MOVE_NONE;
        az_progress_lock(comm);
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done)
            move = step_all(comm);
        az_progress_unlock(comm);
        if (!done)
            az_progress_pause(n, move);
    }
}
