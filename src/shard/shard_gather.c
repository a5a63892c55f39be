/* shard: units brought together and let go. */
#include <config.h>

#include <string.h>

#include "comm/watch.h"
#include "shard/shard_priv.h"

/* All bits set is NaN in f32, f16 and bf16. */
#define POISON 0xff

/* The sums of all ranks, or of a node's, become the fingerprint. In halves, so that no sum of
 * signed numbers overflows. Collective. */
static az_err sum_fingerprint(az_shard *shard)
{
    int64_t half[2] = {(int64_t)(shard->fingerprint & UINT32_MAX),
                       (int64_t)(shard->fingerprint >> 32)};
    if (shard->scope == AZ_SCOPE_WORLD) {
        az_comm_sum_i64(shard->comm, half, 2);
        shard->fingerprint = (uint64_t)half[0] + ((uint64_t)half[1] << 32);
        return AZ_OK;
    }
    az_comm_node_sum_i64(shard->comm, half, 2);
    shard->fingerprint = (uint64_t)half[0] + ((uint64_t)half[1] << 32);
    int64_t ends[4] = {(int64_t)(shard->fingerprint & UINT32_MAX),
                       (int64_t)(shard->fingerprint >> 32)};
    ends[2] = -ends[0];
    ends[3] = -ends[1];
    az_comm_max_i64(shard->comm, ends, 4);
    if (ends[0] == -ends[2] && ends[1] == -ends[3])
        return AZ_OK;
    return az_fail(AZ_EENV, "model.path: the nodes have read different bytes: not all of them see "
                            "the same files, or one reads them wrongly");
}

