/* pass, inside. */
#ifndef AZ_PASS_PRIV_H
#define AZ_PASS_PRIV_H

#include "model/block.h"
#include "pass/pass.h"

/* The pass under way. Its micro-batches have slots 0 .. n-1. */
typedef struct {
    bool training;
    int n;
    az_schedule *schedule; /* slot s is the rank's micro-batch of round first + s; NULL: one slot,
                              whose tokens do not come from a schedule */
    int first;
    uint64_t seed;
    int64_t step;
    int slot; /* whose batch and tokens these are; -1: none */
    az_batch batch;
    az_tokens tokens;
    size_t cache_stride; /* elements of one layer's cache, which tokens refers to for layer 0 */
    double entered;      /* clock at the last unit; 0: none */
    double mark;         /* clock at the last lap */
} az_walk;

struct az_pass {
    az_model_parts m;
    az_pass_units units;
    az_pass_limits most, back; /* of any pass, of az_pass_train */
    int group_most;            /* micro-batches of any pass */
    int n_inputs;              /* layers whose input is kept: lowest .. L-1 in training */
    az_arena arena;
    float *rope;
    az_work work;
    az_acts shared;            /* what no slot keeps for itself: of one layer and slot at a time */
    int held_layer, held_slot; /* those that shared is whole of; -1: none */
    az_acts *acts; /* [n_inputs, group] in training: a slot's own arrays, the others shared */
    unsigned *kept, *read; /* [n_inputs] stages that a slot keeps; that backward reads */
    az_head *heads;        /* one, or [group_most] where the head comes in pieces */
    int n_heads;
    float *x;       /* [n_inputs, group, N, D] inputs of layers */
    float *d;       /* [group, N, D] what passes through where no input is kept, the last layer's
                       output, then the gradient that walks down */
    float *grad;    /* gradients of one layer's pairs */
    float *norm;    /* [D] final norm */
    double *losses; /* [group_most] */
    az_seq *seqs;
    int *program; /* units in the order of this pass */
    az_walk now;
    az_pass_times times;
};

#endif
