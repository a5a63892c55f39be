/* pass, inside. */
#ifndef AZ_PASS_PRIV_H
#define AZ_PASS_PRIV_H

#include "model/block.h"
#include "pass/pass.h"

/* The arrays of the micro-batches of a pass, those of one behind those of the one before. */
typedef struct {
    int32_t *ids, *pos;
    uint32_t *sample;
    int64_t *cache_row;
    int64_t *rows; /* of targets */
    int32_t *labels;
} az_batches;

/* One micro-batch of the pass under way; no tokens: this rank has none. */
typedef struct {
    az_tokens tokens; /* with a cache: of layer 0 */
    const int32_t *ids;
    int64_t n_targets;
    const int64_t *rows; /* [n_targets] */
    const int32_t *labels;
} az_slot;

/* The pass under way. Its micro-batches have slots 0 .. n-1. */
typedef struct {
    bool training;
    int n;
    uint64_t seed;
    int64_t step;
    size_t cache_stride; /* elements of one layer's cache */
    double entered;      /* clock at the last unit; 0: none */
    double mark;         /* clock at the last lap */
} az_walk;

/* What the time of a pass is split into. */
typedef enum { AZ_LAP_BEGIN, AZ_LAP_FORWARD, AZ_LAP_HEAD, AZ_LAP_BACKWARD, AZ_N_LAPS } az_lap;

struct az_pass {
    az_model_parts m;
    az_numeric numeric;
    az_pass_units units;
    az_pass_limits most, back; /* of any pass, of az_pass_train */
    int group_most;            /* micro-batches of any pass */
    int n_inputs;              /* layers whose input is kept: lowest .. L-1 in training */
    az_arena device, host;     /* what kernels use, and what the host looks at, which is pinned */

    /* In the device's memory; act where no other type is said. */
    float *rope;
    az_work work;
    az_acts shared;            /* what no slot keeps for itself: of one layer and slot at a time */
    int held_layer, held_slot; /* those that shared is whole of; -1: none */
    void *x;                   /* [n_inputs, group, N, D] inputs of layers */
    void *d;        /* [group, N, D] what passes through where no input is kept, the last layer's
                       output, then the gradient that walks down */
    void *narrowed; /* one layer's pairs, where act is not the adapter's own type */
    float *grad;    /* gradients of one layer's pairs */
    float *norm;    /* [D] final norm */
    double *losses; /* [group_most] */
    az_batches batches;

    /* In the host's. */
    az_acts *acts; /* [n_inputs, group] in training: a slot's own arrays, the others shared */
    unsigned *kept, *read; /* [n_inputs] stages that a slot keeps; that backward reads */
    az_head *heads;        /* one, or [group_most] where the head comes in pieces */
    int n_heads;
    az_slot *slots; /* [group_most] */
    az_seq *seqs;
    az_batches staged;      /* copied to the device from here, once a pass */
    double *losses_fetched; /* [group_most] */
    int *program;           /* units in the order of this pass */

    az_walk now;
    az_event *fetched; /* what the pass gives has come to the host */
    /* Of a GPU: when laps ended, of this pass and the one before, which may not be done. */
    az_event *laps[2][AZ_N_LAPS];
    bool lapped[2][AZ_N_LAPS];
    int turn;
    az_pass_times times;
};

/* ---- micro-batches (pass_batch.c) ---- */

/* Those of n rounds of a schedule, from first on, as slots, on their way to the device. */
void az_pass_load_batches(az_pass *pass, az_schedule *schedule, int first, int n);
/* Tokens that do not come from a schedule, as the one slot. */
void az_pass_load_feed(az_pass *pass, const az_feed *feed);

/* ---- times (pass_time.c) ---- */

az_err az_pass_create_laps(az_pass *pass);
void az_pass_destroy_laps(az_pass *pass);
/* A pass begins. */
void az_pass_begin_laps(az_pass *pass);
/* What was done since the last lap was a part of lap, or (opt_recompute) of recompute. */
void az_pass_end_lap(az_pass *pass, az_lap lap, bool recompute);

#endif
