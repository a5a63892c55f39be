/* h5: writing. The structure of each part is made by rank 0, then all ranks open the file with
 * parallel HDF5 and each writes its own range of each array, independently. No rank changes
 * metadata while several have the file open, so that a write that fails on one rank leaves nobody
 * waiting inside the library: the ranks agree behind it. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/h5_priv.h"

/* Values narrowed in one go. */
#define PIECE ((int64_t)1 << 19)

/* One call of MPI-IO moves at most this much (its counts are int); tests make it small. */
static int64_t call_limit(void)
{
    static const int64_t most = (int64_t)1 << 30;
    const char *s = getenv("ADZE_H5_LIMIT");
    const long long v = s != NULL ? atoll(s) : 0;
    return v >= 4 && v < most ? v : most;
}

/* ---- create */

static az_err make_info(az_h5_writer *w, const az_h5_options *options)
{
    az_err err;
    char factor[60], unit[60];
    const char **hints = NULL;
    int n = options->n_hints;
    AZ_TRY(AZ_NEW(hints, (size_t)n + 2, "checkpoint"));
    for (int i = 0; i < n; i++)
        hints[i] = options->hints[i];
    snprintf(factor, sizeof factor, "striping_factor=%lld", (long long)options->striping_factor);
    snprintf(unit, sizeof unit, "striping_unit=%lld", (long long)options->striping_unit);
    if (options->striping_factor > 0)
        hints[n++] = factor;
    if (options->striping_unit > 0)
        hints[n++] = unit;
    AZ_TRY(az_comm_create_info(&w->info, w->comm, hints, n));
    w->have_info = n > 0 && az_comm_has_mpi(w->comm);
out:
    az_free(hints);
    return err;
}

