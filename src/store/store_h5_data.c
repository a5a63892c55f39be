/* h5: data of arrays, read with pread where HDF5 says that they lie, widened to f32 and compared
 * with their CRC-32. Where an array is cut, the checksums of the ranks' parts are put together. */
#include <config.h>

#include <string.h>

#include "store/h5_priv.h"

/* Bytes read in one go where they are not read into place. */
#define PIECE ((int64_t)1 << 20)

/* Elements [lo, hi) of a dataset: into out_values, if it is there, and their CRC. piece: [PIECE]
 * bytes. */
static az_err read_part(float *opt_values, uint32_t *out_crc, const az_h5_reader *r,
                        const az_h5_dataset *set, int64_t lo, int64_t hi, char *piece)
{
    az_err err = AZ_OK;
    const int64_t width = (int64_t)az_dtype_bytes(set->dtype), step = PIECE / width;
    *out_crc = 0;
    for (int64_t at = lo, n; at < hi; at += n) {
        n = az_min_i64(step, hi - at);
        const bool in_place = opt_values != NULL && set->dtype == AZ_F32;
        void *to = in_place ? (void *)(opt_values + (at - lo)) : piece;
        AZ_TRY(az_file_read_at(r->fd, to, (size_t)(n * width), set->offset + at * width, r->path));
        *out_crc = az_crc32(*out_crc, to, (size_t)(n * width));
        if (opt_values != NULL && !in_place)
            az_widen(opt_values + (at - lo), piece, set->dtype, (size_t)n);
    }
out:
    return err;
}

static az_err note_damage(az_faults *faults, const az_h5_dataset *set, uint32_t crc)
{
    return az_faults_add(faults,
                         "dataset '%.300s': damaged: its bytes give checksum %08x, %08x was "
                         "expected",
                         set->path, crc, set->crc);
}

/* ---- whole arrays */

az_err az_h5_read_array(az_h5_reader *reader, const az_h5_dataset *dataset, float *out_values)
{
    az_err err;
    az_faults faults = {0};
    uint32_t crc;
    char *piece = NULL;
    AZ_ASSERT(dataset->kind == AZ_H5_DATA_ARRAY);
    AZ_TRY(AZ_NEW(piece, (size_t)PIECE, "checkpoint"));
    AZ_TRY(read_part(out_values, &crc, reader, dataset, 0, dataset->rows * dataset->cols, piece));
    if (crc != dataset->crc)
        AZ_TRY(note_damage(&faults, dataset, crc));
    err = az_faults_report(&faults, reader->path);
out:
    az_free(piece);
    az_faults_fini(&faults);
    return err;
}

az_err az_h5_verify(az_h5_reader *reader)
{
    az_err err;
    az_faults faults = {0};
    char *piece = NULL;
    AZ_TRY(AZ_NEW(piece, (size_t)PIECE, "checkpoint"));
    for (int i = 0; i < reader->n_sets; i++) {
        const az_h5_dataset *set = &reader->sets[i];
        uint32_t crc;
        if (set->kind != AZ_H5_DATA_ARRAY)
            continue; /* checked when the file was opened */
        AZ_TRY(read_part(NULL, &crc, reader, set, 0, set->rows * set->cols, piece));
        if (crc != set->crc)
            AZ_TRY(note_damage(&faults, set, crc));
    }
    err = az_faults_report(&faults, reader->path);
out:
    az_free(piece);
    az_faults_fini(&faults);
    return err;
}

/* ---- a set, by ranges */

/* Whether path is a member of group; *out_name: its name there. */
static bool is_member(const char **out_name, const char *path, const char *group)
{
    const size_t n = strlen(group);
    if (strncmp(path, group, n) != 0 || path[n] != '/' || strchr(path + n + 1, '/') != NULL)
        return false;
    *out_name = path + n + 1;
    return true;
}

