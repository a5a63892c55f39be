/* Limits: control groups, Slurm, the kernel. */
#include <config.h>

#include "base/limits.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t bytes;
    char source[PATH_MAX + 80];
} limit;

static void lower(limit *l, int64_t bytes, const char *source)
{
    if (bytes < 0 || bytes >= l->bytes)
        return;
    l->bytes = bytes;
    snprintf(l->source, sizeof l->source, "%s", source);
}

/* The first number of a file; -1 without ("max"). */
static int64_t read_number(const char *path)
{
    long long v = -1;
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return -1;
    if (fscanf(f, "%lld", &v) != 1)
        v = -1;
    fclose(f);
    return v;
}

/* A group and all above it: limits of any of them hold. root: where the tree is mounted. */
static void walk_up(limit *l, const char *root, const char *group, const char *file)
{
    char dir[PATH_MAX], path[PATH_MAX + 60], source[PATH_MAX + 80];
    snprintf(dir, sizeof dir, "%s", strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        snprintf(path, sizeof path, "%s%s/%s", root, dir, file);
        snprintf(source, sizeof source, "control group %s", path);
        lower(l, read_number(path), source);
        char *slash = strrchr(dir, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* Lines "0::/group" (v2) and "7:memory:/group" (v1). */
static void look_at_groups(limit *l)
{
    char line[PATH_MAX + 80];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (names[1] == '\0')
            walk_up(l, "/sys/fs/cgroup", group, "memory.max");
        else if (strstr(names + 1, "memory") != NULL)
            walk_up(l, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    }
    if (f != NULL)
        fclose(f);
}

/* A whole number in the environment, above 0; 0 where there is none, or something else. */
static int64_t read_variable(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL)
        return 0;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && v > 0 ? v : 0;
}

/* Slurm counts in MiB; 0 is all of the node. What is more than can be counted is no limit. */
static void look_at_slurm(limit *l)
{
    const int64_t node = read_variable("SLURM_MEM_PER_NODE");
    int64_t each;
    if (node > 0 && node <= INT64_MAX >> 20)
        lower(l, node << 20, "SLURM_MEM_PER_NODE");
    if (!__builtin_mul_overflow(read_variable("SLURM_MEM_PER_CPU"),
                                read_variable("SLURM_CPUS_ON_NODE"), &each) &&
        each > 0 && each <= INT64_MAX >> 20)
        lower(l, each << 20, "SLURM_MEM_PER_CPU");
}

static void look_at_kernel(limit *l)
{
    char line[200];
    long long kib;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            lower(l, (int64_t)kib << 10, "available memory");
    if (f != NULL)
        fclose(f);
}

int64_t az_limits_get_reserve(int64_t bytes)
{
    const int64_t least = (int64_t)128 << 20, most = (int64_t)8 << 30, share = bytes / 20;
    return share < least ? least : share > most ? most : share;
}

int64_t az_limits_get_memory(const char **out_source)
{
    static limit l;
    l = (limit){.bytes = INT64_MAX, .source = "unknown"};
    look_at_kernel(&l);
    look_at_groups(&l);
    look_at_slurm(&l);
    *out_source = l.source;
    return l.bytes;
}
