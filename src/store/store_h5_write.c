/* h5: writing. Rank 0 makes the structure of a set, then all ranks open the file with parallel
 * HDF5's driver for MPI-IO, and each writes its own range, independently, to the places where the
 * datasets are. The driver is used without the layers above it: they write metadata when a file is
 * closed and read them when it is opened, with all ranks waiting for each other inside, so that a
 * call that fails on one rank would leave the others there for ever. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* MPI-IO takes what stands before the first colon of a name for the kind of the file system. A name
 * with a colon is handed over as one without, by way of its open directory. */
static az_err name_for_mpi(az_h5_writer *w)
{
    az_err err = AZ_OK;
    az_str name = {0};
    char *dir = NULL;
    const char *slash = strrchr(w->tmp, '/');
    if (strchr(w->tmp, ':') != NULL) {
        AZ_TRY((dir = az_path_dir(w->tmp)) != NULL ? AZ_OK : AZ_EENV);
        w->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (w->dir >= 0)
        AZ_TRY(
            az_str_add(&name, "/proc/self/fd/%d/%s", w->dir, slash != NULL ? slash + 1 : w->tmp));
    else
        AZ_TRY(az_str_add(&name, "%s", w->tmp)); /* where there is no directory others say so */
    w->mpi_name = name.s;
    name = (az_str){0};
out:
    az_str_fini(&name);
    az_free(dir);
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
    AZ_TRY(name_for_mpi(w));
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
        *w = (az_h5_writer){.comm = comm, .file = -1, .dir = -1};
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
    if (w->dir >= 0)
        close(w->dir);
    az_free(w->mpi_name);
    az_free(w->tmp);
    az_free(w->path);
    az_free(w);
}

/* ---- arrays */

/* The file as all ranks write into it. */
typedef struct {
    H5FD_t *file;
    const char *path;
    const int64_t *places; /* [arrays] of their data in the file */
    az_bf16 *piece;        /* [PIECE] for values that are narrowed; NULL for f32 */
} target;

/* Whether this rank sees the file that rank 0 has made, of so many bytes: directories that nodes do
 * not share are a common mistake, and MPI-IO says no more than that some rank failed. */
static az_err see_file(const az_h5_writer *w, int64_t bytes)
{
    struct stat st = {0};
    int fd = open(w->tmp, O_RDWR | O_CLOEXEC);
    const int e = fd < 0 || fstat(fd, &st) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (e != 0)
        return az_fail(AZ_EENV, "%s: rank %d cannot open what rank 0 has made: %s%s", w->tmp,
                       az_comm_rank(w->comm), strerror(e),
                       e == ENOENT ? "; all nodes must share the directory" : "");
    if (st.st_size != bytes)
        return az_fail(AZ_EENV,
                       "%s: rank %d sees a file of %lld bytes, rank 0 has made one of %lld; all "
                       "nodes must share the directory",
                       w->tmp, az_comm_rank(w->comm), (long long)st.st_size, (long long)bytes);
    return AZ_OK;
}

/* Collective where there is MPI. */
static az_err open_target(target *t, const az_h5_writer *w)
{
    az_err err = AZ_OK;
    MPI_Comm world;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    az_comm_get_mpi(w->comm, &world);
    if (access < 0 || (az_comm_has_mpi(w->comm) && H5Pset_fapl_mpio(access, world, w->info) < 0))
        err = az_h5_fail(AZ_EENV, w->tmp, "open", NULL);
    AZ_TRY(az_comm_agree(w->comm, err)); /* opening waits for all */
    if ((t->file = H5FDopen(w->mpi_name, H5F_ACC_RDWR, access, HADDR_UNDEF)) == NULL ||
        H5FDset_eoa(t->file, H5FD_MEM_DRAW, INT64_MAX) < 0)
        err = az_h5_fail(AZ_EENV, w->tmp, "open", NULL);
out:
    az_h5_drop(access);
    return err;
}

static az_err close_target(target *t)
{
    if (t->file != NULL && H5FDclose(t->file) < 0)
        return az_h5_fail(AZ_EENV, t->path, "close", NULL);
    return AZ_OK;
}

/* n values to this place of the file, in pieces that a call may move. HDF5's own conversion to 16
 * bits is not used: that of 1.10.8 rounds wrongly. */
static az_err write_values(const target *t, const char *name, int64_t place, const float *values,
                           int64_t n)
{
    const int64_t width = t->piece != NULL ? (int64_t)sizeof *t->piece : (int64_t)sizeof *values;
    int64_t most = call_limit() / width;
    if (t->piece != NULL)
        most = az_min_i64(most, PIECE);
    for (int64_t at = 0, m; at < n; at += m) {
        const void *from = values + at;
        m = az_min_i64(n - at, most);
        for (int64_t i = 0; t->piece != NULL && i < m; i++)
            t->piece[i] = az_f32_to_bf16(values[at + i]);
        if (t->piece != NULL)
            from = t->piece;
        if (H5FDwrite(t->file, H5FD_MEM_DRAW, H5P_DEFAULT, (haddr_t)(place + at * width),
                      (size_t)(m * width), from) < 0)
            return az_h5_fail(AZ_EENV, t->path, "write dataset", name);
    }
    return AZ_OK;
}

/* This rank's range. Arrays that lie side by side in the file, as most do, go in one call: that is
 * what disks and parallel file systems are good at. */
static az_err write_own(const target *t, const az_h5_array *arrays, int n, const float *own,
                        int64_t first, int64_t n_own)
{
    az_err err = AZ_OK;
    const int64_t width = t->piece != NULL ? (int64_t)sizeof *t->piece : (int64_t)sizeof *own;
    int begin, end;
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
    for (int i = begin, next; i < end; i = next) {
        int64_t lo, hi, n_side, from;
        az_h5_cut(&lo, &hi, &arrays[i], first, n_own);
        from = arrays[i].off + lo - first;
        n_side = hi - lo;
        const int64_t place = t->places[i] + lo * width;
        for (next = i + 1; next < end && t->places[next] == place + n_side * width; next++) {
            az_h5_cut(&lo, &hi, &arrays[next], first, n_own);
            n_side += hi;
        }
        AZ_TRY(write_values(t, arrays[i].name, place, own + from, n_side));
    }
out:
    return err;
}

/* CRCs of the parts of this rank. */
static void crc_own(uint32_t *part, const az_h5_array *arrays, int n, az_dtype dtype,
                    const float *own, int64_t first, int64_t n_own)
{
    int begin, end;
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
#pragma omp parallel for schedule(dynamic) if (n_own > PIECE)
    for (int i = begin; i < end; i++) {
        int64_t lo, hi;
        az_h5_cut(&lo, &hi, &arrays[i], first, n_own);
        part[i] = az_h5_crc_values(own + (arrays[i].off + lo - first), hi - lo, dtype);
    }
}

/* The datasets are made, with their CRCs, and have their blocks. */
static az_err build_set(az_h5_writer *w, int64_t *places, const char *group,
                        const az_h5_array *arrays, int n, az_dtype dtype, const uint32_t *crcs)
{
    az_err err;
    AZ_TRY(az_h5_build_open(w, n));
    AZ_TRY(az_h5_build_arrays(w, places, group, arrays, n, dtype, crcs));
    AZ_TRY(az_h5_build_close(w));
    AZ_TRY(az_h5_build_reserve(w));
out:
    return err;
}

/* What a set's writing needs, one for each array. */
typedef struct {
    uint32_t *part, *whole;
    int64_t *places;
    az_bf16 *piece;
} work;

static az_err init_work(work *k, int n, az_dtype dtype)
{
    az_err err;
    AZ_TRY(AZ_NEW(k->part, (size_t)n, "checkpoint"));
    AZ_TRY(AZ_NEW(k->whole, (size_t)n, "checkpoint"));
    AZ_TRY(AZ_NEW(k->places, (size_t)n, "checkpoint"));
    if (dtype == AZ_BF16)
        AZ_TRY(AZ_NEW(k->piece, (size_t)PIECE, "checkpoint"));
out:
    return err;
}

static void fini_work(work *k)
{
    az_free(k->piece);
    az_free(k->places);
    az_free(k->whole);
    az_free(k->part);
}

az_err az_h5_put_arrays(az_h5_writer *w, const char *group, const az_h5_array *arrays, int n,
                        az_dtype dtype, const float *own, int64_t first, int64_t n_own)
{
    az_err err, later;
    work k = {0};
    double begin = az_now();
    AZ_TRY(az_comm_agree(w->comm, init_work(&k, n, dtype)));
    crc_own(k.part, arrays, n, dtype, own, first, n_own);
    AZ_TRY(az_h5_join_crcs(k.whole, k.part, arrays, n, dtype, first, n_own, w->comm));
    w->times.write_s += az_now() - begin;
    begin = az_now();
    if (az_comm_rank(w->comm) == 0)
        err = build_set(w, k.places, group, arrays, n, dtype, k.whole);
    AZ_TRY(az_comm_agree(w->comm, err));
    w->times.create_s += az_now() - begin;
    begin = az_now();
    az_comm_bcast(w->comm, k.places, (size_t)n * sizeof *k.places, 0);
    az_comm_bcast(w->comm, &w->times.bytes, sizeof w->times.bytes, 0);
    AZ_TRY(az_comm_agree(w->comm, see_file(w, w->times.bytes)));
    target t = {.path = w->tmp, .places = k.places, .piece = k.piece};
    err = open_target(&t, w);
    if (err == AZ_OK)
        err = write_own(&t, arrays, n, own, first, n_own);
    later = close_target(&t);
    AZ_TRY(az_comm_agree(w->comm, err != AZ_OK ? err : later));
    w->times.write_s += az_now() - begin;
out:
    fini_work(&k);
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
