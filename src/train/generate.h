/* train/generate: prompts, what is sampled from logits, and the loop that continues prompts with
 * the sharded model.
 *
 * Prompts are taken in groups of batch_size in their order and the groups are dealt to the ranks,
 * so what is computed together depends neither on the number of ranks nor on which rank does it.
 * Random numbers are functions of (seed, prompt, position). */
#ifndef AZ_TRAIN_GENERATE_H
#define AZ_TRAIN_GENERATE_H

#include "base/base.h"
#include "comm/comm.h"
#include "text/text.h"
#include "plan/plan.h"
#include "train/engine.h"

/* ---- prompts (train_prompts.c) ---- */

/* Start from {0}. The ids are on every rank; what else the file says only on rank 0. */
typedef struct {
    int64_t n;
    int64_t *start;     /* [n+1] */
    int32_t *ids;       /* [start[n]] */
    char **text;        /* [n] the prompt; NULL if it came as ids */
    char **expected;    /* [n] what its completion should be; NULL: not said */
    int64_t n_expected; /* on every rank */
} az_prompts;

typedef struct {
    const char *opt_text; /* one prompt ... */
    const char *opt_file; /* ... or a JSONL file of "prompt" or "input_ids", and "completion" */
    bool add_bos;         /* the tokenizer's special tokens in front, as in training */
    int64_t n_rows;       /* rows of the embedding: ids must be below */
    int64_t max_position; /* a prompt must be shorter */
} az_prompts_options;

/* Read and tokenized on rank 0, handed on. opt_tokenizer is needed there for text. The failure of a
 * file is its first, with file and line. Collective. */
az_err az_prompts_load(az_prompts *prompts, const az_prompts_options *options,
                       az_tokenizer *opt_tokenizer, az_comm *comm);
void az_prompts_fini(az_prompts *prompts);

/* ---- one token from logits (train_sample.c) ---- */

typedef struct {
    double temperature; /* 0: the most probable token, the lowest id of equals */
    double top_p;       /* the most probable tokens that together reach this */
    uint64_t seed;
} az_sampling;

/* Scratch for a vocabulary of V, carved once. */
typedef struct {
    double *weight; /* [V] */
    int32_t *heap;  /* [V] */
} az_sampler;

void az_sampler_carve(az_sampler *sampler, az_arena *arena, int64_t V);
/* The token drawn from logits [V] for position of prompt; -1 if a logit is not finite. Local. */
int32_t az_sampler_pick(az_sampler *sampler, const float *logits, int64_t V,
                        const az_sampling *sampling, int64_t position, int64_t prompt);

/* ---- the loop (train_generate.c) ---- */

typedef struct {
    int batch_size; /* prompts that a rank continues at once */
    int64_t max_new_tokens;
    az_sampling sampling;
    const int32_t *eos; /* [n_eos] ids that end a completion */
    int n_eos;
    /* Called on every rank after each pass; NULL: not at all. */
    void (*opt_progress)(int64_t done, int64_t n_prompts, int64_t tokens);
} az_generate_options;

typedef struct az_generate az_generate;

/* Tokens that pass through the model at a time, except that every prompt of a group may always have
 * one. */
#define AZ_GENERATE_TOKENS 1024

/* What a plan must know of it, of the rank that needs most; engine is read, not loaded. Local. */
void az_generate_get_work(az_work_load *out_work, az_engine *engine, const az_prompts *prompts,
                          const az_generate_options *options);
/* Everything the loop needs is allocated here. engine and prompts are borrowed. Collective. */
az_err az_generate_create(az_generate **out_generate, az_engine *engine, const az_prompts *prompts,
                          const az_generate_options *options);
void az_generate_destroy(az_generate *opt_generate);
/* Continue all prompts. Fails if the model gives logits that are not finite, and with AZ_ESTOP as a
 * pass does. Once. Collective. */
az_err az_generate_run(az_generate *generate);

/* What became of a prompt, on every rank. */
typedef struct {
    const int32_t *ids; /* without the token that ended it */
    int64_t n;
    bool finished; /* by such a token, not by a limit */
} az_completion;
az_completion az_generate_get(const az_generate *generate, int64_t prompt);

typedef struct {
    int64_t passes, tokens; /* of all ranks; tokens generated, end tokens included */
    int64_t n_short;        /* prompts that the model's positions keep from max_new_tokens */
    double seconds;
    size_t cache_bytes, bytes; /* keys and values; all the workspaces; of this rank */
} az_generate_stats;
az_generate_stats az_generate_get_stats(const az_generate *generate);

#endif
