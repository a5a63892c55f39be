/* shard: the base read into a GPU's memory: through pinned pieces of the host, which are filled and
 * copied in turn, and completed by the other GPUs. */
#include <config.h>

#include "shard/shard_priv.h"

char *az_shard_gpu_get_piece(az_shard_gpu *gpu)
{
    gpu->piece = (gpu->piece + 1) % AZ_SHARD_PIECES;
    az_dev_sync_event(gpu->dev, gpu->copied[gpu->piece], AZ_SYNC_START);
    return gpu->pieces + (size_t)gpu->piece * AZ_SHARD_CHUNK;
}

void az_shard_gpu_put_piece(az_shard_gpu *gpu, char *dest, size_t bytes)
{
    az_dev_copy_in(gpu->dev, AZ_QUEUE_GATHER, dest,
                   gpu->pieces + (size_t)gpu->piece * AZ_SHARD_CHUNK, bytes);
    az_dev_record(gpu->dev, gpu->copied[gpu->piece], AZ_QUEUE_GATHER);
}

void az_shard_gpu_join(az_shard *shard, char *whole, int u, az_gather how)
{
    if (shard->topology->n_ranks > 1)
        az_fabric_gather(shard->gpu->fabric, whole, shard->index.list.units[u].bytes, how);
}

/* A cut unit whose stretches the node's GPUs hold: each of them has read its position's part, and
 * gets those of the same lane on other nodes by way of a slot. */
static void complete_stretch(az_shard *shard, int u)
{
    az_shard_gpu *gpu = shard->gpu;
    char *dest, *held = gpu->held + shard->index.units[u].gpu_off;
    const az_range stretch = az_shard_gpu_find_held(shard, u);
    const az_range part = az_shard_gpu_find_part(&dest, shard, u);
    az_dev_copy(gpu->dev, AZ_QUEUE_GATHER, gpu->slots + part.begin, dest, part.end - part.begin);
    az_shard_gpu_join(shard, gpu->slots, u, AZ_GATHER_ALL);
    az_dev_copy(gpu->dev, AZ_QUEUE_GATHER, held, gpu->slots + stretch.begin,
                stretch.end - stretch.begin);
}

void az_shard_gpu_complete(az_shard *shard, int u)
{
    const bool each = az_shard_gpu_reads_each(shard, u);
    char *whole = shard->gpu->held + shard->index.units[u].gpu_off;
    if (shard->index.units[u].resident)
        az_shard_gpu_join(shard, whole, u, each ? AZ_GATHER_NODE : AZ_GATHER_ALL);
    else if (shard->gpu->cut == AZ_CUT_NODE && !each && shard->topology->n_nodes > 1)
        complete_stretch(shard, u);
}
