/* Files: whole reads, ranged reads, atomic writes, paths. */
#include <config.h>

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

/* The environment's failures and the user's: a missing file can be mended by the user. */
static az_err fail_errno(const char *doing, const char *path)
{
    int e = errno;
    az_err code = e == ENOENT || e == ENOTDIR || e == EISDIR || e == EACCES || e == EEXIST ||
                          e == ENAMETOOLONG || e == ELOOP
                      ? AZ_EINPUT
                      : AZ_EENV;
    return az_fail(code, "%s: cannot %s: %s", path, doing, strerror(e));
}

az_err az_file_open(int *out_fd, const char *path)
{
    *out_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is not waited for */
    if (*out_fd < 0)
        return fail_errno("open", path);
    struct stat st;
    if (fstat(*out_fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        close(*out_fd);
        *out_fd = -1;
        errno = EISDIR;
        return fail_errno("read", path);
    }
    return AZ_OK;
}

az_err az_file_size(int64_t *out_bytes, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return fail_errno("open", path);
    if (!S_ISREG(st.st_mode))
        return az_fail(AZ_EINPUT, "%s: not a regular file", path);
    *out_bytes = st.st_size;
    return AZ_OK;
}

bool az_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool az_dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

az_err az_file_read_at(int fd, void *buffer, size_t bytes, int64_t offset, const char *path)
{
    char *p = buffer;
    size_t done = 0;
    while (done < bytes) {
        size_t want = bytes - done > ((size_t)1 << 30) ? (size_t)1 << 30 : bytes - done;
        ssize_t n = pread(fd, p + done, want, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("read", path);
        if (n == 0)
            return az_fail(AZ_EINPUT,
                           "%s: the file ends at byte %lld, %zu bytes at %lld were expected", path,
                           (long long)(offset + (int64_t)done), bytes, (long long)offset);
        done += (size_t)n;
    }
    return AZ_OK;
}

az_err az_file_read(char **out_data, size_t *out_bytes, const char *path)
{
    az_err err;
    int fd = -1;
    int64_t size = 0;
    *out_data = NULL;
    AZ_TRY(az_file_size(&size, path));
    AZ_TRY(az_file_open(&fd, path));
    AZ_TRY(AZ_NEW(*out_data, (size_t)size + 1, "file text"));
    AZ_TRY(az_file_read_at(fd, *out_data, (size_t)size, 0, path));
    *out_bytes = (size_t)size;
out:
    if (fd >= 0)
        close(fd);
    if (err != AZ_OK) {
        az_free(*out_data);
        *out_data = NULL;
    }
    return err;
}

static az_err write_all(int fd, const char *data, size_t bytes, const char *path)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes > ((size_t)1 << 30) ? (size_t)1 << 30 : bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("write", path);
        data += n;
        bytes -= (size_t)n;
    }
    return AZ_OK;
}

static az_err sync_dir(const char *dir)
{
    az_err err = AZ_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        err = fail_errno("sync", dir);
    if (fd >= 0)
        close(fd);
    return err;
}

az_err az_file_write_parts(const char *path, const az_part *parts, int64_t n)
{
    az_err err = AZ_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno("write", path);
    for (int64_t i = 0; i < n; i++)
        AZ_TRY(write_all(fd, parts[i].data, parts[i].bytes, path));
    if (fsync(fd) != 0 && errno != EINVAL) {
        err = fail_errno("sync", path);
        goto out;
    }
    int closed = close(fd);
    fd = -1;
    if (closed != 0)
        err = fail_errno("close", path);
out:
    if (fd >= 0)
        close(fd);
    if (err != AZ_OK)
        unlink(path);
    return err;
}

az_err az_file_rename(const char *from, const char *to)
{
    char dir[PATH_MAX] = "."; /* no allocation, which could fail when the work is done */
    const char *slash = strrchr(to, '/');
    if (rename(from, to) != 0)
        return fail_errno("rename a temporary file to", to);
    if (slash != NULL)
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - to) + 1, to);
    return sync_dir(dir);
}

/* Into what is no file: a device, a pipe. */
static az_err write_into(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno("write", path);
    az_err err = write_all(fd, data, bytes, path);
    if (close(fd) != 0 && err == AZ_OK)
        err = fail_errno("close", path);
    return err;
}

az_err az_file_write_atomic(const char *path, const void *data, size_t bytes)
{
    az_err err;
    az_str tmp = {0};
    char target[PATH_MAX];
    struct stat st;
    const bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return write_into(path, data, bytes); /* a rename would put a file in its place */
    if (there && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, target) != NULL)
        path = target; /* so that the link stays one */
    AZ_TRY(az_str_add(&tmp, "%s.tmp-%ld", path, (long)getpid()));
    AZ_TRY(az_file_write_parts(tmp.s, &(az_part){data, bytes}, 1));
    err = az_file_rename(tmp.s, path);
    if (err != AZ_OK)
        unlink(tmp.s);
out:
    az_str_fini(&tmp);
    return err;
}

az_err az_dir_create(const char *path)
{
    az_err err = AZ_OK;
    char *p = az_strdup(path, "text");
    if (p == NULL)
        return AZ_EENV;
    for (char *s = p + (p[0] != '\0');; s++) {
        char c = *s;
        if (c != '/' && c != '\0')
            continue;
        *s = '\0';
        if (mkdir(p, 0777) != 0 && !(errno == EEXIST && az_dir_exists(p))) {
            err = fail_errno("create directory", p);
            break;
        }
        *s = c;
        if (c == '\0')
            break;
    }
    az_free(p);
    return err;
}

az_err az_dir_check_room(const char *path, int64_t bytes)
{
    struct statvfs fs;
    if (access(path, W_OK | X_OK) != 0)
        return fail_errno("write in directory", path);
    if (statvfs(path, &fs) != 0 || fs.f_blocks == 0) /* some file systems do not tell */
        return AZ_OK;
    const double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (free_bytes < (double)bytes)
        return az_fail(AZ_EENV, "%s: %s are free on this file system, %s are needed", path,
                       az_format_bytes(free_bytes), az_format_bytes((double)bytes));
    return AZ_OK;
}

char *az_path_join(const char *dir, const char *name)
{
    az_str s = {0};
    az_err err = name[0] == '/' || dir[0] == '\0' ? az_str_add(&s, "%s", name)
                                                  : az_str_add(&s, "%s/%s", dir, name);
    if (err != AZ_OK)
        az_str_fini(&s);
    return s.s;
}

char *az_path_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return az_strdup(".", "text");
    char *dir = az_strdup(path, "text");
    if (dir != NULL)
        dir[slash == path ? 1 : slash - path] = '\0';
    return dir;
}
