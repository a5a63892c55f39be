/* optim: sums of gradients in the memory of hosts, in a node and over nodes. optim.h says what
 * keeps ranks apart. */
#include <config.h>

#include <string.h>

#include "optim/optim_priv.h"

/* The most elements of one layer that a slice [first, first + n) has. */
static int64_t find_part(const az_spans *spans, int64_t first, int64_t n)
{
    int64_t most = 0;
    for (int l = 0; l < spans->n; l++)
        most = az_max_i64(most, az_min_i64(spans->off[l + 1], first + n) -
                                    az_max_i64(spans->off[l], first));
    return most;
}

/* ---- 1. begin and end ---- */

/* What may fail on one rank alone. */
static az_err prepare(az_optim *o)
{
    az_err err;
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes;
    o->host.in_place = o->reduce == AZ_REDUCE_STEP && n_nodes == 1;
    AZ_TRY(AZ_NEW(o->host.counts, (size_t)n_nodes, "optimizer"));
    if (!o->host.in_place)
        AZ_TRY(AZ_NEW(o->own, (size_t)o->n_own, "adapter gradients"));
    if (o->reduce == AZ_REDUCE_UNIT)
        AZ_TRY(AZ_NEW(o->host.part, (size_t)find_part(o->spans, o->first, o->n_own),
                      "adapter gradients"));
    AZ_TRY(AZ_NEW(o->m, (size_t)o->n_own, "moments"));
    AZ_TRY(AZ_NEW(o->v, (size_t)o->n_own, "moments"));
    o->m_host = o->m;
    o->v_host = o->v;
out:
    return err;
}

static az_err create(az_optim *o)
{
    az_err err;
    err = prepare(o);
    AZ_TRY(az_comm_agree(o->comm, err));
    AZ_TRY(az_shared_create(&o->host.memory, (size_t)o->n_sum * sizeof *o->sum, "adze-gradients",
                            "adapter gradients", 0, o->comm));
    o->sum = (int64_t *)az_shared_get(o->host.memory);
    if (o->host.in_place)
        o->own = o->sum + o->first;
out:
    return err;
}

static void destroy(az_optim *optim)
{
    if (!optim->host.in_place)
        az_free(optim->own);
    az_free(optim->host.counts);
    az_free(optim->host.part);
    az_free(optim->m);
    az_free(optim->v);
    az_shared_destroy(optim->host.memory);
}

/* ---- 2. sums ---- */

/* Cleared by the one who reads it last in a step, where that is one rank; else by all. */
static void clear(az_optim *o)
{
    if (o->host.in_place) {
        memset(o->own, 0, (size_t)o->n_own * sizeof *o->own);
        return;
    }
    const size_t n = (size_t)o->n_sum, rank = (size_t)az_comm_node_rank(o->comm);
    const size_t size = (size_t)az_comm_node_size(o->comm);
    const size_t from = az_cut(n, rank, size), to = az_cut(n, rank + 1, size);
    memset(o->sum + from, 0, (to - from) * sizeof *o->sum);
    memset(o->own, 0, (size_t)o->n_own * sizeof *o->own);
}

static void begin(az_optim *optim)
{
    clear(optim);
    az_comm_node_barrier(optim->comm);
}

static void add(az_optim *optim, int layer, const float *grad)
{
    const size_t n = (size_t)(optim->spans->off[layer + 1] - optim->spans->off[layer]);
    optim->kern->op->fixed_add(optim->kern->self, az_optim_find_sums(optim, layer), grad, n,
                               optim->limit, &optim->extras[AZ_OPTIM_OVERFLOW],
                               az_comm_node_size(optim->comm) > 1);
}

/* What this lane owns of a layer: elements [*out_from, return value), and in counts what of them
 * its ranks own. */
static int64_t cut_layer(az_optim *o, int layer, int64_t *out_from)
{
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes;
    const int64_t begin = o->spans->off[layer], end = o->spans->off[layer + 1];
    for (int i = 0; i < n_nodes; i++)
        o->host.counts[i] =
            az_max_i64(az_min_i64(o->cuts[i + 1], end) - az_max_i64(o->cuts[i], begin), 0);
    *out_from = az_max_i64(o->cuts[0], begin);
    return az_max_i64(az_min_i64(o->cuts[n_nodes], end), *out_from);
}

