/* train/outdir: what killed runs left half written, and what is in the way of a new one.
 *
 * A file is written under a temporary name beside its place; a job that is killed meanwhile leaves
 * it. Only names that adze makes are touched: the directory may hold other things. */
#include <config.h>

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/holder.h"
#include "train/outdir.h"

/* Whose temporary names are looked for; "*" stands for digits. */
static const char *const names[] = {"checkpoint-*.h5", "trial.h5", "adapter.h5",
                                    "run.yaml",        "state",    "metrics.jsonl"};

static bool is_number(const char *s)
{
    return *s != '\0' && s[strspn(s, "0123456789")] == '\0';
}

/* One of names, in the first n bytes of s. */
static bool is_known(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t head = strcspn(names[i], "*"), all = strlen(names[i]);
        if (head == all) {
            if (n == all && memcmp(s, names[i], n) == 0)
                return true;
            continue;
        }
        const size_t tail = all - head - 1;
        if (n > head + tail && memcmp(s, names[i], head) == 0 &&
            memcmp(s + n - tail, names[i] + head + 1, tail) == 0 &&
            strspn(s + head, "0123456789") >= n - tail - head)
            return true;
    }
    return false;
}

/* NAME.h5.tmp, NAME.tmp-PID, NAME.tmp-HOST-ID. */
static bool is_leftover(const char *name)
{
    const size_t n = strlen(name);
    const char *tmp = strstr(name, ".tmp-"), *last = strrchr(name, '-');
    if (n > 7 && strcmp(name + n - 7, ".h5.tmp") == 0)
        return is_known(name, n - 4);
    return tmp != NULL && last != NULL && is_number(last + 1) &&
           is_known(name, (size_t)(tmp - name));
}

/* DIR/tmp-PID of an adapter that is being written; not that of a process which may be at it. */
static bool is_dead_place(const char *name)
{
    if (strncmp(name, "tmp-", 4) != 0 || !is_number(name + 4))
        return false;
    const long pid = strtol(name + 4, NULL, 10);
    return pid > 0 && pid <= INT_MAX && !az_holder_is_program(pid);
}

static bool is_adapter_file(const char *name)
{
    return strncmp(name, "adapter_model.safetensors", 25) == 0 ||
           strncmp(name, "adapter_config.json", 19) == 0;
}

/* What went: how many, and the first name. */
typedef struct {
    int n;
    char first[NAME_MAX + 1];
} swept;

/* Remove the entries of dir that fit, by remove_one: unlink, or what removes a directory. */
static void sweep(swept *out, const char *dir, bool (*fits)(const char *name),
                  int (*remove_one)(const char *path))
{
    char path[PATH_MAX]; /* no allocation: its failure would have to be told */
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        if (!fits(name) || snprintf(path, sizeof path, "%s/%s", dir, name) >= PATH_MAX)
            continue;
        if (remove_one(path) == 0 && out->n++ == 0)
            snprintf(out->first, sizeof out->first, "%s", name);
    }
    if (d != NULL)
        closedir(d);
}

static int remove_place(const char *path)
{
    swept inside = {0};
    sweep(&inside, path, is_adapter_file, unlink);
    return rmdir(path);
}

void az_outdir_sweep(const char *dir)
{
    swept out = {0};
    char adapter[PATH_MAX];
    sweep(&out, dir, is_leftover, unlink);
    if (snprintf(adapter, sizeof adapter, "%s/adapter", dir) < PATH_MAX)
        sweep(&out, adapter, is_dead_place, remove_place);
    if (out.n == 1)
        az_say("output    removed %s, which a run that was ended had not finished", out.first);
    if (out.n > 1)
        az_say("output    removed %d files that a run which was ended had not finished, e.g. %s",
               out.n, out.first);
}

az_err az_outdir_check(const char *dir)
{
    az_err err = AZ_OK;
    char path[PATH_MAX];
    struct stat st;
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        if ((!is_known(name, strlen(name)) && !is_leftover(name)) ||
            snprintf(path, sizeof path, "%s/%s", dir, name) >= PATH_MAX || stat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode) || S_ISFIFO(st.st_mode)) /* a pipe would be waited for */
            AZ_TRY(az_fail(AZ_EINPUT, "%s: this is a %s, and the run needs a file here", path,
                           S_ISDIR(st.st_mode) ? "directory" : "pipe"));
    }
out:
    if (d != NULL)
        closedir(d);
    return err;
}
