/* h5, inside: what its sources share. */
#ifndef AZ_STORE_H5_PRIV_H
#define AZ_STORE_H5_PRIV_H

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include "store/h5.h"

#define AZ_H5_VERSION 1

/* Attributes of the root group, and the one beside everything that is checked. */
#define AZ_H5_KIND "kind"
#define AZ_H5_FORMAT "format_version"
#define AZ_H5_PROGRAM "program"
#define AZ_H5_COMPLETE "complete"
#define AZ_H5_CRC "crc32"

/* What is in a file, as rank 0 finds it and the others get it: records that name places in a pool
 * of bytes. Texts are zero-terminated there; tables are aligned to 8 bytes. */
typedef struct {
    int64_t path, content; /* in the pool; content: of a text or a table */
    int64_t kind, dtype, rows, cols, offset, bytes, crc;
} az_h5_set_record;
typedef struct {
    int64_t group, name, text; /* in the pool; text: of a string */
    int64_t type, i;
    double r;
} az_h5_attr_record;
typedef struct {
    az_str sets, attrs, pool;
} az_h5_content;

struct az_h5_writer {
    az_comm *comm;
    char *path, *tmp;
    char *mpi_name; /* the temporary file as MPI-IO is told of it */
    int dir;        /* its directory, if the name needs it; else -1 */
    MPI_Info info;
    bool have_info;
    bool made;  /* the temporary file is there (on rank 0) */
    hid_t file; /* rank 0's, while it works on the structure; -1: closed */
    az_h5_times times;
};

struct az_h5_reader {
    az_comm *comm;
    char *path;
    int fd;
    char *block, *pool; /* the content's records and pool */
    int n_sets, n_attrs;
    az_h5_dataset *sets;   /* [n_sets] by path */
    const char **contents; /* [n_sets] of texts and tables, else NULL */
    az_h5_attr *attrs;     /* [n_attrs] */
    const char **groups;   /* [n_attrs] whose they are */
};

/* ---- the library (store_h5_lib.c), Local */

/* Before the first call of HDF5: no messages of its own, no work of its own at the program's end,
 * no locks on files. */
void az_h5_start(void);
/* The innermost reason of the failure of the last call of HDF5; static. */
const char *az_h5_reason(void);
/* A call of HDF5 failed just now: "path: cannot do 'name': the library's innermost reason".
 * opt_name may be NULL. */
az_err az_h5_fail(az_err code, const char *path, const char *doing, const char *opt_name);
/* Close what id stands for (no file), if it is open. */
void az_h5_drop(hid_t id);
/* Types as the file stores them: little-endian; -1 after a failure. A string has exactly size
 * bytes. Closed with H5Tclose. */
hid_t az_h5_make_type(az_dtype dtype);
hid_t az_h5_make_string(size_t size);

/* ---- rank 0's driver (store_h5_disk.c), Local */

/* Set it in a file access list, and forget failures. False after a failure of the library. */
bool az_h5_disk_start(hid_t access);
/* The errno of the first call that has failed since then, 0: none. */
int az_h5_disk_error(void);
void az_h5_disk_forget(void);

/* ---- checksums (store_h5_crc.c) */

/* The arrays that elements [first, first + n_own) touch: [*out_begin, *out_end). Local. */
void az_h5_find_touched(int *out_begin, int *out_end, const az_h5_array *arrays, int n,
                        int64_t first, int64_t n_own);
/* The elements of an array, counted within it, that lie in [first, first + n_own):
 * [*out_lo, *out_hi). Local. */
void az_h5_cut(int64_t *out_lo, int64_t *out_hi, const az_h5_array *array, int64_t first,
               int64_t n_own);
/* CRC-32 of n values as the file stores them. Local. */
uint32_t az_h5_crc_values(const float *values, int64_t n, az_dtype dtype);
/* whole[i] = CRC-32 of array i, from part[i] of the ranks that hold part of it, in rank order.
 * Ranges of all ranks together cover every array. Collective. */
az_err az_h5_join_crcs(uint32_t *whole, const uint32_t *part, const az_h5_array *arrays, int n,
                       az_dtype dtype, int64_t first, int64_t n_own, az_comm *comm);
/* CRC-32 of attributes in this order: name, type and value of each. Local. */
uint32_t az_h5_crc_attrs(const az_h5_attr *attrs, int n);
/* By name, as az_h5_crc_attrs wants them (for qsort). */
int az_h5_compare_attrs(const void *a, const void *b);

/* ---- the structure (store_h5_build.c), on rank 0 alone, Local */

/* Make the temporary file, empty but for the root group; open it again; close it. */
az_err az_h5_build_create(az_h5_writer *w, const char *kind, int64_t bytes);
az_err az_h5_build_open(az_h5_writer *w, int64_t n_objects);
az_err az_h5_build_close(az_h5_writer *w);
/* Reserve the blocks of the file as long as it is now. */
az_err az_h5_build_reserve(az_h5_writer *w);
/* Datasets of a set with their CRCs; nothing is written into them. places[i]: where the bytes of
 * array i are to lie in the file. */
az_err az_h5_build_arrays(az_h5_writer *w, int64_t *places, const char *group,
                          const az_h5_array *arrays, int n, az_dtype dtype, const uint32_t *crcs);
/* A dataset with its content and CRC. */
az_err az_h5_build_text(az_h5_writer *w, const char *path, const char *text);
az_err az_h5_build_table(az_h5_writer *w, const char *path, const int64_t *values, int64_t rows,
                         int64_t cols);
az_err az_h5_build_attrs(az_h5_writer *w, const char *group, const az_h5_attr *attrs, int n);
/* The attribute "complete". */
az_err az_h5_build_complete(az_h5_writer *w);

/* ---- attributes that are read (store_h5_attrs.c), Local */

/* Those of one object, by name; names and texts are the list's own. */
typedef struct {
    az_faults *faults;
    const char *object; /* its path */
    az_err err;
    az_h5_attr *attrs;
    int n;
    bool have_crc, have_complete; /* these two are not among attrs */
    uint32_t crc;
    int64_t complete;
} az_h5_attr_list;
/* What is wrong is noted in faults; fails for want of memory only. The list is ended in any case.
 */
az_err az_h5_read_attrs(az_h5_attr_list *list, az_faults *faults, hid_t object, const char *path);
void az_h5_fini_attrs(az_h5_attr_list *list);
/* The attribute of this name and type, NULL if there is none. */
const az_h5_attr *az_h5_find_in(const az_h5_attr_list *list, const char *name, int type);

/* ---- reading (store_h5_walk.c), on rank 0 alone, Local */

/* Look at everything in a file and check it. content starts from {0}. */
az_err az_h5_walk(az_h5_content *content, const char *path);

#endif
