/* optim, inside: what an optimizer holds. */
#ifndef AZ_OPTIM_PRIV_H
#define AZ_OPTIM_PRIV_H

#include "comm/shared.h"
#include "optim/optim.h"

/* What is summed over ranks besides gradients. */
enum { AZ_OPTIM_LOSS, AZ_OPTIM_OVERFLOW, AZ_OPTIM_N_EXTRAS };

struct az_optim {
    az_comm *comm;
    az_params *params;
    az_optim_options options;
    az_reduce reduce;
    const az_spans *spans;
    int64_t n, n_blocks;
    int64_t first, n_own;                /* this rank's slice */
    int64_t *cuts;                       /* [nodes + 1] where this lane's slices begin, and end */
    int64_t *counts;                     /* [nodes] elements, of what a lane reduces */
    size_t *block_bytes, *block_offsets; /* [nodes] squares of this lane's slices */
    az_shared *sum_memory, *square_memory;
    int64_t *sum;        /* this node's sums: [n], or [2, half] */
    int64_t n_sum, half; /* elements; half: of the largest layer */
    int turn;            /* layers reduced so far in this step */
    int64_t *own;        /* [n_own] all nodes' sums */
    bool in_place;       /* own lies in sum: there is one node */
    int64_t *part;       /* what of one layer's sums this rank owns */
    double *squares;     /* [n_blocks] of the node */
    float *m, *v;        /* [n_own] moments */
    int64_t extras[AZ_OPTIM_N_EXTRAS];
    double limit; /* largest value one micro-batch may add */
    int64_t updates;
};

/* The largest layer's elements. */
int64_t az_optim_find_half(const az_spans *spans);
/* The most elements of one layer that a slice [first, first + n) has. */
int64_t az_optim_find_part(const az_spans *spans, int64_t first, int64_t n);
/* Sums of all nodes in own, of what has not been reduced before. Collective. */
void az_optim_reduce(az_optim *optim);

#endif
