/* State file. Texts are put together in buffers on the stack; the calendar is worked out here, as
 * gmtime_r takes a lock and may read files. */
#include <config.h>

#include "base/state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Longest reason and name that are written, and room for a whole file. */
#define REASON_MAX 1000
#define NAME_BYTES 256
#define FILE_BYTES 2048

/* Copy a text as one line; one that is too long is cut between characters and ends in "...". */
static void copy_line(char *out, size_t bytes, const char *s)
{
    size_t n = strnlen(s, bytes);
    const bool cut = n == bytes;
    if (cut)
        n = bytes - 4;
    while (cut && n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80) /* within a UTF-8 character */
        n--;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? ' ' : s[i];
    out[n] = '\0';
    if (cut)
        memcpy(out + n, "...", 4);
}

void az_state_format_time(char *out, size_t bytes)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const long long seconds = (long long)now.tv_sec, of_day = seconds % 86400;
    /* Days since 1 March of year 0, in eras of 400 years; a year ends with February. */
    const long long days = seconds / 86400 + 719468, era = days / 146097, d = days % 146097;
    const long long y = (d - d / 1460 + d / 36524 - d / 146096) / 365;
    const long long of_year = d - (365 * y + y / 4 - y / 100), m = (5 * of_year + 2) / 153;
    const long long month = m < 10 ? m + 3 : m - 9, year = era * 400 + y + (month <= 2);
    snprintf(out, bytes, "%04lld-%02lld-%02lldT%02lld:%02lld:%02lldZ", year, month,
             of_year - (153 * m + 2) / 5 + 1, of_day / 3600, of_day / 60 % 60, of_day % 60);
}

static size_t format_state(char *out, size_t bytes, const az_state *s)
{
    char reason[REASON_MAX], checkpoint[NAME_BYTES], job[NAME_BYTES], host[NAME_BYTES], when[32];
    const char *slurm = getenv("SLURM_JOB_ID");
    copy_line(reason, sizeof reason, s->reason);
    copy_line(checkpoint, sizeof checkpoint, s->checkpoint);
    copy_line(job, sizeof job, slurm != NULL ? slurm : "");
    if (gethostname(host, sizeof host) != 0)
        strcpy(host, "?");
    host[sizeof host - 1] = '\0';
    az_state_format_time(when, sizeof when);
    return (size_t)snprintf(out, bytes,
                            "state: %.20s\nreason: %s\ncode: %d\nstep: %lld\ntotal_steps: %lld\n"
                            "checkpoint: %s\nhost: %s\njob: %s\ntime: %s\n",
                            s->state, reason, s->code, (long long)s->step,
                            (long long)s->total_steps, checkpoint, host, job, when);
}

/* DIR/NAME; 0, or ENAMETOOLONG. */
static int join(char out[PATH_MAX], const char *dir, const char *name)
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    return n >= 0 && n < PATH_MAX ? 0 : ENAMETOOLONG;
}

/* A new file with this text, on the disk. 0, or an errno. */
static int write_synced(const char *path, const char *text, size_t bytes)
{
    int e = 0;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno;
    while (bytes > 0 && e == 0) {
        const ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno != EINTR)
            e = errno;
        if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
    if (e == 0 && fsync(fd) != 0 && errno != EINVAL)
        e = errno;
    if (close(fd) != 0 && e == 0)
        e = errno;
    return e;
}

/* The same into a file that is there: on a disk that is full its block still takes it. A reader
 * sees the old text or the new one, as it is written at once. */
static int overwrite(const char *path, const char *text, size_t bytes)
{
    int e = 0;
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    errno = 0;
    if (pwrite(fd, text, bytes, 0) != (ssize_t)bytes || ftruncate(fd, (off_t)bytes) != 0 ||
        (fsync(fd) != 0 && errno != EINVAL))
        e = errno != 0 ? errno : ENOSPC;
    close(fd);
    return e;
}

static int sync_dir(const char *dir)
{
    int e = 0;
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    if (fsync(fd) != 0 && errno != EINVAL)
        e = errno;
    close(fd);
    return e;
}

/* Replace DIR/state in one move. 0, or an errno. */
static int put_state(const char *dir, const az_state *state)
{
    char text[FILE_BYTES], name[NAME_BYTES], host[65] = "", tmp[PATH_MAX], path[PATH_MAX];
    const size_t n = format_state(text, sizeof text, state);
    /* A name that no other thread, process or node takes at the same time. */
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    snprintf(name, sizeof name, "state.tmp-%s-%ld", host, (long)syscall(SYS_gettid));
    int e = join(path, dir, "state");
    if (e == 0)
        e = join(tmp, dir, name);
    if (e != 0)
        return e;
    e = write_synced(tmp, text, n);
    if (e == 0 && rename(tmp, path) != 0)
        e = errno;
    if (e != 0) {
        unlink(tmp);
        return overwrite(path, text, n) == 0 ? 0 : e;
    }
    return sync_dir(dir);
}

az_err az_state_write(const char *dir, const az_state *state)
{
    const int e = put_state(dir, state);
    return e == 0 ? AZ_OK : az_fail(AZ_EENV, "%s/state: cannot write: %s", dir, strerror(e));
}

/* The file's text, "" if there is none. */
static void read_text(char *out, size_t bytes, const char *dir)
{
    char path[PATH_MAX];
    size_t n = 0;
    int fd = -1;
    if (join(path, dir, "state") == 0)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n < bytes - 1) {
        const ssize_t got = read(fd, out + n, bytes - 1 - n);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        n += got > 0 ? (size_t)got : 0;
    }
    out[n] = '\0';
    if (fd >= 0)
        close(fd);
}

/* What follows "\nkey: " in a text, to the end of the line; "" if it is not there. */
static void get_value(char *out, size_t bytes, const char *text, const char *key)
{
    const char *at = strstr(text, key);
    size_t n = 0;
    if (at != NULL) {
        at += strlen(key);
        n = strcspn(at, "\n");
        n = n < bytes ? n : bytes - 1;
        memcpy(out, at, n);
    }
    out[n] = '\0';
}

int az_state_change(const char *dir, const char *state, const char *reason, int code)
{
    char text[FILE_BYTES], step[24], total[24], checkpoint[NAME_BYTES];
    read_text(text, sizeof text, dir);
    get_value(step, sizeof step, text, "\nstep: ");
    get_value(total, sizeof total, text, "\ntotal_steps: ");
    get_value(checkpoint, sizeof checkpoint, text, "\ncheckpoint: ");
    return put_state(dir, &(az_state){.state = state,
                                      .reason = reason,
                                      .code = code,
                                      .step = strtoll(step, NULL, 10),
                                      .total_steps = strtoll(total, NULL, 10),
                                      .checkpoint = checkpoint});
}

bool az_state_exists(const char *dir)
{
    char text[64];
    read_text(text, sizeof text, dir);
    return text[0] != '\0';
}

bool az_state_is(const char *dir, const char *state)
{
    char text[64];
    const size_t n = strlen(state);
    read_text(text, sizeof text, dir);
    return strncmp(text, "state: ", 7) == 0 && strncmp(text + 7, state, n) == 0 &&
           text[7 + n] == '\n';
}
