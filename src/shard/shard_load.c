/* shard: the base's bytes, read from the files that hold them, and completed from node to node. */
#include <config.h>

#include <unistd.h>

#include "comm/watch.h"
#include "shard/shard_priv.h"

enum { SAMPLES = 32, SAMPLE_BYTES = 4096 };

/* Bytes [start, end) of a tensor to dest, piece by piece, with the hashes of their blocks. dest:
 * where opt_gpu is given, in its memory. */
static az_err load_bytes(char *dest, az_shard_gpu *opt_gpu, uint64_t *io_sum, const az_member *m,
                         int64_t start, int64_t end, const az_tensor_set *set, int *io_fd,
                         int *io_file)
{
    az_err err;
    uint64_t seed;
    AZ_TRY(az_shard_seed_tensor(&seed, m->weight, m->tensor));
    for (int64_t at = start, next; at < end; at = next) {
        char *to = opt_gpu != NULL ? az_shard_gpu_get_piece(opt_gpu) : dest + (at - start);
        next = az_min_i64(end, (at / AZ_SHARD_CHUNK + 1) * AZ_SHARD_CHUNK);
        AZ_TRY(az_store_read(to, set, m->tensor, at, next - at, io_fd, io_file));
        AZ_TRY(
            az_shard_hash_blocks(io_sum, seed, to, at, next - at, m->tensor, set, io_fd, io_file));
        if (opt_gpu != NULL)
            az_shard_gpu_put_piece(opt_gpu, dest + (at - start), (size_t)(next - at));
    }
out:
    return err;
}

/* The part of a unit that this rank reads. */
typedef struct {
    az_range bytes;
    char *dest;
    az_shard_gpu *opt_gpu; /* in whose memory dest is */
    bool each;             /* all of the unit is read on each node; else once in the job */
} part;

/* The part of member m that lies in p. */
static az_err load_part(const part *p, uint64_t *io_sum, const az_member *m,
                        const az_tensor_set *set, int *io_fd, int *io_file)
{
    const size_t lo = p->bytes.begin, hi = p->bytes.end;
    size_t from = m->offset > lo ? m->offset : lo;
    size_t to = m->offset + m->bytes < hi ? m->offset + m->bytes : hi;
    if (from >= to)
        return AZ_OK;
    size_t row_bytes = m->bytes / (size_t)m->rows;
    int64_t start = m->row0 * (int64_t)row_bytes + (int64_t)(from - m->offset);
    return load_bytes(p->dest + (from - lo), p->opt_gpu, io_sum, m, start,
                      start + (int64_t)(to - from), set, io_fd, io_file);
}

/* What this rank reads of unit u, and where to. */
static part find_part(const az_shard *shard, int u)
{
    const az_unit_info *unit = &shard->index.list.units[u];
    const bool resident = shard->index.units[u].resident;
    part p = {0};
    if (shard->gpu != NULL && (resident || shard->gpu->cut != AZ_CUT_HOST)) {
        p.bytes = az_shard_gpu_find_part(&p.dest, shard, u);
        p.each = az_shard_gpu_reads_each(shard, u);
        p.opt_gpu = shard->gpu;
    } else if (resident && shard->load == AZ_LOAD_NODE) {
        p.bytes =
            az_shard_cut_unit(unit, az_comm_node_rank(shard->comm), az_comm_node_size(shard->comm));
        p.dest = az_shared_get(shard->memory) + shard->index.units[u].held_off + p.bytes.begin;
        p.each = true;
    } else if (az_comm_lane(shard->comm) >= 0) {
        p.bytes = az_shard_cut_unit(unit, az_comm_position(shard->comm),
                                    az_comm_n_positions(shard->comm));
        p.dest = az_shard_get_stripe(shard, u);
    }
    return p;
}

/* Sums of the hashes of blocks: of what is read once in the job, of what is read once on each node,
 * and of samples, which each node reads besides. */
typedef struct {
    uint64_t once, each, samples;
} sums;

static az_err read_part(sums *io_sums, az_shard *shard, const az_tensor_set *set)
{
    az_err err = AZ_OK;
    int fd = -1, file = -1;
    for (int u = 0; u < shard->index.list.n_units; u++) {
        const az_unit *unit = &shard->index.units[u];
        AZ_TRY(az_stop_check());
        az_watch_mark(shard->comm, "unit", u);
        const part p = find_part(shard, u);
        uint64_t *sum = p.each ? &io_sums->each : &io_sums->once;
        for (int m = unit->first; m < unit->first + unit->n_members; m++)
            AZ_TRY(load_part(&p, sum, &shard->index.members[m], set, &fd, &file));
    }
out:
    if (fd >= 0)
        close(fd);
    return err;
}

/* Where each byte is read once, nodes that do not see the same files would make one model of two:
 * each reads a block in the middle of some tensors, as another model differs everywhere. */
