/* train/checkpoint: the state of a run in one HDF5 file (store/h5.h), which opens on any number of
 * ranks. What is in it is listed in doc/checkpoints.md. The base is not: it never changes; its
 * fingerprint is. */
#ifndef AZ_TRAIN_CHECKPOINT_H
#define AZ_TRAIN_CHECKPOINT_H

#include "base/base.h"
#include "deck/deck.h"
#include "optim/optim.h"
#include "store/h5.h"
#include "train/engine.h"

/* Counters of a run. */
typedef struct {
    int64_t step;      /* steps made */
    int64_t tokens;    /* passed through the model so far */
    int64_t skipped;   /* steps that were not finite */
    double loss;       /* of the last step; NaN before the first */
    int64_t evaluated; /* step after which the last evaluation was made; -1: none */
    double eval_loss;  /* what it gave */
    double best_loss;  /* lowest evaluation loss after any step but none; NaN: none yet */
    int64_t best_step; /* the step after which it was found; -1 */
    int64_t patience;  /* evaluations since the loss last fell by eval.early_stopping_threshold */
    double reference;  /* the loss it fell to; NaN: none yet */
} az_trainer;
/* Before the first step. */
extern const az_trainer az_trainer_none;

/* All that goes into a file; borrowed. */
typedef struct {
    const az_deck *deck;
    const az_engine *engine;
    az_optim *optim;
    int64_t steps_per_epoch, batch_size, total_steps;
    uint64_t data_hash, eval_hash; /* of the samples; eval: 0 without */
    /* Made once by az_checkpoint_init. */
    az_h5_array *arrays; /* [n_arrays] the adapter's tensors in the order of the flat buffer */
    int n_arrays;
    az_str deck_text, peft_text;
} az_checkpoint;

/* Fill what is made once. The other members are set. Collective. */
az_err az_checkpoint_init(az_checkpoint *c);
/* Local. */
void az_checkpoint_fini(az_checkpoint *c);
/* Bytes of a checkpoint's file, about. Local. */
int64_t az_checkpoint_get_bytes(const az_checkpoint *c);
/* Whether checkpoints can be written into dir by all ranks, with the hints of the deck: a small
 * file is made and removed. Collective. */
az_err az_checkpoint_try(const az_checkpoint *c, const char *dir);
/* Write a whole checkpoint, or the adapter alone as dtype. Collective. */
az_err az_checkpoint_write(const az_checkpoint *c, const az_trainer *trainer, const char *path,
                           az_h5_times *out_times);
az_err az_checkpoint_write_adapter(const az_checkpoint *c, const az_trainer *trainer,
                                   const char *path, az_dtype dtype);
/* Read a checkpoint and go on from it. Fails with AZ_EINPUT and *out_damaged where the file is not
 * whole; without it where it cannot be opened, is of another version of the format, or of another
 * run: another base, other data, another adapter, or a deck that differs in a key that is fixed.
 * Where the evaluation set is another one, what was noted of earlier evaluations is dropped, and
 * said. Adapter, moments and *out_trainer are overwritten; after a failure they are undefined. What
 * may change bits (another kind of CPU, BLAS, number of threads) is said. Collective. */
az_err az_checkpoint_read(az_checkpoint *c, az_trainer *out_trainer, const char *path,
                          bool *out_damaged);
/* Fails if a file is a whole checkpoint of another run. Collective. */
az_err az_checkpoint_compare(const az_checkpoint *c, const char *path);
/* Read the adapter alone. The moments are lost; after a failure the adapter is as it was.
 * Collective. */
az_err az_checkpoint_read_adapter(az_checkpoint *c, const char *path);

#endif
