/* order: see order.h. A process that is killed does not lose what it has given to the kernel, so no
 * test that kills processes shows whether a file was synced before it was renamed; the order of the
 * calls does. Each line of the log ORDER_LOG is
 *
 *   RANK begin|end CALL temporary|final|directory
 *
 * for the calls on ORDER_FILE.tmp, ORDER_FILE and ORDER_FILE's directory. Lines are appended with
 * one write each, so that their order is that of all processes of the node: what has ended before
 * another begins stands before it.
 *
 * ORDER_FAULT="CALL SUFFIX RANK N ERRNO" makes calls fail as order_set_fault does, on one rank.
 *
 * ORDER_STOP="PATTERN RANK N MICROSECONDS" and ORDER_MARK: before number N of its calls whose
 * "CALL:PATH" fits the pattern (fnmatch's, with *, @(a|b)) the rank appends the line "CALL PATH" to
 * the file ORDER_MARK and stands still so long, below 0 for ever, so that somebody may kill it
 * there. A rank that comes to its end first appends "none NUMBER": so many calls fitted. */
#define _GNU_SOURCE
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/tools/order.h"

static int log_fd = -1, fault_error;
static char file[4096], temporary[4104], directory[4096], rank[16] = "0";
static char fault_call[20], fault_suffix[200];
static long fault_n, count, stop_n, stop_us, stop_count;
static char stop_pattern[4096], mark[4096];

void order_set_fault(const char *call, const char *suffix, long n, int error)
{
    fault_call[0] = '\0';
    count = 0;
    if (call == NULL)
        return;
    snprintf(fault_suffix, sizeof fault_suffix, "%s", suffix);
    fault_n = n;
    fault_error = error;
    snprintf(fault_call, sizeof fault_call, "%s", call);
}

long order_get_count(void)
{
    return count;
}

static int open_raw(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666);
}

__attribute__((constructor)) static void start(void)
{
    const char *log = getenv("ORDER_LOG"), *path = getenv("ORDER_FILE"),
               *fault = getenv("ORDER_FAULT"), *mine = getenv("PMI_RANK");
    char call[20], suffix[200];
    int on, error;
    long n;
    if (mine != NULL)
        snprintf(rank, sizeof rank, "%s", mine);
    if (log != NULL && path != NULL) {
        snprintf(file, sizeof file, "%s", path);
        snprintf(temporary, sizeof temporary, "%s.tmp", file);
        snprintf(directory, sizeof directory, "%s", file);
        char *slash = strrchr(directory, '/');
        if (slash != NULL)
            *slash = '\0';
        log_fd = open_raw(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
    }
    if (fault != NULL &&
        sscanf(fault, "%19s %199s %d %ld %d", call, suffix, &on, &n, &error) == 5 &&
        on == atoi(rank))
        order_set_fault(call, suffix, n, error);
    const char *halt = getenv("ORDER_STOP"), *path_of_mark = getenv("ORDER_MARK");
    if (halt == NULL || path_of_mark == NULL || mine == NULL ||
        sscanf(halt, "%4000s %d %ld %ld", stop_pattern, &on, &stop_n, &stop_us) != 4 ||
        on != atoi(rank))
        stop_pattern[0] = '\0';
    else
        snprintf(mark, sizeof mark, "%s", path_of_mark);
}

static void append_mark(const char *line, int n)
{
    const int fd = open_raw(mark, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_write, fd, line, (size_t)n) != n)
        _exit(99);
    syscall(SYS_close, fd);
}

__attribute__((destructor)) static void finish(void)
{
    char line[40];
    if (stop_pattern[0] != '\0' && stop_count <= stop_n)
        append_mark(line, snprintf(line, sizeof line, "none %ld\n", stop_count));
}

