/* shard: units brought together on a GPU.
 *
 * The timetable gives the fetches of a walk in order, as for the host's slots (comm_spread.c), but
 * nobody waits for them: what there is to do is queued, and events take the place of counters. A
 * fetch into a slot waits for "used", which release records behind what reads the slot's last unit;
 * what reads the new unit waits for "brought". The host runs ahead of the GPU, so fetches of later
 * units are queued while earlier ones are computed with. They are queued where the walk stands at
 * the same position on all ranks, so NCCL sees one order.
 *
 * A unit that comes by the host's spread must be waited for by the host. So its fetch is queued as
 * late as can be, when it is asked for: by then all that uses earlier units is queued, and keeps
 * the GPU busy. It is let go of when its copy has been made, of which the next fetch makes sure. */
#include <config.h>

#include "shard/shard_priv.h"

/* ---- 1. a fetch */

/* The unit of the spread that is being copied in is not needed any more. */
static void let_go(az_shard *shard)
{
    az_shard_gpu *gpu = shard->gpu;
    const double begin = az_now();
    if (!gpu->staging)
        return;
    az_dev_sync_event(gpu->dev, gpu->taken, AZ_SYNC_STAGE);
    az_spread_release(shard->spread);
    gpu->staging = false;
    gpu->waited_s += az_now() - begin;
}

/* This GPU's part of unit u, to its place in the unit. */
static void bring_part(az_shard *shard, int u, char *whole)
{
    az_shard_gpu *gpu = shard->gpu;
    const az_range part = az_shard_gpu_find_held(shard, u);
    const size_t n = part.end - part.begin;
    if (gpu->cut != AZ_CUT_HOST) {
        az_dev_copy(gpu->dev, AZ_QUEUE_GATHER, whole + part.begin,
                    gpu->held + shard->index.units[u].gpu_off, n);
        return;
    }
    let_go(shard);
    const char *from = az_spread_get(shard->spread);
    az_dev_copy_in(gpu->dev, AZ_QUEUE_GATHER, whole + part.begin, from + part.begin, n);
    az_dev_record(gpu->dev, gpu->taken, AZ_QUEUE_GATHER);
    gpu->staging = true;
}

/* What comes to this node from others, all ranks together. */
static size_t count_received(const az_shard *shard, int u)
{
    const size_t bytes = shard->index.list.units[u].bytes;
    const int n_nodes = shard->topology->n_nodes, n = shard->topology->n_lanes * n_nodes;
    size_t own = 0;
    if (shard->gpu->cut != AZ_CUT_ALL)
        return 0; /* or the spread counts it */
    for (int p = az_comm_node(shard->comm); p < n; p += n_nodes)
        own += az_fabric_cut(bytes, p + 1, n) - az_fabric_cut(bytes, p, n);
    return bytes - own;
}

static void fetch(az_shard *shard, const az_fetch *f)
{
    az_shard_gpu *gpu = shard->gpu;
    char *whole = gpu->slots + (size_t)f->slot * shard->stats.sizes.slot_each;
    az_dev_mark(gpu->dev, AZ_QUEUE_GATHER, "fetch of unit", f->item);
    az_dev_wait(gpu->dev, AZ_QUEUE_GATHER, gpu->used[f->slot]);
    bring_part(shard, f->item, whole);
    az_shard_gpu_join(shard, whole, f->item,
                      gpu->cut == AZ_CUT_ALL ? AZ_GATHER_ALL : AZ_GATHER_NODE);
    az_dev_record(gpu->dev, gpu->brought[f->slot], AZ_QUEUE_GATHER);
    gpu->received_bytes += (int64_t)count_received(shard, f->item);
}

/* Queue the fetches whose slots are free; of units that the host must wait for only those that are
 * needed up to a position. */
static void begin_fetches(az_shard *shard, int position)
{
    az_shard_gpu *gpu = shard->gpu;
    const az_timetable *t = &gpu->timetable;
    while (gpu->n_begun < t->n_fetches) {
        const az_fetch *f = &t->fetches[gpu->n_begun];
        if (f->after >= gpu->n_released || (gpu->cut == AZ_CUT_HOST && f->position > position))
            break;
        fetch(shard, f);
        gpu->n_begun++;
    }
}

/* ---- 2. a walk */

void az_shard_gpu_begin(az_shard *shard, const int *program, int n)
{
    az_shard_gpu *gpu = shard->gpu;
    const az_timetable *t = &gpu->timetable;
    az_timetable_make(&gpu->timetable, program, n);
    gpu->n_released = gpu->n_begun = 0;
    if (shard->spread != NULL) {
        for (int f = 0; f < t->n_fetches; f++)
            gpu->staged[f] = t->fetches[f].item;
        az_spread_begin(shard->spread, gpu->staged, t->n_fetches);
    }
    begin_fetches(shard, -1);
}

/* Slots hold what was fetched into them; of an early end on that is less than could have been. */
void az_shard_gpu_end(az_shard *shard)
{
    az_shard_gpu *gpu = shard->gpu;
    let_go(shard);
    if (shard->spread != NULL)
        az_spread_end(shard->spread);
    for (int f = 0; f < gpu->n_begun; f++)
        gpu->timetable.content[gpu->timetable.fetches[f].slot] = gpu->timetable.fetches[f].item;
    gpu->fetches += gpu->n_begun;
}

const char *az_shard_gpu_gather(az_shard *shard, int u)
{
    az_shard_gpu *gpu = shard->gpu;
    const int slot = gpu->timetable.slot[gpu->n_released];
    const char *data = gpu->held + shard->index.units[u].gpu_off;
    begin_fetches(shard, gpu->n_released);
    if (slot >= 0) {
        data = gpu->slots + (size_t)slot * shard->stats.sizes.slot_each;
        az_dev_wait(gpu->dev, AZ_QUEUE_COMPUTE, gpu->brought[slot]);
    }
    gpu->gathers++;
    if (!shard->poison)
        return data;
    az_dev_copy(gpu->dev, AZ_QUEUE_COMPUTE, gpu->copy, data, shard->index.list.units[u].bytes);
    return gpu->copy;
}

void az_shard_gpu_release(az_shard *shard, int u)
{
    az_shard_gpu *gpu = shard->gpu;
    const int slot = gpu->timetable.slot[gpu->n_released];
    if (shard->poison)
        az_dev_fill(gpu->dev, AZ_QUEUE_COMPUTE, gpu->copy, AZ_SHARD_POISON,
                    shard->index.list.units[u].bytes);
    if (slot >= 0)
        az_dev_record(gpu->dev, gpu->used[slot], AZ_QUEUE_COMPUTE);
    gpu->n_released++;
    begin_fetches(shard, gpu->n_released - 1);
}