static void end_unit(az_optim *o, int layer)
{
    int64_t from, *sum = az_optim_find_sums(o, layer);
    o->turn++;
    az_comm_node_barrier(o->comm);
    if (az_comm_lane(o->comm) < 0)
        return;
    const int64_t to = cut_layer(o, layer, &from);
    if (from == to)
        return;
    sum += from - o->spans->off[layer];
    az_comm_lane_reduce_scatter_i64(o->comm, sum, o->host.part, o->host.counts);
    const int64_t mine = o->host.counts[az_comm_node(o->comm)];
    const int64_t at = az_max_i64(o->first, o->spans->off[layer]) - o->first;
    if (mine > 0)
        o->kern->op->add_i64(o->kern->self, o->own + at, o->host.part, (size_t)mine);
    memset(sum, 0, (size_t)(to - from) * sizeof *sum);
}

/* They were counted where they belong. */
static void count(az_optim *optim)
{
    (void)optim;
}

static void reduce(az_optim *o)
{
    const int n_nodes = az_comm_get_topology(o->comm)->n_nodes;
    if (o->reduce == AZ_REDUCE_UNIT || o->host.in_place)
        return;
    for (int i = 0; i < n_nodes; i++)
        o->host.counts[i] = o->cuts[i + 1] - o->cuts[i];
    az_comm_lane_reduce_scatter_i64(o->comm, o->sum + o->cuts[0], o->own, o->host.counts);
}

static void square(az_optim *o, double *squares)
{
    o->kern->op->square_blocks(o->kern->self, squares, o->own, (size_t)o->n_own, AZ_PARAMS_BLOCK);
}

static const int64_t *read(az_optim *optim, const int64_t *sums, int64_t n)
{
    (void)optim;
    (void)n;
    return sums;
}

const az_optim_way az_optim_on_host = {.create = create,
                                       .destroy = destroy,
                                       .begin = begin,
                                       .add = add,
                                       .end_unit = end_unit,
                                       .count = count,
                                       .reduce = reduce,
                                       .square = square,
                                       .read = read};

/* ---- 3. sizes ---- */

/* One rank's part, by what it owns. */
static void measure_slice(az_optim_sizes *s, const az_spans *spans, int64_t first, int64_t n,
                          bool in_place, az_reduce reduce)
{
    const int64_t part = reduce == AZ_REDUCE_UNIT ? find_part(spans, first, n) : 0;
    const size_t gradient = (size_t)((in_place ? 0 : n) + part) * sizeof(int64_t);
    const size_t moments = 2 * (size_t)n * sizeof(float);
    if (gradient + moments > s->gradient.most + s->moments.most) {
        s->gradient.most = gradient;
        s->moments.most = moments;
    }
    if (gradient + moments < s->gradient.least + s->moments.least) {
        s->gradient.least = gradient;
        s->moments.least = moments;
    }
}

az_optim_sizes az_optim_measure(const az_spans *spans, const az_topology *topology,
                                az_reduce reduce)
{
    const int64_t n = spans->off[spans->n];
    const int n_positions = topology->n_lanes * topology->n_nodes;
    const bool step = reduce == AZ_REDUCE_STEP;
    az_optim_sizes s = {.gradient.least = SIZE_MAX / 2,
                        .other = az_optim_measure_common(spans, topology)};
    s.gradient.shared = (size_t)(step ? n : 2 * az_params_find_largest(spans)) * sizeof(int64_t);
    s.other.most += (size_t)topology->n_nodes * sizeof(int64_t);
    s.other.least = s.other.most;
    for (int p = 0; p < n_positions; p++) {
        const int64_t first = az_params_cut(n, p, n_positions);
        measure_slice(&s, spans, first, az_params_cut(n, p + 1, n_positions) - first,
                      step && topology->n_nodes == 1, reduce);
    }
    if (n_positions < topology->n_ranks)
        measure_slice(&s, spans, 0, 0, false, reduce);
    return s;
}
