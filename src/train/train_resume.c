/* train/saves: from which checkpoint a run goes on. Whatever is not clear is refused: the next
 * saves replace and remove what is in the directory. */
#include <config.h>

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "train/saves_priv.h"

/* The same list on all ranks. Collective. */
static az_err share_steps(const az_saves *s, int64_t **out_steps, int64_t *out_n)
{
    az_err err = AZ_OK;
    const bool root = az_comm_rank(s->comm) == 0;
    *out_steps = NULL;
    *out_n = 0;
    if (root)
        err = az_saves_list(s->dir, out_steps, out_n);
    AZ_TRY(az_comm_agree(s->comm, err));
    az_comm_bcast(s->comm, out_n, sizeof *out_n, 0);
    if (!root)
        err = AZ_NEW(*out_steps, (size_t)*out_n, "checkpoint");
    AZ_TRY(az_comm_agree(s->comm, err));
    az_comm_bcast(s->comm, *out_steps, (size_t)*out_n * sizeof **out_steps, 0);
out:
    return err;
}

/* A checkpoint that has another one's name would be taken for that one. */
static az_err check_name(const char *path, int64_t named, int64_t step)
{
    if (named == step)
        return AZ_OK;
    return az_fail(AZ_EINPUT,
                   "%s: its name says step %lld, but it holds the state after step %lld: give it "
                   "its own name, or remove it",
                   path, (long long)named, (long long)step);
}

/* The newest whole one; damaged ones are named and passed over. */
static az_err resume_newest(az_saves *s, az_trainer *trainer, const int64_t *steps, int64_t n)
{
    az_err err = AZ_OK;
    char name[40], *path = NULL;
    bool damaged = false;
    for (int64_t i = 0; i < n; i++) {
        az_saves_name(name, sizeof name, steps[i]);
        az_free(path);
        path = az_path_join(s->dir, name);
        AZ_TRY(az_comm_agree(s->comm, path != NULL ? AZ_OK : AZ_EENV));
        err = az_checkpoint_read(s->checkpoint, trainer, path, &damaged);
        if (err == AZ_OK)
            err = check_name(path, steps[i], trainer->step);
        if (err == AZ_OK)
            az_saves_remember(s, steps[i]);
        if (err == AZ_OK || !damaged)
            goto out;
        az_warn("not whole, passed over: %s", az_err_message());
        az_err_clear();
    }
    if (n > 0)
        err = az_fail(AZ_EINPUT,
                      "%s: none of its %lld checkpoints is whole; remove them to start anew, or "
                      "give another output.dir",
                      s->dir, (long long)n);
out:
    az_free(path);
    return err;
}

/* Those that are there are removed in time: they must not be another run's. */
static az_err check_others(const az_saves *s, const int64_t *steps, int64_t n)
{
    az_err err = AZ_OK;
    char name[40], *path = NULL;
    az_str where = {0};
    for (int64_t i = 0; i < n; i++) {
        az_saves_name(name, sizeof name, steps[i]);
        az_free(path);
        path = az_path_join(s->dir, name);
        AZ_TRY(az_comm_agree(s->comm, path != NULL ? AZ_OK : AZ_EENV));
        AZ_TRY(az_checkpoint_compare(s->checkpoint, path));
    }
out:
    if (err == AZ_EINPUT &&
        az_str_add(&where, "%s must not hold checkpoints of another run", s->dir) == AZ_OK)
        az_err_place(err, where.s);
    az_str_fini(&where);
    az_free(path);
    return err;
}

/* Whether two names are of one file. Collective. */
static az_err compare_files(bool *out_same, const az_saves *s, const char *path, const char *name)
{
    az_err err;
    struct stat a, b;
    char *there = az_path_join(s->dir, name);
    *out_same = false;
    AZ_TRY(az_comm_agree(s->comm, there != NULL ? AZ_OK : AZ_EENV));
    if (stat(path, &a) == 0 && stat(there, &b) == 0)
        *out_same = a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    az_comm_bcast(s->comm, out_same, sizeof *out_same, 0);
out:
    az_free(there);
    return err;
}

