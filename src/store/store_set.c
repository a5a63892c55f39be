/* A set of tensors: its life, look-up, shapes in words, and ranged reads. */
#include <config.h>

#include <stdlib.h>
#include <unistd.h>

#include "store/store_priv.h"

static int compare_names(const void *a, const void *b)
{
    const az_tensor *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c != 0 ? c : (x->file > y->file) - (x->file < y->file);
}

void az_store_sort(az_tensor_set *set)
{
    if (set->n_tensors > 1)
        qsort(set->tensors, (size_t)set->n_tensors, sizeof *set->tensors, compare_names);
}

az_err az_store_add_path(az_tensor_set *set, int *out_file, const char *path)
{
    az_err err;
    AZ_TRY(AZ_GROW(set->files, (size_t)set->n_files + 1, "tensor names"));
    set->files[set->n_files] = az_strdup(path, "tensor names");
    AZ_TRY(set->files[set->n_files] != NULL ? AZ_OK : AZ_EENV);
    *out_file = set->n_files++;
out:
    return err;
}

void az_store_close(az_tensor_set *set)
{
    for (int i = 0; i < set->n_files; i++)
        az_free(set->files[i]);
    for (int64_t i = 0; i < set->n_tensors; i++)
        az_free(set->tensors[i].name);
    az_free(set->files);
    az_free(set->tensors);
    az_free(set->metadata);
    *set = (az_tensor_set){0};
}

az_err az_store_imply(az_tensor_set *set, const az_tensor_out *tensors, int64_t n)
{
    az_err err;
    *set = (az_tensor_set){0};
    AZ_TRY(AZ_NEW(set->tensors, (size_t)n, "tensor names"));
    for (int64_t i = 0; i < n; i++) {
        az_tensor *t = &set->tensors[set->n_tensors++];
        *t = (az_tensor){.dtype = (int)tensors[i].dtype, .n_dims = tensors[i].n_dims, .file = -1};
        strcpy(t->dtype_name, az_dtype_name(tensors[i].dtype));
        memcpy(t->shape, tensors[i].shape, sizeof t->shape);
        t->bytes = (int64_t)az_dtype_bytes(tensors[i].dtype);
        for (int d = 0; d < t->n_dims; d++)
            t->bytes *= t->shape[d];
        t->name = az_strdup(tensors[i].name, "tensor names");
        AZ_TRY(t->name != NULL ? AZ_OK : AZ_EENV);
    }
    az_store_sort(set);
out:
    if (err != AZ_OK)
        az_store_close(set);
    return err;
}

az_err az_store_open_file(az_tensor_set *set, const char *path)
{
    az_err err;
    az_faults faults = {0};
    int file;
    *set = (az_tensor_set){0};
    if (az_dir_exists(path)) {
        err = az_fail(AZ_EINPUT, "%s: is a directory, a safetensors file was expected", path);
        goto out;
    }
    AZ_TRY(az_store_add_path(set, &file, path));
    AZ_TRY(az_store_add_file(set, file, "", &faults));
    AZ_TRY(az_faults_report(&faults, path));
    az_store_sort(set);
out:
    az_faults_fini(&faults);
    if (err != AZ_OK)
        az_store_close(set);
    return err;
}

const az_tensor *az_store_find(const az_tensor_set *set, const char *name)
{
    int64_t lo = 0, hi = set->n_tensors;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, set->tensors[mid].name);
        if (c == 0)
            return &set->tensors[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

az_err az_store_add_shape(az_str *out, const az_tensor *tensor)
{
    az_err err;
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < tensor->n_dims; i++)
        AZ_TRY(az_str_add(out, "%s%lld", i > 0 ? ", " : "", (long long)tensor->shape[i]));
    AZ_TRY(az_str_add(out, "]"));
out:
    return err;
}

az_err az_store_read(void *buffer, const az_tensor_set *set, const az_tensor *tensor, int64_t start,
                     int64_t bytes, int *io_fd, int *io_file)
{
    az_err err = AZ_OK;
    AZ_ASSERT(start >= 0 && bytes >= 0 && start <= tensor->bytes && bytes <= tensor->bytes - start);
    AZ_ASSERT(tensor->file >= 0 && tensor->file < set->n_files);
    if (bytes == 0)
        return AZ_OK;
    const char *path = set->files[tensor->file];
    if (*io_fd < 0 || *io_file != tensor->file) {
        if (*io_fd >= 0)
            close(*io_fd);
        *io_fd = *io_file = -1;
        AZ_TRY(az_file_open(io_fd, path));
        *io_file = tensor->file;
    }
    AZ_TRY(az_file_read_at(*io_fd, buffer, (size_t)bytes, tensor->offset + start, path));
out:
    return err;
}
