/* h5: adze's own files in HDF5. What is in one: sets of 2-D arrays (a group each, a dataset an
 * array), texts, small tables of integers, groups of attributes. Everything is covered by a CRC-32
 * in an attribute "crc32" beside it, so that damage is found and named.
 *
 * The arrays of a set are consecutive pieces of one flat sequence of f32 (the adapter's flat
 * buffer); each rank owns a range of that sequence, cut anywhere. Datasets are contiguous,
 * allocated early, not filled. Rank 0 makes the structure; then all ranks open the file and each
 * owner writes its range independently, so that the file is the same, byte for byte, however many
 * ranks write it. A reader needs no more than the place of a dataset in the file, so that only one
 * rank has to look into the structure.
 *
 * A file is written under a temporary name: arrays, texts, attributes; then the attribute
 * "complete" of the root group; flush, close; every rank syncs the file; all agree; rename; the
 * directory is synced. It never replaces a file in place. The format is described in
 * doc/checkpoints.md. */
#ifndef AZ_STORE_H5_H
#define AZ_STORE_H5_H

#include "base/base.h"
#include "comm/comm.h"

/* An array [rows, cols], elements [off, off + rows * cols) of its set's flat sequence. */
typedef struct {
    const char *name; /* within the group; PEFT's name of the tensor */
    int64_t rows, cols, off;
} az_h5_array;

/* An attribute: one of three types. */
typedef struct {
    const char *name;
    enum { AZ_H5_INT, AZ_H5_REAL, AZ_H5_STRING } type;
    int64_t i;
    double r;
    const char *s;
} az_h5_attr;

/* ---- writing */

typedef struct {
    const char *const *hints; /* [n_hints] "name=value" for MPI-IO */
    int n_hints;
    int64_t striping_factor, striping_unit; /* of a new file on Lustre; 0: the directory's */
} az_h5_options;

typedef struct az_h5_writer az_h5_writer;

/* How long the parts of a save took. */
typedef struct {
    int64_t bytes; /* of the file */
    double create_s, write_s, sync_s, rename_s;
} az_h5_times;

/* Start the file that is to become path. bytes: what it will hold, about; checked against free
 * space, quota and limits by reserving it. kind: "checkpoint" or "adapter", an attribute of the
 * root beside the format's version. All functions of a writer are Collective: on failure all ranks
 * get the same code, and the caller discards the writer. */
az_err az_h5_create(az_h5_writer **out_writer, const char *path, const char *kind, int64_t bytes,
                    const az_h5_options *options, az_comm *comm);
/* A set of arrays under group ("/adapter", "/optimizer/exp_avg"), stored as dtype (AZ_F32 or
 * AZ_BF16, the latter as a 16-bit float that h5dump prints); own: this rank's range [first, first +
 * n_own) of the sequence. Ranges of the ranks follow each other, in any order of ranks. */
az_err az_h5_put_arrays(az_h5_writer *writer, const char *group, const az_h5_array *arrays, int n,
                        az_dtype dtype, const float *own, int64_t first, int64_t n_own);
/* The same on all ranks (rank 0's is taken): a text, a table [rows, cols], attributes of a group.
 */
az_err az_h5_put_text(az_h5_writer *writer, const char *path, const char *text);
az_err az_h5_put_table(az_h5_writer *writer, const char *path, const int64_t *values, int64_t rows,
                       int64_t cols);
az_err az_h5_put_attrs(az_h5_writer *writer, const char *group, const az_h5_attr *attrs, int n);
/* Complete, flush, close, sync, rename, sync the directory. */
az_err az_h5_finish(az_h5_writer *writer, az_h5_times *out_times);
/* Frees the writer; a file that was not finished is removed. Fails never. Local, on all ranks. */
void az_h5_destroy(az_h5_writer *opt_writer);

/* ---- reading */

typedef struct az_h5_reader az_h5_reader;

/* A dataset: its full path, its shape, where its bytes are. */
typedef struct {
    const char *path;
    enum { AZ_H5_DATA_ARRAY, AZ_H5_DATA_TEXT, AZ_H5_DATA_TABLE } kind;
    az_dtype dtype; /* of an array */
    int64_t rows, cols;
    int64_t offset, bytes; /* in the file */
    uint32_t crc;
} az_h5_dataset;

/* Open a file: the structure is read and checked on rank 0 (complete, kind known, version known,
 * datasets contiguous and within the file, attributes and texts right by their CRC) and handed on.
 * Everything that is wrong is named in one message (AZ_EINPUT). Collective. */
az_err az_h5_open(az_h5_reader **out_reader, const char *path, az_comm *comm);
/* Whether a file that az_h5_open refuses is adze's, but of a format that this version does not
 * know: then it is not damaged. Local. */
bool az_h5_is_other_version(const char *path);
/* Local, as is all that only looks into an open file. */
void az_h5_close(az_h5_reader *opt_reader);
/* "checkpoint" or "adapter". */
const char *az_h5_get_kind(const az_h5_reader *reader);
/* Dataset i (0, 1, ..., sorted by path), NULL after the last; by path, NULL if there is none.
 * Local. */
const az_h5_dataset *az_h5_get_dataset(const az_h5_reader *reader, int i);
const az_h5_dataset *az_h5_find(const az_h5_reader *reader, const char *path);
/* A text (already checked), NULL if there is none; a table's values. Local. */
const char *az_h5_get_text(const az_h5_reader *reader, const char *path);
const int64_t *az_h5_get_table(const az_h5_reader *reader, const char *path);
/* Attribute i of a group, NULL after the last; by name, NULL if there is none. "crc32" is not among
 * them. Local. */
const az_h5_attr *az_h5_get_attr(const az_h5_reader *reader, const char *group, int i);
const az_h5_attr *az_h5_find_attr(const az_h5_reader *reader, const char *group, const char *name);
/* This rank's range of a set, widened to f32. Arrays that are missing, unexpected or of another
 * shape, and arrays whose bytes do not give their CRC, are all named in one message. Collective. */
az_err az_h5_read_arrays(az_h5_reader *reader, const char *group, const az_h5_array *arrays, int n,
                         float *own, int64_t first, int64_t n_own);
/* All rows of one array, widened to f32 [rows * cols], checked. Local. */
az_err az_h5_read_array(az_h5_reader *reader, const az_h5_dataset *dataset, float *out_values);
/* Read every byte of every array and compare; all damaged ones are named in one message. Local. */
az_err az_h5_verify(az_h5_reader *reader);

#endif