/* Before a call: the moment to stand still. */
static void stand(const char *call, const char *path)
{
    char line[4300];
    if (stop_pattern[0] == '\0')
        return;
    snprintf(line, sizeof line, "%s:%s", call, path);
    if (fnmatch(stop_pattern, line, FNM_EXTMATCH) != 0 || stop_count++ != stop_n)
        return;
    const int e = errno;
    append_mark(line, snprintf(line, sizeof line, "%s %s\n", call, path));
    while (stop_us < 0)
        pause();
    usleep((useconds_t)stop_us);
    errno = e;
}

/* ---- what a call is about */

static const char *name_of(const char *path)
{
    if (strcmp(path, temporary) == 0)
        return "temporary";
    if (strcmp(path, file) == 0)
        return "final";
    return strcmp(path, directory) == 0 ? "directory" : NULL;
}

static const char *path_of(int fd)
{
    static __thread char path[4200];
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = '\0';
    return path;
}

static void record(const char *when, const char *call, const char *path)
{
    char line[100];
    const int e = errno;
    const char *name = log_fd >= 0 ? name_of(path) : NULL;
    if (name != NULL) {
        int n = snprintf(line, sizeof line, "%s %s %s %s\n", rank, when, call, name);
        if (syscall(SYS_write, log_fd, line, (size_t)n) != n)
            _exit(99);
    }
    errno = e;
}

static int ends_in(const char *path, const char *suffix)
{
    const size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

/* Before a call: recorded; whether it is to fail. */
static int enter(const char *call, const char *path)
{
    stand(call, path);
    record("begin", call, path);
    if (strcmp(call, fault_call) != 0 || !ends_in(path, fault_suffix))
        return 0;
    if (count++ < fault_n)
        return 0;
    errno = fault_error;
    return 1;
}

#define WATCHED(fd) \
    ((log_fd >= 0 || fault_call[0] != '\0' || stop_pattern[0] != '\0') && (fd) != log_fd)

/* A call on a file descriptor, in between. */
#define ON_FD(type, call, fd, number, ...)                 \
    do {                                                   \
        if (!WATCHED(fd))                                  \
            return (type)syscall(number, fd, __VA_ARGS__); \
        char path[4200];                                   \
        snprintf(path, sizeof path, "%s", path_of(fd));    \
        if (enter(call, path))                             \
            return -1;                                     \
        type got = (type)syscall(number, fd, __VA_ARGS__); \
        record("end", call, path);                         \
        return got;                                        \
    } while (0)

/* ---- the calls */

ssize_t write(int fd, const void *data, size_t n)
{
    ON_FD(ssize_t, "write", fd, SYS_write, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    ON_FD(ssize_t, "write", fd, SYS_pwrite64, data, n, at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) __attribute__((alias("pwrite")));

ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    ON_FD(ssize_t, "write", fd, SYS_pwritev, parts, n, at, 0L);
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
    ON_FD(ssize_t, "pread", fd, SYS_pread64, data, n, at);
}

ssize_t pread64(int fd, void *data, size_t n, off_t at) __attribute__((alias("pread")));

int ftruncate(int fd, off_t bytes)
{
    ON_FD(int, "ftruncate", fd, SYS_ftruncate, bytes);
}

int ftruncate64(int fd, off_t bytes) __attribute__((alias("ftruncate")));

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    ON_FD(int, "fallocate", fd, SYS_fallocate, mode, at, bytes);
}

int fallocate64(int fd, int mode, off_t at, off_t bytes) __attribute__((alias("fallocate")));

int fsync(int fd)
{
    ON_FD(int, "fsync", fd, SYS_fsync, 0);
}

int fdatasync(int fd)
{
    ON_FD(int, "fsync", fd, SYS_fdatasync, 0);
}

int close(int fd)
{
    if (WATCHED(fd) && enter("close", path_of(fd))) {
        syscall(SYS_close, fd); /* closed all the same, as Linux does */
        errno = fault_error;
        return -1;
    }
    return (int)syscall(SYS_close, fd);
}

int rename(const char *from, const char *to)
{
    if (enter("rename", to))
        return -1;
    int got = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    record("end", "rename", to);
    return got;
}

int unlink(const char *path)
{
    return enter("unlink", path) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    return enter("open", path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
