/* train/saves: the checkpoints of an output directory: when one is due, how they are named, which
 * are kept, from which a run goes on. */
#ifndef AZ_TRAIN_SAVES_H
#define AZ_TRAIN_SAVES_H

#include "train/checkpoint.h"

typedef struct {
    az_checkpoint *checkpoint; /* borrowed */
    const az_deck *deck;
    az_comm *comm;
    const char *dir;
    int64_t every_steps; /* 0: not by steps */
    double every_s;      /* 0: not by time */
    int64_t keep;
    bool keep_best, stop_on_error;
    /* How it went. */
    int64_t last_step; /* of the newest checkpoint of this run, -1: none */
    double last_s;     /* clock at the end of the last save, or at the start */
    double longest_s;  /* of a save */
    int64_t n_saves, n_failed;
    char last_name[40]; /* "" for none */
} az_saves;

/* What the deck says of saving; checkpoint and dir are borrowed. The time to the first save counts
 * from here. Local. */
void az_saves_init(az_saves *saves, az_checkpoint *checkpoint, const char *dir);
/* Go on from where checkpoint.resume says; *trainer is left alone where there is nothing to go on
 * from. Collective. */
az_err az_saves_resume(az_saves *saves, az_trainer *trainer);
/* Whether steps or minutes ask for a checkpoint after trainer->step. Collective. */
bool az_saves_is_due(az_saves *saves, const az_trainer *trainer);
/* Write checkpoint-NNNNNN.h5, unless the newest one is of this step already; say it. With
 * checkpoint.on_error: continue a failure is said and counted (n_failed), and AZ_OK returned.
 * Collective. */
az_err az_saves_write(az_saves *saves, const az_trainer *trainer);
/* If the state after trainer->step is saved, remove what is no longer kept: of the checkpoints up
 * to it all but the newest and the best one. Newer ones, damaged ones that were passed over, are
 * left alone. To be called when nothing names the old ones any more. Local, on all ranks. */
void az_saves_remove_old(const az_saves *saves, const az_trainer *trainer);
/* Read the adapter of a kept checkpoint: the engine's; the moments are lost. Collective. */
az_err az_saves_load_adapter(az_saves *saves, int64_t step);
/* Seconds that a checkpoint will take: measured, or guessed from its size. Local. */
double az_saves_estimate(const az_saves *saves);

#endif
