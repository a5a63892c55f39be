/* watch: records, and the watchdog that looks at the rank's own one. */
#include <config.h>

#include "comm/comm_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "records are shared between processes");

#define NS 1000000000LL
/* Seconds between two looks, and between two ticks. */
#define LOOK 0.5
#define TICK 1.0
/* A thread that has not looked for so long (ns) belongs to a process that was stopped. One reading
 * of the clock serves this and the deadline, as it may be stopped between two. */
#define STOPPED (5 * NS / 2)
#define END_DEADLINE 30.0
/* Most characters of a line of the table, and of what stands around the lines (comm_table.c). */
#define LINE_BYTES 320
#define FRAME_BYTES 1024

#define GET(p) atomic_load_explicit((p), memory_order_relaxed)
#define PUT(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)

/* ---- 1. signs of life, by the main thread ---- */

int64_t az_watch_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS + t.tv_nsec;
}

static void put_what(az_record *record, const char *what)
{
    uint64_t words[AZ_WHAT_WORDS] = {0};
    memcpy(words, what, strnlen(what, sizeof words - 1));
    for (int i = 0; i < AZ_WHAT_WORDS; i++)
        PUT(&record->what[i], words[i]);
}

static void enter(az_watch *watch, az_phase phase, int64_t step)
{
    az_record *own = watch->own;
    PUT(&own->phase, phase);
    PUT(&own->step, step);
    put_what(own, "");
    PUT(&own->number, -1);
    PUT(&own->time, az_watch_now());
}

void az_watch_enter(az_comm *comm, az_phase phase, int64_t step)
{
    enter(comm->watch, phase, step);
}

void az_watch_mark(az_comm *comm, const char *what, int64_t i)
{
    az_record *own = comm->watch->own;
    put_what(own, what);
    PUT(&own->number, i);
    PUT(&own->time, az_watch_now());
}

void az_watch_begin(az_watch *opt_watch, az_call call)
{
    if (opt_watch == NULL)
        return;
    az_record *own = opt_watch->own;
    PUT(&own->calls, GET(&own->calls) + 1);
    PUT(&own->call, call);
    PUT(&own->time, az_watch_now());
}

void az_watch_end(az_watch *opt_watch)
{
    if (opt_watch == NULL)
        return;
    PUT(&opt_watch->own->call, AZ_CALL_NONE);
    PUT(&opt_watch->own->time, az_watch_now());
}

void az_watch_wait_device(az_watch *watch, bool waits)
{
    PUT(&watch->own->call, waits ? AZ_CALL_DEVICE : AZ_CALL_NONE);
    PUT(&watch->own->time, az_watch_now());
}

/* ---- 2. what the watchdog is told ---- */

void az_watch_set_deadline(az_comm *comm, az_phase phase, double seconds)
{
    AZ_ASSERT(seconds >= 0);
    PUT(&comm->watch->deadline[phase],
        seconds < (double)(INT64_MAX / NS) ? (int64_t)(seconds * (double)NS) : 0);
}

az_err az_watch_set_dir(az_comm *comm, const char *opt_dir)
{
    az_watch *w = comm->watch;
    const char *dir = opt_dir != NULL ? opt_dir : "";
    if (strlen(dir) >= sizeof w->dir)
        return az_fail(AZ_EINPUT, "%.80s...: the name is too long", dir);
    pthread_mutex_lock(&w->lock);
    strcpy(w->dir, dir);
    pthread_mutex_unlock(&w->lock);
    return AZ_OK;
}

az_err az_watch_set_tick(az_comm *comm, void (*opt_tick)(void *context), void *context)
{
    az_watch *w = comm->watch;
    az_beat_stop(&w->tick);
    return opt_tick != NULL ? az_beat_start(&w->tick, TICK, opt_tick, context) : AZ_OK;
}

void az_watch_set_code(az_comm *comm, int code)
{
    PUT(&comm->watch->code, code);
}

void az_watch_fail(az_comm *comm, const char *text)
{
    const char *none = NULL;
    atomic_compare_exchange_strong(&comm->watch->failure, &none, text);
    for (;;)
        pause(); /* the watchdog ends the process */
}

/* ---- 3. the watchdog ---- */

/* When to count from: the last sign of life, or the moment at which this process went on after it
 * was stopped, which counts once between two signs. */
static int64_t find_begin(az_watch *w, int64_t now)
{
    const int64_t time = GET(&w->own->time);
    if (now - w->looked > STOPPED && w->time_then != time) {
        w->since = now;
        w->time_then = time;
    }
    return w->time_then == time ? w->since : time;
}

