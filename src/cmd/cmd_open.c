/* The deck of a command that reads one. */
#include <config.h>

#include "cmd/cmd.h"
#include "comm/watch.h"

static az_err open_deck(az_deck **out_deck, int argc, char **argv)
{
    az_err err;
    const az_cmd *cmd = az_cmd_find(argv[0]);
    AZ_ASSERT(cmd != NULL);
    if (argc < 2)
        return az_fail(AZ_EINPUT, "adze %s: no deck; usage: adze %s %s", cmd->name, cmd->name,
                       cmd->arguments);
    AZ_TRY(az_deck_open(out_deck, argv[1], argv + 2, argc - 2));
    err = az_deck_check(*out_deck, cmd->name);
out:
    return err;
}

/* The deadlines of the deck; the command begins to load. */
static void start_watch(az_comm *comm, const az_deck *deck)
{
    const double step = az_deck_real(deck, "run.step_timeout");
    az_watch_set_deadline(comm, AZ_PHASE_LOAD, az_deck_real(deck, "run.load_timeout"));
    az_watch_set_deadline(comm, AZ_PHASE_STEP, step);
    az_watch_set_deadline(comm, AZ_PHASE_EVAL, step);
    az_watch_set_deadline(comm, AZ_PHASE_GENERATE, step);
    az_watch_set_deadline(comm, AZ_PHASE_SAVE, az_deck_real(deck, "run.save_timeout"));
    az_watch_set_deadline(comm, AZ_PHASE_END, az_deck_real(deck, "run.finalize_timeout"));
    az_watch_enter(comm, AZ_PHASE_LOAD, -1);
}

az_err az_cmd_open_deck(az_deck **out_deck, az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    *out_deck = NULL;
    err = open_deck(out_deck, argc, argv);
    if (opt_comm != NULL)
        err = az_comm_agree(opt_comm, err);
    if (err != AZ_OK) {
        az_deck_close(*out_deck);
        *out_deck = NULL;
    } else if (opt_comm != NULL) {
        start_watch(opt_comm, *out_deck);
    }
    return err;
}
