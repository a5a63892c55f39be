/* shard: the base where its files lie. */
#include <config.h>

#include <unistd.h>

#include "comm/shared.h"
#include "comm/watch.h"
#include "shard/shard_map.h"
#include "shard/shard_priv.h"
#include "store/map.h"

struct az_shard_map {
    const az_table *table;
    const az_tensor_set *set;
    az_comm *comm;
    az_store_map *files;
    size_t *copy_off;  /* [set->n_tensors] of a copy in copies; NOT_COPIED: in its file */
    size_t copied;     /* bytes of all copies */
    az_shared *copies; /* NULL: there are none */
    int64_t total;     /* bytes of the table's tensors */
};

#define NOT_COPIED SIZE_MAX

static const az_tensor *tensor_of(const az_shard_map *map, int weight)
{
    return &map->set->tensors[map->table->weights[weight].index];
}

/* Where copies lie, and how much there is. */
static void place(az_shard_map *map)
{
    for (int i = 0; i < map->table->n_weights; i++) {
        const az_tensor *t = tensor_of(map, i);
        size_t *off = &map->copy_off[t - map->set->tensors];
        map->total += t->bytes;
        *off = NOT_COPIED;
        if (az_store_is_aligned(t))
            continue;
        *off = map->copied;
        map->copied += ((size_t)t->bytes + AZ_SHARD_ALIGN - 1) / AZ_SHARD_ALIGN * AZ_SHARD_ALIGN;
    }
}

static az_err open_files(az_shard_map *map)
{
    az_err err;
    AZ_TRY(AZ_NEW(map->copy_off, (size_t)map->set->n_tensors, "tensor names"));
    place(map);
    err = az_store_map_create(&map->files, map->set, "model.load: map");
out:
    return err;
}

az_err az_shard_map_create(az_shard_map **out_map, const az_table *table, const az_tensor_set *set,
                           az_comm *comm)
{
    az_err err;
    az_shard_map *map = NULL;
    *out_map = NULL;
    err = AZ_NEW(map, 1, "tensor names");
    if (err == AZ_OK) {
        *map = (az_shard_map){.table = table, .set = set, .comm = comm};
        err = open_files(map);
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (map->copied > 0)
        AZ_TRY(az_shared_create(&map->copies, map->copied, "adze-base", "base slices", 0, comm));
    *out_map = map;
    map = NULL;
out:
    az_shard_map_destroy(map);
    return err;
}

size_t az_shard_map_count_copied(const az_shard_map *map)
{
    return map->copied;
}

/* A piece of this rank's part: bytes [start, end) of the table's tensor i. */
typedef az_err do_piece(void *context, int i, int64_t start, int64_t end);

/* Go through this rank's part of all bytes, tensor after tensor, in pieces that end where chunks
 * do. */
static az_err walk_part(const az_shard_map *map, do_piece *piece, void *context)
{
    az_err err = AZ_OK;
    const size_t n = (size_t)az_comm_node_size(map->comm);
    const size_t rank = (size_t)az_comm_node_rank(map->comm), total = (size_t)map->total;
    const int64_t lo = (int64_t)az_cut(total, rank, n), hi = (int64_t)az_cut(total, rank + 1, n);
    int64_t first = 0; /* of the tensor, among all bytes */
    for (int i = 0; i < map->table->n_weights; i++) {
        const int64_t bytes = tensor_of(map, i)->bytes;
        const int64_t from = az_max_i64(lo - first, 0), to = az_min_i64(hi - first, bytes);
        for (int64_t at = from, next; at < to; at = next) {
            next = az_min_i64(to, (at / AZ_SHARD_CHUNK + 1) * AZ_SHARD_CHUNK);
            AZ_TRY(az_stop_check());
            AZ_TRY(piece(context, i, at, next));
        }
        az_watch_mark(map->comm, "tensor", i);
        first += bytes;
    }
out:
    return err;
}

typedef struct {
    const az_shard_map *map;
    uint64_t *sum, seed;
    char *chunk;
    int seeded; /* the tensor of seed */
    int fd, file;
} hashing;

/* Read with system calls, not through the mapping: they read ahead in larger pieces, and what goes
 * wrong is a message. */
static az_err hash_piece(void *context, int i, int64_t start, int64_t end)
{
    az_err err;
    hashing *h = context;
    const az_tensor *t = tensor_of(h->map, i);
    if (h->seeded != i)
        AZ_TRY(az_shard_seed_tensor(&h->seed, &h->map->table->weights[i], t));
    h->seeded = i;
    AZ_TRY(az_store_read(h->chunk, h->map->set, t, start, end - start, &h->fd, &h->file));
    err = az_shard_hash_blocks(h->sum, h->seed, h->chunk, start, end - start, t, h->map->set,
                               &h->fd, &h->file);
out:
    return err;
}

az_err az_shard_map_hash(uint64_t *io_sum, const az_shard_map *map)
{
    az_err err;
    hashing h = {.map = map, .sum = io_sum, .seeded = -1, .fd = -1, .file = -1};
    AZ_TRY(AZ_NEW(h.chunk, (size_t)AZ_SHARD_CHUNK, "base index"));
    err = walk_part(map, hash_piece, &h);
out:
    if (h.fd >= 0)
        close(h.fd);
    az_free(h.chunk);
    return err;
}

typedef struct {
    const az_shard_map *map;
    int fd, file;
} copying;

static az_err copy_piece(void *context, int i, int64_t start, int64_t end)
{
    copying *c = context;
    const az_tensor *t = tensor_of(c->map, i);
    const size_t off = c->map->copy_off[t - c->map->set->tensors];
    if (off == NOT_COPIED)
        return AZ_OK;
    return az_store_read(az_shared_get(c->map->copies) + off + start, c->map->set, t, start,
                         end - start, &c->fd, &c->file);
}

az_err az_shard_map_copy(az_shard_map *map)
{
    az_err err;
    copying c = {map, -1, -1};
    if (map->copies == NULL)
        return AZ_OK;
    err = walk_part(map, copy_piece, &c);
    if (c.fd >= 0)
        close(c.fd);
    AZ_TRY(az_comm_agree(map->comm, err));
    err = az_comm_agree(map->comm, az_shared_protect(map->copies));
out:
    return err;
}

const char *az_shard_map_get(const az_shard_map *map, const az_tensor *tensor)
{
    const size_t off = map->copy_off[tensor - map->set->tensors];
    return off != NOT_COPIED ? az_shared_get(map->copies) + off
                             : az_store_map_get(map->files, tensor);
}

az_err az_shard_map_check(const az_shard_map *map)
{
    return az_store_map_check(map->files);
}

void az_shard_map_destroy(az_shard_map *opt_map)
{
    if (opt_map == NULL)
        return;
    az_shared_destroy(opt_map->copies);
    az_store_map_destroy(opt_map->files);
    az_free(opt_map->copy_off);
    az_free(opt_map);
}
