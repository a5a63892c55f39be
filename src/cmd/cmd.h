/* cmd: the sub-commands, one file each (cmd_NAME.c), and their table (cmd_table.c).
 *
 * To add one: declare it here, add its line to the table, its file to module.am. */
#ifndef AZ_CMD_CMD_H
#define AZ_CMD_CMD_H

#include "base/base.h"
#include "comm/comm.h"
#include "deck/deck.h"

/* argv[0] is the name of the command, argv[1] ... its arguments. Where the command is parallel
 * opt_comm is the world and the function is collective over it; else it is NULL. */
typedef az_err az_cmd_run(az_comm *opt_comm, int argc, char **argv);

typedef struct {
    const char *name;
    bool parallel;
    az_cmd_run *run;
    const char *arguments; /* "DECK [section.key=value ...]" */
    const char *summary;   /* one line without a full stop */
    const char *sections;  /* sections of the deck that it reads, or NULL */
} az_cmd;

extern const az_cmd az_cmds[];
extern const int az_n_cmds;

/* By name, NULL if there is none. Local. */
const az_cmd *az_cmd_find(const char *name);
/* The command nearest to a wrong name, NULL if none is near. Local. */
const az_cmd *az_cmd_nearest(const char *name);
/* Open the deck of a command whose arguments are DECK [section.key=value ...], and check that the
 * keys it cannot do without are there. Collective over opt_comm, Local without. */
az_err az_cmd_open_deck(az_deck **out_deck, az_comm *opt_comm, int argc, char **argv);

az_cmd_run az_cmd_train;
az_cmd_run az_cmd_eval;
az_cmd_run az_cmd_generate;
az_cmd_run az_cmd_data;
az_cmd_run az_cmd_plan;
az_cmd_run az_cmd_deck;
az_cmd_run az_cmd_help;
az_cmd_run az_cmd_inspect;
az_cmd_run az_cmd_export;
az_cmd_run az_cmd_verify;

#endif
