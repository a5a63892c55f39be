/* data/load: JSONL files become one dataset, the same on every rank.
 *
 * The files' bytes, one file behind the other, are cut into one range a rank; a rank takes the
 * lines that begin in its range. Ranges are in file order, so the lowest failing rank has the first
 * failure. Each rank needs the number of line ends before its range to name a line. */
#include <config.h>

#include "data/data_priv.h"

#include <string.h>
#include <unistd.h>

#include "comm/watch.h"

#define MORE ((int64_t)1 << 16)
/* Lines between two signs of life. */
#define LINES 10000

/* This rank's part of one file. text holds the bytes from start on, and goes on behind end to the
 * end of the last line that begins before end. */
typedef struct {
    char *text;
    int64_t start, end, bytes; /* offsets in the file; bytes in text */
    int64_t first;             /* offset of the first line that begins in [start, end) */
    int64_t size;              /* of the whole file */
} part;

typedef struct {
    const char *const *files;
    int n_files;
    int64_t *sizes;      /* [n_files] */
    part *parts;         /* [n_files] text is NULL if this rank has none of the file */
    int64_t *line_ends;  /* [n_ranks, n_files] within each rank's range */
    int64_t *n_lines;    /* [n_files] that hold a sample */
    int64_t *totals;     /* [n_ranks, N_TOTALS] */
    size_t *counts, *at; /* [n_ranks] of a gather */
    az_ids lengths;
    az_reader reader;
    az_comm *comm;
} loader;

enum { SAMPLES, TOKENS, CUT, LONG, EMPTY, N_TOTALS };

static az_err prepare(loader *l)
{
    az_err err;
    const size_t n = (size_t)az_comm_size(l->comm), n_files = (size_t)l->n_files;
    AZ_TRY(AZ_NEW(l->sizes, n_files, "dataset loading"));
    AZ_TRY(AZ_NEW(l->parts, n_files, "dataset loading"));
    AZ_TRY(AZ_NEW(l->n_lines, n_files, "dataset loading"));
    AZ_TRY(AZ_NEW(l->line_ends, n * n_files, "dataset loading"));
    AZ_TRY(AZ_NEW(l->totals, n * N_TOTALS, "dataset loading"));
    AZ_TRY(AZ_NEW(l->counts, n, "dataset loading"));
    AZ_TRY(AZ_NEW(l->at, n, "dataset loading"));
    if (az_comm_rank(l->comm) == 0)
        for (int f = 0; f < l->n_files; f++)
            AZ_TRY(az_file_size(&l->sizes[f], l->files[f]));
out:
    return err;
}

/* Read [p->start, p->end) with the byte before it, and on to the end of the last line. */
static az_err read_part(part *p, const char *path)
{
    az_err err;
    int fd = -1;
    const int64_t from = p->start > 0 ? p->start - 1 : 0;
    AZ_TRY(az_file_open(&fd, path));
    p->bytes = p->end - from;
    AZ_TRY(AZ_NEW(p->text, (size_t)p->bytes, "dataset loading"));
    AZ_TRY(az_file_read_at(fd, p->text, (size_t)p->bytes, from, path));
    const char *nl = p->start > 0 ? memchr(p->text, '\n', (size_t)p->bytes) : NULL;
    p->first = p->start == 0 ? 0 : nl != NULL ? from + (nl - p->text) + 1 : p->end;
    p->start = from;
    int64_t more = MORE;
    while (p->first < p->end && p->text[p->bytes - 1] != '\n' && from + p->bytes < p->size) {
        int64_t n = az_min_i64(more, p->size - from - p->bytes);
        AZ_TRY(AZ_GROW(p->text, (size_t)(p->bytes + n), "dataset loading"));
        AZ_TRY(az_file_read_at(fd, p->text + p->bytes, (size_t)n, from + p->bytes, path));
        nl = memchr(p->text + p->bytes, '\n', (size_t)n);
        p->bytes = nl != NULL ? nl - p->text + 1 : p->bytes + n;
        more *= 2;
    }
out:
    if (fd >= 0)
        close(fd);
    return err;
}

