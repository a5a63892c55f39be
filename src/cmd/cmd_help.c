/* adze help: commands from their table, sections and keys from the deck's. */
#include <config.h>

#include "cmd/cmd.h"

#include <string.h>

static az_err add_overview(az_str *out)
{
    az_err err;
    AZ_TRY(az_str_add(out,
                      "adze %s: LoRA fine-tuning of Hugging Face causal language models, the "
                      "frozen base\nsharded over MPI ranks\n\nusage: adze COMMAND ...\n\n"
                      "commands (`adze help COMMAND`):\n",
                      PACKAGE_VERSION));
    for (int i = 0; i < az_n_cmds; i++)
        AZ_TRY(az_str_add(out, "  %-10s %s\n", az_cmds[i].name, az_cmds[i].summary));
    AZ_TRY(az_str_add(out, "\nsections of a deck (`adze help SECTION`; `adze help keys` lists all "
                           "keys, `adze help KEY` explains one):\n"));
    AZ_TRY(az_deck_help_sections(out));
    err = az_str_add(out, "\nexit codes: 0 done, 2 the input is at fault, 3 the environment is "
                          "(disk, memory), 4 a rank was lost\nor a GPU failed, 75 asked to stop; "
                          "what was done is kept\n");
out:
    return err;
}

static az_err add_command(az_str *out, const az_cmd *cmd)
{
    az_err err;
    AZ_TRY(az_str_add(out, "usage: %sadze %s %s\n", cmd->parallel ? "[mpiexec -n RANKS] " : "",
                      cmd->name, cmd->arguments));
    AZ_TRY(az_str_add(out, "  %s\n", cmd->summary));
    if (cmd->sections != NULL)
        AZ_TRY(az_str_add(out, "  reads the sections %s\n", cmd->sections));
out:
    return err;
}

static az_err add_about(az_str *out, const char *word)
{
    az_err err = AZ_OK;
    bool found = true;
    const az_cmd *cmd = az_cmd_find(word), *near = az_cmd_nearest(word);
    az_str keys = {0};
    if (strcmp(word, "keys") == 0)
        return az_deck_help(out);
    if (strcmp(word, "--markdown") == 0)
        return az_deck_help_markdown(out);
    AZ_TRY(az_deck_help_key(&keys, word, &found));
    if (cmd != NULL)
        AZ_TRY(add_command(out, cmd));
    if (found)
        AZ_TRY(az_str_add(out, "%s%s", cmd != NULL ? "\n" : "", keys.s));
    else if (cmd == NULL && near != NULL)
        err = az_fail(AZ_EINPUT, "%.80s: no such command, section or key; did you mean %s?", word,
                      near->name);
    else if (cmd == NULL)
        err = az_fail(AZ_EINPUT, "%.80s: no such command, section or key; %s", word, keys.s);
out:
    az_str_fini(&keys);
    return err;
}

az_err az_cmd_help(az_comm *opt_comm, int argc, char **argv)
{
    az_err err = AZ_OK;
    az_str out = {0};
    (void)opt_comm;
    if (argc < 2)
        AZ_TRY(add_overview(&out));
    for (int i = 1; i < argc; i++) {
        if (i > 1)
            AZ_TRY(az_str_add(&out, "\n"));
        AZ_TRY(add_about(&out, argv[i]));
    }
    if (out.len > 0 && out.s[out.len - 1] == '\n')
        out.s[--out.len] = '\0'; /* az_say adds one */
    az_say("%s", out.s);
out:
    az_str_fini(&out);
    return err;
}