/* What each rank does for itself. */
static az_err init_writer(az_h5_writer *w, const char *path, const az_h5_options *options)
{
    az_err err;
    const size_t n = strlen(path) + 5;
    AZ_TRY((w->path = az_strdup(path, "checkpoint")) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(AZ_NEW(w->tmp, n, "checkpoint"));
    snprintf(w->tmp, n, "%s.tmp", path);
    if (options != NULL)
        AZ_TRY(make_info(w, options));
out:
    return err;
}

static az_err create_file(az_h5_writer *w, const char *kind, int64_t bytes)
{
    az_err err;
    char *dir = NULL;
    AZ_TRY((dir = az_path_dir(w->path)) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_dir_check_room(dir, bytes));
    AZ_TRY(az_h5_build_create(w, kind, bytes));
out:
    az_free(dir);
    return err == AZ_EINPUT ? AZ_EENV : err; /* a directory that has gone is no bad input */
}

az_err az_h5_create(az_h5_writer **out_writer, const char *path, const char *kind, int64_t bytes,
                    const az_h5_options *options, az_comm *comm)
{
    az_err err;
    az_h5_writer *w = NULL;
    const double begin = az_now();
    *out_writer = NULL;
    az_h5_start();
    err = AZ_NEW(w, 1, "checkpoint");
    if (err == AZ_OK) {
        *w = (az_h5_writer){.comm = comm, .file = -1, .data_file = -1};
        az_comm_create_info(&w->info, comm, NULL, 0);
        err = init_writer(w, path, options);
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (az_comm_rank(comm) == 0)
        err = create_file(w, kind, bytes);
    AZ_TRY(az_comm_agree(comm, err));
    w->times.create_s = az_now() - begin;
    *out_writer = w;
out:
    if (err != AZ_OK)
        az_h5_destroy(w);
    return err;
}

void az_h5_destroy(az_h5_writer *opt_writer)
{
    az_h5_writer *w = opt_writer;
    if (w == NULL)
        return;
    if (w->file >= 0)
        H5Fclose(w->file);
    /* Emptied first: where the library still has it open, its blocks would stay taken. */
    if (w->made && truncate(w->tmp, 0) == 0)
        unlink(w->tmp);
    az_comm_destroy_info(&w->info);
    az_free(w->tmp);
    az_free(w->path);
    az_free(w);
}

/* ---- arrays */

static az_err open_data(az_h5_writer *w)
{
    az_err err = AZ_OK;
    MPI_Comm world;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    az_comm_get_mpi(w->comm, &world);
    if (access < 0 || (az_comm_has_mpi(w->comm) && H5Pset_fapl_mpio(access, world, w->info) < 0) ||
        (w->data_file = H5Fopen(w->tmp, H5F_ACC_RDWR, access)) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "open", NULL);
    az_h5_drop(access);
    return err;
}

static az_err close_data(az_h5_writer *w)
{
    const hid_t file = w->data_file;
    w->data_file = -1;
    return H5Fclose(file) < 0 ? az_h5_fail(AZ_EENV, w->tmp, "write", NULL) : AZ_OK;
}

/* A dataset being written. */
typedef struct {
    const az_h5_array *array;
    hid_t set, type;
    const char *path;
    az_bf16 *piece; /* [PIECE] for values that are narrowed; NULL for f32 */
} target;

/* Elements [at, at + rows * width) as a rectangle: rows from a row's start, or part of one row. */
static az_err write_rectangle(const target *t, int64_t at, int64_t rows, int64_t width,
                              const void *values)
{
    const hsize_t cols = (hsize_t)t->array->cols, from = (hsize_t)at;
    const hsize_t start[2] = {from / cols, from % cols}, size[2] = {(hsize_t)rows, (hsize_t)width},
                  n = (hsize_t)(rows * width);
    az_err err = AZ_OK;
    hid_t space = H5Dget_space(t->set), memory = H5Screate_simple(1, &n, NULL);
    if (space < 0 || memory < 0 ||
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, size, NULL) < 0 ||
        H5Dwrite(t->set, t->type, memory, space, H5P_DEFAULT, values) < 0)
        err = az_h5_fail(AZ_EENV, t->path, "write dataset", t->array->name);
    az_h5_drop(memory);
    az_h5_drop(space);
    return err;
}

/* The same, in the type of the file; HDF5's own conversion to 16 bits rounds wrongly (1.10.8). */
static az_err write_values(const target *t, int64_t at, int64_t rows, int64_t width,
                           const float *values)
{
    if (t->piece == NULL)
        return write_rectangle(t, at, rows, width, values);
    for (int64_t i = 0; i < rows * width; i++)
        t->piece[i] = az_f32_to_bf16(values[i]);
    return write_rectangle(t, at, rows, width, t->piece);
}

/* Elements [lo, hi) of an array, cut into rectangles that a call may move. */
static az_err write_part(const target *t, int64_t lo, int64_t hi, const float *values)
{
    az_err err = AZ_OK;
    const int64_t cols = t->array->cols;
    int64_t most = call_limit() / (int64_t)sizeof *values;
    if (t->piece != NULL)
        most = az_min_i64(most, PIECE);
    for (int64_t at = lo, n; at < hi; at += n) {
        int64_t rows = 1, width = az_min_i64(az_min_i64(cols - at % cols, hi - at), most);
        if (width == cols)
            rows = az_min_i64((hi - at) / cols, most / cols);
        n = rows * width;
        AZ_TRY(write_values(t, at, rows, width, values + (at - lo)));
    }
out:
    return err;
}

/* This rank's range. */
static az_err write_own(az_h5_writer *w, const char *group, const az_h5_array *arrays, int n,
                        az_bf16 *opt_piece, const float *own, int64_t first, int64_t n_own)
{
    az_err err = AZ_OK;
    target t = {.set = -1, .path = w->tmp, .piece = opt_piece};
    t.type = az_h5_make_type(opt_piece != NULL ? AZ_BF16 : AZ_F32);
    int begin, end;
    hid_t id = H5Gopen2(w->data_file, group, H5P_DEFAULT);
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
    if (id < 0 || t.type < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "open group", group);
    for (int i = begin; i < end && err == AZ_OK; i++) {
        int64_t lo, hi;
        t.array = &arrays[i];
        t.set = H5Dopen2(id, arrays[i].name, H5P_DEFAULT);
        az_h5_cut(&lo, &hi, &arrays[i], first, n_own);
        if (t.set < 0)
            err = az_h5_fail(AZ_EENV, w->tmp, "open dataset", arrays[i].name);
        else
            err = write_part(&t, lo, hi, own + (arrays[i].off + lo - first));
        az_h5_drop(t.set);
    }
    az_h5_drop(id);
    az_h5_drop(t.type);
    return err;
}

/* CRCs of the parts of this rank. */
static void crc_own(uint32_t *part, const az_h5_array *arrays, int n, az_dtype dtype,
                    const float *own, int64_t first, int64_t n_own)
{
    int begin, end;
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
#pragma omp parallel for schedule(dynamic)
    for (int i = begin; i < end; i++) {
        int64_t lo, hi;
        az_h5_cut(&lo, &hi, &arrays[i], first, n_own);
        part[i] = az_h5_crc_values(own + (arrays[i].off + lo - first), hi - lo, dtype);
    }
}

/* The datasets are made, with their CRCs, and have their blocks. */
static az_err build_set(az_h5_writer *w, const char *group, const az_h5_array *arrays, int n,
                        az_dtype dtype, const uint32_t *crcs)
{
    az_err err;
    AZ_TRY(az_h5_build_open(w, n));
    AZ_TRY(az_h5_build_arrays(w, group, arrays, n, dtype, crcs));
    AZ_TRY(az_h5_build_close(w));
    AZ_TRY(az_h5_build_reserve(w));
out:
    return err;
}

az_err az_h5_put_arrays(az_h5_writer *w, const char *group, const az_h5_array *arrays, int n,
                        az_dtype dtype, const float *own, int64_t first, int64_t n_own)
{
    az_err err, later;
    uint32_t *part = NULL, *whole = NULL;
    az_bf16 *piece = NULL;
    double begin = az_now();
    err = AZ_NEW(part, (size_t)n, "checkpoint");
    if (err == AZ_OK)
        err = AZ_NEW(whole, (size_t)n, "checkpoint");
    if (err == AZ_OK && dtype == AZ_BF16)
        err = AZ_NEW(piece, PIECE, "checkpoint");
    AZ_TRY(az_comm_agree(w->comm, err));
    crc_own(part, arrays, n, dtype, own, first, n_own);
    AZ_TRY(az_h5_join_crcs(whole, part, arrays, n, dtype, first, n_own, w->comm));
    w->times.write_s += az_now() - begin;
    begin = az_now();
    if (az_comm_rank(w->comm) == 0)
        err = build_set(w, group, arrays, n, dtype, whole);
    AZ_TRY(az_comm_agree(w->comm, err));
    w->times.create_s += az_now() - begin;
    begin = az_now();
    AZ_TRY(az_comm_agree(w->comm, open_data(w)));
    err = write_own(w, group, arrays, n, piece, own, first, n_own);
    later = close_data(w);
    AZ_TRY(az_comm_agree(w->comm, err != AZ_OK ? err : later));
    w->times.write_s += az_now() - begin;
out:
    az_free(piece);
    az_free(whole);
    az_free(part);
    return err;
}

/* ---- the rest, by rank 0 */

az_err az_h5_put_text(az_h5_writer *w, const char *path, const char *text)
{
    az_err err = AZ_OK;
    if (az_comm_rank(w->comm) == 0) {
        AZ_TRY(az_h5_build_open(w, 1));
        AZ_TRY(az_h5_build_text(w, path, text));
    }
out:
    return az_comm_agree(w->comm, err);
}

az_err az_h5_put_table(az_h5_writer *w, const char *path, const int64_t *values, int64_t rows,
                       int64_t cols)
{
    az_err err = AZ_OK;
    if (az_comm_rank(w->comm) == 0) {
        AZ_TRY(az_h5_build_open(w, 1));
        AZ_TRY(az_h5_build_table(w, path, values, rows, cols));
    }
out:
    return az_comm_agree(w->comm, err);
}

az_err az_h5_put_attrs(az_h5_writer *w, const char *group, const az_h5_attr *attrs, int n)
{
    az_err err = AZ_OK;
    if (az_comm_rank(w->comm) == 0) {
        AZ_TRY(az_h5_build_open(w, 1));
        AZ_TRY(az_h5_build_attrs(w, group, attrs, n));
    }
out:
    return az_comm_agree(w->comm, err);
}

/* ---- finish */

static az_err complete(az_h5_writer *w)
{
    az_err err;
    AZ_TRY(az_h5_build_open(w, 1));
    AZ_TRY(az_h5_build_complete(w));
    AZ_TRY(az_h5_build_close(w));
    AZ_TRY(az_file_size(&w->times.bytes, w->tmp));
out:
    return err;
}

/* What this node still holds of the file in memory goes to the disk. */
static az_err sync_file(const char *path)
{
    az_err err = AZ_OK;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        err = az_fail(AZ_EENV, "%s: cannot sync: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) != 0 && err == AZ_OK)
        err = az_fail(AZ_EENV, "%s: cannot close: %s", path, strerror(errno));
    return err;
}

az_err az_h5_finish(az_h5_writer *w, az_h5_times *out_times)
{
    az_err err = AZ_OK;
    double begin = az_now();
    const bool first = az_comm_rank(w->comm) == 0;
    if (first)
        err = complete(w);
    AZ_TRY(az_comm_agree(w->comm, err));
    w->times.create_s += az_now() - begin;
    begin = az_now();
    AZ_TRY(az_comm_agree(w->comm, sync_file(w->tmp)));
    w->times.sync_s = az_now() - begin;
    begin = az_now();
    if (first && (err = az_file_rename(w->tmp, w->path)) == AZ_EINPUT)
        err = AZ_EENV;
    AZ_TRY(az_comm_agree(w->comm, err));
    w->made = false;
    w->times.rename_s = az_now() - begin;
    az_comm_bcast(w->comm, &w->times.bytes, sizeof w->times.bytes, 0);
    *out_times = w->times;
out:
    return err;
}
