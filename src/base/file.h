/* Files: whole reads, ranged reads, atomic writes, paths. Local. Failures name the path and the
 * reason. */
#ifndef AZ_BASE_FILE_H
#define AZ_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The whole file, zero-terminated; *out_bytes does not count the terminator. Free with az_free. */
az_err az_file_read(char **out_data, size_t *out_bytes, const char *path);
/* The size of a regular file. */
az_err az_file_size(int64_t *out_bytes, const char *path);
bool az_file_exists(const char *path);
bool az_dir_exists(const char *path);
/* Open for reading; *out_fd is closed with close(). */
az_err az_file_open(int *out_fd, const char *path);
/* Exactly bytes bytes at offset; a short file is a failure that names the path. */
az_err az_file_read_at(int fd, void *buffer, size_t bytes, int64_t offset, const char *path);
/* Write under a temporary name in the same directory, sync, rename. A link stays one, its target is
 * replaced; what is no file (a device, a pipe) is written into. */
az_err az_file_write_atomic(const char *path, const void *data, size_t bytes);
/* Its two halves, for a caller that checks the file in between. Parts are written one after the
 * other and synced; after a failure the file is removed. The rename syncs the directory. */
typedef struct {
    const void *data;
    size_t bytes;
} az_part;
az_err az_file_write_parts(const char *path, const az_part *parts, int64_t n);
az_err az_file_rename(const char *from, const char *to);
/* Make a directory and its parents; one that exists is fine. */
az_err az_dir_create(const char *path);
/* Whether files of so many bytes can be made in a directory, as far as that can be known. */
az_err az_dir_check_room(const char *path, int64_t bytes);
/* "dir/name", or name itself if it is absolute or dir is "". Free with az_free; NULL after a
 * failure. */
char *az_path_join(const char *dir, const char *name);
/* The directory part of a path, "." if there is none. Free with az_free; NULL after a failure. */
char *az_path_dir(const char *path);

#endif
