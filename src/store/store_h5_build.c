/* h5: the structure of a file: groups, datasets, attributes. Rank 0 makes it alone and without MPI,
 * so that whatever fails, fails on one rank and is said there (a failing write of metadata by many
 * ranks leaves those that did not fail waiting for it), and so that the file does not depend on the
 * number of ranks. Between two sets the file is closed, while all ranks write the data.
 *
 * Only forms of the library's format that carry checksums are used (superblock 2, object headers
 * 2, groups as B-trees 2 and fractal heaps; strings have a fixed length, as the heap of variable
 * ones has none). */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/h5_priv.h"

/* Metadata of one object, about; larger than one of these: data begin at a page. */
#define OBJECT_BYTES 512
#define META_BLOCK_MOST ((hsize_t)1 << 20)
#define ALIGN_FROM 65536
#define ALIGN_TO 4096

/* ---- the file */

static az_err fail_errno(const char *path, const char *doing)
{
    return az_fail(AZ_EENV, "%s: cannot %s: %s", path, doing, strerror(errno));
}

/* Blocks for bytes bytes: a full disk, a quota and a limit show here and not in the middle. A file
 * system that cannot reserve is none the worse. */
static az_err reserve(const char *path, int64_t bytes)
{
    az_err err = AZ_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno(path, "create");
    int failed;
    do
        failed = bytes > 0 ? fallocate(fd, 0, 0, (off_t)bytes) : 0;
    while (failed != 0 && errno == EINTR);
    if (failed != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        err = fail_errno(path, "reserve space");
    close(fd);
    return err;
}

/* How the file is laid out; meta_block: metadata are kept together in blocks of this. */
static hid_t make_access(hsize_t meta_block)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0)
        return access;
    if (!az_h5_disk_start(access) ||
        H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) < 0 ||
        H5Pset_meta_block_size(access, meta_block) < 0 ||
        H5Pset_alignment(access, ALIGN_FROM, ALIGN_TO) < 0 ||
        H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0) {
        H5Pclose(access);
        return -1;
    }
    return access;
}

/* The striping of a parallel file system is settled by who creates a file: MPI-IO does, if there
 * are hints. An empty file is made here. */
static az_err create_with_hints(az_h5_writer *w)
{
    az_err err = AZ_OK;
    H5FD_t *empty = NULL;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (!w->have_info)
        goto out;
    if (access < 0 || H5Pset_fapl_mpio(access, MPI_COMM_SELF, w->info) < 0 ||
        (empty = H5FDopen(w->mpi_name, H5F_ACC_RDWR | H5F_ACC_CREAT | H5F_ACC_TRUNC, access,
                          HADDR_UNDEF)) == NULL ||
        H5FDclose(empty) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "create", NULL);
out:
    az_h5_drop(access);
    return err;
}

static az_err add_root_attrs(az_h5_writer *w, const char *kind)
{
    const az_h5_attr attrs[] = {
        {.name = AZ_H5_FORMAT, .type = AZ_H5_INT, .i = AZ_H5_VERSION},
        {.name = AZ_H5_KIND, .type = AZ_H5_STRING, .s = kind},
        {.name = AZ_H5_PROGRAM, .type = AZ_H5_STRING, .s = PACKAGE_STRING},
    };
    return az_h5_build_attrs(w, "/", attrs, (int)(sizeof attrs / sizeof *attrs));
}

az_err az_h5_build_create(az_h5_writer *w, const char *kind, int64_t bytes)
{
    az_err err;
    hid_t access = make_access(OBJECT_BYTES * 4), layout = H5Pcreate(H5P_FILE_CREATE);
    if (access < 0 || layout < 0 || H5Pset_obj_track_times(layout, false) < 0) {
        err = az_h5_fail(AZ_EENV, w->tmp, "create", NULL);
        goto out;
    }
    if (unlink(w->tmp) != 0 && errno != ENOENT) {
        err = fail_errno(w->tmp, "remove the rest of an earlier run");
        goto out;
    }
    w->made = true;
    AZ_TRY(create_with_hints(w));
    AZ_TRY(reserve(w->tmp, bytes));
    w->file = H5Fcreate(w->tmp, H5F_ACC_TRUNC, layout, access);
    if (w->file < 0) {
        err = az_h5_fail(AZ_EENV, w->tmp, "create", NULL);
        goto out;
    }
    AZ_TRY(add_root_attrs(w, kind));
out:
    az_h5_drop(layout);
    az_h5_drop(access);
    return err;
}

