/* shard, inside: the base where its files lie (model.load: map): every unit is resident, as the
 * system's cache of the files, which the processes of a node share. A tensor that does not begin at
 * a multiple of its element's size is copied into memory that the node's ranks share. */
#ifndef AZ_SHARD_MAP_H
#define AZ_SHARD_MAP_H

#include "comm/comm.h"
#include "model/config.h"
#include "store/safetensors.h"

typedef struct az_shard_map az_shard_map;

/* Map the files of the table's tensors. Table and set must stay. Collective. */
az_err az_shard_map_create(az_shard_map **out_map, const az_table *table, const az_tensor_set *set,
                           az_comm *comm);
/* Bytes of copies of tensors that are not aligned. */
size_t az_shard_map_count_copied(const az_shard_map *map);
/* Read this rank's equal part of all bytes through the cache, and add the hashes of its blocks to
 * the sum. Local. */
az_err az_shard_map_hash(uint64_t *io_sum, const az_shard_map *map);
/* Copy what is not aligned, each rank its part, and protect it. Collective. */
az_err az_shard_map_copy(az_shard_map *map);
/* The first byte of a tensor. Local. */
const char *az_shard_map_get(const az_shard_map *map, const az_tensor *tensor);
/* Fails if a file was written to since it was mapped. Local. */
az_err az_shard_map_check(const az_shard_map *map);
/* Local, on all ranks. */
void az_shard_map_destroy(az_shard_map *opt_map);

#endif