/* The datasets of the arrays at found; what is missing or of another shape is noted. */
static az_err find_sets(const az_h5_dataset **found, az_faults *faults, const az_h5_reader *r,
                        const char *group, const az_h5_array *arrays, int n)
{
    az_err err = AZ_OK;
    az_str path = {0};
    for (int i = 0; i < n; i++) {
        const az_h5_array *a = &arrays[i];
        path.len = 0;
        AZ_TRY(az_str_add(&path, "%s/%s", group, a->name));
        const az_h5_dataset *set = az_h5_find(r, path.s);
        if (set == NULL || set->kind != AZ_H5_DATA_ARRAY)
            AZ_TRY(az_faults_add(faults, "dataset '%.300s' is missing", path.s));
        else if (set->rows != a->rows || set->cols != a->cols)
            AZ_TRY(az_faults_add(faults,
                                 "dataset '%.300s': shape [%lld, %lld], [%lld, %lld] was expected",
                                 path.s, (long long)set->rows, (long long)set->cols,
                                 (long long)a->rows, (long long)a->cols));
        else if (i > 0 && found[0] != NULL && set->dtype != found[0]->dtype)
            AZ_TRY(az_faults_add(faults, "dataset '%.300s': type %s, %s was expected", path.s,
                                 az_dtype_name(set->dtype), az_dtype_name(found[0]->dtype)));
        found[i] = set;
    }
out:
    az_str_fini(&path);
    return err;
}

/* Members of the group that nobody asked for: those that were found are marked. */
static az_err find_unexpected(az_faults *faults, const az_h5_reader *r, const char *group,
                              const az_h5_dataset *const *found, int n)
{
    az_err err;
    const char *name;
    bool *asked = NULL;
    AZ_TRY(AZ_NEW(asked, (size_t)r->n_sets, "checkpoint"));
    for (int i = 0; i < n; i++)
        if (found[i] != NULL)
            asked[found[i] - r->sets] = true;
    for (int i = 0; i < r->n_sets; i++)
        if (!asked[i] && is_member(&name, r->sets[i].path, group))
            AZ_TRY(az_faults_add(faults, "dataset '%.300s' was not expected", r->sets[i].path));
out:
    az_free(asked);
    return err;
}

/* What a set's reading needs, one for each array. */
typedef struct {
    const az_h5_dataset **found;
    uint32_t *part, *whole;
    char *piece;
} work;

static az_err init_work(work *k, int n)
{
    az_err err;
    AZ_TRY(AZ_NEW(k->found, (size_t)n, "checkpoint"));
    AZ_TRY(AZ_NEW(k->part, (size_t)n, "checkpoint"));
    AZ_TRY(AZ_NEW(k->whole, (size_t)n, "checkpoint"));
    AZ_TRY(AZ_NEW(k->piece, (size_t)PIECE, "checkpoint"));
out:
    return err;
}

static void fini_work(work *k)
{
    az_free(k->piece);
    az_free(k->whole);
    az_free(k->part);
    az_free(k->found);
}

/* Whether the file has what is asked for. Every rank looks: all know the structure. */
static az_err check_set(work *k, const az_h5_reader *r, const char *group,
                        const az_h5_array *arrays, int n)
{
    az_err err;
    az_faults faults = {0};
    AZ_TRY(init_work(k, n));
    AZ_TRY(find_sets(k->found, &faults, r, group, arrays, n));
    AZ_TRY(find_unexpected(&faults, r, group, k->found, n));
    err = az_faults_report(&faults, r->path);
out:
    az_faults_fini(&faults);
    return err;
}

static az_err read_own(work *k, const az_h5_reader *r, const az_h5_array *arrays, int n, float *own,
                       int64_t first, int64_t n_own)
{
    az_err err = AZ_OK;
    int begin, end;
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
    for (int i = begin; i < end; i++) {
        int64_t lo, hi;
        az_h5_cut(&lo, &hi, &arrays[i], first, n_own);
        AZ_TRY(read_part(own + (arrays[i].off + lo - first), &k->part[i], r, k->found[i], lo, hi,
                         k->piece));
    }
out:
    return err;
}

az_err az_h5_read_arrays(az_h5_reader *reader, const char *group, const az_h5_array *arrays, int n,
                         float *own, int64_t first, int64_t n_own)
{
    az_err err;
    work k = {0};
    az_faults faults = {0};
    AZ_TRY(az_comm_agree(reader->comm, check_set(&k, reader, group, arrays, n)));
    AZ_TRY(az_comm_agree(reader->comm, read_own(&k, reader, arrays, n, own, first, n_own)));
    const az_dtype dtype = n > 0 ? k.found[0]->dtype : AZ_F32;
    AZ_TRY(az_h5_join_crcs(k.whole, k.part, arrays, n, dtype, first, n_own, reader->comm));
    for (int i = 0; i < n && err == AZ_OK; i++)
        if (k.whole[i] != k.found[i]->crc)
            err = note_damage(&faults, k.found[i], k.whole[i]);
    if (err == AZ_OK)
        err = az_faults_report(&faults, reader->path);
    err = az_comm_agree(reader->comm, err);
out:
    az_faults_fini(&faults);
    fini_work(&k);
    return err;
}
