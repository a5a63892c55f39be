/* spread, inside: what a spread is made of. */
#ifndef AZ_COMM_SPREAD_PRIV_H
#define AZ_COMM_SPREAD_PRIV_H

#include <stdatomic.h>

#include "comm/comm_priv.h"
#include "comm/shared.h"
#include "comm/spread.h"
#include "comm/timetable.h"

/* What a rank tells those of its node. Written by it alone. */
typedef struct {
    _Alignas(64) _Atomic int64_t released; /* positions, of all walks */
    _Atomic int64_t done;                  /* fetches of its lane, of all walks */
} az_spread_counters;

/* An item, as this rank has it. */
typedef struct {
    const char *home;
    int cut;                       /* its number among the cut ones, -1: resident */
    size_t node_bytes, rank_bytes; /* that a fetch brings to this node, through this rank */
} az_spread_place;

struct az_spread {
    az_comm *comm;
    az_spread_place *items;
    int n_items, n_cut;
    int *parts; /* [n_cut][n_nodes + 1] where the parts of this lane begin, in blocks of the item */
    az_timetable timetable;
    az_shared *slots, *board;
    size_t slot_bytes;
    az_dev *pinned_for;               /* NULL: the slots are not pinned */
    az_spread_counters *ranks;        /* [node_size], in board */
    int64_t seen_released, seen_done; /* at least so far are all ranks, all lanes of the node */
    bool joined;
    az_mover mover;
    /* The walk. */
    int *program;    /* [longest] */
    int position, n; /* items released, items in all */
    bool open, held;
    int64_t positions, fetches; /* of earlier walks */
    az_spread_stats stats;
    /* The transport, under the lock of comm->progress. */
    MPI_Comm lane;
    MPI_Datatype block;
    int fetch, n_fetches; /* the next, or under way; all that are to be done */
    int done_blocks;      /* of each part of that fetch */
    bool under_way;
    MPI_Request request;
    int *counts, *offsets; /* [n_nodes] */
};

/* The next thing that there is to do for a fetch, as a mover wants it. Local. */
az_move az_spread_step(void *context);

#endif
