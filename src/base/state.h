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
 * A file that still says "running" after the job has ended means that the job was killed.
 *
 * All of this is Local, allocates nothing, takes no lock of the C library and calls no MPI, so that
 * the watchdog can use it while the main thread stands still, and two threads at the same time. */
#ifndef AZ_BASE_STATE_H
#define AZ_BASE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct {
    const char *state;  /* "running", ... */
    const char *reason; /* control characters and line ends become spaces, a long one is cut */
    int code;
    int64_t step, total_steps;
    const char *checkpoint; /* name in DIR, "" for none */
} az_state;

/* Replace DIR/state in one move. For the main thread, as failures are az_fail's. */
az_err az_state_write(const char *dir, const az_state *state);
/* Another state, reason and code; step, total_steps and checkpoint stay as the file has them. For
 * any thread: 0, or an errno. */
int az_state_change(const char *dir, const char *state, const char *reason, int code);
/* Whether DIR/state is there; whether it says this state. */
bool az_state_exists(const char *dir);
bool az_state_is(const char *dir, const char *state);
/* The time of the wall clock as in "time:"; bytes >= 21. */
void az_state_format_time(char *out, size_t bytes);

#endif