static int64_t count_line_ends(const char *s, const char *end)
{
    int64_t n = 0;
    while (s < end && (s = memchr(s, '\n', (size_t)(end - s))) != NULL) {
        s++;
        n++;
    }
    return n;
}

/* This rank's range of all bytes, file by file. */
static az_err read_parts(loader *l)
{
    az_err err = AZ_OK;
    const int64_t n = az_comm_size(l->comm), rank = az_comm_rank(l->comm);
    int64_t total = 0, before = 0;
    for (int f = 0; f < l->n_files; f++)
        total += l->sizes[f];
    const int64_t lo = total / n * rank + az_min_i64(rank, total % n),
                  hi = lo + total / n + (rank < total % n);
    for (int f = 0; f < l->n_files; before += l->sizes[f++]) {
        part *p = &l->parts[f];
        p->size = l->sizes[f];
        p->start = az_max_i64(lo - before, 0);
        p->end = az_min_i64(hi - before, p->size);
        if (p->start >= p->end)
            continue;
        az_watch_mark(l->comm, "file", f);
        const int64_t own = p->end - p->start;
        AZ_TRY(read_part(p, l->files[f]));
        const char *end = p->text + (p->end - p->start);
        l->line_ends[rank * l->n_files + f] = count_line_ends(end - own, end);
    }
out:
    return err;
}

static az_err read_lines(loader *l, int f, int64_t line_ends_before)
{
    az_err err = AZ_OK;
    const part *p = &l->parts[f];
    az_str where = {0};
    const size_t own_end = (size_t)(p->end - p->start);
    const char *s;
    size_t n, at = (size_t)(p->first - p->start);
    /* Of the two bytes that text may begin with, only the second is of this rank's range. */
    int64_t line = line_ends_before + (p->first > p->start + 1);
    while (at < own_end && az_str_next_line(&s, &n, p->text, (size_t)p->bytes, &at)) {
        line++;
        if (az_str_is_blank(s, n))
            continue;
        AZ_TRY(az_stop_check());
        if (line % LINES == 0)
            az_watch_mark(l->comm, "line", line);
        where.len = 0;
        AZ_TRY(az_str_add(&where, "%s:%lld", l->files[f], (long long)line));
        AZ_TRY(az_reader_add(&l->reader, s, n, where.s));
        l->n_lines[f]++;
    }
out:
    az_str_fini(&where);
    return err;
}

static az_err read_samples(loader *l)
{
    az_err err = AZ_OK;
    const int rank = az_comm_rank(l->comm);
    for (int f = 0; f < l->n_files; f++) {
        part *p = &l->parts[f];
        int64_t before = 0;
        if (p->text == NULL)
            continue;
        az_watch_mark(l->comm, "file", f);
        for (int r = 0; r < rank; r++)
            before += l->line_ends[(int64_t)r * l->n_files + f];
        AZ_TRY(read_lines(l, f, before));
        az_free(p->text);
        p->text = NULL;
    }
    const az_reader *reader = &l->reader;
    int64_t *t = l->totals + (int64_t)rank * N_TOTALS;
    t[SAMPLES] = (int64_t)reader->lengths.n;
    t[TOKENS] = (int64_t)reader->ids.n;
    t[CUT] = reader->n_cut;
    t[LONG] = reader->n_dropped_long;
    t[EMPTY] = reader->n_dropped_empty;
out:
    return err;
}

/* Sum up what the ranks found and make room for all of it. The same on all ranks, but for memory.
 */
