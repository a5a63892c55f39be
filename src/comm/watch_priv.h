/* watch, inside: records, the watchdog of one rank, and threads that do something periodically. */
#ifndef AZ_COMM_WATCH_PRIV_H
#define AZ_COMM_WATCH_PRIV_H

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm/watch.h"

/* ---- 1. a thread that calls a function every so many seconds ---- */

typedef struct {
    void (*call)(void *context);
    void *context;
    double period;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t wake;
    bool running, stop;
} az_beat;

/* Start: all signals are blocked in the thread, so that they reach the main one. Local. */
az_err az_beat_start(az_beat *beat, double period, void (*call)(void *context), void *context);
/* Ends when a call under way has returned; may be called of one that was not started. Local. */
void az_beat_stop(az_beat *beat);

/* ---- 2. records ---- */

/* What a rank waits in. */
typedef enum {
    AZ_CALL_NONE,
    AZ_CALL_AGREE,
    AZ_CALL_POLL,
    AZ_CALL_BARRIER,
    AZ_CALL_BCAST,
    AZ_CALL_ALLGATHER,
    AZ_CALL_ALLGATHERV,
    AZ_CALL_REDUCE_SCATTER,
    AZ_CALL_ALLREDUCE,
    AZ_CALL_GATHER,
    AZ_CALL_DEVICE, /* no collective: queued work of its GPU, which may wait for other GPUs */
    AZ_N_CALLS
} az_call;

#define AZ_WHAT_WORDS 2

/* Written by the main thread of its rank (beat: by the watchdog's), read by any rank of the node;
 * no pointers, as readers are other processes. Each member is atomic alone: a reader may see the
 * number of one mark with the name of the next, but what it looks at are ranks that stand still.
 * Times are of CLOCK_MONOTONIC in ns, which the processes of a node have in common. */
typedef struct {
    _Alignas(64) _Atomic int64_t time; /* of the last sign of life */
    _Atomic int64_t beat;              /* when the rank's watchdog looked last */
    _Atomic int64_t phase, step, number, call;
    _Atomic int64_t calls;                /* collectives entered so far */
    _Atomic uint64_t what[AZ_WHAT_WORDS]; /* characters, filled up with zeros */
    _Atomic int64_t pid, rank;
    _Atomic uint64_t started; /* the process's start in clock ticks, against pids used again */
} az_record;

/* What the ranks of a node share. */
typedef struct {
    _Atomic int elected;     /* the job is given up, and a rank writes why; the code, or 0 */
    _Atomic int64_t written; /* when it has done so */
    az_record records[];
} az_board;

/* A record as the table shows it. */
typedef struct {
    int64_t time, beat, phase, step, number, call, calls, pid, rank;
    char what[8 * AZ_WHAT_WORDS + 1];
    char state; /* letter of /proc, or '-' */
    bool lags;  /* the others wait for it */
} az_row;

typedef struct {
    MPI_Win win;  /* MPI_WIN_NULL where the board is in own memory */
    void *memory; /* NULL where it is not */
    int n_ranks;  /* of the node */
    bool whole;   /* the node has all ranks of the world */
    /* Of these, what the watchdog reads while the main thread may change it. */
    pthread_mutex_t lock;                  /* of own, board and dir; held while it looks */
    az_board *board;                       /* NULL from the moment that its memory goes */
    az_record *own, last;                  /* last: own when the board is gone */
    char dir[PATH_MAX];                    /* "" for none */
    _Atomic int64_t deadline[AZ_N_PHASES]; /* ns */
    _Atomic int code;
    _Atomic(const char *) failure; /* of az_watch_fail */
    /* The watchdog's own. */
    int64_t looked;           /* when it looked last */
    int64_t since, time_then; /* it counts from here if nothing came after time_then */
    char host[65];
    int launcher; /* the connection to a launcher that hands one on (PMI), or -1 */
    pthread_t main;
    az_row *rows; /* [n_ranks] */
    char *text;   /* of the table */
    size_t text_bytes;
    az_beat beat, tick;
} az_watch;

/* Start the watchdog of this rank, as comm->watch. Collective over the world. */
az_err az_watch_create(az_comm *comm);
/* Before MPI_Finalize: enter AZ_PHASE_END and let shared memory go. Collective over the node. */
void az_watch_leave(az_comm *comm);
/* After it. Local. */
void az_watch_destroy(az_watch *opt_watch);
/* Begin and end of a collective: signs of life. opt_watch is NULL while a communicator is made. */
void az_watch_begin(az_watch *opt_watch, az_call call);
void az_watch_end(az_watch *opt_watch);
/* The same for the host's waiting for its GPU, which ranks need not do equally often. */
void az_watch_wait_device(az_watch *watch, bool waits);
/* The phase's deadline has passed, or something else than another rank has failed that the main
 * thread cannot go on after (opt_failure says what): write, tell, end the process with the code.
 */
void az_watch_give_up(az_watch *watch, int64_t now, const char *opt_failure, int code)
    __attribute__((noreturn));
/* All is written and said, but MPI does not end: end the process with the code that was set. */
void az_watch_end_quietly(az_watch *watch) __attribute__((noreturn));
int64_t az_watch_now(void);
/* Letter of a process's state and its start in clock ticks from /proc; false if it is not there. */
bool az_watch_read_process(long pid, char *out_state, uint64_t *out_started);

#endif
