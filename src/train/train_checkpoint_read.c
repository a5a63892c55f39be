/* train/checkpoint: from a file back to a run. What the file was made with is compared with what
 * this run is, before anything is taken from it. */
#include <config.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kern/kern.h"
#include "train/checkpoint_priv.h"

/* Attributes of a group that must be there; the first that is missing is a failure. */
typedef struct {
    const az_h5_reader *file;
    const char *path, *group;
    az_err err;
} fields;

static const az_h5_attr *find_field(fields *f, const char *name, int type)
{
    const az_h5_attr *a = az_h5_find_attr(f->file, f->group, name);
    if (a != NULL && (int)a->type == type)
        return a;
    if (f->err == AZ_OK)
        f->err = az_fail(AZ_EINPUT, "%s: %s has no attribute %s of the right type", f->path,
                         f->group, name);
    return NULL;
}

static int64_t get_int(fields *f, const char *name)
{
    const az_h5_attr *a = find_field(f, name, AZ_H5_INT);
    return a != NULL ? a->i : 0;
}

static double get_real(fields *f, const char *name)
{
    const az_h5_attr *a = find_field(f, name, AZ_H5_REAL);
    return a != NULL ? a->r : NAN;
}

static const char *get_string(fields *f, const char *name)
{
    const az_h5_attr *a = find_field(f, name, AZ_H5_STRING);
    return a != NULL ? a->s : "";
}

/* A file whose bytes are right may still have been made by hand. */
static bool is_possible(const az_trainer *t, int64_t updates)
{
    return t->step >= 0 && t->tokens >= 0 && t->skipped >= 0 && t->skipped <= t->step &&
           updates == t->step - t->skipped && t->evaluated >= -1 && t->evaluated <= t->step &&
           t->best_step >= -1 && t->best_step <= t->step && t->patience >= 0;
}

/* Whether this is a checkpoint with all that az_checkpoint_read needs besides arrays. */
static az_err read_trainer(az_checkpoint *c, az_trainer *t, const az_h5_reader *file,
                           const char *path)
{
    fields f = {file, path, "/trainer", AZ_OK};
    *t = (az_trainer){.step = get_int(&f, "step"),
                      .tokens = get_int(&f, "tokens"),
                      .skipped = get_int(&f, "skipped"),
                      .loss = get_real(&f, "loss"),
                      .evaluated = get_int(&f, "evaluated_step"),
                      .eval_loss = get_real(&f, "eval_loss"),
                      .best_loss = get_real(&f, "best_loss"),
                      .best_step = get_int(&f, "best_step"),
                      .patience = get_int(&f, "evaluations_without_improvement"),
                      .reference = get_real(&f, "improved_to")};
    const int64_t updates = get_int(&f, "updates");
    if (f.err == AZ_OK && az_h5_get_text(file, "/deck") == NULL)
        f.err = az_fail(AZ_EINPUT, "%s: /deck is missing", path);
    if (f.err == AZ_OK && !is_possible(t, updates))
        f.err = az_fail(AZ_EINPUT,
                        "%s: /trainer holds numbers that no run has: step %lld, tokens %lld, "
                        "skipped %lld, updates %lld, evaluated_step %lld, best_step %lld",
                        path, (long long)t->step, (long long)t->tokens, (long long)t->skipped,
                        (long long)updates, (long long)t->evaluated, (long long)t->best_step);
    if (f.err == AZ_OK)
        az_optim_set_updates(c->optim, updates);
    return f.err;
}

