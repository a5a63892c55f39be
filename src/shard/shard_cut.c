/* shard: which tensors form a unit, and where their bytes lie. */
#include <config.h>

#include "shard/shard_priv.h"

/* Elements of a decoder layer: a piece of a table has at most as many. */
static int64_t layer_elements(const az_table *table)
{
    int64_t n = 0;
    for (int i = 0; i < table->n_weights; i++)
        if (table->weights[i].layer == 0)
            n += table->weights[i].rows * table->weights[i].cols;
    return n;
}

/* Rows of a piece of a table: even pieces, as few as the limit allows. */
static int64_t piece_rows(const az_weight *w, int64_t limit)
{
    int64_t most = az_max_i64(limit / w->cols, 1);
    return az_ceil_div(w->rows, az_ceil_div(w->rows, most));
}

static void add_member(az_shard *shard, const az_weight *w, const az_tensor_set *set, int64_t row0,
                       int64_t rows)
{
    az_unit *unit = &shard->units[shard->n_units - 1];
    const az_tensor *tensor = &set->tensors[w->index];
    const size_t width = (size_t)w->cols * az_dtype_bytes((az_dtype)tensor->dtype);
    const size_t offset = (unit->bytes + AZ_SHARD_ALIGN - 1) / AZ_SHARD_ALIGN * AZ_SHARD_ALIGN;
    shard->members[shard->n_members++] =
        (az_member){w, tensor, row0, rows, offset, (size_t)rows * width};
    unit->n_members++;
    unit->bytes = offset + (size_t)rows * width;
}

static void begin_unit(az_shard *shard, az_unit_kind kind)
{
    shard->units[shard->n_units++] = (az_unit){.kind = kind, .first = shard->n_members};
    shard->count[kind]++;
}

static void cut_table(az_shard *shard, az_unit_kind kind, const az_weight *w,
                      const az_tensor_set *set, int64_t rows)
{
    for (int64_t row0 = 0; row0 < w->rows; row0 += rows) {
        begin_unit(shard, kind);
        add_member(shard, w, set, row0, az_min_i64(rows, w->rows - row0));
    }
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

void az_shard_place(az_shard *shard, az_scope scope)
{
    const bool node = scope == AZ_SCOPE_NODE;
    shard->scope = scope;
    shard->n_parts = node ? az_comm_node_size(shard->comm) : az_comm_size(shard->comm);
    shard->part = node ? az_comm_node_rank(shard->comm) : az_comm_rank(shard->comm);
    shard->held_bytes = shard->slot_bytes = 0;
    const size_t n = (size_t)shard->n_parts;
    for (int u = 0; u < shard->n_units; u++) {
        az_unit *unit = &shard->units[u];
        const size_t whole = round_up(unit->bytes, n * AZ_SHARD_ALIGN);
        unit->slice = whole / n;
        unit->held_off = shard->held_bytes;
        shard->held_bytes += node ? round_up(unit->bytes, AZ_SHARD_ALIGN) : unit->slice;
        if (whole > shard->slot_bytes)
            shard->slot_bytes = whole;
    }
}

az_err az_shard_cut(az_shard *shard, const az_table *table, const az_tensor_set *set)
{
    az_err err;
    const int64_t limit = layer_elements(table);
    int64_t most = 0; /* members; there are no more units than that */
    for (int i = 0; i < table->n_weights; i++) {
        const az_weight *w = &table->weights[i];
        most += w->layer < 0 ? az_ceil_div(w->rows, piece_rows(w, limit)) : 1;
    }
    AZ_TRY(AZ_NEW(shard->units, (size_t)most, "base index"));
    AZ_TRY(AZ_NEW(shard->members, (size_t)most, "base index"));
    int layer = -1;
    /* The table is in model order: units of a kind follow each other, and so do a layer's tensors.
     */
    for (int i = 0; i < table->n_weights; i++) {
        const az_weight *w = &table->weights[i];
        az_unit_kind kind = w->layer >= 0             ? AZ_UNIT_LAYER
                            : w->role == AZ_ROLE_NORM ? AZ_UNIT_NORM
                            : w->role == AZ_ROLE_HEAD ? AZ_UNIT_HEAD
                                                      : AZ_UNIT_EMBED;
        if (shard->count[kind] == 0)
            shard->first[kind] = shard->n_units;
        if (kind == AZ_UNIT_EMBED || kind == AZ_UNIT_HEAD) {
            cut_table(shard, kind, w, set, piece_rows(w, limit));
            shard->head_rows = piece_rows(w, limit);
            continue;
        }
        if (kind == AZ_UNIT_NORM || w->layer != layer)
            begin_unit(shard, kind);
        layer = w->layer;
        add_member(shard, w, set, 0, w->rows);
    }
    if (shard->config->tied) {
        shard->first[AZ_UNIT_HEAD] = shard->first[AZ_UNIT_EMBED];
        shard->count[AZ_UNIT_HEAD] = shard->count[AZ_UNIT_EMBED];
    }
    for (int u = 0; u < shard->n_units; u++)
        shard->stats.base_bytes += shard->units[u].bytes;
out:
    return err;
}
