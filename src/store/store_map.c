/* The files of a set as memory. */
#include <config.h>

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/map.h"

typedef struct {
    int fd; /* stays open: the file that was mapped, whatever its name leads to later */
    char *memory;
    size_t bytes;
    struct timespec changed;
} mapped;

struct az_store_map {
    const az_tensor_set *set;
    mapped *files; /* [set->n_files] */
};

static int64_t end_of(const az_tensor_set *set, int file)
{
    int64_t end = 0;
    for (int64_t i = 0; i < set->n_tensors; i++)
        if (set->tensors[i].file == file)
            end = az_max_i64(end, set->tensors[i].offset + set->tensors[i].bytes);
    return end;
}

static az_err map_file(mapped *m, const char *path, int64_t end, const char *key)
{
    az_err err;
    struct stat st;
    az_str message = {0};
    AZ_TRY(az_file_open(&m->fd, path));
    if (fstat(m->fd, &st) != 0) {
        err = az_fail(AZ_EENV, "%s: cannot read: %s", path, strerror(errno));
        goto out;
    }
    if (st.st_size < end) {
        err = az_fail(AZ_EINPUT, "%s: truncated: the header says %lld bytes, the file has %lld",
                      path, (long long)end, (long long)st.st_size);
        goto out;
    }
    m->bytes = (size_t)st.st_size;
    m->changed = st.st_mtim;
    if (m->bytes == 0)
        goto out;
    m->memory = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, m->fd, 0);
    if (m->memory == MAP_FAILED) {
        m->memory = NULL;
        err = az_fail(AZ_EENV, "%s: cannot be mapped (%s): %s", path, key, strerror(errno));
        goto out;
    }
    AZ_TRY(az_str_add(&message,
                      "%s: cannot be read any more: the file was cut or its disk fails, while it "
                      "is in use in place (%s)",
                      path, key));
    err = az_bus_add(m->memory, m->bytes, message.s);
out:
    az_str_fini(&message);
    return err;
}

az_err az_store_map_create(az_store_map **out_map, const az_tensor_set *set, const char *key)
{
    az_err err;
    az_store_map *map = NULL;
    *out_map = NULL;
    AZ_TRY(AZ_NEW(map, 1, "tensor names"));
    map->set = set;
    AZ_TRY(AZ_NEW(map->files, (size_t)set->n_files, "tensor names"));
    for (int i = 0; i < set->n_files; i++)
        map->files[i].fd = -1;
    for (int i = 0; i < set->n_files; i++)
        AZ_TRY(map_file(&map->files[i], set->files[i], end_of(set, i), key));
    *out_map = map;
    map = NULL;
out:
    az_store_map_destroy(map);
    return err;
}

const char *az_store_map_get(const az_store_map *map, const az_tensor *tensor)
{
    return map->files[tensor->file].memory + tensor->offset;
}

bool az_store_is_aligned(const az_tensor *tensor)
{
    return tensor->offset % (int64_t)az_dtype_bytes((az_dtype)tensor->dtype) == 0;
}

az_err az_store_map_check(const az_store_map *map)
{
    struct stat st;
    for (int i = 0; i < map->set->n_files; i++) {
        const mapped *m = &map->files[i];
        if (fstat(m->fd, &st) == 0 && (size_t)st.st_size == m->bytes &&
            st.st_mtim.tv_sec == m->changed.tv_sec && st.st_mtim.tv_nsec == m->changed.tv_nsec)
            continue;
        return az_fail(AZ_EENV,
                       "%s: was written to while it was in use in place: what was computed since "
                       "then is of no model",
                       map->set->files[i]);
    }
    return AZ_OK;
}

void az_store_map_destroy(az_store_map *opt_map)
{
    if (opt_map == NULL)
        return;
    for (int i = 0; opt_map->files != NULL && i < opt_map->set->n_files; i++) {
        const mapped *m = &opt_map->files[i];
        if (m->memory != NULL) {
            az_bus_remove(m->memory);
            munmap(m->memory, m->bytes);
        }
        if (m->fd >= 0)
            close(m->fd);
    }
    az_free(opt_map->files);
    az_free(opt_map);
}
