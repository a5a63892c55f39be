/* train/saves, inside: names of checkpoints. */
#ifndef AZ_TRAIN_SAVES_PRIV_H
#define AZ_TRAIN_SAVES_PRIV_H

#include "train/saves.h"

/* checkpoint-NNNNNN.h5. Local. */
void az_saves_name(char *name, size_t size, int64_t step);
/* Steps of the checkpoints in the directory, the newest first. Local. */
az_err az_saves_list(const char *dir, int64_t **out_steps, int64_t *out_n);
/* The newest one of this run. Local. */
void az_saves_remember(az_saves *s, int64_t step);

#endif
