/* shard, inside. */
#ifndef AZ_SHARD_PRIV_H
#define AZ_SHARD_PRIV_H

#include "comm/shared.h"
#include "shard/shard.h"

#define AZ_SHARD_ALIGN 64
/* Bytes that are read and hashed at a time, so that they are still in the cache. */
enum { AZ_SHARD_CHUNK = 1 << 20 };

/* Rows [row0, row0 + rows) of one tensor, at an offset within its unit. */
typedef struct {
    const az_weight *weight;
    const az_tensor *tensor;
    int64_t row0, rows;
    size_t offset, bytes;
} az_member;

typedef struct {
    int first, n_members; /* in members */
    size_t slice;         /* bytes of one rank's slice */
    size_t held_off;      /* in held: of this rank's slice, or of the whole unit (scope node) */
} az_unit;

/* The units of a model with their tensors. */
typedef struct {
    az_unit_list list;
    az_unit *units; /* [list.n_units] */
    az_member *members;
} az_index;

struct az_shard {
    az_index index;
    const az_config *config;
    az_comm *comm;
    bool poison;
    az_scope scope;
    int n_parts, part; /* ranks that a unit is cut for, and this one among them */
    char *held;        /* this rank's slices, unit after unit; scope node: all of them, shared */
    az_shared *shared; /* scope node: the memory of held */
    size_t held_bytes;
    char *slot; /* the gathered unit; NULL where held serves in place */
    size_t slot_bytes;
    int open;         /* the gathered unit, -1: none */
    const char *data; /* its bytes */
    az_shard_stats stats;
    uint64_t fingerprint; /* while loading: the sum of this rank's blocks */
};

/* Cut the model into units; free what is there of them. Start from {0}. Local. */
az_err az_shard_cut(az_index *index, const az_config *config, const az_table *table,
                    const az_tensor_set *set);
void az_shard_free_index(az_index *index);
/* Blocks of AZ_SHARD_ALIGN bytes that a stripe of a cut unit has room for, at every position. */
size_t az_shard_count_blocks(const az_unit_info *unit, const az_topology *topology);
/* Read this rank's slices from the files, and add the hashes of their blocks to the fingerprint.
 * Local. */
az_err az_shard_load(az_shard *shard, const az_tensor_set *set);

/* ---- the fingerprint (shard_fingerprint.c) */

/* The seed of a tensor's blocks. Local. */
az_err az_shard_seed_tensor(uint64_t *out_seed, const az_weight *weight, const az_tensor *tensor);
/* Add the hashes of the blocks that begin in bytes [start, start + bytes) of the tensor, which are
 * at data. What the last of them lacks is read. Local. */
az_err az_shard_hash_blocks(uint64_t *io_sum, uint64_t seed, const char *data, int64_t start,
                            int64_t bytes, const az_tensor *tensor, const az_tensor_set *set,
                            int *io_fd, int *io_file);
/* From the sum over all blocks to the fingerprint. Local. */
az_err az_shard_seal(uint64_t *io_sum, const az_config *config, const az_table *table,
                     const az_tensor_set *set);

#endif