/* A file that the user names; the directory must not hold newer ones, from which a later run would
 * go on, nor another one of this step. */
static az_err resume_file(az_saves *s, az_trainer *trainer, const char *path, const int64_t *steps,
                          int64_t n)
{
    az_err err;
    bool damaged, same = false;
    char name[40] = "";
    AZ_TRY(check_others(s, steps, n));
    AZ_TRY(az_err_place(az_checkpoint_read(s->checkpoint, trainer, path, &damaged),
                        "checkpoint.resume"));
    if (n == 0)
        goto out;
    az_saves_name(name, sizeof name, steps[0]);
    if (steps[0] == trainer->step)
        AZ_TRY(compare_files(&same, s, path, name));
    if (same)
        az_saves_remember(s, steps[0]);
    else if (steps[0] >= trainer->step)
        err = az_fail(AZ_EINPUT,
                      "checkpoint.resume: %s is of step %lld, but %s holds %s, which is %s: "
                      "remove it, or give another output.dir",
                      path, (long long)trainer->step, s->dir, name,
                      steps[0] > trainer->step ? "newer" : "another file");
out:
    return err;
}

/* The best checkpoint of a run that goes on elsewhere may have stayed behind. The one that the run
 * goes on from is written again where it is missing. */
static az_err check_best(az_saves *s, az_trainer *trainer)
{
    az_err err = AZ_OK;
    bool there = false;
    char name[40], *path = NULL;
    if (!s->keep_best || trainer->best_step < 0 || trainer->best_step == trainer->step)
        return AZ_OK;
    az_saves_name(name, sizeof name, trainer->best_step);
    if (az_comm_rank(s->comm) == 0) {
        path = az_path_join(s->dir, name);
        err = path != NULL ? AZ_OK : AZ_EENV;
        there = path != NULL && az_file_exists(path);
    }
    AZ_TRY(az_comm_agree(s->comm, err));
    az_comm_bcast(s->comm, &there, sizeof there, 0);
    if (there)
        goto out;
    if (az_deck_bool(s->deck, "checkpoint.load_best_model_at_end")) {
        err = az_fail(AZ_EINPUT,
                      "%s does not hold %s, the checkpoint with the lowest evaluation loss, which "
                      "checkpoint.load_best_model_at_end needs: put it there, or give false",
                      s->dir, name);
        goto out;
    }
    az_say("resume    %s, which had the lowest evaluation loss, is not there any more: the best "
           "checkpoint is looked for anew",
           name);
    trainer->best_loss = NAN;
    trainer->best_step = -1;
out:
    az_free(path);
    return err;
}

static az_err resume(az_saves *s, az_trainer *trainer, const char *from, const int64_t *steps,
                     int64_t n)
{
    if (strcmp(from, "auto") == 0)
        return resume_newest(s, trainer, steps, n);
    if (strcmp(from, "no") != 0)
        return resume_file(s, trainer, from, steps, n);
    if (n == 0)
        return AZ_OK;
    return az_fail(AZ_EINPUT,
                   "checkpoint.resume is no, but %s holds %lld checkpoint%s of an earlier run: "
                   "remove %s, or give another output.dir",
                   s->dir, (long long)n, n == 1 ? "" : "s", n == 1 ? "it" : "them");
}

az_err az_saves_resume(az_saves *s, az_trainer *trainer)
{
    az_err err;
    az_trainer found = az_trainer_none;
    int64_t *steps = NULL, n = 0;
    const char *from = az_deck_string(s->deck, "checkpoint.resume");
    const bool newest = strcmp(from, "auto") == 0;
    AZ_TRY(share_steps(s, &steps, &n));
    AZ_TRY(resume(s, &found, from, steps, n));
    if (strcmp(from, "no") == 0 || (newest && n == 0))
        goto out;
    AZ_TRY(check_best(s, &found));
    *trainer = found;
    az_say("resume    %s%s%s: goes on after step %lld of %lld", newest ? s->dir : from,
           newest ? "/" : "", newest ? s->last_name : "", (long long)found.step,
           (long long)s->checkpoint->total_steps);
out:
    az_free(steps);
    return err;
}