static az_err make_set(az_dataset *set, loader *l)
{
    az_err err = AZ_OK;
    for (int f = 0; f < l->n_files; f++)
        if (l->n_lines[f] == 0)
            return az_fail(AZ_EINPUT, "%s: the file holds no samples (%lld bytes)", l->files[f],
                           (long long)l->sizes[f]);
    for (int r = 0; r < az_comm_size(l->comm); r++) {
        const int64_t *t = l->totals + (int64_t)r * N_TOTALS;
        set->n += t[SAMPLES];
        set->n_tokens += t[TOKENS];
        set->n_cut += t[CUT];
        set->n_dropped_long += t[LONG];
        set->n_dropped_empty += t[EMPTY];
    }
    if (set->n == 0)
        return az_fail(AZ_EINPUT,
                       "%s%s: no sample is left: %lld without a target token (within the "
                       "first %lld tokens), %lld longer than data.max_length",
                       l->files[0], l->n_files > 1 ? " and the other files" : "",
                       (long long)set->n_dropped_empty, (long long)l->reader.options->max_length,
                       (long long)set->n_dropped_long);
    if (set->n >= UINT32_MAX)
        return az_fail(AZ_EINPUT, "%lld samples are more than the %lld that can be numbered",
                       (long long)set->n, (long long)UINT32_MAX - 1);
    AZ_TRY(AZ_NEW(set->start, (size_t)set->n + 1, "dataset"));
    AZ_TRY(AZ_NEW(set->ids, (size_t)set->n_tokens, "dataset"));
    AZ_TRY(AZ_NEW(set->labels, (size_t)set->n_tokens, "dataset"));
    AZ_TRY(AZ_NEW(set->targets, (size_t)set->n, "dataset"));
    AZ_TRY(AZ_NEW(l->lengths.v, (size_t)set->n, "dataset loading"));
out:
    return err;
}

/* recv = the ranks' parts in rank order; of: SAMPLES or TOKENS. Collective. */
static void gather(loader *l, const az_ids *mine, int32_t *recv, int of)
{
    size_t end = 0;
    for (int r = 0; r < az_comm_size(l->comm); r++) {
        l->at[r] = end;
        l->counts[r] = (size_t)l->totals[(int64_t)r * N_TOTALS + of] * sizeof *recv;
        end += l->counts[r];
    }
    az_comm_allgatherv(l->comm, mine->v, recv, l->counts, l->at);
}

static void fill_set(az_dataset *set, loader *l)
{
    gather(l, &l->reader.ids, set->ids, TOKENS);
    gather(l, &l->reader.labels, set->labels, TOKENS);
    gather(l, &l->reader.targets, set->targets, SAMPLES);
    gather(l, &l->reader.lengths, l->lengths.v, SAMPLES);
    for (int64_t i = 0; i < set->n; i++) {
        set->start[i + 1] = set->start[i] + l->lengths.v[i];
        set->n_targets += set->targets[i];
        set->longest = az_max_i64(set->longest, l->lengths.v[i]);
    }
}

az_err az_data_load(az_dataset *set, const char *const *files, int n_files,
                    az_tokenizer *opt_tokenizer, const az_data_options *options, az_comm *comm)
{
    az_err err;
    loader l = {.files = files, .n_files = n_files, .comm = comm};
    const int rank = az_comm_rank(comm);
    l.reader = (az_reader){.options = options, .opt_tokenizer = opt_tokenizer};
    *set = (az_dataset){0};
    if (n_files < 1)
        return az_fail(AZ_EINPUT, "data.files: no file is given");
    AZ_ASSERT(options->max_length > 0 && options->n_rows > 0);
    err = prepare(&l);
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_bcast(comm, l.sizes, (size_t)n_files * sizeof *l.sizes, 0);
    err = read_parts(&l);
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_allgather(comm, l.line_ends + (int64_t)rank * n_files,
                      (size_t)n_files * sizeof *l.line_ends, l.line_ends);
    err = read_samples(&l);
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_allgather(comm, l.totals + (int64_t)rank * N_TOTALS, N_TOTALS * sizeof *l.totals,
                      l.totals);
    az_comm_sum_i64(comm, l.n_lines, (size_t)n_files);
    err = make_set(set, &l);
    AZ_TRY(az_comm_agree(comm, err));
    fill_set(set, &l);
out:
    if (err != AZ_OK)
        az_data_fini(set);
    for (int f = 0; l.parts != NULL && f < n_files; f++)
        az_free(l.parts[f].text);
    az_reader_fini(&l.reader);
    az_ids_fini(&l.lengths);
    az_free(l.sizes);
    az_free(l.parts);
    az_free(l.line_ends);
    az_free(l.n_lines);
    az_free(l.totals);
    az_free(l.counts);
    az_free(l.at);
    return err;
}