/* Node where one copy fits. The same on all ranks. Collective. */
static az_scope choose_scope(const az_shard *shard)
{
    const char *source;
    int64_t n_nodes = az_comm_node_rank(shard->comm) == 0;
    az_comm_sum_i64(shard->comm, &n_nodes, 1);
    const double room = AZ_SHARD_NODE_SHARE * (double)az_limits_get_memory(&source);
    int64_t too_large = (double)shard->stats.base_bytes > room;
    az_comm_max_i64(shard->comm, &too_large, 1);
    return n_nodes == 1 || !too_large ? AZ_SCOPE_NODE : AZ_SCOPE_WORLD;
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Slices and their places, in a scope. */
static void place(az_shard *shard, az_scope scope)
{
    const bool node = scope == AZ_SCOPE_NODE;
    shard->scope = scope;
    shard->n_parts = node ? az_comm_node_size(shard->comm) : az_comm_size(shard->comm);
    shard->part = node ? az_comm_node_rank(shard->comm) : az_comm_rank(shard->comm);
    shard->held_bytes = shard->slot_bytes = 0;
    const size_t n = (size_t)shard->n_parts;
    for (int u = 0; u < shard->index.list.n_units; u++) {
        az_unit *unit = &shard->index.units[u];
        const size_t bytes = shard->index.list.units[u].bytes;
        const size_t whole = round_up(bytes, n * AZ_SHARD_ALIGN);
        unit->slice = whole / n;
        unit->held_off = shard->held_bytes;
        shard->held_bytes += node ? bytes : unit->slice;
        if (whole > shard->slot_bytes)
            shard->slot_bytes = whole;
    }
}

static az_err allocate(az_shard *shard)
{
    az_err err = AZ_OK;
    const bool node = shard->scope == AZ_SCOPE_NODE;
    if (node) {
        AZ_TRY(az_shared_create(&shard->shared, shard->held_bytes, "adze-base", "base slices", 0,
                                shard->comm));
        shard->held = az_shared_get(shard->shared);
    } else {
        AZ_TRY(AZ_NEW(shard->held, shard->held_bytes, "base slices"));
    }
    if (shard->poison || (!node && shard->n_parts > 1))
        AZ_TRY(AZ_NEW(shard->slot, shard->slot_bytes, "gathered unit"));
    if (shard->poison)
        memset(shard->slot, POISON, shard->slot_bytes);
out:
    return az_comm_agree(shard->comm, err);
}

static void release_memory(az_shard *shard)
{
    if (shard->shared == NULL)
        az_free(shard->held);
    az_shared_destroy(shard->shared);
    az_free(shard->slot);
    shard->held = shard->slot = NULL;
    shard->shared = NULL;
}

/* Where ranks of a node cannot share memory, auto means world. */
static az_err take_memory(az_shard *shard, az_scope scope)
{
    az_err err;
    place(shard, scope != AZ_SCOPE_AUTO ? scope : choose_scope(shard));
    err = allocate(shard);
    if (err == AZ_EENV && scope == AZ_SCOPE_AUTO && shard->scope == AZ_SCOPE_NODE &&
        az_comm_size(shard->comm) > 1) {
        az_warn("%s; the base is cut over all ranks instead (shard.scope: world)",
                az_err_message());
        az_err_clear();
        release_memory(shard);
        place(shard, AZ_SCOPE_WORLD);
        err = allocate(shard);
    }
    return err;
}

az_err az_shard_create(az_shard **out_shard, const az_config *config, const az_table *table,
                       const az_tensor_set *set, az_comm *comm, az_scope scope, bool poison)
{
    az_err err;
    az_shard *shard = NULL;
    *out_shard = NULL;
    err = AZ_NEW(shard, 1, "base index");
    if (err == AZ_OK) {
        shard->config = config;
        shard->comm = comm;
        shard->poison = poison;
        shard->open = -1;
        err = az_shard_cut(&shard->index, config, table, set);
        shard->stats.base_bytes = shard->index.list.bytes;
    }
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(take_memory(shard, scope));
    AZ_TRY(az_comm_agree(comm, az_shard_load(shard, set)));
    if (shard->shared != NULL)
        AZ_TRY(az_comm_agree(comm, az_shared_protect(shard->shared)));
    shard->stats.slice_bytes = shard->held_bytes;
    shard->stats.slot_bytes = shard->slot != NULL ? shard->slot_bytes : 0;
    AZ_TRY(sum_fingerprint(shard));
    AZ_TRY(az_comm_agree(comm, az_shard_seal(&shard->fingerprint, config, table, set)));
    *out_shard = shard;
    shard = NULL;
out:
    az_shard_destroy(shard);
    return err;
}

az_scope az_shard_get_scope(const az_shard *shard)
{
    return shard->scope;
}

void az_shard_destroy(az_shard *opt_shard)
{
    if (opt_shard == NULL)
        return;
    az_shard_free_index(&opt_shard->index);
    release_memory(opt_shard);
    az_free(opt_shard);
}

int az_shard_count(const az_shard *shard, az_unit_kind kind)
{
    return shard->index.list.count[kind];
}

int64_t az_shard_get_head_rows(const az_shard *shard)
{
    return shard->index.list.head_rows;
}

static const char *const kinds[AZ_N_UNIT_KINDS] = {[AZ_UNIT_EMBED] = "embedding",
                                                   [AZ_UNIT_LAYER] = "layer",
                                                   [AZ_UNIT_NORM] = "norm",
                                                   [AZ_UNIT_HEAD] = "head"};

void az_shard_gather(az_shard *shard, az_unit_kind kind, int i)
{
    AZ_ASSERT(shard->open < 0 && i >= 0 && i < shard->index.list.count[kind]);
    double begin = az_now();
    az_watch_mark(shard->comm, kinds[kind], i);
    shard->open = shard->index.list.first[kind] + i;
    const az_unit *unit = &shard->index.units[shard->open];
    const char *mine = shard->held + unit->held_off;
    shard->data = mine;
    if (shard->slot != NULL && shard->scope == AZ_SCOPE_NODE)
        memcpy(shard->slot, mine, shard->index.list.units[shard->open].bytes); /* poison */
    else if (shard->slot != NULL)
        az_comm_allgather(shard->comm, mine, unit->slice, shard->slot);
    if (shard->slot != NULL)
        shard->data = shard->slot;
    shard->stats.gather_s += az_now() - begin;
    shard->stats.gathers++;
    if (shard->scope == AZ_SCOPE_WORLD)
        shard->stats.gathered_bytes += (int64_t)(unit->slice * (size_t)(shard->n_parts - 1));
}

void az_shard_release(az_shard *shard)
{
    AZ_ASSERT(shard->open >= 0);
    if (shard->poison)
        memset(shard->slot, POISON, shard->slot_bytes);
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

uint64_t az_shard_get_fingerprint(const az_shard *shard)
{
    return shard->fingerprint;
}

uint64_t az_shard_hash(const az_shard *shard)
{
    return az_hash64(shard->held, shard->held_bytes, 0);
}

az_shard_stats az_shard_get_stats(const az_shard *shard)
{
    return shard->stats;
}