/* Another deck, base, adapter, other samples: refused. Local, the same on all ranks. */
static az_err check_run(const az_checkpoint *c, const az_h5_reader *file, const char *path,
                        int64_t step)
{
    az_err err;
    fields base = {file, path, "/base", AZ_OK}, trainer = {file, path, "/trainer", AZ_OK};
    const az_hex print = az_checkpoint_hex(az_shard_get_fingerprint(c->engine->shard));
    const az_hex data = az_checkpoint_hex(c->data_hash),
                 adapter = az_checkpoint_hex(az_checkpoint_hash_adapter(&c->engine->lora));
    const char *was = get_string(&base, "fingerprint"), *from = get_string(&base, "path");
    const char *data_was = get_string(&trainer, "data");
    const char *adapter_was = get_string(&trainer, "adapter");
    AZ_TRY(az_deck_check_resume(c->deck, az_h5_get_text(file, "/deck"), path));
    AZ_TRY(base.err);
    AZ_TRY(trainer.err);
    if (strcmp(was, print.s) != 0)
        err = az_fail(AZ_EINPUT,
                      "%s was made with another base: fingerprint %s of %s, but model.path: %s "
                      "has %s",
                      path, was, from, c->engine->model_dir, print.s);
    else if (strcmp(adapter_was, adapter.s) != 0)
        err = az_fail(AZ_EINPUT,
                      "%s holds another adapter: its modules, ranks, scales or dropout are not "
                      "those of lora.init_from now",
                      path);
    else if (strcmp(data_was, data.s) != 0)
        err = az_fail(AZ_EINPUT,
                      "%s was made with other samples: hash %s, data.files now give %s (files, "
                      "their order, the tokenizer and the keys of data count)",
                      path, data_was, data.s);
    else if (step > c->total_steps)
        err = az_fail(AZ_EINPUT,
                      "%s is of step %lld, but train.max_steps or train.num_train_epochs now "
                      "end the run at step %lld",
                      path, (long long)step, (long long)c->total_steps);
out:
    return err;
}

/* Losses on another evaluation set are not compared. */
static void check_eval(const az_checkpoint *c, az_trainer *t, const az_h5_reader *file,
                       const char *path)
{
    fields f = {file, path, "/trainer", AZ_OK};
    const az_hex eval = az_checkpoint_hex(c->eval_hash);
    if (strcmp(get_string(&f, "eval_data"), eval.s) == 0)
        return;
    if (t->best_step >= 0)
        az_say(
            "resume    the evaluation set is another one: the best checkpoint is looked for anew");
    t->eval_loss = t->best_loss = t->reference = NAN;
    t->best_step = -1;
    t->patience = 0;
}

/* A checkpoint that does not say it is of a program that knows CPUs alone. */
static const char *find_device(const az_h5_reader *file)
{
    const az_h5_attr *a = az_h5_find_attr(file, "/trainer", "device");
    return a != NULL && a->type == AZ_H5_STRING ? a->s : "CPU, f32";
}

/* Bits depend on these, besides what is fixed. */
static void warn_of_bits(const az_checkpoint *c, const az_h5_reader *file, const char *path)
{
    bool slow;
    az_str what = {0};
    fields f = {file, path, "/trainer", AZ_OK};
    const char *cpu = get_string(&f, "cpu"), *blas = get_string(&f, "blas");
    const char *blas_now = az_kern_blas_describe(&slow);
    const int64_t threads = get_int(&f, "threads"), threads_now = az_kern_set_threads(0);
    char device_now[160];
    az_device_describe(device_now, sizeof device_now, &c->engine->device);
    if (f.err != AZ_OK)
        return;
    const char *device = find_device(file);
    const char *type = strrchr(device, ','), *type_now = strrchr(device_now, ',');
    const bool other = type == NULL || type_now == NULL || strcmp(type, type_now) != 0;
    if (strcmp(device, device_now) != 0)
        az_str_add(&what, "; it computed on %s, now on %s", device, device_now);
    if (strcmp(cpu, az_checkpoint_get_cpu()) != 0)
        az_str_add(&what, "; the CPU was %s, now %s", cpu, az_checkpoint_get_cpu());
    if (strcmp(blas, blas_now) != 0)
        az_str_add(&what, "; the BLAS was %s, now %s", blas, blas_now);
    if (threads != threads_now)
        az_str_add(&what, "; a rank had %lld thread%s, now %lld", (long long)threads,
                   threads == 1 ? "" : "s", (long long)threads_now);
    if (what.len > 0)
        az_warn("%s: the run goes on, but its %s may differ from those of an undisturbed "
                "one%s",
                path, other ? "results" : "last bits", what.s);
    az_str_fini(&what);
}

/* The adapter from an open file. By way of moments that are not needed, so that the adapter is left
 * alone where the file is damaged. */
