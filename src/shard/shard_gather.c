/* shard: units brought together and let go. */
#include <config.h>

#include <string.h>

#include "comm/watch.h"
#include "shard/shard_priv.h"

char *az_shard_get_stripe(const az_shard *shard, int u)
{
    const az_unit *unit = &shard->index.units[u];
    const az_unit_info *info = &shard->index.list.units[u];
    const int lane = az_comm_lane(shard->comm);
    char *held = az_shared_get(shard->memory) + unit->held_off;
    if (lane < 0)
        return held;
    if (unit->resident)
        return held + az_shard_cut_unit(info, az_comm_position(shard->comm),
                                        az_comm_n_positions(shard->comm))
                          .begin;
    return held + (size_t)lane * az_shard_count_blocks(info, shard->topology) * AZ_SHARD_ALIGN;
}

void az_shard_exchange(az_shard *shard, int u, const char *stripe, char *dest)
{
    const int lane = az_comm_lane(shard->comm), n_nodes = shard->topology->n_nodes;
    size_t begin = 0;
    if (lane < 0)
        return;
    for (int i = 0; i < n_nodes; i++) {
        const az_range r = az_shard_cut_unit(&shard->index.list.units[u], lane * n_nodes + i,
                                             az_comm_n_positions(shard->comm));
        begin = i == 0 ? r.begin : begin;
        shard->counts[i] = r.end - r.begin;
        shard->first[i] = r.begin - begin;
    }
    az_comm_lane_allgatherv(shard->comm, stripe, dest + begin, shard->counts, shard->first);
}

/* Bytes of a cut unit that lie on other nodes. */
static int64_t count_missing(const az_shard *shard, int u)
{
    const az_unit_info *info = &shard->index.list.units[u];
    int64_t missing = (int64_t)info->bytes;
    for (int lane = 0; lane < shard->topology->n_lanes; lane++) {
        const az_range r =
            az_shard_cut_unit(info, lane * shard->topology->n_nodes + az_comm_node(shard->comm),
                              az_comm_n_positions(shard->comm));
        missing -= (int64_t)(r.end - r.begin);
    }
    return missing;
}

void az_shard_begin(az_shard *shard, const int *program, int n)
{
    AZ_ASSERT(shard->program == NULL && shard->open < 0);
    shard->program = program;
    shard->n_program = n;
    shard->at = 0;
}

void az_shard_end(az_shard *shard)
{
    AZ_ASSERT(shard->program != NULL && shard->open < 0);
    shard->program = NULL;
}

/* The slot has been let go by the node's ranks before it is filled, and is full before they read.
 */
static const char *bring(az_shard *shard, int u)
{
    az_comm_node_barrier(shard->comm);
    az_shard_exchange(shard, u, az_shard_get_stripe(shard, u), az_shared_get(shard->slots));
    az_comm_node_barrier(shard->comm);
    shard->stats.received_bytes += count_missing(shard, u);
    return az_shared_get_readonly(shard->slots);
}

static const char *const kinds[AZ_N_UNIT_KINDS] = {[AZ_UNIT_EMBED] = "embedding",
                                                   [AZ_UNIT_LAYER] = "layer",
                                                   [AZ_UNIT_NORM] = "norm",
                                                   [AZ_UNIT_HEAD] = "head"};

void az_shard_gather(az_shard *shard, az_unit_kind kind, int i)
{
    AZ_ASSERT(shard->open < 0 && i >= 0 && i < shard->index.list.count[kind]);
    const int u = shard->open = shard->index.list.first[kind] + i;
    const az_unit *unit = &shard->index.units[u];
    az_watch_mark(shard->comm, kinds[kind], i);
    if (shard->program != NULL)
        AZ_ASSERT(shard->at < shard->n_program && shard->program[shard->at] == u);
    shard->at++;
    shard->stats.gathers++;
    if (unit->resident) {
        shard->data = az_shared_get(shard->memory) + unit->held_off;
    } else {
        const double begin = az_now();
        shard->data = bring(shard, u);
        shard->stats.waited_s += az_now() - begin;
    }
    if (shard->poison)
        shard->data = memcpy(shard->copy, shard->data, shard->index.list.units[u].bytes);
}

void az_shard_release(az_shard *shard)
{
    AZ_ASSERT(shard->open >= 0);
    if (shard->poison)
        memset(shard->copy, AZ_SHARD_POISON, shard->index.list.units[shard->open].bytes);
    shard->open = -1;
    shard->data = NULL;
}

static az_view view_of(const az_shard *shard, const az_member *m)
{
    return (az_view){shard->data + m->offset, (az_dtype)m->tensor->dtype, m->rows, m->weight->cols};
}

void az_shard_get_layer(const az_shard *shard, az_layer *out_layer)
{
    AZ_ASSERT(shard->open >= 0 && shard->index.list.units[shard->open].kind == AZ_UNIT_LAYER);
    const az_unit *unit = &shard->index.units[shard->open];
    *out_layer = (az_layer){0};
    for (int i = unit->first; i < unit->first + unit->n_members; i++) {
        const az_member *m = &shard->index.members[i];
        const az_view view = view_of(shard, m);
        switch (m->weight->role) {
        case AZ_ROLE_NORM1:
            out_layer->norm1 = view;
            break;
        case AZ_ROLE_NORM2:
            out_layer->norm2 = view;
            break;
        case AZ_ROLE_WEIGHT:
            out_layer->weight[m->weight->kind] = view;
            break;
        case AZ_ROLE_BIAS:
            out_layer->bias[m->weight->kind] = view;
            break;
        default:
            AZ_ASSERT(!"a layer holds norms and linears only");
        }
    }
}

az_view az_shard_get_piece(const az_shard *shard, int64_t *opt_row0)
{
    AZ_ASSERT(shard->open >= 0 && shard->index.units[shard->open].n_members == 1);
    const az_member *m = &shard->index.members[shard->index.units[shard->open].first];
    if (opt_row0 != NULL)
        *opt_row0 = m->row0;
    return view_of(shard, m);
}
