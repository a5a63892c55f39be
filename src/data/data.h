/* data: examples, target masks, order, micro-batches.
 *
 * A sample is a row of token ids with labels; label t is predicted from position t-1, so a label at
 * position 0 is never a target. Micro-batches are formed for the whole job first and then dealt to
 * ranks, so that what is computed does not depend on the number of ranks. */
#ifndef AZ_DATA_DATA_H
#define AZ_DATA_DATA_H

#include "base/base.h"
#include "comm/comm.h"
#include "text/text.h"

#define AZ_NO_LABEL (-100)

/* All samples of some files, the same on every rank. */
typedef struct {
    int64_t n;        /* samples */
    int64_t *start;   /* [n+1] first token of each sample */
    int32_t *ids;     /* [start[n]] */
    int32_t *labels;  /* [start[n]] AZ_NO_LABEL or the id to be predicted at this position from the
                         one before */
    int32_t *targets; /* [n] number of targets: labels at positions >= 1 that are not AZ_NO_LABEL */
    int64_t n_cut, n_dropped_long, n_dropped_empty; /* kept but cut, too long, without targets */
    int64_t n_tokens, n_targets;
    int64_t longest; /* tokens */
} az_dataset;

typedef struct {
    int64_t max_length;
    bool drop_long; /* too long samples are dropped instead of cut */
    bool add_eos;   /* EOS appended to text and completion, and trained */
    bool add_bos;   /* the tokenizer's special tokens in front of text and prompt */
    int32_t eos;    /* -1: none known */
    int64_t n_rows; /* rows of the embedding: ids must be below */
} az_data_options;

/* JSONL files, a sample a line; blank lines are passed over, other members are ignored:
 *   "text"                     special tokens in front if add_bos, text, EOS; all trained
 *   "prompt" + "completion"    tokenized apart, so that no token lies over the seam; prompt masked
 *   "input_ids" + "labels"     as they are; labels (default: the ids) are ids or AZ_NO_LABEL
 * EOS is added once: not if the text ends with it already; likewise the tokens in front. A sample
 * longer than max_length is cut at its end or dropped, one without targets is dropped; both are
 * counted. A file without samples, or nothing left, is a failure. opt_tokenizer is needed for text.
 * Collective over comm: each rank reads and tokenizes the lines that begin in its part of the
 * bytes; the failure reported is the first in file order, with file and line. */
az_err az_data_load(az_dataset *set, const char *const *files, int n_files,
                    az_tokenizer *opt_tokenizer, const az_data_options *options, az_comm *comm);
void az_data_fini(az_dataset *set);
/* A number that stands for all samples: ids, labels, where each begins, their order. Local. */
uint64_t az_data_hash(const az_dataset *set);
/* Move a random part of the samples (a function of seed and their number alone; fraction of all,
 * rounded, at least one to either side) to held_out; both stay in file order. Local, same on all
 * ranks. */
az_err az_data_split(az_dataset *set, az_dataset *held_out, double fraction, uint64_t seed);

/* How samples become steps. */
typedef struct {
    int64_t batch_size;         /* samples a step */
    int64_t micro_batch_size;   /* samples a micro-batch, or 0: by tokens */
    int64_t micro_batch_tokens; /* tokens a micro-batch at most, one longer sample stands alone */
    bool shuffle;
    uint64_t seed;
} az_batching;

typedef struct az_schedule az_schedule;

/* One micro-batch as the model takes it: sequences one behind the other, no padding. Views into the
 * schedule. */
typedef struct {
    int B;                  /* sequences */
    int64_t N;              /* tokens */
    const int64_t *start;   /* [B+1] */
    const int32_t *ids;     /* [N] */
    const int32_t *pos;     /* [N] position within its sequence */
    const uint32_t *sample; /* [N] number of the sample in the dataset, for random numbers */
    int64_t n_targets;
    const int64_t *rows;   /* [n_targets] row (token) whose output predicts ... */
    const int32_t *labels; /* [n_targets] ... this id */
} az_batch;

/* One step: batch_size consecutive samples of the epoch's order (what is left in the last step of
 * an epoch). Its micro-batches are dealt to ranks in rounds, the longest first to the least loaded
 * rank that has none of this round yet: there are as few rounds as there can be, and what is
 * computed at the same time is of similar size. */
typedef struct {
    int64_t n_samples, n_tokens, n_targets;
    int n_micro, n_rounds;
    double idle; /* share of the ranks' time that is idle, from estimated costs */
} az_step;

/* Buffers for the largest possible step are made here; the calls below allocate nothing. cost: work
 * of a sequence of T tokens in units of one token's linears is T + attention_cost * T * T. Local.
 */
az_err az_schedule_create(az_schedule **out_schedule, const az_dataset *set,
                          const az_batching *batching, double attention_cost, int n_ranks,
                          int rank);
void az_schedule_destroy(az_schedule *opt_schedule);
int64_t az_schedule_get_steps_per_epoch(const az_schedule *schedule);
/* Steps of so many epochs (a part of an epoch is rounded up to whole steps), or max_steps if that
 * is positive. Saturates. */
int64_t az_schedule_count_steps(const az_schedule *schedule, double epochs, int64_t max_steps);
/* Bounds on tokens, sequences and targets of any micro-batch of any order; each is reached or close
 * to it. */
void az_schedule_get_max(const az_schedule *schedule, int64_t *out_tokens, int *out_sequences,
                         int64_t *out_targets);
/* Set up global step (0, 1, ...; epoch = step / steps per epoch). Local; the same on all ranks. */
void az_schedule_set_step(az_schedule *schedule, int64_t step, az_step *out_step);
/* This rank's micro-batch of a round; B = 0 if it has none. Valid until the next call. */
void az_schedule_get_batch(az_schedule *schedule, int round, az_batch *out_batch);
/* Samples (numbers in the dataset) of the step in micro-batch order, and where each micro-batch
 * begins [n_micro+1]; for tests and `adze data`. */
void az_schedule_get_samples(const az_schedule *schedule, const int64_t **out_samples,
                             const int64_t **out_micro_start);
/* Which rank computes micro-batch m, in which round. */
void az_schedule_get_place(const az_schedule *schedule, int m, int *out_rank, int *out_round);

#endif
