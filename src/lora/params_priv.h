/* params, inside: what the two ways of holding values have in common. */
#ifndef AZ_LORA_PARAMS_PRIV_H
#define AZ_LORA_PARAMS_PRIV_H

#include "comm/shared.h"
#include "comm/timetable.h"
#include "lora/params.h"

/* Layers that are together at a time: one is used while the next one comes. */
enum { AZ_PARAMS_SLOTS = 2 };

/* Values in the memory of hosts, or of GPUs. */
typedef struct {
    /* Memory, zeros; sets slice and slice_d. The other members are set. Collective. */
    az_err (*create)(az_params *params, az_progress_kind progress);
    void (*destroy)(az_params *params); /* also one that is half-built */
    void (*share)(az_params *params);   /* slice_d, which has been written, to all */
    /* A walk through the first n layers of the program; where values are gathered alone. */
    void (*begin)(az_params *params, int n);
    void (*release_layer)(az_params *params); /* one that is held */
    void (*end)(az_params *params);
    /* held: the layer is program[turn - 1], in a slot. */
    const float *(*get_layer)(az_params *params, int layer);
    double (*get_waited)(const az_params *params);
} az_params_way;

extern const az_params_way az_params_on_host, az_params_on_device;

/* In the memory of hosts. */
typedef struct {
    float *own; /* gathered: the slice */
    /* Replicated. */
    az_shared *memory;
    float *flat;             /* for owners */
    const float *read;       /* for all */
    int64_t lane_first;      /* where this lane's slices begin */
    size_t *bytes, *offsets; /* [nodes] this lane's slices, from there */
    az_spread *spread;       /* gathered */
} az_params_host;

/* In the memory of GPUs. */
typedef struct {
    int64_t *cuts, *clipped; /* [positions + 1] of the buffer, of one layer */
    float *flat;             /* replicated: all; gathered: the slice */
    az_event *written;       /* the slice was */
    az_event *shared;        /* replicated: all slices have come */
    /* Gathered. */
    float *slots;
    int64_t slot; /* elements of one */
    az_event *brought[AZ_PARAMS_SLOTS], *used[AZ_PARAMS_SLOTS];
    az_timetable timetable;
    int n_queued; /* fetches of this walk */
} az_params_device;

struct az_params {
    const az_params_way *way;
    az_comm *comm;
    const az_kern *kern;
    az_fabric *fabric;
    az_params_placement placement;
    az_spans spans;
    int64_t *off; /* of spans */
    int64_t first, n_own;
    float *slice, *slice_d; /* [n_own] for the host, for operations; the same on the CPU */
    int *program;           /* layers with pairs: all in order, then those of backward */
    int n_forward, n_program;
    int turn;     /* of the walk's layers, the next one */
    float *whole; /* what az_params_gather_all has made */
    bool open;    /* a layer is */
    bool held;    /* it is in a slot */
    az_params_host host;
    az_params_device device;
};

/* A layer without pairs is in no program. */
static inline bool az_params_is_empty(const az_spans *spans, int layer)
{
    return spans->off[layer] == spans->off[layer + 1];
}
/* How many have pairs. */
int az_params_count_layers(const az_spans *spans);
/* Slots that a walk through so many layers needs. */
static inline int az_params_find_slots(int n_layers)
{
    return n_layers < AZ_PARAMS_SLOTS ? n_layers : AZ_PARAMS_SLOTS;
}
/* Bytes of a rank's own that both ways take. */
size_t az_params_measure_common(const az_spans *spans);

#endif
