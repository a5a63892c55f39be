/* safetensors files, and Hugging Face directories of them. Format: the safetensors README
 * ("Format") and its reference reader; the sharded index is the convention of transformers.
 * Everything here is Local: a set is opened on one rank, packed, handed on and unpacked on the
 * others. */
#ifndef AZ_STORE_SAFETENSORS_H
#define AZ_STORE_SAFETENSORS_H

#include "base/base.h"

#define AZ_TENSOR_DIMS 8

/* One tensor of a set. */
typedef struct {
    char *name;
    char dtype_name[12]; /* as the file spells it */
    int dtype;           /* az_dtype, or -1 for a type that adze does not compute with */
    int n_dims;
    int64_t shape[AZ_TENSOR_DIMS]; /* row-major; [] is a scalar */
    int file;                      /* index into files */
    int64_t offset;                /* of its first byte in the file */
    int64_t bytes;
    bool alias; /* a second name of another tensor's bytes, from "__metadata__" (tied weights) */
} az_tensor;

/* Tensors of one file or of a directory, sorted by name. */
typedef struct {
    char **files; /* paths */
    int n_files;
    az_tensor *tensors;
    int64_t n_tensors;
    char *metadata; /* "__metadata__" of the first file as JSON text, or NULL */
} az_tensor_set;

/* A tensor to be written: names must be unique; data is row-major and of dtype. */
typedef struct {
    const char *name;
    az_dtype dtype;
    int n_dims;
    int64_t shape[AZ_TENSOR_DIMS];
    const void *data;
} az_tensor_out;

/* One file; every check of the format is made. All faults of the file are listed in one message. */
az_err az_store_open_file(az_tensor_set *set, const char *path);
/* A Hugging Face model directory: model.safetensors, or model.safetensors.index.json and its files.
 * All faults of all files and of the index are listed in one message. */
az_err az_store_open_model(az_tensor_set *set, const char *dir);
/* Whether the directory has model.safetensors or an index of such files. */
bool az_store_has_model(const char *dir);
/* A set of tensors that are in no file, sorted by name, for arithmetic on sizes: nothing can be
 * read from it. data is not looked at. */
az_err az_store_imply(az_tensor_set *set, const az_tensor_out *tensors, int64_t n);
void az_store_close(az_tensor_set *set);
/* NULL if there is none. Aliases are found too. */
const az_tensor *az_store_find(const az_tensor_set *set, const char *name);
/* Append a tensor's shape, "[2, 3]". */
az_err az_store_add_shape(az_str *out, const az_tensor *tensor);
/* bytes bytes of a tensor, from its byte start on. Opens the file at each call unless it is the one
 * of *io_fd / *io_file (start with -1, -1; close *io_fd at the end). */
az_err az_store_read(void *buffer, const az_tensor_set *set, const az_tensor *tensor, int64_t start,
                     int64_t bytes, int *io_fd, int *io_file);
/* The set as bytes, and back. */
az_err az_store_pack(az_str *out, const az_tensor_set *set);
az_err az_store_unpack(az_tensor_set *set, const void *bytes, size_t n);

/* Write atomically; header padded to 8 bytes, "__metadata__": {"format": "pt"}; read back and
 * checked. */
az_err az_store_write(const char *path, const az_tensor_out *tensors, int64_t n);

#endif
