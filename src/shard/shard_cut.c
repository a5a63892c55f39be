/* shard: which tensors form a unit. */
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

static size_t align(size_t bytes)
{
    return (bytes + AZ_SHARD_ALIGN - 1) / AZ_SHARD_ALIGN * AZ_SHARD_ALIGN;
}

static void add_member(az_index *index, const az_weight *w, const az_tensor_set *set, int64_t row0,
                       int64_t rows)
{
    const int u = index->list.n_units - 1;
    az_unit_info *unit = &index->list.units[u];
    const az_tensor *tensor = &set->tensors[w->index];
    const size_t width = (size_t)w->cols * az_dtype_bytes((az_dtype)tensor->dtype);
    index->members[index->list.n_members++] =
        (az_member){w, tensor, row0, rows, unit->bytes, (size_t)rows * width};
    index->units[u].n_members++;
    unit->bytes += align((size_t)rows * width);
}

static void begin_unit(az_index *index, az_unit_kind kind)
{
    index->units[index->list.n_units] = (az_unit){.first = index->list.n_members};
    index->list.units[index->list.n_units++] = (az_unit_info){.kind = kind};
    index->list.count[kind]++;
}

static void cut_table(az_index *index, az_unit_kind kind, const az_weight *w,
                      const az_tensor_set *set, int64_t rows)
{
    for (int64_t row0 = 0; row0 < w->rows; row0 += rows) {
        begin_unit(index, kind);
        add_member(index, w, set, row0, az_min_i64(rows, w->rows - row0));
    }
}

/* A head in pieces is walked twice (loss, then gradient), and so is every layer. */
static void count_uses(az_unit_list *list)
{
    for (int u = 0; u < list->n_units; u++)
        list->units[u].uses = list->units[u].kind == AZ_UNIT_LAYER ? 2 : 1;
    const int head = list->first[AZ_UNIT_HEAD], n = list->count[AZ_UNIT_HEAD];
    const bool tied = n > 0 && list->units[head].kind == AZ_UNIT_EMBED;
    for (int i = 0; i < n; i++)
        list->units[head + i].uses = (n > 1 ? 2 : 1) + tied;
}

static void cut_units(az_index *index, const az_config *config, const az_table *table,
                      const az_tensor_set *set, int64_t limit)
{
    az_unit_list *list = &index->list;
    int layer = -1;
    /* The table is in model order: units of a kind follow each other, and so do a layer's tensors.
     */
    for (int i = 0; i < table->n_weights; i++) {
        const az_weight *w = &table->weights[i];
        az_unit_kind kind = w->layer >= 0             ? AZ_UNIT_LAYER
                            : w->role == AZ_ROLE_NORM ? AZ_UNIT_NORM
                            : w->role == AZ_ROLE_HEAD ? AZ_UNIT_HEAD
                                                      : AZ_UNIT_EMBED;
        if (list->count[kind] == 0)
            list->first[kind] = list->n_units;
        if (kind == AZ_UNIT_EMBED || kind == AZ_UNIT_HEAD) {
            cut_table(index, kind, w, set, piece_rows(w, limit));
            list->head_rows = piece_rows(w, limit);
            continue;
        }
        if (kind == AZ_UNIT_NORM || w->layer != layer)
            begin_unit(index, kind);
        layer = w->layer;
        add_member(index, w, set, 0, w->rows);
    }
    if (config->tied) {
        list->first[AZ_UNIT_HEAD] = list->first[AZ_UNIT_EMBED];
        list->count[AZ_UNIT_HEAD] = list->count[AZ_UNIT_EMBED];
    }
    for (int u = 0; u < list->n_units; u++)
        list->bytes += list->units[u].bytes;
    count_uses(list);
}

az_err az_shard_cut(az_index *index, const az_config *config, const az_table *table,
                    const az_tensor_set *set)
{
    az_err err;
    const int64_t limit = layer_elements(table);
    int64_t units = 0, members = 0;
    int layer = -1;
    for (int i = 0; i < table->n_weights; i++) {
        const az_weight *w = &table->weights[i];
        const int64_t pieces = w->layer < 0 ? az_ceil_div(w->rows, piece_rows(w, limit)) : 1;
        members += pieces;
        units += w->layer < 0 || w->layer != layer ? pieces : 0;
        layer = w->layer;
    }
    AZ_TRY(AZ_NEW(index->list.units, (size_t)units, "base index"));
    AZ_TRY(AZ_NEW(index->units, (size_t)units, "base index"));
    AZ_TRY(AZ_NEW(index->members, (size_t)members, "base index"));
    cut_units(index, config, table, set, limit);
    AZ_ASSERT(index->list.n_units == units && index->list.n_members == members);
out:
    return err;
}

void az_shard_free_index(az_index *index)
{
    az_shard_free_units(&index->list);
    az_free(index->units);
    az_free(index->members);
    *index = (az_index){0};
}

az_err az_shard_list_units(az_unit_list *list, const az_config *config, const az_table *table,
                           const az_tensor_set *set)
{
    az_index index = {0};
    const az_err err = az_shard_cut(&index, config, table, set);
    *list = index.list;
    if (err == AZ_OK)
        index.list = (az_unit_list){0};
    else
        *list = (az_unit_list){0};
    az_shard_free_index(&index);
    return err;
}

void az_shard_free_units(az_unit_list *list)
{
    az_free(list->units);
    *list = (az_unit_list){0};
}