static az_err read_samples(uint64_t *out_sum, const az_shard *shard, const az_tensor_set *set)
{
    az_err err = AZ_OK;
    int fd = -1, file = -1;
    char block[SAMPLE_BYTES];
    for (int i = 0; i < SAMPLES; i++) {
        const size_t m = az_cut((size_t)shard->index.list.n_members, (size_t)i, SAMPLES);
        const az_tensor *t = shard->index.members[m].tensor;
        const int64_t bytes = az_min_i64(t->bytes, SAMPLE_BYTES);
        AZ_TRY(az_store_read(block, set, t, (t->bytes - bytes) / 2, bytes, &fd, &file));
        *out_sum += az_hash64(block, (size_t)bytes, (uint64_t)i);
    }
out:
    if (fd >= 0)
        close(fd);
    return err;
}

/* What the lane of this rank has read of a resident unit, on all nodes, to its place. counts,
 * first: [n_nodes]. Collective over the lane. */
static void exchange(az_shard *shard, int u, size_t *counts, size_t *first)
{
    const int lane = az_comm_lane(shard->comm), n_nodes = shard->topology->n_nodes;
    size_t begin = 0;
    if (lane < 0)
        return;
    for (int i = 0; i < n_nodes; i++) {
        const az_range r = az_shard_cut_unit(&shard->index.list.units[u], lane * n_nodes + i,
                                             az_comm_n_positions(shard->comm));
        begin = i == 0 ? r.begin : begin;
        counts[i] = r.end - r.begin;
        first[i] = r.begin - begin;
    }
    az_comm_lane_allgatherv(shard->comm, az_shard_get_stripe(shard, u),
                            az_shared_get(shard->memory) + shard->index.units[u].held_off + begin,
                            counts, first);
}

/* Units that lie here with more than what this node's ranks have read of them. Collective. */
static az_err complete(az_shard *shard)
{
    az_err err;
    size_t *counts;
    const size_t n_nodes = (size_t)shard->topology->n_nodes;
    err = AZ_NEW(counts, 2 * n_nodes, "base index");
    AZ_TRY(az_comm_agree(shard->comm, err));
    for (int u = 0; u < shard->index.list.n_units && err == AZ_OK; u++) {
        const unsigned reasons = az_comm_poll(shard->comm);
        az_watch_mark(shard->comm, "unit", u);
        if (reasons != 0)
            err = az_fail(AZ_ESTOP, "stopped by %s", az_stop_name(reasons));
        else if (shard->gpu != NULL)
            az_shard_gpu_complete(shard, u);
        else if (shard->index.units[u].resident)
            exchange(shard, u, counts, counts + n_nodes);
    }
out:
    az_free(counts);
    return err;
}

/* In halves, so that no sum of signed numbers overflows. */
typedef struct {
    int64_t half[2];
} halves;

static halves split(uint64_t x)
{
    return (halves){{(int64_t)(x & UINT32_MAX), (int64_t)(x >> 32)}};
}

static uint64_t join(halves h)
{
    return (uint64_t)h.half[0] + ((uint64_t)h.half[1] << 32);
}

/* The sum over all blocks. Collective. */
static az_err add_sums(az_shard *shard, const sums *mine)
{
    halves once = split(mine->once), each = split(mine->each), samples = split(mine->samples);
    az_comm_sum_i64(shard->comm, once.half, 2);
    az_comm_node_sum_i64(shard->comm, each.half, 2);
    az_comm_node_sum_i64(shard->comm, samples.half, 2);
    shard->fingerprint = join(once) + join(each);
    const halves whole = split(join(each) + join(samples));
    int64_t ends[4] = {whole.half[0], whole.half[1], -whole.half[0], -whole.half[1]};
    az_comm_max_i64(shard->comm, ends, 4);
    if (ends[0] == -ends[2] && ends[1] == -ends[3])
        return AZ_OK;
    return az_fail(AZ_EENV, "model.path: the nodes have read different bytes: not all of them see "
                            "the same files, or one reads them wrongly");
}

az_err az_shard_load(az_shard *shard, const az_tensor_set *set)
{
    az_err err;
    sums mine = {0};
    if (shard->map != NULL) {
        AZ_TRY(az_comm_agree(shard->comm, az_shard_map_hash(&mine.each, shard->map)));
        AZ_TRY(az_shard_map_copy(shard->map));
        return add_sums(shard, &mine);
    }
    err = read_part(&mine, shard, set);
    if (err == AZ_OK && az_comm_node_rank(shard->comm) == 0 && shard->topology->n_nodes > 1)
        err = read_samples(&mine.samples, shard, set);
    AZ_TRY(az_comm_agree(shard->comm, err));
    if (shard->gpu != NULL || (shard->load == AZ_LOAD_JOB && shard->topology->n_nodes > 1))
        AZ_TRY(complete(shard));
    if (shard->gpu != NULL)
        az_dev_sync(shard->gpu->dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
    err = add_sums(shard, &mine);
out:
    return err;
}
