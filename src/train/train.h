/* train: the job of `adze train`. */
#ifndef AZ_TRAIN_TRAIN_H
#define AZ_TRAIN_TRAIN_H

#include "base/base.h"
#include "comm/comm.h"
#include "deck/deck.h"

/* Everything from the deck to the adapter in its output directory. Collective. */
az_err az_train_run(const az_deck *deck, az_comm *comm);

#endif
