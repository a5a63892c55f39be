/* shard: what is resident, where everything lies, and its memory. */
#include <config.h>

#include <string.h>

#include "shard/shard_priv.h"

/* Which units are resident, and where what this node holds of each lies. */
static void place(az_shard *shard, const bool *resident)
{
    const az_unit_list *list = &shard->index.list;
    az_shard_stats *stats = &shard->stats;
    size_t off = 0;
    *stats = (az_shard_stats){.base_bytes = list->bytes, .n_units = list->n_units};
    for (int u = 0; u < list->n_units; u++) {
        shard->index.units[u].resident = resident[u];
        shard->index.units[u].held_off = off;
        off += az_shard_count_held(&list->units[u], resident[u], shard->topology);
        stats->n_resident += resident[u];
        stats->resident_bytes += resident[u] ? list->units[u].bytes : 0;
    }
    if (shard->gpu != NULL)
        az_shard_gpu_place(shard);
}

/* opt_resident, or what follows from share. Mapped files, and the base of one node, are there as a
 * whole. */
static void choose(bool *resident, const az_shard *shard, const az_shard_options *o)
{
    const az_unit_list *list = &shard->index.list;
    const az_topology over = shard->gpu != NULL
                                 ? az_shard_list_gpus(shard->gpu->cut, shard->topology)
                                 : *shard->topology;
    const size_t excess = az_shard_count_excess(list, &over);
    const bool whole = shard->map != NULL || over.n_nodes == 1;
    if (!whole && o->opt_resident != NULL)
        memcpy(resident, o->opt_resident, (size_t)list->n_units * sizeof *resident);
    else if (!whole && o->share < 1)
        az_shard_choose_resident(resident, list, (size_t)(o->share * (double)excess), &over);
    else
        for (int u = 0; u < list->n_units; u++)
            resident[u] = true;
}

/* A unit as it lies here: whole, or this rank's stripe of it. */
static az_spread_item spread_unit(const az_shard *shard, int u)
{
    const az_unit *unit = &shard->index.units[u];
    az_spread_item item = {.bytes = shard->index.list.units[u].bytes, .resident = unit->resident};
    if (shard->gpu != NULL && unit->resident) /* nothing of it is here */
        return item;
    if (shard->map != NULL) /* of its first tensor; the others are elsewhere */
        item.home = az_shard_find_mapped(shard, &shard->index.members[unit->first]);
    else if (unit->resident)
        item.home = az_shared_get(shard->memory) + unit->held_off;
    else if (az_comm_lane(shard->comm) >= 0)
        item.home = az_shard_get_stripe(shard, u);
    return item;
}

/* Memory of the host that the node's ranks share. Collective. */
static az_err allocate(az_shard *shard, const az_shard_sizes *sizes, az_progress_kind progress)
{
    az_err err;
    az_spread_item *items = NULL;
    const int n_units = shard->index.list.n_units;
    if (shard->map == NULL)
        AZ_TRY(az_shared_create(&shard->memory, sizes->held, "adze-base", "base slices", 0,
                                shard->comm));
    err = AZ_NEW(items, (size_t)n_units, "base index");
    AZ_TRY(az_comm_agree(shard->comm, err));
    for (int u = 0; u < n_units; u++)
        items[u] = spread_unit(shard, u);
    err = az_spread_create(&shard->spread, items, n_units, sizes->n_slots, sizes->slot_each,
                           AZ_SHARD_PROGRAM * n_units, progress, "gathered unit", shard->comm);
    if (err == AZ_OK && shard->gpu != NULL)
        err = az_comm_agree(shard->comm, az_spread_pin(shard->spread, shard->gpu->dev));
out:
    az_free(items);
    return err;
}

static void release_memory(az_shard *shard)
{
    az_spread_destroy(shard->spread);
    az_shared_destroy(shard->memory);
    shard->spread = NULL;
    shard->memory = NULL;
}

static void measure(az_shard *shard, const bool *resident, const az_shard_options *o)
{
    const az_unit_list *list = &shard->index.list;
    az_shard_stats *stats = &shard->stats;
    stats->mapped = shard->map != NULL;
    if (shard->gpu == NULL) {
        stats->sizes = az_shard_measure(list, resident, o->n_slots, o->poison, shard->topology);
    } else {
        const az_shard_gpu_sizes sizes = az_shard_measure_gpus(
            list, resident, o->n_slots, o->poison, shard->gpu->cut, shard->topology);
        stats->sizes = sizes.gpu;
        stats->host = sizes.host;
    }
    if (shard->map != NULL)
        stats->sizes.held = az_shard_map_count_copied(shard->map);
}

/* Collective. */
static az_err take_memory(az_shard *shard, const az_shard_options *o)
{
    az_err err;
    bool *resident;
    err = AZ_NEW(resident, (size_t)shard->index.list.n_units, "base index");
    AZ_TRY(az_comm_agree(shard->comm, err));
    choose(resident, shard, o);
    place(shard, resident);
    measure(shard, resident, o);
    if (shard->gpu == NULL) {
        err = allocate(shard, &shard->stats.sizes, o->progress);
    } else {
        AZ_TRY(az_comm_agree(shard->comm, az_shard_gpu_allocate(shard)));
        if (shard->stats.host.n_slots > 0)
            err = allocate(shard, &shard->stats.host, o->progress);
    }
out:
    az_free(resident);
    return err;
}

