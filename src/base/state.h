/* State file: what became of a run, for batch scripts and people. Launchers change exit codes (a
 * rank that leaves first makes srun end the others), so DIR/state is what counts:
 *
 *   state: running | done | requeue | failed
 *   reason: one line ("SIGUSR1", the error message)
 *   code: the exit code of the program
 *   step: 120
 *   total_steps: 500
 *   checkpoint: checkpoint-000120.h5      (the newest complete one; empty: none)
 *   host: node1
 *   job: 4711                             (Slurm; empty without)
 *   time: 2026-11-30T12:00:00Z
 *
 * A file that still says "running" after the job has ended means that the job was killed. Local. */
#ifndef AZ_BASE_STATE_H
#define AZ_BASE_STATE_H

#include <stdint.h>

#include "base/err.h"

typedef struct {
    const char *state;  /* "running", ... */
    const char *reason; /* control characters and line ends are written as spaces */
    int code;
    int64_t step, total_steps;
    const char *checkpoint; /* name in DIR, "" for none */
} az_state;

/* Replace DIR/state in one move. Allocates nothing and calls no MPI, so that the watchdog can use
 * it; safe to call from two threads. */
az_err az_state_write(const char *dir, const az_state *state);

#endif