static void look(void *context)
{
    az_watch *w = context;
    pthread_mutex_lock(&w->lock);
    const int64_t now = az_watch_now(), phase = GET(&w->own->phase);
    const int64_t deadline = GET(&w->deadline[phase]), begin = find_begin(w, now);
    w->looked = now;
    PUT(&w->own->beat, now);
    const bool missed = deadline > 0 && now - begin > deadline;
    if (missed && phase == AZ_PHASE_END)
        az_watch_end_quietly(w);
    const char *file = w->board != NULL ? az_bus_get_failure() : NULL;
    const char *failure = w->board != NULL && file == NULL ? atomic_load(&w->failure) : file;
    if (missed || failure != NULL || (w->board != NULL && atomic_load(&w->board->elected) != 0))
        az_watch_give_up(w, now, failure, file != NULL ? AZ_EENV : AZ_ELOST);
    pthread_mutex_unlock(&w->lock);
}

/* ---- 4. begin and end ---- */

/* Where the node has one rank, no memory needs to be shared. */
static az_err allocate(az_watch *w)
{
    az_err err;
    AZ_TRY(AZ_NEW(w->rows, (size_t)w->n_ranks, "communication"));
    w->text_bytes = FRAME_BYTES + (size_t)w->n_ranks * LINE_BYTES;
    AZ_TRY(AZ_NEW(w->text, w->text_bytes, "communication"));
    if (w->n_ranks == 1) {
        w->memory = az_alloc(1, sizeof(az_board) + sizeof(az_record), "communication");
        err = w->memory != NULL ? AZ_OK : AZ_EENV;
    }
out:
    return err;
}

/* Room for the node's records: the first rank's part of a shared window. Collective over node. */
static void *share(az_watch *w, az_comm *comm)
{
    const size_t bytes = sizeof(az_board) + (size_t)w->n_ranks * sizeof(az_record);
    const MPI_Aint size = comm->node_rank == 0 ? (MPI_Aint)(bytes + 64) : 0;
    MPI_Aint there;
    int unit;
    char *memory;
    MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, comm->node, &memory, &w->win);
    MPI_Win_shared_query(w->win, 0, &there, &unit, &memory);
    memory += (64 - (uintptr_t)memory % 64) % 64; /* pages are shared: the same on all ranks */
    if (comm->node_rank == 0)
        memset(memory, 0, bytes);
    MPI_Barrier(comm->node);
    return memory;
}

static void fill_record(az_record *own, int rank)
{
    char state;
    uint64_t started = 0;
    az_watch_read_process((long)getpid(), &state, &started);
    PUT(&own->rank, rank);
    PUT(&own->pid, getpid());
    PUT(&own->started, started);
    PUT(&own->beat, az_watch_now());
}

az_err az_watch_create(az_comm *comm)
{
    az_err err;
    az_watch *w = NULL;
    AZ_TRY(AZ_NEW(w, 1, "communication"));
    w->win = MPI_WIN_NULL;
    w->n_ranks = comm->node_size;
    w->whole = comm->node_size == comm->size;
    pthread_mutex_init(&w->lock, NULL);
    PUT(&w->code, AZ_ELOST);
    PUT(&w->deadline[AZ_PHASE_END], (int64_t)(END_DEADLINE * (double)NS));
    if (gethostname(w->host, sizeof w->host - 1) != 0)
        strcpy(w->host, "host");
    w->own = &w->last;
    w->main = pthread_self();
    w->looked = az_watch_now();
    w->launcher = getenv("PMI_FD") != NULL ? atoi(getenv("PMI_FD")) : -1;
    err = allocate(w);
out:
    err = az_comm_agree(comm, err);
    if (err == AZ_OK) {
        w->board = w->memory != NULL ? w->memory : share(w, comm);
        w->own = &w->board->records[comm->node_rank];
        fill_record(w->own, comm->rank);
        enter(w, AZ_PHASE_START, -1);
        err = az_comm_agree(comm, az_beat_start(&w->beat, LOOK, look, w));
        az_bus_set_watched(true);
    }
    comm->watch = w;
    if (err != AZ_OK && w != NULL) {
        az_watch_leave(comm);
        az_watch_destroy(w);
        comm->watch = NULL;
    }
    return err;
}

void az_watch_leave(az_comm *comm)
{
    az_watch *w = comm->watch;
    if (w == NULL || w->board == NULL)
        return;
    az_bus_set_watched(false);
    enter(w, AZ_PHASE_END, -1);
    pthread_mutex_lock(&w->lock);
    w->board = NULL;
    w->own = &w->last;
    fill_record(w->own, comm->rank);
    enter(w, AZ_PHASE_END, -1);
    pthread_mutex_unlock(&w->lock);
    if (w->win != MPI_WIN_NULL)
        MPI_Win_free(&w->win);
}

void az_watch_destroy(az_watch *opt_watch)
{
    if (opt_watch == NULL)
        return;
    az_beat_stop(&opt_watch->tick);
    az_beat_stop(&opt_watch->beat);
    pthread_mutex_destroy(&opt_watch->lock);
    az_free(opt_watch->memory);
    az_free(opt_watch->rows);
    az_free(opt_watch->text);
    az_free(opt_watch);
}
