/* watch: what each rank is doing, and a watchdog that ends a job which does nothing any more.
 *
 * Each rank keeps a record (phase, step, unit, collective, time of the last sign of life) in memory
 * that the ranks of its node share. A thread of each rank, which calls no MPI, looks at the rank's
 * own record: without a sign of life for the deadline of its phase, one rank of the node writes the
 * node's records to a file and to standard error, notes the failure in the state file, and the
 * processes of the node end with code AZ_ELOST, upon which launchers end the others. A rank that
 * stands still in a collective because another one is stopped, lost or elsewhere is found so, and
 * the table shows who did not come. Collectives make their own entries (comm.h).
 *
 * A process that was stopped as a whole (SIGSTOP, a suspended machine) finds on waking up that its
 * own thread has slept too: it counts anew instead of ending a job that is well. */
#ifndef AZ_COMM_WATCH_H
#define AZ_COMM_WATCH_H

#include "comm/comm.h"

typedef enum {
    AZ_PHASE_START,
    AZ_PHASE_LOAD, /* reading, allocating */
    AZ_PHASE_STEP, /* training */
    AZ_PHASE_EVAL, /* evaluation, in training or alone */
    AZ_PHASE_GENERATE,
    AZ_PHASE_SAVE, /* checkpoints and adapters, written or read */
    AZ_PHASE_END,  /* all work is done: MPI_Finalize; az_comm_fini enters it */
    AZ_N_PHASES
} az_phase;

/* Enter a phase; step: of training, or -1. A sign of life. Local. */
void az_watch_enter(az_comm *comm, az_phase phase, int64_t step);
/* A sign of life within a phase: what ("layer", "file", up to 15 characters) and its number.
 * Cheap: meant for every unit of the model, every file, every dataset. Local. */
void az_watch_mark(az_comm *comm, const char *what, int64_t i);
/* Seconds without a sign of life after which a phase is given up; 0: never, as is the case until
 * this is called, but for AZ_PHASE_END: 30. Local. */
void az_watch_set_deadline(az_comm *comm, az_phase phase, double seconds);
/* Where the table goes (appended to DIR/watchdog-HOST.txt) and whose state file is written
 * (base/state.h); NULL: standard error alone. dir is copied. Local. */
az_err az_watch_set_dir(az_comm *comm, const char *opt_dir);
/* Called about once a second by a thread of its own, so that one that hangs does not stop the
 * watchdog; allocates nothing, calls no MPI. NULL: none any more; returns only when the last call
 * has returned. Local. */
az_err az_watch_set_tick(az_comm *comm, void (*opt_tick)(void *context), void *context);
/* The code with which the process ends if the phase AZ_PHASE_END is given up; AZ_ELOST until this
 * is called. Local. */
void az_watch_set_code(az_comm *comm, int code);
/* What this rank works with has failed for good (a GPU, NCCL): the watchdog says text, as one rank
 * of the node, notes it in the state file and ends the node's processes with AZ_ELOST. For any
 * thread. */
void az_watch_fail(az_comm *comm, const char *text) __attribute__((noreturn));

#endif
