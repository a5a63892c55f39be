/* train, inside: a training run. */
#ifndef AZ_TRAIN_PRIV_H
#define AZ_TRAIN_PRIV_H

#include "train/outdir.h"
#include "train/planning.h"
#include "train/report.h"
#include "train/saves.h"
#include "train/train.h"

/* All that a run owns. */
typedef struct {
    const az_deck *deck;
    az_comm *comm;
    const char *dir;
    az_outdir *outdir;
    az_engine engine;
    az_planning planning;
    az_dataset train, held_out;
    bool have_eval;
    az_schedule *schedule;
    az_eval *eval;
    az_pass *pass;
    az_optim *optim;
    az_report report;
    az_lr lr;
    int64_t total_steps, eval_steps;
    int64_t *reached; /* [n_pairs] whether a gradient came to the pair's B */
    az_checkpoint checkpoint;
    az_saves saves;
    az_trainer trainer;
    bool opened;       /* the run is in its directory: its end is noted there */
    bool best_lost;    /* the best adapter could not be read at the end */
    bool diverged;     /* the run ends at a step that was not finite */
    bool lost;         /* the output directory is another job's by now */
    bool unsaved;      /* the run ends because its state could not be saved */
    double time_limit; /* clock at the end of the allocation, INFINITY if not known */
    size_t outside;    /* allocations of evaluation and saves, not of steps */
} az_run;

/* Steps, evaluations and checkpoints up to the last step, or until it is asked to stop (AZ_ESTOP; a
 * checkpoint then holds the state after the last step). Collective. */
az_err az_run_loop(az_run *r);
/* Fails unless the state after the last step is in a checkpoint. Local, the same on all ranks. */
az_err az_run_check_saved(const az_run *r);
/* Seconds before the end of the allocation at which the run must stop: a save twice as long as the
 * longest so far, two units of the model, and a reserve; or checkpoint.lead. Local. */
double az_run_get_lead(const az_run *r);
/* Fails if the output directory is another job's by now. Collective. */
az_err az_run_keep(az_run *r);
/* DIR/state. On rank 0. */
void az_run_note(const az_run *r, const char *state, const char *reason, int code);

#endif
