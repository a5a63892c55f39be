/* shard: memory of the base on a GPU, and what lies where in it. */
#include <config.h>

#include "shard/shard_priv.h"

static int count_positions(const az_shard *shard)
{
    return shard->topology->n_lanes * shard->topology->n_nodes;
}

az_err az_shard_gpu_create(az_shard *shard, const az_shard_options *o)
{
    az_err err;
    az_shard_gpu *gpu;
    const bool nccl = o->opt_fabric != NULL && az_fabric_uses_nccl_between_nodes(o->opt_fabric);
    if (shard->load == AZ_LOAD_MAP)
        return az_fail(AZ_EINPUT, "model.load: map: files are used in place by the host alone, and "
                                  "a GPU needs a copy: job or node reads them into its memory");
    AZ_TRY(AZ_NEW(gpu, 1, "base index"));
    shard->gpu = gpu;
    *gpu = (az_shard_gpu){.dev = o->opt_dev,
                          .fabric = o->opt_fabric,
                          .cut = az_shard_find_cut(o->scope, nccl, shard->topology)};
out:
    return err;
}

/* ---- where bytes lie */

/* Parts [first, end) of positions. */
static az_range find_parts(const az_shard *shard, int u, int first, int end)
{
    const size_t bytes = shard->index.list.units[u].bytes;
    const int n = count_positions(shard);
    return (az_range){az_fabric_cut(bytes, first, n), az_fabric_cut(bytes, end, n)};
}

/* The bytes of a unit that this GPU's lane has on this node together, or its position. Empty
 * without a lane. */
static az_range find_range(const az_shard *shard, int u, bool stretch)
{
    const int lane = az_comm_lane(shard->comm), n_nodes = shard->topology->n_nodes;
    const int position = az_comm_position(shard->comm);
    if (lane < 0)
        return (az_range){0, 0};
    return stretch ? find_parts(shard, u, lane * n_nodes, (lane + 1) * n_nodes)
                   : find_parts(shard, u, position, position + 1);
}

az_range az_shard_gpu_find_held(const az_shard *shard, int u)
{
    return find_range(shard, u, shard->gpu->cut != AZ_CUT_ALL);
}

bool az_shard_gpu_reads_each(const az_shard *shard, int u)
{
    return shard->load == AZ_LOAD_NODE &&
           (shard->index.units[u].resident || shard->gpu->cut == AZ_CUT_NODE);
}

az_range az_shard_gpu_find_part(char **out_dest, const az_shard *shard, int u)
{
    const az_unit *unit = &shard->index.units[u];
    const az_range part = find_range(shard, u, az_shard_gpu_reads_each(shard, u));
    const size_t first = unit->resident ? 0 : az_shard_gpu_find_held(shard, u).begin;
    *out_dest = shard->gpu->held + unit->gpu_off + (part.begin - first);
    return part;
}

/* ---- memory */

void az_shard_gpu_place(az_shard *shard)
{
    const az_unit_list *list = &shard->index.list;
    const az_gpu_cut cut = shard->gpu->cut;
    size_t gpu_off = 0, host_off = 0;
    for (int u = 0; u < list->n_units; u++) {
        az_unit *unit = &shard->index.units[u];
        unit->gpu_off = gpu_off;
        unit->held_off = host_off;
        gpu_off += az_shard_count_gpu_held(&list->units[u], unit->resident, cut, shard->topology);
        if (!unit->resident && cut == AZ_CUT_HOST)
            host_off += az_shard_count_held(&list->units[u], false, shard->topology);
    }
}

