/* optim: sums of gradients, in a node and over nodes. optim.h says what keeps ranks apart. */
#include <config.h>

#include <string.h>

#include "kern/kern_cpu.h"
#include "optim/optim_priv.h"

/* Cleared by the one who reads it last in a step, where that is one rank; else by all. */
static void clear(az_optim *o)
{
    if (o->in_place) {
        memset(o->own, 0, (size_t)o->n_own * sizeof *o->own);
        return;
    }
    const size_t n = (size_t)o->n_sum, rank = (size_t)az_comm_node_rank(o->comm);
    const size_t size = (size_t)az_comm_node_size(o->comm);
    const size_t from = az_cut(n, rank, size), to = az_cut(n, rank + 1, size);
    memset(o->sum + from, 0, (to - from) * sizeof *o->sum);
    memset(o->own, 0, (size_t)o->n_own * sizeof *o->own);
}

void az_optim_begin(az_optim *optim, int n_micro)
{
    clear(optim);
    optim->turn = 0;
    memset(optim->extras, 0, sizeof optim->extras);
    /* So bounded, n_micro terms cannot leave the integer's range. */
    optim->limit = AZ_FIXED_RANGE / (n_micro > 1 ? n_micro : 1);
    az_comm_node_barrier(optim->comm);
}

/* Where a layer's sums lie now. */
static int64_t *find_sums(const az_optim *o, int layer)
{
    return o->reduce == AZ_REDUCE_STEP ? o->sum + o->spans->off[layer]
                                       : o->sum + o->turn % 2 * o->half;
}

void az_optim_add(az_optim *optim, int layer, const float *grad)
{
    int64_t *sum = find_sums(optim, layer), *overflow = &optim->extras[AZ_OPTIM_OVERFLOW];
    const size_t n = (size_t)(optim->spans->off[layer + 1] - optim->spans->off[layer]);
    if (az_comm_node_size(optim->comm) == 1)
        az_kern_fixed_add_cpu(sum, grad, n, optim->limit, overflow);
    else
        az_kern_fixed_add_shared_cpu(sum, grad, n, optim->limit, overflow);
}

void az_optim_add_loss(az_optim *optim, double loss)
{
    optim->extras[AZ_OPTIM_LOSS] +=
        az_kern_to_fixed(loss, optim->limit, &optim->extras[AZ_OPTIM_OVERFLOW]);
}

/* What this lane owns of a layer: elements [*out_from, return value), and in counts what of them
 * its ranks own. */
static int64_t cut_layer(az_optim *o, int layer, int64_t *out_from)
{
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes;
    const int64_t begin = o->spans->off[layer], end = o->spans->off[layer + 1];
    for (int i = 0; i < n_nodes; i++)
        o->counts[i] =
            az_max_i64(az_min_i64(o->cuts[i + 1], end) - az_max_i64(o->cuts[i], begin), 0);
    *out_from = az_max_i64(o->cuts[0], begin);
    return az_max_i64(az_min_i64(o->cuts[n_nodes], end), *out_from);
}

void az_optim_end_unit(az_optim *o, int layer)
{
    int64_t from, *sum = find_sums(o, layer);
    if (o->reduce == AZ_REDUCE_STEP)
        return;
    o->turn++;
    az_comm_node_barrier(o->comm);
    if (az_comm_lane(o->comm) < 0)
        return;
    const int64_t to = cut_layer(o, layer, &from);
    if (from == to)
        return;
    sum += from - o->spans->off[layer];
    az_comm_lane_reduce_scatter_i64(o->comm, sum, o->part, o->counts);
    const int64_t mine = o->counts[az_comm_node(o->comm)];
    const int64_t at = az_max_i64(o->first, o->spans->off[layer]) - o->first;
    for (int64_t i = 0; i < mine; i++)
        o->own[at + i] += o->part[i];
    memset(sum, 0, (size_t)(to - from) * sizeof *sum);
}

void az_optim_reduce(az_optim *o)
{
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes;
    if (o->reduce == AZ_REDUCE_UNIT || o->in_place)
        return;
    for (int i = 0; i < n_nodes; i++)
        o->counts[i] = o->cuts[i + 1] - o->cuts[i];
    az_comm_lane_reduce_scatter_i64(o->comm, o->sum + o->cuts[0], o->own, o->counts);
}

bool az_optim_has_gradient(const az_optim *optim, int64_t off, int64_t n)
{
    int64_t from = az_max_i64(off, optim->first);
    int64_t to = az_min_i64(off + n, optim->first + optim->n_own);
    for (int64_t i = from; i < to; i++)
        if (optim->own[i - optim->first] != 0)
            return true;
    return false;
}

const int64_t *az_optim_get_sums(const az_optim *optim)
{
    return optim->reduce == AZ_REDUCE_STEP ? optim->sum : NULL;
}
