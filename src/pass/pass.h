/* pass: micro-batches through the sharded model. Every rank gathers the same units in the
 * same order, with a micro-batch or without one. All calls but create and destroy are Collective
 * and allocate nothing. They fail only with AZ_ESTOP, on all ranks at the same unit, if one was
 * asked to stop; what they were to fill is then unfinished. */
#ifndef AZ_PASS_PASS_H
#define AZ_PASS_PASS_H

#include "base/base.h"
#include "comm/comm.h"
#include "data/data.h"
#include "lora/lora.h"
#include "model/config.h"
#include "optim/optim.h"
#include "shard/shard.h"

typedef struct az_pass az_pass;

/* The model that is passed through; all borrowed. */
typedef struct {
    az_comm *comm;
    az_shard *shard;
    const az_config *config;
    const az_linear *linears; /* of all layers, in model order */
    const az_lora *lora;      /* no pairs: the base alone */
    az_params *params;        /* the adapter's */
} az_model_parts;

/* ---- the order of units ---- */

/* How a model is cut. Units are numbered in model order, as the shard numbers them: pieces of the
 * embedding, layers, norm, pieces of the head (tied: those of the embedding are the head's). */
typedef struct {
    int n_embed, n_layers, n_head;
    bool tied;
    int lowest; /* lowest adapted layer; -1: none */
} az_pass_units;

/* The units in the order in which a pass gathers them: forward to the head, and in training once
 * more over a head of several pieces and back to the lowest adapted layer. All micro-batches of a
 * group pass through a unit while it is gathered, so the list is the same for any group, and a step
 * is that list once a group. Returns its length; opt_program gets the numbers. Pure. */
int az_pass_list_program(int *opt_program, const az_pass_units *units, bool training);

/* ---- passes ---- */

/* Largest micro-batch that will come. */
typedef struct {
    int64_t tokens, targets, longest;
    int sequences;
} az_pass_limits;

/* forward: what comes to az_pass_eval and az_pass_logits; opt_backward: to az_pass_train, NULL:
 * nothing. Collective. */
az_err az_pass_create(az_pass **out_pass, const az_model_parts *parts,
                      const az_pass_limits *forward, const az_pass_limits *opt_backward);
void az_pass_destroy(az_pass *opt_pass);
/* Forward and backward of one micro-batch (B = 0: none, gathers only). Loss and gradients, times
 * scale, are added to optim; step and seed name the dropout masks. */
az_err az_pass_train(az_pass *pass, const az_batch *batch, double scale, uint64_t seed,
                     int64_t step, az_optim *optim);
/* Sum of the negative log-likelihoods of the micro-batch's targets; 0 for none. */
az_err az_pass_eval(double *out_loss, az_pass *pass, const az_batch *batch);

/* Tokens for which logits are wanted: new tokens of sequences whose earlier keys and values may lie
 * in a cache. */
typedef struct {
    int64_t N;          /* 0: this rank has none and takes part in the gathers */
    const int32_t *ids; /* [N] */
    const int32_t *pos; /* [N] */
    const az_seq *seqs; /* [n_seqs]; with a cache, k_row is a row of it */
    int n_seqs;
    float *opt_cache_k, *opt_cache_v; /* [L, cache_rows, G, K] */
    int64_t cache_rows;
    const int64_t *cache_row; /* [N] where the new keys and values go */
    const int64_t *rows;      /* [n_rows] tokens whose logits are wanted */
    int64_t n_rows;
} az_feed;
/* logits [n_rows,V]. N, n_rows within the limits' tokens and targets; positions below longest. */
az_err az_pass_logits(az_pass *pass, const az_feed *feed, float *logits);

/* Seconds by operation since create. */
typedef struct {
    double forward, head, recompute, backward, gather;
    double longest_unit; /* between two units, where a pass can be stopped */
} az_pass_times;
az_pass_times az_pass_get_times(const az_pass *pass);
size_t az_pass_get_bytes(const az_pass *pass);

#endif
