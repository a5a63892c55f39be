/* train/report: what a training run says: banner, one line a step, metrics.jsonl, summary; the
 * first lines are those of evaluation and generation too. Only the speaking rank prints and writes.
 */
#ifndef AZ_TRAIN_REPORT_H
#define AZ_TRAIN_REPORT_H

#include <stdio.h>

#include "base/base.h"
#include "data/data.h"
#include "deck/deck.h"
#include "optim/optim.h"
#include "train/checkpoint.h"
#include "train/engine.h"
#include "train/eval.h"

/* What of the steps is on the screen. */
typedef enum { AZ_SCREEN_LINES, AZ_SCREEN_TERMINAL, AZ_SCREEN_NONE } az_screen;

typedef struct {
    az_comm *comm;
    FILE *metrics; /* NULL on ranks that do not speak */
    char *metrics_path;
    int metrics_errno; /* of the first write that failed */
    az_screen screen;
    bool partial; /* a progress line stands unfinished on the terminal */
    int64_t total_steps, logging_steps, steps_per_epoch;
    double begin, last; /* clock at the first step, at the end of the last one */
    /* Since the last line that was kept. */
    double loss_sum, since_s, since_waited_s;
    int64_t since_steps, since_tokens;
    /* Over the run. */
    int64_t tokens, steps, skipped, allocations;
    const az_shard *shard;
    az_waits waits;        /* before the first step */
    az_shard_stats before; /* of shard, at the end of the last step or pause */
    double idle_s, eval_s;
    double first_eval, last_eval, first_loss, last_loss;
} az_report;

/* Open DIR/metrics.jsonl. A run that goes on from a checkpoint after trainer->step keeps the lines
 * up to there and drops those of steps that will be made again. Local. */
az_err az_report_init(az_report *report, const az_deck *deck, int64_t total_steps,
                      int64_t steps_per_epoch, const az_trainer *trainer, const az_engine *engine);
/* Close metrics.jsonl; fails if it is not complete. Collective. */
az_err az_report_close(az_report *report);
void az_report_fini(az_report *report);
/* First lines of every command that computes: version and what, ranks and threads, the device, the
 * BLAS; warns of slow kernels and of more threads than cores. Local. */
void az_report_start(const az_engine *engine, const char *what);
/* A line "NAME  FROM: so many samples, ...". Local. */
void az_report_data(const char *name, const char *opt_from, const az_dataset *set);
/* What will be done: model, adapter, ranks, data, batch arithmetic. Local. */
void az_report_banner(const az_deck *deck, const az_engine *engine, const az_dataset *train,
                      const az_dataset *opt_eval, const az_schedule *schedule, int64_t total_steps,
                      const char *hdf5);
/* Where the base lies now. Local. */
void az_report_base(const az_engine *engine);
/* After step (0, 1, ...). Says also how long this rank waited for units of the base, and what its
 * node received of them. Local. */
void az_report_step(az_report *report, int64_t step, const az_step *s,
                    const az_optim_result *result, double lr);
/* Seconds that belong to no step: what is left is reckoned without them. Local. */
void az_report_pause(az_report *report, double seconds);
/* metrics.jsonl goes to the disk: a checkpoint must not be ahead of it. Local. */
void az_report_sync(az_report *report);
void az_report_eval(az_report *report, int64_t step, const az_eval_result *result);
/* How it went: losses, time by operation, memory by category. Collective. */
void az_report_summary(az_report *report, const az_engine *engine, az_pass *pass, az_optim *optim);

#endif