static az_err read_adapter(az_checkpoint *c, az_h5_reader *file)
{
    az_err err;
    int64_t first, n;
    float *slice = az_params_get_slice(c->engine->params, &first, &n);
    float *found = az_optim_get_exp_avg(c->optim);
    AZ_TRY(az_h5_read_arrays(file, "/adapter", c->arrays, c->n_arrays, found, first, n));
    if (n > 0)
        memcpy(slice, found, (size_t)n * sizeof *slice);
    az_params_share(c->engine->params);
out:
    return err;
}

/* Open a file to go on from. *out_damaged: what is wrong is in its bytes. */
static az_err open_file(az_h5_reader **out_file, const char *path, bool *out_damaged, az_comm *comm)
{
    az_err err;
    int fd = -1;
    int64_t bytes;
    bool damaged = false;
    *out_damaged = false;
    *out_file = NULL;
    err = az_file_size(&bytes, path);
    if (err == AZ_OK)
        err = az_file_open(&fd, path);
    if (fd >= 0)
        close(fd);
    AZ_TRY(az_comm_agree(comm, err));
    err = az_h5_open(out_file, path, comm);
    if (err == AZ_EINPUT) {
        damaged = az_comm_rank(comm) != 0 || !az_h5_is_other_version(path);
        az_comm_bcast(comm, &damaged, sizeof damaged, 0);
        *out_damaged = damaged;
    }
out:
    return err;
}

static az_err check_kind(const az_h5_reader *file, const char *path)
{
    if (strcmp(az_h5_get_kind(file), "checkpoint") == 0)
        return AZ_OK;
    return az_fail(AZ_EINPUT, "%s holds no checkpoint, but: %s", path, az_h5_get_kind(file));
}

az_err az_checkpoint_read(az_checkpoint *c, az_trainer *out_trainer, const char *path,
                          bool *out_damaged)
{
    az_err err;
    az_comm *comm = c->engine->comm;
    az_h5_reader *file = NULL;
    int64_t first, n;
    az_params_get_slice(c->engine->params, &first, &n);
    AZ_TRY(open_file(&file, path, out_damaged, comm));
    *out_damaged = true;
    err = check_kind(file, path);
    if (err == AZ_OK)
        err = read_trainer(c, out_trainer, file, path);
    AZ_TRY(az_comm_agree(comm, err));
    *out_damaged = false;
    err = check_run(c, file, path, out_trainer->step);
    AZ_TRY(az_comm_agree(comm, err));
    *out_damaged = true;
    AZ_TRY(read_adapter(c, file));
    AZ_TRY(az_h5_read_arrays(file, AZ_EXP_AVG, c->arrays, c->n_arrays,
                             az_optim_get_exp_avg(c->optim), first, n));
    AZ_TRY(az_h5_read_arrays(file, AZ_EXP_AVG_SQ, c->arrays, c->n_arrays,
                             az_optim_get_exp_avg_sq(c->optim), first, n));
    az_optim_push(c->optim);
    *out_damaged = false;
    check_eval(c, out_trainer, file, path);
    warn_of_bits(c, file, path);
out:
    az_h5_close(file);
    if (err != AZ_EINPUT)
        *out_damaged = false;
    return err;
}

az_err az_checkpoint_compare(const az_checkpoint *c, const char *path)
{
    az_err err;
    az_comm *comm = c->engine->comm;
    az_h5_reader *file = NULL;
    bool damaged;
    err = open_file(&file, path, &damaged, comm);
    if (err != AZ_OK && damaged) {
        az_err_clear();
        err = AZ_OK;
        goto out;
    }
    AZ_TRY(err);
    if (strcmp(az_h5_get_kind(file), "checkpoint") == 0)
        err = check_run(c, file, path, 0);
    AZ_TRY(az_comm_agree(comm, err));
out:
    az_h5_close(file);
    return err;
}

az_err az_checkpoint_read_adapter(az_checkpoint *c, const char *path)
{
    az_err err;
    az_h5_reader *file = NULL;
    AZ_TRY(az_h5_open(&file, path, c->engine->comm));
    AZ_TRY(read_adapter(c, file));
out:
    az_h5_close(file);
    return err;
}
