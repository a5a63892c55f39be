/* comm: nodes and lanes. */
#include <config.h>

#include "comm/comm_priv.h"

/* Each rank's node is known by the node's lowest rank. */
static az_err count_nodes(az_comm *comm, const int *lowest)
{
    az_err err;
    az_topology *t = &comm->topology;
    AZ_TRY(AZ_NEW(comm->node_ranks, (size_t)comm->size, "communication"));
    t->node_ranks = comm->node_ranks;
    t->n_ranks = t->n_lanes = comm->size;
    for (int r = 0; r < comm->size; r++) {
        if (lowest[r] != r)
            continue;
        int ranks = 0;
        for (int i = r; i < comm->size; i++)
            ranks += lowest[i] == r;
        if (r == lowest[comm->rank])
            comm->node_number = t->n_nodes;
        comm->node_ranks[t->n_nodes++] = ranks;
        if (ranks < t->n_lanes)
            t->n_lanes = ranks;
    }
    comm->lane_number = comm->node_rank < t->n_lanes ? comm->node_rank : -1;
out:
    return err;
}

az_err az_comm_find_topology(az_comm *comm)
{
    az_err err;
    int *lowest, mine = comm->rank;
    comm->lane = MPI_COMM_NULL;
    err = AZ_NEW(lowest, (size_t)comm->size, "communication");
    AZ_TRY(az_comm_agree(comm, err));
    if (!comm->alone) {
        MPI_Bcast(&mine, 1, MPI_INT, 0, comm->node);
        MPI_Allgather(&mine, 1, MPI_INT, lowest, 1, MPI_INT, comm->world);
    }
    AZ_TRY(az_comm_agree(comm, count_nodes(comm, lowest)));
    if (!comm->alone)
        MPI_Comm_split(comm->world, comm->lane_number < 0 ? MPI_UNDEFINED : comm->lane_number,
                       comm->node_number, &comm->lane);
out:
    az_free(lowest);
    return err;
}

const az_topology *az_comm_get_topology(const az_comm *comm)
{
    return &comm->topology;
}

int az_comm_node(const az_comm *comm)
{
    return comm->node_number;
}

int az_comm_lane(const az_comm *comm)
{
    return comm->lane_number;
}

int az_comm_position(const az_comm *comm)
{
    return comm->lane_number < 0 ? -1
                                 : comm->lane_number * comm->topology.n_nodes + comm->node_number;
}

int az_comm_n_positions(const az_comm *comm)
{
    return comm->topology.n_lanes * comm->topology.n_nodes;
}