/* Memory of this rank alone. Local. */
static az_err take_own(az_shard *shard)
{
    az_err err;
    size_t largest = 0;
    const az_unit_list *list = &shard->index.list;
    for (int u = 0; u < list->n_units && shard->poison && shard->gpu == NULL; u++)
        largest = list->units[u].bytes > largest ? list->units[u].bytes : largest;
    AZ_TRY(AZ_NEW(shard->program, (size_t)(AZ_SHARD_PROGRAM * list->n_units), "base index"));
    AZ_TRY(AZ_NEW(shard->copy, largest, "gathered unit"));
    memset(shard->copy, AZ_SHARD_POISON, largest);
out:
    return err;
}

az_err az_shard_create(az_shard **out_shard, const az_config *config, const az_table *table,
                       const az_tensor_set *set, az_comm *comm, const az_shard_options *options)
{
    az_err err;
    az_shard *shard = NULL;
    *out_shard = NULL;
    err = AZ_NEW(shard, 1, "base index");
    if (err == AZ_OK) {
        shard->config = config;
        shard->comm = comm;
        shard->topology = az_comm_get_topology(comm);
        shard->poison = options->poison;
        shard->load = options->load == AZ_LOAD_AUTO ? AZ_LOAD_JOB : options->load;
        shard->open = -1;
        err = az_shard_cut(&shard->index, config, table, set);
    }
    if (err == AZ_OK && options->opt_dev != NULL && az_dev_is_gpu(options->opt_dev))
        err = az_shard_gpu_create(shard, options);
    if (err == AZ_OK)
        err = take_own(shard);
    AZ_TRY(az_comm_agree(comm, err));
    if (shard->load == AZ_LOAD_MAP)
        AZ_TRY(az_shard_map_create(&shard->map, table, set, comm));
    AZ_TRY(take_memory(shard, options));
    AZ_TRY(az_shard_load(shard, set));
    if (shard->memory != NULL)
        AZ_TRY(az_comm_agree(comm, az_shared_protect(shard->memory)));
    AZ_TRY(az_comm_agree(comm, az_shard_seal(&shard->fingerprint, config, table, set)));
    *out_shard = shard;
    shard = NULL;
out:
    az_shard_destroy(shard);
    return err;
}

void az_shard_destroy(az_shard *opt_shard)
{
    if (opt_shard == NULL)
        return;
    az_shard_free_index(&opt_shard->index);
    az_shard_gpu_destroy(opt_shard->gpu);
    release_memory(opt_shard);
    az_shard_map_destroy(opt_shard->map);
    az_free(opt_shard->copy);
    az_free(opt_shard->program);
    az_free(opt_shard);
}

az_scope az_shard_get_scope(const az_shard *shard)
{
    const bool whole = shard->stats.n_resident == shard->stats.n_units;
    return whole || (shard->gpu != NULL && shard->gpu->cut == AZ_CUT_NODE) ? AZ_SCOPE_NODE
                                                                           : AZ_SCOPE_WORLD;
}

const az_unit_list *az_shard_get_units(const az_shard *shard)
{
    return &shard->index.list;
}

bool az_shard_is_resident(const az_shard *shard, int unit)
{
    return shard->index.units[unit].resident;
}

int az_shard_count(const az_shard *shard, az_unit_kind kind)
{
    return shard->index.list.count[kind];
}

int64_t az_shard_get_head_rows(const az_shard *shard)
{
    return shard->index.list.head_rows;
}

uint64_t az_shard_get_fingerprint(const az_shard *shard)
{
    return shard->fingerprint;
}

uint64_t az_shard_hash(const az_shard *shard)
{
    uint64_t hash = 0;
    if (shard->gpu != NULL) {
        hash = az_shard_gpu_hash(shard);
        return shard->memory != NULL
                   ? az_hash64(az_shared_get(shard->memory), shard->stats.host.held, hash)
                   : hash;
    }
    if (shard->map == NULL)
        return az_hash64(az_shared_get(shard->memory), shard->stats.sizes.held, 0);
    for (int i = 0; i < shard->index.list.n_members; i++) {
        const az_member *m = &shard->index.members[i];
        hash = az_hash64(az_shard_find_mapped(shard, m), m->bytes, hash);
    }
    return hash;
}

const char *az_shard_describe_pages(const az_shard *shard)
{
    return shard->memory != NULL ? az_shared_describe_pages(shard->memory)
           : shard->map != NULL  ? "pages of the system's cache"
                                 : "memory of GPUs";
}

az_err az_shard_check_files(const az_shard *shard)
{
    return shard->map != NULL ? az_shard_map_check(shard->map) : AZ_OK;
}

az_shard_stats az_shard_get_stats(const az_shard *shard)
{
    az_shard_stats stats = shard->stats;
    const az_spread_stats s =
        shard->spread != NULL ? az_spread_get_stats(shard->spread) : (az_spread_stats){0};
    stats.waited_s = s.wait_s;
    stats.gathers = s.gets;
    stats.fetches = s.fetches;
    stats.received_bytes = s.node_bytes;
    if (shard->gpu != NULL) {
        stats.waited_s += shard->gpu->waited_s;
        stats.gathers = shard->gpu->gathers;
        stats.fetches = shard->gpu->fetches;
        stats.received_bytes += shard->gpu->received_bytes;
    }
    return stats;
}
