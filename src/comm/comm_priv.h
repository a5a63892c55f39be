/* comm, inside: the communicator. */
#ifndef AZ_COMM_PRIV_H
#define AZ_COMM_PRIV_H

#include <mpi.h>

#include "comm/comm.h"
#include "comm/watch_priv.h"

typedef struct az_progress az_progress;

/* alone: one process without MPI; its communicators are then not used. */
struct az_comm {
    bool alone, started_mpi;
    MPI_Comm world, node;
    MPI_Comm lane; /* MPI_COMM_NULL without one */
    int rank, size, node_rank, node_size;
    az_topology topology;
    int *node_ranks; /* of topology */
    int node_number, lane_number;
    size_t limit;           /* most bytes in one MPI call */
    int *counts, *offsets;  /* [size] scratch */
    MPI_Request poll;       /* the exchange of az_comm_poll under way */
    unsigned asked, answer; /* its buffers: this rank's reasons, all ranks' */
    bool polling;
    az_watch *watch;
    bool serialized;       /* another thread than the main one may call MPI, one at a time */
    az_progress *progress; /* NULL where nothing ever goes on beside the main thread */
};

/* Nodes and lanes, after world and node are there. On failure of any rank all fail. Collective. */
az_err az_comm_find_topology(az_comm *comm);

/* ---- what goes on beside the main thread (comm_progress.c) */

/* What a step has found: nothing to do, something to wait for, something under way in MPI, or that
 * it has come on. In this order. */
typedef enum { AZ_MOVE_NONE, AZ_MOVE_WAIT, AZ_MOVE_FLIGHT, AZ_MOVE_DONE } az_move;

/* One thing that goes on: step never blocks; it is called while open is set, by any thread, one at
 * a time, and may call MPI. */
typedef struct az_mover {
    az_move (*step)(void *context);
    void *context;
    bool open;
    struct az_mover *next;
} az_mover;

/* Join and leave. thread: start the thread that calls steps (comm->serialized), else the main
 * thread alone does. Local; joining may fail. */
az_err az_progress_join(az_comm *comm, az_mover *mover, bool thread);
void az_progress_leave(az_comm *comm, az_mover *mover);
/* Begin and end of stepping. After az_progress_close no other thread calls MPI for this mover.
 * Local. */
void az_progress_open(az_comm *comm, az_mover *mover);
void az_progress_close(az_comm *comm, az_mover *mover);
/* Step once, unless another thread is at it: then AZ_MOVE_FLIGHT. Local. */
az_move az_progress_advance(az_comm *comm);
/* Around calls of MPI by the main thread that must return at once; nothing where no mover is open.
 */
void az_progress_lock(az_comm *comm);
void az_progress_unlock(az_comm *comm);
/* MPI_Wait, during which all goes on. */
void az_progress_wait(az_comm *comm, MPI_Request *request);
/* The n-th vain look at something (0, 1, ...): let others have the core, for longer and longer
 * unless something is under way in MPI, which moves only as often as it is asked about. */
void az_progress_pause(int n, az_move move);
/* Whether any mover is open: then the main thread must not block in MPI. Local. */
bool az_progress_is_open(const az_comm *comm);

/* az_watch_begin of a collective that blocks in MPI: not while anything goes on. */
static inline void az_comm_block(az_comm *comm, az_call call)
{
    AZ_ASSERT(!az_progress_is_open(comm));
    az_watch_begin(comm->watch, call);
}

#endif
