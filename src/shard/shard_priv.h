/* shard, inside. */
#ifndef AZ_SHARD_PRIV_H
#define AZ_SHARD_PRIV_H

#include "comm/shared.h"
#include "comm/spread.h"
#include "comm/timetable.h"
#include "shard/shard.h"
#include "shard/shard_map.h"

#define AZ_SHARD_ALIGN AZ_SPREAD_BLOCK
#define AZ_SHARD_POISON 0xff /* all bits set is NaN in f32, f16 and bf16 */
/* Bytes that are read and hashed at a time, so that they are still in the cache. */
enum { AZ_SHARD_CHUNK = 1 << 20 };
/* Such pieces on their way to a GPU. */
enum { AZ_SHARD_PIECES = 2 };

/* Rows [row0, row0 + rows) of one tensor, at an offset within its unit. */
typedef struct {
    const az_weight *weight;
    const az_tensor *tensor;
    int64_t row0, rows;
    size_t offset, bytes;
} az_member;

typedef struct {
    int first, n_members; /* in members */
    bool resident;
    size_t held_off; /* in held: of the unit, or of this node's stripes of it, lane after lane */
    size_t gpu_off;  /* in the GPU's held: of the unit, or of what this GPU holds of it */
} az_unit;

/* The units of a model with their tensors. */
typedef struct {
    az_unit_list list;
    az_unit *units; /* [list.n_units] */
    az_member *members;
} az_index;

/* Bytes [begin, end) of a unit. */
typedef struct {
    size_t begin, end;
} az_range;

/* The base on a GPU. */
typedef struct {
    az_dev *dev;
    az_fabric *fabric; /* of several ranks */
    az_gpu_cut cut;
    char *held, *slots;     /* in the GPU's memory, and so is copy */
    char *copy;             /* poison: the gathered unit */
    az_timetable timetable; /* of slots */
    az_event **used;        /* [n_slots] the slot's last unit is used no more */
    az_event **brought;     /* [n_slots] what was last fetched into the slot is there */
    int n_released;         /* positions of the walk */
    int n_begun;            /* fetches of the walk that are queued */
    int *staged;            /* [AZ_SHARD_PROGRAM n_units] the spread's program: units of fetches */
    bool staging;           /* a unit of the spread is being copied in */
    az_event *taken;        /* it has been */
    /* Reading: pinned pieces of AZ_SHARD_CHUNK bytes, used in turn. */
    char *pieces;
    az_event *copied[AZ_SHARD_PIECES];
    int piece;
    double waited_s;
    int64_t gathers, fetches, received_bytes;
} az_shard_gpu;

struct az_shard {
    az_index index;
    const az_config *config;
    az_comm *comm;
    const az_topology *topology;
    bool poison;
    az_load_way load;
    az_shared *memory; /* resident units and stripes, written while they are read only */
    az_shard_map *map; /* AZ_LOAD_MAP: in the place of memory, which is NULL then */
    az_shard_gpu *gpu; /* NULL: the base lies on the host */
    az_spread *spread; /* of all units; on a GPU of those that the hosts hold, else NULL */
    char *copy;        /* poison: the gathered unit */
    bool walking;      /* between begin and end */
    int *program;      /* its units, [AZ_SHARD_PROGRAM n_units] */
    int n_program, at;
    int open;         /* the gathered unit, -1: none */
    const char *data; /* its bytes; NULL: each tensor is where map says */
    az_shard_stats stats;
    uint64_t fingerprint;
};

/* Cut the model into units; free what is there of them. Start from {0}. Local. */
az_err az_shard_cut(az_index *index, const az_config *config, const az_table *table,
                    const az_tensor_set *set);
void az_shard_free_index(az_index *index);
/* Room for a stripe of a cut unit, at every position, in blocks of AZ_SHARD_ALIGN bytes. */
size_t az_shard_count_blocks(const az_unit_info *unit, const az_topology *topology);
/* Part i of a unit cut into n, at blocks. */
az_range az_shard_cut_unit(const az_unit_info *unit, int i, int n);
/* Where this rank's stripe of a cut unit lies, or where its part of a resident one does. Local. */
char *az_shard_get_stripe(const az_shard *shard, int u);
/* Where a member's bytes lie in its file, mapped. Local. */
const char *az_shard_find_mapped(const az_shard *shard, const az_member *member);
/* Read this rank's part from the files; complete what is resident; make the fingerprint's sum.
 * Collective. */
az_err az_shard_load(az_shard *shard, const az_tensor_set *set);

/* ---- on a GPU: memory (shard_gpu.c) */

/* Room for what a GPU holds of a unit: the same on each. Pure. */
size_t az_shard_count_gpu_held(const az_unit_info *unit, bool resident, az_gpu_cut cut,
                               const az_topology *topology);
/* Fill shard->gpu: what is settled by the options. Local. */
az_err az_shard_gpu_create(az_shard *shard, const az_shard_options *options);
void az_shard_gpu_destroy(az_shard_gpu *opt_gpu);
/* Where units lie, on GPU and host, when it is known which are resident. */
void az_shard_gpu_place(az_shard *shard);
/* Memory, by shard->stats.sizes, and events. Local. */
az_err az_shard_gpu_allocate(az_shard *shard);
/* The bytes that this GPU holds of a cut unit, or takes from the host's slot; empty without a lane.
 */
az_range az_shard_gpu_find_held(const az_shard *shard, int u);
/* The bytes of a unit that this GPU reads, and where to. Not of units that hosts hold. */
az_range az_shard_gpu_find_part(char **out_dest, const az_shard *shard, int u);
/* Whether all of the unit is read on each node; else once in the job. */
bool az_shard_gpu_reads_each(const az_shard *shard, int u);
/* Hash of what this GPU holds. Waits. */
uint64_t az_shard_gpu_hash(const az_shard *shard);

/* ---- on a GPU: reading (shard_gpu_load.c) */

/* A pinned piece to be filled, and its bytes on their way to dest in the GPU's memory. */
char *az_shard_gpu_get_piece(az_shard_gpu *gpu);
void az_shard_gpu_put_piece(az_shard_gpu *gpu, char *dest, size_t bytes);
/* Bring the parts of a unit together (az_fabric_gather). Collective. */
void az_shard_gpu_join(az_shard *shard, char *whole, int u, az_gather how);
/* Complete a unit of which each GPU has read its part. Into the gather queue. Collective. */
void az_shard_gpu_complete(az_shard *shard, int u);

/* ---- on a GPU: a walk (shard_gpu_gather.c), as in shard.h */

void az_shard_gpu_begin(az_shard *shard, const int *program, int n);
const char *az_shard_gpu_gather(az_shard *shard, int u);
void az_shard_gpu_release(az_shard *shard, int u);
void az_shard_gpu_end(az_shard *shard);

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
