/* shard: the bytes of this rank's slices, read from the files that hold them. */
#include <config.h>

#include <unistd.h>

#include "comm/watch.h"
#include "shard/shard_priv.h"

/* The part of member m that lies in [lo, hi) of its unit, to dest (which stands for lo). */
static az_err load_part(char *dest, const az_member *m, size_t lo, size_t hi,
                        const az_tensor_set *set, int *io_fd, int *io_file)
{
    size_t from = m->offset > lo ? m->offset : lo;
    size_t to = m->offset + m->bytes < hi ? m->offset + m->bytes : hi;
    if (from >= to)
        return AZ_OK;
    size_t row_bytes = m->bytes / (size_t)m->rows;
    int64_t start = m->row0 * (int64_t)row_bytes + (int64_t)(from - m->offset);
    return az_store_read(dest + (from - lo), set, m->tensor, start, (int64_t)(to - from), io_fd,
                         io_file);
}

az_err az_shard_load(az_shard *shard, const az_tensor_set *set)
{
    az_err err = AZ_OK;
    int fd = -1, file = -1;
    const size_t rank = (size_t)az_comm_rank(shard->comm);
    for (int u = 0; u < shard->n_units; u++) {
        const az_unit *unit = &shard->units[u];
        AZ_TRY(az_stop_check());
        az_watch_mark(shard->comm, "unit", u);
        const size_t lo = rank * unit->slice, hi = lo + unit->slice;
        for (int m = unit->first; m < unit->first + unit->n_members; m++)
            AZ_TRY(load_part(shard->held + unit->held_off, &shard->members[m], lo, hi, set, &fd,
                             &file));
    }
out:
    if (fd >= 0)
        close(fd);
    return err;
}
