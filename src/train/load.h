/* train/load: datasets as the deck names them, for training and for evaluation alike. */
#ifndef AZ_TRAIN_LOAD_H
#define AZ_TRAIN_LOAD_H

#include "base/base.h"
#include "data/data.h"
#include "deck/deck.h"
#include "optim/optim.h"
#include "train/engine.h"

/* The files of a key (data.files, eval.file), read with the data.* options of the deck.
 * Collective. */
az_err az_load_files(az_dataset *set, const az_deck *deck, const char *key, const az_engine *engine,
                     az_tokenizer *opt_tokenizer);
/* What a training is about: the samples of data.files, and those held out for evaluation, if the
 * deck asks for it (*out_have_eval): of eval.file, or the part that eval.split keeps from training.
 * Collective. */
az_err az_load_samples(az_dataset *train, az_dataset *held_out, bool *out_have_eval,
                       const az_deck *deck, const az_engine *engine);
/* What `adze eval` is about: eval.file, else the part of data.files that eval.split keeps from
 * training, else data.files. *out_what says which. Collective. */
az_err az_load_eval(az_dataset *set, const char **out_what, const az_deck *deck,
                    const az_engine *engine, az_tokenizer *opt_tokenizer);
/* How the deck's samples become steps and micro-batches. Local. */
az_batching az_load_batching(const az_deck *deck);
/* For az_schedule_create: attention's work, which grows with the square of a sequence, over that of
 * the linears. */
double az_load_attention_cost(const az_config *config);

#endif
