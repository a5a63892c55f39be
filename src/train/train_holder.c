/* train/holder: the text of DIR/lock, and what follows from it. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/holder.h"

/* Copy a text as one line, cut to the room there is. */
static void copy_line(char *out, size_t bytes, const char *s, size_t n)
{
    if (n > bytes - 1)
        n = bytes - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? ' ' : s[i];
    out[n] = '\0';
}

/* The first line of a file of /proc; "" if there is none. */
static void read_line(char *out, size_t bytes, const char *path)
{
    char text[256];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    copy_line(out, bytes, text, strcspn(text, "\n"));
}

void az_holder_set_self(az_holder *self)
{
    char link[64];
    const char *job = getenv("SLURM_JOB_ID"), *restarts = getenv("SLURM_RESTART_COUNT");
    *self = (az_holder){.pid = (long)getpid()};
    if (gethostname(self->host, sizeof self->host - 1) != 0 || self->host[0] == '\0')
        strcpy(self->host, "?");
    copy_line(self->job, sizeof self->job, job != NULL ? job : "", job != NULL ? strlen(job) : 0);
    self->restarts = restarts != NULL ? strtol(restarts, NULL, 10) : 0;
    read_line(self->boot, sizeof self->boot, "/proc/sys/kernel/random/boot_id");
    const ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link);
    copy_line(self->space, sizeof self->space, link, n > 0 ? (size_t)n : 0);
    az_state_format_time(self->time, sizeof self->time);
}

size_t az_holder_write(char *out, const az_holder *h)
{
    return (size_t)snprintf(out, AZ_HOLDER_BYTES,
                            "host: %s\npid: %ld\njob: %s\nrestarts: %ld\nboot: %s\nspace: %s\n"
                            "time: %s\n",
                            h->host, h->pid, h->job, h->restarts, h->boot, h->space, h->time);
}

/* One line "key: value" of the text; other keys are passed over. */
static void parse_line(az_holder *h, const char *line, size_t n)
{
    static const struct {
        const char *key;
        size_t at, bytes; /* bytes 0: a number */
    } fields[] = {
        {"host: ", offsetof(az_holder, host), sizeof h->host},
        {"pid: ", offsetof(az_holder, pid), 0},
        {"job: ", offsetof(az_holder, job), sizeof h->job},
        {"restarts: ", offsetof(az_holder, restarts), 0},
        {"boot: ", offsetof(az_holder, boot), sizeof h->boot},
        {"space: ", offsetof(az_holder, space), sizeof h->space},
        {"time: ", offsetof(az_holder, time), sizeof h->time},
    };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        const size_t key = strlen(fields[f].key);
        if (n < key || memcmp(line, fields[f].key, key) != 0)
            continue;
        char *to = (char *)h + fields[f].at, number[24], *end;
        if (fields[f].bytes > 0) {
            copy_line(to, fields[f].bytes, line + key, n - key);
            return;
        }
        copy_line(number, sizeof number, line + key, n - key);
        errno = 0;
        const long v = strtol(number, &end, 10);
        *(long *)(void *)to = end > number && *end == '\0' && errno == 0 && v >= 0 ? v : 0;
        return;
    }
}

bool az_holder_parse(az_holder *holder, const char *text, size_t bytes)
{
    const char *line;
    size_t n, at = 0;
    *holder = (az_holder){0};
    while (az_str_next_line(&line, &n, text, bytes, &at))
        parse_line(holder, line, n);
    return holder->host[0] != '\0' && holder->pid > 0 && holder->pid <= INT_MAX;
}

az_err az_holder_add_name(az_str *out, const az_holder *opt_holder)
{
    az_err err;
    const az_holder *h = opt_holder;
    if (h == NULL)
        return az_str_add(out, "another process");
    if (h->job[0] != '\0')
        AZ_TRY(az_str_add(out, "job %s", h->job));
    else
        AZ_TRY(az_str_add(out, "a process"));
    AZ_TRY(az_str_add(out, " on %s (pid %ld)", h->host, h->pid));
    if (h->time[0] != '\0')
        AZ_TRY(az_str_add(out, " since %s", h->time));
out:
    return err;
}

/* Under one kernel all see the same locks. Without a number of the boot the name must do. */
static bool is_same_kernel(const az_holder *a, const az_holder *b)
{
    return a->boot[0] != '\0' && b->boot[0] != '\0' ? strcmp(a->boot, b->boot) == 0
                                                    : strcmp(a->host, b->host) == 0;
}

/* What /proc/PID/stat begins with: "PID (NAME) STATE". '\0' if it does not tell. */
static char read_process(char *name, size_t bytes, long pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_line(line, sizeof line, path);
    const char *begin = strchr(line, '('), *end = strrchr(line, ')');
    if (begin == NULL || end == NULL || end[1] != ' ')
        return '\0';
    copy_line(name, bytes, begin + 1, (size_t)(end - begin - 1));
    return end[2];
}

/* One that has ended stays listed until its parent asks for it, in some containers for ever. */
static bool has_ended(long pid)
{
    char name[64];
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    const char state = read_process(name, sizeof name, pid);
    return state == 'Z' || state == 'X';
}

bool az_holder_is_program(long pid)
{
    char name[64], own[64];
    if (has_ended(pid))
        return false;
    return read_process(name, sizeof name, pid) == '\0' ||
           read_process(own, sizeof own, (long)getpid()) == '\0' || strcmp(name, own) == 0;
}

bool az_holder_is_dead(const az_holder *holder, const az_holder *self)
{
    return is_same_kernel(holder, self) && strcmp(holder->space, self->space) == 0 &&
           has_ended(holder->pid);
}

az_verdict az_holder_judge(const az_holder *opt_holder, const az_holder *self, az_lock lock,
                           bool dead)
{
    const az_holder *h = opt_holder;
    /* An earlier run of the same job: Slurm starts a job anew when it holds it for ended. */
    const bool earlier = h != NULL && h->job[0] != '\0' && strcmp(h->job, self->job) == 0 &&
                         h->restarts < self->restarts;
    if (lock == AZ_LOCK_TAKEN) /* that of a lost node may stay for long */
        return earlier ? AZ_HOLDER_UNSURE : AZ_HOLDER_THERE;
    if (h == NULL)
        return AZ_HOLDER_UNSURE;
    if (earlier || (lock == AZ_LOCK_OURS ? is_same_kernel(h, self) : dead))
        return AZ_HOLDER_GONE;
    return AZ_HOLDER_UNSURE;
}
