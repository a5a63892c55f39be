/* The table of sub-commands. */
#include <config.h>

#include "cmd/cmd.h"

#include <string.h>

#define DECK "DECK [section.key=value ...]"

const az_cmd az_cmds[] = {
    {"train", true, az_cmd_train, DECK, "train an adapter",
     "model, data, lora, train, eval, output, shard, comm, checkpoint, run"},
    {"plan", false, az_cmd_plan,
     "[--nodes N] [--ranks-per-node R] [--threads T] [--memory SIZE] [--device cpu|gpu] [--link "
     "SPEED] [--node-link SPEED] [--host-memory SIZE] [--host-link SPEED] [--flops RATE] [--disk "
     "SPEED] [--json] " DECK,
     "what a training would need and do, here or elsewhere: memory, traffic, choices; 1 if it does "
     "not fit",
     "model, data, lora, train, eval, shard, comm, checkpoint, run"},
    {"eval", true, az_cmd_eval, "[--json] " DECK,
     "loss and perplexity of the base model, or of base and eval.adapter, on a file",
     "model, data, eval, shard, comm, run"},
    {"generate", true, az_cmd_generate, DECK,
     "continue generate.prompt, or the prompts of generate.file, and compare with what is expected",
     "model, data, generate, shard, comm, run"},
    {"data", true, az_cmd_data, "[--ranks N] [--samples N] " DECK,
     "show what will be trained: counts, lengths, steps on N ranks, the first samples by token",
     "model, data, train, eval"},
    {"deck", false, az_cmd_deck, DECK " [KEY]",
     "print the deck as understood, or the value of one key as plain text, for scripts", NULL},
    {"export", false, az_cmd_export, "[--dtype f32|bf16] FILE DIR",
     "write the adapter of a checkpoint or of adapter.h5 as a PEFT directory", NULL},
    {"inspect", false, az_cmd_inspect, "[--json] FILE | DIR",
     "list a checkpoint, adapter.h5, a safetensors file, a model or an adapter directory", NULL},
    {"verify", false, az_cmd_verify, "[--verify-base DIR] FILE | DIR ...",
     "whether checkpoints, adapters and models are whole; what is damaged is named", NULL},
    {"help", false, az_cmd_help, "[COMMAND | SECTION | KEY | keys]",
     "explain a command, a section of the deck or a key", NULL},
};
const int az_n_cmds = sizeof az_cmds / sizeof az_cmds[0];

const az_cmd *az_cmd_find(const char *name)
{
    for (int i = 0; i < az_n_cmds; i++)
        if (strcmp(az_cmds[i].name, name) == 0)
            return &az_cmds[i];
    return NULL;
}

const az_cmd *az_cmd_nearest(const char *name)
{
    const az_cmd *best = NULL;
    int least = 3; /* two letters wrong at most, and no more than half */
    for (int i = 0; i < az_n_cmds; i++) {
        int d = az_str_distance(name, az_cmds[i].name);
        if (d < least && 2 * d <= (int)strlen(az_cmds[i].name)) {
            least = d;
            best = &az_cmds[i];
        }
    }
    return best;
}
