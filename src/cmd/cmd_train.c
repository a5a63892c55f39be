/* adze train: a deck becomes an adapter. */
#include <config.h>

#include "cmd/cmd.h"
#include "train/train.h"

az_err az_cmd_train(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_deck *deck = NULL;
    AZ_TRY(az_cmd_open_deck(&deck, opt_comm, argc, argv));
    AZ_TRY(az_train_run(deck, opt_comm));
out:
    az_deck_close(deck);
    return err;
}
