/* shard: the bytes of this rank's slices, read from the files that hold them. */
#include <config.h>

#include <unistd.h>

#include "comm/watch.h"
#include "shard/shard_priv.h"

/* Bytes [start, end) of a tensor to dest, piece by piece, with the hashes of their blocks. */
static az_err load_bytes(char *dest, uint64_t *io_sum, const az_member *m, int64_t start,
                         int64_t end, const az_tensor_set *set, int *io_fd, int *io_file)
{
    az_err err;
    uint64_t seed;
    AZ_TRY(az_shard_seed_tensor(&seed, m->weight, m->tensor));
    for (int64_t at = start, next; at < end; at = next) {
        char *to = dest + (at - start);
        next = az_min_i64(end, (at / AZ_SHARD_CHUNK + 1) * AZ_SHARD_CHUNK);
        AZ_TRY(az_store_read(to, set, m->tensor, at, next - at, io_fd, io_file));
        AZ_TRY(
            az_shard_hash_blocks(io_sum, seed, to, at, next - at, m->tensor, set, io_fd, io_file));
    }
out:
    return err;
}

/* The part of member m that lies in [lo, hi) of its unit, to dest (which stands for lo). */
static az_err load_part(char *dest, uint64_t *io_sum, const az_member *m, size_t lo, size_t hi,
                        const az_tensor_set *set, int *io_fd, int *io_file)
{
    size_t from = m->offset > lo ? m->offset : lo;
    size_t to = m->offset + m->bytes < hi ? m->offset + m->bytes : hi;
    if (from >= to)
        return AZ_OK;
    size_t row_bytes = m->bytes / (size_t)m->rows;
    int64_t start = m->row0 * (int64_t)row_bytes + (int64_t)(from - m->offset);
    return load_bytes(dest + (from - lo), io_sum, m, start, start + (int64_t)(to - from), set,
                      io_fd, io_file);
}

az_err az_shard_load(az_shard *shard, const az_tensor_set *set)
{
    az_err err = AZ_OK;
    int fd = -1, file = -1;
    shard->fingerprint = 0;
    const size_t part = (size_t)shard->part;
    for (int u = 0; u < shard->index.list.n_units; u++) {
        const az_unit *unit = &shard->index.units[u];
        AZ_TRY(az_stop_check());
        az_watch_mark(shard->comm, "unit", u);
        const size_t lo = part * unit->slice, hi = lo + unit->slice;
        char *dest = shard->held + unit->held_off + (shard->scope == AZ_SCOPE_NODE ? lo : 0);
        for (int m = unit->first; m < unit->first + unit->n_members; m++)
            AZ_TRY(load_part(dest, &shard->fingerprint, &shard->index.members[m], lo, hi, set, &fd,
                             &file));
    }
out:
    if (fd >= 0)
        close(fd);
    return err;
}