az_err az_h5_build_open(az_h5_writer *w, int64_t n_objects)
{
    az_err err = AZ_OK;
    const hsize_t meta = (hsize_t)az_max_i64(n_objects, 4) * OBJECT_BYTES;
    if (w->file >= 0)
        return AZ_OK;
    hid_t access = make_access(meta < META_BLOCK_MOST ? meta : META_BLOCK_MOST);
    if (access < 0 || (w->file = H5Fopen(w->tmp, H5F_ACC_RDWR, access)) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "open", NULL);
    az_h5_drop(access);
    return err;
}

az_err az_h5_build_close(az_h5_writer *w)
{
    if (w->file < 0)
        return AZ_OK;
    const hid_t file = w->file;
    w->file = -1; /* not tried twice */
    if (H5Fclose(file) < 0 || az_h5_disk_error() != 0)
        return az_h5_fail(AZ_EENV, w->tmp, "write", NULL);
    /* A file of our own that has gone is no bad input. */
    return az_file_size(&w->times.bytes, w->tmp) == AZ_OK ? AZ_OK : AZ_EENV;
}

az_err az_h5_build_reserve(az_h5_writer *w)
{
    return reserve(w->tmp, w->times.bytes);
}

/* ---- groups and attributes */

/* The group of this path with its parents; what is missing is made. Closed with az_h5_drop. */
static az_err open_group(hid_t *out_group, az_h5_writer *w, const char *path)
{
    az_err err;
    char part[1024];
    hid_t how = H5Pcreate(H5P_GROUP_CREATE), group = H5Gopen2(w->file, "/", H5P_DEFAULT);
    *out_group = -1;
    if (how < 0 || group < 0 || H5Pset_obj_track_times(how, false) < 0) {
        err = az_h5_fail(AZ_EENV, w->tmp, "make group", path);
        goto out;
    }
    AZ_ASSERT(path[0] == '/');
    for (const char *at = path + 1; *at != '\0';) {
        const size_t n = strcspn(at, "/");
        AZ_ASSERT(n > 0 && n < sizeof part);
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        htri_t there = H5Lexists(group, part, H5P_DEFAULT);
        hid_t next = -1;
        if (there >= 0)
            next = there > 0 ? H5Gopen2(group, part, H5P_DEFAULT)
                             : H5Gcreate2(group, part, H5P_DEFAULT, how, H5P_DEFAULT);
        if (next < 0) {
            err = az_h5_fail(AZ_EENV, w->tmp, "make group", path);
            goto out;
        }
        az_h5_drop(group);
        group = next;
        at += n + (at[n] == '/');
    }
    *out_group = group;
    group = -1;
    err = AZ_OK;
out:
    az_h5_drop(group);
    az_h5_drop(how);
    return err;
}

/* A scalar attribute. */
static az_err add_attr(az_h5_writer *w, hid_t object, const char *name, hid_t type,
                       const void *value)
{
    az_err err = AZ_OK;
    hid_t space = H5Screate(H5S_SCALAR), attr = -1;
    if (space >= 0 && type >= 0)
        attr = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "write attribute", name);
    az_h5_drop(attr);
    az_h5_drop(space);
    return err;
}

static az_err add_crc(az_h5_writer *w, hid_t object, uint32_t crc)
{
    return add_attr(w, object, AZ_H5_CRC, H5T_STD_U32LE, &crc);
}

static az_err add_string(az_h5_writer *w, hid_t object, const az_h5_attr *a)
{
    const size_t n = strlen(a->s);
    const hid_t type = az_h5_make_string(n > 0 ? n : 1);
    az_err err = add_attr(w, object, a->name, type, a->s);
    az_h5_drop(type);
    return err;
}

static az_err add_one(az_h5_writer *w, hid_t object, const az_h5_attr *a)
{
    if (a->type == AZ_H5_STRING)
        return add_string(w, object, a);
    return a->type == AZ_H5_INT ? add_attr(w, object, a->name, H5T_STD_I64LE, &a->i)
                                : add_attr(w, object, a->name, H5T_IEEE_F64LE, &a->r);
}

az_err az_h5_build_attrs(az_h5_writer *w, const char *group, const az_h5_attr *attrs, int n)
{
    az_err err;
    hid_t id = -1;
    az_h5_attr *sorted = NULL;
    AZ_TRY(AZ_NEW(sorted, (size_t)n, "checkpoint"));
    if (n > 0) {
        memcpy(sorted, attrs, (size_t)n * sizeof *attrs);
        qsort(sorted, (size_t)n, sizeof *sorted, az_h5_compare_attrs);
    }
    AZ_TRY(open_group(&id, w, group));
    for (int i = 0; i < n; i++)
        AZ_TRY(add_one(w, id, &sorted[i]));
    AZ_TRY(add_crc(w, id, az_h5_crc_attrs(sorted, n)));
out:
    az_h5_drop(id);
    az_free(sorted);
    return err;
}

