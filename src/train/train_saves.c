/* train/saves: the checkpoints of an output directory. */
#include <config.h>

#include "train/saves_priv.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch.h"

/* What a file system that nothing is known of is trusted to take, in bytes a second. */
#define SLOW_DISK 50e6

void az_saves_init(az_saves *s, az_checkpoint *checkpoint, const char *dir)
{
    const az_deck *d = checkpoint->deck;
    *s = (az_saves){.checkpoint = checkpoint,
                    .deck = d,
                    .comm = checkpoint->engine->comm,
                    .dir = dir,
                    .every_s = 60 * az_deck_real(d, "checkpoint.save_minutes"),
                    .keep = az_deck_int(d, "checkpoint.save_total_limit"),
                    .keep_best = az_deck_bool(d, "checkpoint.keep_best"),
                    .last_step = -1,
                    .last_s = az_now()};
    if (az_deck_has(d, "checkpoint.save_steps"))
        s->every_steps = az_deck_int(d, "checkpoint.save_steps");
    s->stop_on_error = strcmp(az_deck_string(d, "checkpoint.on_error"), "stop") == 0;
}

double az_saves_estimate(const az_saves *s)
{
    return s->n_saves > 0 ? s->longest_s
                          : (double)az_checkpoint_get_bytes(s->checkpoint) / SLOW_DISK;
}

/* ---- names ---- */

void az_saves_name(char *name, size_t size, int64_t step)
{
    snprintf(name, size, "checkpoint-%06" PRId64 ".h5", step);
}

/* The step in a name, -1 if it is not that of a checkpoint. */
static int64_t step_of(const char *name)
{
    char again[40], *end;
    if (strncmp(name, "checkpoint-", 11) != 0)
        return -1;
    const long long step = strtoll(name + 11, &end, 10);
    az_saves_name(again, sizeof again, step);
    return step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

az_err az_saves_list(const char *dir, int64_t **out_steps, int64_t *out_n)
{
    az_err err = AZ_OK;
    int64_t n = 0, room = 0, *steps = NULL;
    DIR *d = opendir(dir);
    *out_steps = NULL;
    *out_n = 0;
    if (d == NULL)
        return az_fail(AZ_EENV, "%s: cannot list: %s", dir, strerror(errno));
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const int64_t step = step_of(e->d_name);
        if (step < 0)
            continue;
        if (n == room) {
            room = 2 * room + 16;
            AZ_TRY(AZ_GROW(steps, (size_t)room, "checkpoint"));
        }
        steps[n++] = step;
    }
    if (n > 1)
        qsort(steps, (size_t)n, sizeof *steps, newest_first);
    *out_steps = steps;
    *out_n = n;
out:
    closedir(d);
    if (err != AZ_OK)
        az_free(steps);
    return err;
}

void az_saves_remember(az_saves *s, int64_t step)
{
    s->last_step = step;
    az_saves_name(s->last_name, sizeof s->last_name, step);
}

az_err az_saves_load_adapter(az_saves *s, int64_t step)
{
    az_err err;
    char name[40];
    az_saves_name(name, sizeof name, step);
    char *path = az_path_join(s->dir, name);
    AZ_TRY(az_comm_agree(s->comm, path != NULL ? AZ_OK : AZ_EENV));
    AZ_TRY(az_checkpoint_read_adapter(s->checkpoint, path));
out:
    az_free(path);
    return err;
}

/* ---- saving ---- */

bool az_saves_is_due(az_saves *s, const az_trainer *trainer)
{
    if (s->every_steps > 0 && trainer->step % s->every_steps == 0)
        return true;
    int64_t due = s->every_s > 0 && az_now() - s->last_s >= s->every_s;
    if (s->every_s > 0)
        az_comm_bcast(s->comm, &due, sizeof due, 0);
    return due != 0;
}

static void say_save(const char *path, const az_h5_times *t, double seconds)
{
    az_say("saved     %s: %s in %.2f s (structure %.2f, data %.2f, sync %.2f, rename %.2f), %.2f "
           "GB/s",
           path, az_format_bytes((double)t->bytes), seconds, t->create_s, t->write_s, t->sync_s,
           t->rename_s, (double)t->bytes / fmax(seconds, 1e-9) * 1e-9);
}

/* What a failure means for the run. */
static az_err judge(az_saves *s, az_err err)
{
    if (err == AZ_OK || s->stop_on_error)
        return err;
    s->n_failed++;
    az_warn("no checkpoint: %s; the run goes on%s%s", az_err_message(),
            s->last_name[0] != '\0' ? ", the last good one is " : "", s->last_name);
    az_err_clear();
    return AZ_OK;
}

az_err az_saves_write(az_saves *s, const az_trainer *trainer)
{
    az_err err;
    az_h5_times times;
    char name[40], *path = NULL;
    const double begin = az_now();
    if (trainer->step == s->last_step)
        return AZ_OK;
    az_watch_enter(s->comm, AZ_PHASE_SAVE, trainer->step);
    az_saves_name(name, sizeof name, trainer->step);
    path = az_path_join(s->dir, name);
    AZ_TRY(az_comm_agree(s->comm, path != NULL ? AZ_OK : AZ_EENV));
    err = az_checkpoint_write(s->checkpoint, trainer, path, &times);
    s->last_s = az_now();
    if (err == AZ_OK) {
        const double seconds = s->last_s - begin;
        az_saves_remember(s, trainer->step);
        s->longest_s = fmax(s->longest_s, seconds);
        s->n_saves++;
        say_save(path, &times, seconds);
    }
    err = judge(s, err);
out:
    az_free(path);
    return err;
}

void az_saves_remove_old(const az_saves *s, const az_trainer *trainer)
{
    int64_t *steps, n, kept = 0;
    char name[40];
    if (az_comm_rank(s->comm) != 0 || s->last_step != trainer->step)
        return;
    if (az_saves_list(s->dir, &steps, &n) != AZ_OK) {
        az_warn("%s; old checkpoints stay", az_err_message());
        az_err_clear();
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (steps[i] > trainer->step || kept++ < s->keep ||
            (s->keep_best && steps[i] == trainer->best_step))
            continue;
        az_saves_name(name, sizeof name, steps[i]);
        char *path = az_path_join(s->dir, name);
        if (path != NULL && unlink(path) != 0 && errno != ENOENT)
            az_warn("%s: cannot remove: %s", path, strerror(errno));
        az_free(path);
    }
    az_free(steps);
}
