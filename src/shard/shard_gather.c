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

static void begin_walk(az_shard *shard, const int *program, int n)
{
    if (shard->gpu != NULL)
        az_shard_gpu_begin(shard, program, n);
    else
        az_spread_begin(shard->spread, program, n);
}

static void end_walk(az_shard *shard)
{
    if (shard->gpu != NULL)
        az_shard_gpu_end(shard);
    else
        az_spread_end(shard->spread);
}

void az_shard_begin(az_shard *shard, const int *program, int n)
{
    AZ_ASSERT(!shard->walking && shard->open < 0);
    memcpy(shard->program, program, (size_t)n * sizeof *program);
    shard->walking = true;
    shard->n_program = n;
    shard->at = 0;
    begin_walk(shard, program, n);
}

void az_shard_end(az_shard *shard)
{
    AZ_ASSERT(shard->walking && shard->open < 0);
    shard->walking = false;
    end_walk(shard);
}

const char *az_shard_find_mapped(const az_shard *shard, const az_member *m)
{
    return az_shard_map_get(shard->map, m->tensor) +
           m->row0 * (int64_t)(m->bytes / (size_t)m->rows);
}

/* The gathered unit, as a private copy. */
static const char *copy_unit(az_shard *shard, int u)
{
    const az_unit *unit = &shard->index.units[u];
    if (shard->map == NULL)
        return memcpy(shard->copy, shard->data, shard->index.list.units[u].bytes);
    for (int i = unit->first; i < unit->first + unit->n_members; i++) {
        const az_member *m = &shard->index.members[i];
        memcpy(shard->copy + m->offset, az_shard_find_mapped(shard, m), m->bytes);
    }
    return shard->copy;
}

static const char *const kinds[AZ_N_UNIT_KINDS] = {[AZ_UNIT_EMBED] = "embedding",
                                                   [AZ_UNIT_LAYER] = "layer",
                                                   [AZ_UNIT_NORM] = "norm",
                                                   [AZ_UNIT_HEAD] = "head"};

void az_shard_gather(az_shard *shard, az_unit_kind kind, int i)
{
    AZ_ASSERT(shard->open < 0 && i >= 0 && i < shard->index.list.count[kind]);
    const int u = shard->open = shard->index.list.first[kind] + i;
    az_watch_mark(shard->comm, kinds[kind], i);
    if (shard->walking)
        AZ_ASSERT(shard->at < shard->n_program && shard->program[shard->at] == u);
    else
        begin_walk(shard, &u, 1);
    shard->at++;
    shard->data = shard->gpu != NULL ? az_shard_gpu_gather(shard, u) : az_spread_get(shard->spread);
    if (shard->gpu != NULL)
        return;
    if (shard->poison)
        shard->data = copy_unit(shard, u);
    else if (shard->map != NULL)
        shard->data = NULL;
}

void az_shard_release(az_shard *shard)
{
    const int u = shard->open;
    AZ_ASSERT(u >= 0);
    shard->open = -1;
    shard->data = NULL;
    if (shard->gpu != NULL) {
        az_shard_gpu_release(shard, u);
    } else {
        if (shard->poison)
            memset(shard->copy, AZ_SHARD_POISON, shard->index.list.units[u].bytes);
        az_spread_release(shard->spread);
    }
    if (!shard->walking)
        end_walk(shard);
}

static az_view view_of(const az_shard *shard, const az_member *m)
{
    const char *data =
        shard->data != NULL ? shard->data + m->offset : az_shard_find_mapped(shard, m);
    return (az_view){data, (az_dtype)m->tensor->dtype, m->rows, m->weight->cols};
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