az_err az_h5_build_complete(az_h5_writer *w)
{
    const int64_t yes = 1;
    return add_attr(w, w->file, AZ_H5_COMPLETE, H5T_STD_I64LE, &yes);
}

/* ---- datasets */

/* Contiguous, with a place in the file from the start, not filled. */
static hid_t make_layout(void)
{
    hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    if (how < 0)
        return how;
    if (H5Pset_layout(how, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(how, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(how, H5D_FILL_TIME_NEVER) < 0 || H5Pset_obj_track_times(how, false) < 0) {
        H5Pclose(how);
        return -1;
    }
    return how;
}

/* What a dataset is to be: [rows, cols], or a scalar for rows < 0. */
typedef struct {
    const char *name;
    hid_t type, how;
    int64_t rows, cols;
    uint32_t crc;
} plan;

/* A dataset with its CRC, and its content if there is any. *out_place: where its bytes lie. */
static az_err add_dataset(az_h5_writer *w, int64_t *out_place, hid_t group, const plan *p,
                          const void *opt_content)
{
    az_err err = AZ_OK;
    const hsize_t size[2] = {(hsize_t)p->rows, (hsize_t)p->cols};
    hid_t set = -1, space = p->rows < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(2, size, NULL);
    if (space >= 0 && p->type >= 0 && p->how >= 0)
        set = H5Dcreate2(group, p->name, p->type, space, H5P_DEFAULT, p->how, H5P_DEFAULT);
    if (set < 0) {
        err = az_h5_fail(AZ_EENV, w->tmp, "make dataset", p->name);
        goto out;
    }
    *out_place = (int64_t)H5Dget_offset(set);
    AZ_TRY(add_crc(w, set, p->crc));
    if (opt_content != NULL &&
        H5Dwrite(set, p->type, H5S_ALL, H5S_ALL, H5P_DEFAULT, opt_content) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "write dataset", p->name);
out:
    az_h5_drop(set);
    az_h5_drop(space);
    return err;
}

az_err az_h5_build_arrays(az_h5_writer *w, int64_t *places, const char *group,
                          const az_h5_array *arrays, int n, az_dtype dtype, const uint32_t *crcs)
{
    az_err err;
    plan p = {.type = az_h5_make_type(dtype), .how = make_layout()};
    hid_t id = -1;
    AZ_TRY(open_group(&id, w, group));
    for (int i = 0; i < n; i++) {
        AZ_ASSERT(strchr(arrays[i].name, '/') == NULL);
        p.name = arrays[i].name;
        p.rows = arrays[i].rows;
        p.cols = arrays[i].cols;
        p.crc = crcs[i];
        AZ_TRY(add_dataset(w, &places[i], id, &p, NULL));
        AZ_ASSERT(places[i] > 0 || p.rows * p.cols == 0);
    }
out:
    az_h5_drop(id);
    az_h5_drop(p.how);
    az_h5_drop(p.type);
    return err;
}

/* A dataset alone, with its content; path is its group and its name. */
static az_err build_one(az_h5_writer *w, const char *path, hid_t type, int64_t rows, int64_t cols,
                        const void *content, size_t bytes)
{
    az_err err;
    const plan p = {.name = strrchr(path, '/') + 1,
                    .type = type,
                    .how = make_layout(),
                    .rows = rows,
                    .cols = cols,
                    .crc = az_crc32(0, content, bytes)};
    int64_t place;
    hid_t id = -1;
    char *dir = az_path_dir(path);
    AZ_TRY(dir != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(open_group(&id, w, dir));
    AZ_TRY(add_dataset(w, &place, id, &p, content));
out:
    az_free(dir);
    az_h5_drop(id);
    az_h5_drop(p.how);
    return err;
}

az_err az_h5_build_text(az_h5_writer *w, const char *path, const char *text)
{
    const size_t n = strlen(text) > 0 ? strlen(text) : 1;
    const hid_t type = az_h5_make_string(n);
    az_err err = build_one(w, path, type, -1, -1, text, n);
    az_h5_drop(type);
    return err;
}

az_err az_h5_build_table(az_h5_writer *w, const char *path, const int64_t *values, int64_t rows,
                         int64_t cols)
{
    return build_one(w, path, H5T_STD_I64LE, rows, cols, values,
                     (size_t)(rows * cols) * sizeof *values);
}
