/* h5: an open file. Rank 0 has looked at the structure; the others get what it found as bytes. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/h5_priv.h"

/* ---- open and close */

/* Bytes of the content's three parts. */
typedef struct {
    int64_t sets, attrs, pool;
} sizes;

/* All parts in one block, records first, so that tables in the pool stay aligned. */
static az_err gather_parts(az_h5_reader *r, const sizes *n, const az_h5_content *opt_content)
{
    az_err err;
    AZ_TRY(AZ_NEW(r->block, (size_t)(n->sets + n->attrs + n->pool), "checkpoint"));
    r->n_sets = (int)(n->sets / (int64_t)sizeof(az_h5_set_record));
    r->n_attrs = (int)(n->attrs / (int64_t)sizeof(az_h5_attr_record));
    r->pool = r->block + n->sets + n->attrs;
    AZ_TRY(AZ_NEW(r->sets, (size_t)r->n_sets, "checkpoint"));
    AZ_TRY(AZ_NEW(r->contents, (size_t)r->n_sets, "checkpoint"));
    AZ_TRY(AZ_NEW(r->attrs, (size_t)r->n_attrs, "checkpoint"));
    AZ_TRY(AZ_NEW(r->groups, (size_t)r->n_attrs, "checkpoint"));
    if (opt_content == NULL)
        goto out;
    if (n->sets > 0)
        memcpy(r->block, opt_content->sets.s, (size_t)n->sets);
    if (n->attrs > 0)
        memcpy(r->block + n->sets, opt_content->attrs.s, (size_t)n->attrs);
    if (n->pool > 0)
        memcpy(r->pool, opt_content->pool.s, (size_t)n->pool);
out:
    return err;
}

static int compare_records(const void *a, const void *b, void *pool)
{
    return strcmp((const char *)pool + ((const az_h5_set_record *)a)->path,
                  (const char *)pool + ((const az_h5_set_record *)b)->path);
}

/* From records to what callers see. */
static void unpack(az_h5_reader *r)
{
    az_h5_set_record *sets = (void *)r->block;
    const az_h5_attr_record *attrs = (const void *)(sets + r->n_sets);
    if (r->n_sets > 1)
        qsort_r(sets, (size_t)r->n_sets, sizeof *sets, compare_records, r->pool);
    for (int i = 0; i < r->n_sets; i++) {
        const az_h5_set_record *s = &sets[i];
        r->contents[i] = s->content < 0 ? NULL : r->pool + s->content;
        r->sets[i].path = r->pool + s->path;
        r->sets[i].kind = (unsigned)s->kind;
        r->sets[i].dtype = (az_dtype)s->dtype;
        r->sets[i].rows = s->rows;
        r->sets[i].cols = s->cols;
        r->sets[i].offset = s->offset;
        r->sets[i].bytes = s->bytes;
        r->sets[i].crc = (uint32_t)s->crc;
    }
    for (int i = 0; i < r->n_attrs; i++) {
        r->groups[i] = r->pool + attrs[i].group;
        r->attrs[i] = (az_h5_attr){.name = r->pool + attrs[i].name,
                                   .type = (unsigned)attrs[i].type,
                                   .i = attrs[i].i,
                                   .r = attrs[i].r,
                                   .s = r->pool + attrs[i].text};
    }
}

/* The file's content on all ranks. Collective. */
static az_err share(az_h5_reader *r, const az_h5_content *content)
{
    az_err err;
    const bool first = az_comm_rank(r->comm) == 0;
    sizes n = {(int64_t)content->sets.len, (int64_t)content->attrs.len, (int64_t)content->pool.len};
    az_comm_bcast(r->comm, &n, sizeof n, 0);
    AZ_TRY(az_comm_agree(r->comm, gather_parts(r, &n, first ? content : NULL)));
    az_comm_bcast(r->comm, r->block, (size_t)(n.sets + n.attrs + n.pool), 0);
    unpack(r);
out:
    return err;
}

az_err az_h5_open(az_h5_reader **out_reader, const char *path, az_comm *comm)
{
    az_err err;
    az_h5_reader *r = NULL;
    az_h5_content content = {0};
    *out_reader = NULL;
    az_h5_start();
    err = AZ_NEW(r, 1, "checkpoint");
    if (err == AZ_OK) {
        *r = (az_h5_reader){.comm = comm, .fd = -1, .path = az_strdup(path, "checkpoint")};
        err = r->path != NULL ? AZ_OK : AZ_EENV;
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (az_comm_rank(comm) == 0)
        err = az_h5_walk(&content, path);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(az_comm_agree(comm, az_file_open(&r->fd, path)));
    AZ_TRY(share(r, &content));
    *out_reader = r;
out:
    az_str_fini(&content.sets);
    az_str_fini(&content.attrs);
    az_str_fini(&content.pool);
    if (err != AZ_OK)
        az_h5_close(r);
    return err;
}

void az_h5_close(az_h5_reader *opt_reader)
{
    az_h5_reader *r = opt_reader;
    if (r == NULL)
        return;
    if (r->fd >= 0)
        close(r->fd);
    az_free(r->groups);
    az_free(r->attrs);
    az_free(r->contents);
    az_free(r->sets);
    az_free(r->block);
    az_free(r->path);
    az_free(r);
}

/* ---- what is in it */

const char *az_h5_get_kind(const az_h5_reader *reader)
{
    return az_h5_find_attr(reader, "/", AZ_H5_KIND)->s;
}

const az_h5_dataset *az_h5_get_dataset(const az_h5_reader *reader, int i)
{
    return i >= 0 && i < reader->n_sets ? &reader->sets[i] : NULL;
}

static int compare_path(const void *path, const void *set)
{
    return strcmp(path, ((const az_h5_dataset *)set)->path);
}

const az_h5_dataset *az_h5_find(const az_h5_reader *reader, const char *path)
{
    return reader->n_sets == 0 ? NULL
                               : bsearch(path, reader->sets, (size_t)reader->n_sets,
                                         sizeof *reader->sets, compare_path);
}

static const char *find_content(const az_h5_reader *reader, const char *path, unsigned kind)
{
    const az_h5_dataset *set = az_h5_find(reader, path);
    return set == NULL || set->kind != kind ? NULL : reader->contents[set - reader->sets];
}

const char *az_h5_get_text(const az_h5_reader *reader, const char *path)
{
    return find_content(reader, path, AZ_H5_DATA_TEXT);
}

const int64_t *az_h5_get_table(const az_h5_reader *reader, const char *path)
{
    return (const int64_t *)(const void *)find_content(reader, path, AZ_H5_DATA_TABLE);
}

const az_h5_attr *az_h5_get_attr(const az_h5_reader *reader, const char *group, int i)
{
    for (int at = 0; at < reader->n_attrs; at++)
        if (strcmp(reader->groups[at], group) == 0 && i-- == 0)
            return &reader->attrs[at];
    return NULL;
}

const az_h5_attr *az_h5_find_attr(const az_h5_reader *reader, const char *group, const char *name)
{
    for (int at = 0; at < reader->n_attrs; at++)
        if (strcmp(reader->groups[at], group) == 0 && strcmp(reader->attrs[at].name, name) == 0)
            return &reader->attrs[at];
    return NULL;
}
