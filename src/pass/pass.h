/* pass: micro-batches through the sharded model and back.
 *
 * A group of micro-batches passes through a unit while it is gathered: one (depth-first), or all of
 * the step (layer-major), or any number between. Kept of forward is the input of each layer from
 * the lowest adapted one on, and by a layer's level more of its activations. None of this changes a
 * bit: each micro-batch is computed for itself, and sums over micro-batches are exact.
 *
 * Every rank gathers the same units in the same order, with a micro-batch or without one. All calls
 * but create, destroy and the pure ones are Collective and allocate nothing. They fail only with
 * AZ_ESTOP, on all ranks at the same unit, if one was asked to stop; what they were to fill is then
 * unfinished.
 *
 * Contents: the order of units; create; passes; what they cost. */
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

/* ---- the order of units ---- */

/* How a model is cut. Units are numbered in model order, as the shard numbers them: pieces of the
 * embedding, layers, norm, pieces of the head (tied: those of the embedding are the head's). */
typedef struct {
    int n_embed, n_layers, n_head;
    bool tied;
    int lowest;        /* lowest adapted layer; -1: none */
    int64_t head_rows; /* of the largest piece of the head */
} az_pass_units;

/* The units in the order in which a pass gathers them: forward to the head, and in training once
 * more over a head of several pieces and back to the lowest adapted layer. The list is the same for
 * any group, and a step is that list once a group. Returns its length; opt_program gets the
 * numbers. Pure. */
int az_pass_list_program(int *opt_program, const az_pass_units *units, bool training);

/* ---- create ---- */

/* The model that is passed through; all borrowed. */
typedef struct {
    az_comm *comm;
    const az_kern *kern;
    az_shard *shard;
    const az_config *config;
    const az_linear *linears; /* of all layers, in model order */
    const az_lora *lora;      /* no pairs: the base alone */
    az_params *params;        /* the adapter's */
} az_model_parts;

/* Largest micro-batch that will come, and how many at most pass together (0: one). */
typedef struct {
    int64_t tokens, targets, longest;
    int sequences;
    int group;
} az_pass_limits;

/* What is kept of a layer's forward besides its input. The last layer's activations of a group's
 * last micro-batch are there in any case, so with a group of one its level gains nothing. */
typedef enum {
    AZ_LEVEL_RECOMPUTE, /* nothing: all is computed again */
    AZ_LEVEL_CHEAP, /* outputs of products and of attention; norms and gate are computed again */
    AZ_LEVEL_KEEP   /* all that backward reads */
} az_level;

typedef struct {
    az_pass_limits forward;     /* of az_pass_eval and az_pass_logits */
    az_pass_limits backward;    /* of az_pass_train; tokens 0: there is no training */
    const az_level *opt_levels; /* [L]; NULL: recompute. Layers below the lowest adapted one keep
                                   nothing, whatever is said here */
} az_pass_options;

/* Collective. */
az_err az_pass_create(az_pass **out_pass, const az_model_parts *parts,
                      const az_pass_options *options);
void az_pass_destroy(az_pass *opt_pass);
/* Bytes of the device's memory and of the host's (on the CPU both are the host's). */
typedef struct {
    size_t device, host;
} az_pass_sizes;
/* What create allocates, from the sizes alone. Pure. */
az_pass_sizes az_pass_measure(const az_config *config, const az_lora *lora,
                              const az_pass_units *units, const az_pass_options *options,
                              az_numeric numeric);
az_pass_sizes az_pass_get_sizes(const az_pass *pass);
/* The largest group: of az_pass_train, or of az_pass_eval. */
int az_pass_get_group(const az_pass *pass, bool training);

/* ---- passes ---- */

/* Forward and backward of this rank's micro-batches of n rounds of the schedule's step, from round
 * first on; n is at most the group. Losses and gradients, times scale, are added to optim; step and
 * seed name the dropout masks. */
az_err az_pass_train(az_pass *pass, az_schedule *schedule, int first, int n, double scale,
                     uint64_t seed, int64_t step, az_optim *optim);
/* Sums of the negative log-likelihoods of the targets of n micro-batches; 0 where there is none.
 * losses [n], valid until the next pass. */
az_err az_pass_eval(const double **out_losses, az_pass *pass, az_schedule *schedule, int first,
                    int n);

/* Tokens for which logits are wanted: new tokens of sequences whose earlier keys and values may lie
 * in a cache. Arrays are the host's, but for the cache. */
typedef struct {
    int64_t N;          /* 0: this rank has none and takes part in the gathers */
    const int32_t *ids; /* [N] */
    const int32_t *pos; /* [N] */
    const az_seq *seqs; /* [n_seqs]; with a cache, k_row is a row of it */
    int n_seqs;
    /* [L, cache_rows, G, K] of the activations' type, in the device's memory. */
    void *opt_cache_k, *opt_cache_v;
    int64_t cache_rows;
    const int64_t *cache_row; /* [N] where the new keys and values go */
    const int64_t *rows;      /* [n_rows] tokens whose logits are wanted */
    int64_t n_rows;
} az_feed;
/* logits [n_rows,V], in memory of az_dev_alloc_host. N, n_rows within the limits' tokens and
 * targets; positions below longest. */
az_err az_pass_logits(az_pass *pass, const az_feed *feed, float *logits);

/* Seconds by operation since create. On a GPU of the device's clock: recompute is part of backward,
 * and a wait of the device for a unit is part of what is done with it; gather is what the host has
 * waited. Passes that are not done yet are not in it. */
typedef struct {
    double forward, head, recompute, backward, gather;
    double longest_unit; /* between two units, where a pass can be stopped; on a GPU, which does
                            what is queued before it stops, of a pass */
} az_pass_times;
az_pass_times az_pass_get_times(az_pass *pass);

/* ---- what they cost ---- */

/* Floating-point operations for one token. */
typedef struct {
    double forward, backward;
    double recompute[AZ_LEVEL_KEEP + 1]; /* by level */
} az_flops;

/* Of a decoder layer with adapters of ranks R [AZ_N_LINEARS], where a query sees keys other tokens'
 * keys in the mean. W: elements of the seven weights, P: sum over pairs of R (in + out).
 *   forward    2 W + 4 H K keys + 2 P
 *   backward   2 W + 10 H K keys + 4 P    products with the frozen weights for the input alone
 *   recompute  forward without the product of down; cheap and keep: none
 * Norms, rotary, gate and dropout are left out. lowest: the lowest adapted layer, whose backward
 * ends at its lowest adapted linear. Pure. */
az_flops az_flops_of_layer(const az_config *config, const int64_t *R, double keys, bool lowest);
/* Of the head, for one target: forward 2 D V, backward 2 D V; a head of several pieces makes its
 * logits again: recompute 2 D V (at all levels). Pure. */
az_flops az_flops_of_head(const az_config *config, int n_head);
/* Ranks of a layer's adapters, R [AZ_N_LINEARS]. Pure. */
void az_pass_get_ranks(int64_t *R, const az_lora *lora, int layer);

#endif