az_err az_shard_gpu_allocate(az_shard *shard)
{
    az_err err;
    az_shard_gpu *gpu = shard->gpu;
    const az_shard_sizes *sizes = &shard->stats.sizes;
    const int n_units = shard->index.list.n_units, n = sizes->n_slots;
    AZ_TRY(az_dev_alloc((void **)&gpu->held, gpu->dev, sizes->held, "base slices"));
    AZ_TRY(az_dev_alloc((void **)&gpu->slots, gpu->dev, sizes->slots, "gathered unit"));
    if (shard->poison)
        AZ_TRY(az_dev_alloc((void **)&gpu->copy, gpu->dev, sizes->own, "gathered unit"));
    AZ_TRY(az_dev_alloc_host((void **)&gpu->pieces, gpu->dev, AZ_SHARD_PIECES * AZ_SHARD_CHUNK,
                             "base index"));
    AZ_TRY(AZ_NEW(gpu->staged, (size_t)(AZ_SHARD_PROGRAM * n_units), "base index"));
    AZ_TRY(az_timetable_init(&gpu->timetable, n_units, n, AZ_SHARD_PROGRAM * n_units));
    for (int u = 0; u < n_units; u++)
        gpu->timetable.cut[u] = !shard->index.units[u].resident;
    AZ_TRY(AZ_NEW(gpu->used, (size_t)n, "base index"));
    AZ_TRY(AZ_NEW(gpu->brought, (size_t)n, "base index"));
    for (int s = 0; s < n; s++) {
        AZ_TRY(az_dev_create_event(&gpu->used[s], gpu->dev));
        AZ_TRY(az_dev_create_event(&gpu->brought[s], gpu->dev));
    }
    for (int i = 0; i < AZ_SHARD_PIECES; i++)
        AZ_TRY(az_dev_create_event(&gpu->copied[i], gpu->dev));
    err = az_dev_create_event(&gpu->taken, gpu->dev);
out:
    return err;
}

/* Memory of a GPU is freed when what was queued before is done. */
void az_shard_gpu_destroy(az_shard_gpu *opt_gpu)
{
    az_shard_gpu *gpu = opt_gpu;
    if (gpu == NULL)
        return;
    for (int s = 0; s < gpu->timetable.n_slots && gpu->brought != NULL; s++) {
        az_dev_destroy_event(gpu->dev, gpu->used[s]);
        az_dev_destroy_event(gpu->dev, gpu->brought[s]);
    }
    for (int i = 0; i < AZ_SHARD_PIECES; i++)
        az_dev_destroy_event(gpu->dev, gpu->copied[i]);
    az_dev_destroy_event(gpu->dev, gpu->taken);
    az_timetable_fini(&gpu->timetable);
    az_free(gpu->used);
    az_free(gpu->brought);
    az_free(gpu->staged);
    az_dev_free_host(gpu->dev, gpu->pieces);
    az_dev_free(gpu->dev, gpu->copy);
    az_dev_free(gpu->dev, gpu->slots);
    az_dev_free(gpu->dev, gpu->held);
    az_free(gpu);
}

uint64_t az_shard_gpu_hash(const az_shard *shard)
{
    const az_shard_gpu *gpu = shard->gpu;
    uint64_t hash = 0;
    for (int u = 0; u < shard->index.list.n_units; u++) {
        const az_unit *unit = &shard->index.units[u];
        const az_range held = unit->resident ? (az_range){0, shard->index.list.units[u].bytes}
                                             : az_shard_gpu_find_held(shard, u);
        const size_t n = unit->resident || gpu->cut != AZ_CUT_HOST ? held.end - held.begin : 0;
        for (size_t at = 0; at < n; at += AZ_SHARD_CHUNK) {
            const size_t bytes = n - at < AZ_SHARD_CHUNK ? n - at : AZ_SHARD_CHUNK;
            az_dev_copy_out(gpu->dev, AZ_QUEUE_COPY, gpu->pieces, gpu->held + unit->gpu_off + at,
                            bytes);
            az_dev_sync(gpu->dev, AZ_QUEUE_COPY, AZ_SYNC_START);
            hash = az_hash64(gpu->pieces, bytes, hash);
        }
    }
    return hash;
}
