/* train/stage: model.stage: each node reads the model from a copy on a disk of its own. */
#ifndef AZ_TRAIN_STAGE_H
#define AZ_TRAIN_STAGE_H

#include "comm/comm.h"
#include "store/safetensors.h"

/* Bring a copy of the model's files to dir on each node, where it is not there yet, its ranks
 * sharing the work, and let the set's files be those of the copy. One line says what was done.
 * Fails with AZ_ESTOP when the job is asked to stop meanwhile; then, and after any other failure,
 * nothing is left that counts as a copy. Collective. */
az_err az_stage_model(az_tensor_set *set, const char *model_dir, const char *dir, az_comm *comm);

#endif
