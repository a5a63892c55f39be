/* optim, inside: what an optimizer holds, and what the two kinds of devices do each in their way.
 */
#ifndef AZ_OPTIM_PRIV_H
#define AZ_OPTIM_PRIV_H

#include "comm/shared.h"
#include "optim/optim.h"

/* What is summed over ranks besides gradients. */
enum { AZ_OPTIM_LOSS, AZ_OPTIM_OVERFLOW, AZ_OPTIM_N_EXTRAS };
/* Elements that az_optim_way.read takes at most. */
enum { AZ_OPTIM_PIECE = 8192 };

/* Sums of gradients in the memory of hosts, or of GPUs. */
typedef struct {
    /* Memory for sums and moments, zeros; the other members are set. Collective. */
    az_err (*create)(az_optim *optim);
    void (*destroy)(az_optim *optim); /* also one that is half-built */
    void (*begin)(az_optim *optim);
    void (*add)(az_optim *optim, int layer, const float *grad);
    void (*end_unit)(az_optim *optim, int layer); /* with AZ_REDUCE_UNIT */
    /* Overflows that operations have counted are in extras. */
    void (*count)(az_optim *optim);
    /* Sums of all in own, of what has not been reduced before. Collective. */
    void (*reduce)(az_optim *optim);
    /* Squares of own's blocks, in the host's memory. */
    void (*square)(az_optim *optim, double *squares);
    /* n of the sums, where the host can read them until the next call. */
    const int64_t *(*read)(az_optim *optim, const int64_t *sums, int64_t n);
} az_optim_way;

extern const az_optim_way az_optim_on_host, az_optim_on_device;

/* In the memory of hosts. */
typedef struct {
    az_shared *memory;
    int64_t *counts; /* [nodes] elements, of what a lane reduces */
    int64_t *part;   /* what of one layer's sums this rank owns */
    bool in_place;   /* own lies in sum: there is one node */
} az_optim_host;

/* In the memory of GPUs. */
typedef struct {
    int64_t *cuts, *clipped;        /* [positions + 1] of all elements, of one layer */
    int64_t *overflow_d, *overflow; /* [1] in pinned memory: its copy */
    double *squares_d, *squares;    /* [own blocks] likewise */
    int64_t *piece;                 /* [AZ_OPTIM_PIECE] pinned */
    az_event *added, *reduced[2];   /* of AZ_REDUCE_UNIT's halves; of STEP the first */
    int pending[2];                 /* the layer that is being reduced in a half, or -1 */
} az_optim_device;

struct az_optim {
    const az_optim_way *way;
    az_comm *comm;
    az_params *params;
    const az_kern *kern;
    az_optim_options options;
    az_reduce reduce;
    const az_spans *spans;
    int64_t n, n_blocks;
    int64_t first, n_own;                /* this rank's slice */
    int64_t *cuts;                       /* [nodes + 1] where this lane's slices begin, and end */
    size_t *block_bytes, *block_offsets; /* [nodes] squares of this lane's slices */
    az_shared *square_memory;
    double *squares;        /* [n_blocks] of the node */
    int64_t *sum;           /* [n], or [2, half]: this node's sums, or this rank's on a GPU */
    int64_t n_sum, half;    /* elements; half: of the largest layer */
    int turn;               /* layers reduced so far in this step */
    int64_t *own;           /* [n_own] sums of all */
    float *m, *v;           /* [n_own] moments */
    float *m_host, *v_host; /* the host's copy, the same on the CPU */
    int64_t extras[AZ_OPTIM_N_EXTRAS];
    double limit; /* largest value one micro-batch may add */
    int64_t updates;
    /* Of the GPU's steps, by turns: where each begins and ends in the compute queue. */
    az_event *begun[2], *ended[2];
    bool timed[2];
    int time_turn;
    double seconds;
    az_optim_host host;
    az_optim_device device;
};

/* Where the sums of the layer whose turn it is lie. */
static inline int64_t *az_optim_find_sums(const az_optim *o, int layer)
{
    return o->reduce == AZ_REDUCE_STEP ? o->sum + o->spans->off[layer]
                                       : o->sum + o->turn % 2 * o->half;
}
/* Time of the steps (optim_time.c): what of it is done is added up, a turn at a time. */
az_err az_optim_create_times(az_optim *optim);
void az_optim_destroy_times(az_optim *optim);
void az_optim_begin_time(az_optim *optim);
void az_optim_end_time(az_optim *optim);

/* Bytes of a rank's own that both ways take, and that a node's ranks share. */
az_footprint az_optim_measure_common(const az_spans *spans, const az_topology *topology);

#endif
