/* train/checkpoint: what a run is, to a file and back. */
#include <config.h>

#include "train/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kern/kern.h"

#define EXP_AVG "/optimizer/exp_avg"
#define EXP_AVG_SQ "/optimizer/exp_avg_sq"

const az_trainer az_trainer_none = {.loss = NAN,
                                    .evaluated = -1,
                                    .eval_loss = NAN,
                                    .best_loss = NAN,
                                    .best_step = -1,
                                    .reference = NAN};

az_err az_checkpoint_init(az_checkpoint *c)
{
    az_err err;
    az_peft_config config = {0};
    AZ_TRY(az_lora_list_arrays(&c->arrays, &c->engine->lora));
    c->n_arrays = 2 * c->engine->lora.n_pairs;
    AZ_TRY(az_deck_write(&c->deck_text, c->deck));
    AZ_TRY(az_lora_add_config(&c->peft_text, &c->engine->lora, &c->engine->peft));
    /* What is read back when the adapter is written must not fail then. */
    AZ_TRY(az_peft_parse_config(&config, c->peft_text.s, "adapter_config.json of this run"));
out:
    az_peft_config_fini(&config);
    return az_comm_agree(c->engine->comm, err);
}

void az_checkpoint_fini(az_checkpoint *c)
{
    if (c->engine != NULL)
        az_lora_free_arrays(c->arrays, &c->engine->lora);
    az_str_fini(&c->deck_text);
    az_str_fini(&c->peft_text);
    *c = (az_checkpoint){0};
}

int64_t az_checkpoint_get_bytes(const az_checkpoint *c)
{
    const int64_t elements = c->engine->lora.n_elements, sets = 3, head = 1024;
    return sets * (elements * (int64_t)sizeof(float) + c->n_arrays * head) +
           (int64_t)(c->deck_text.len + c->peft_text.len) +
           16 * (int64_t)az_comm_size(c->engine->comm);
}

/* ---- writing ---- */

/* Which kind of CPU; "unknown" where the system does not say. */
static const char *cpu_name(void)
{
    static char name[128];
    char line[256];
    if (name[0] != '\0')
        return name;
    snprintf(name, sizeof name, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f != NULL)
        fclose(f);
    return name;
}

/* Which modules are adapted, with which ranks, scales and dropout: what a deck with lora.init_from
 * does not say. */
static uint64_t hash_adapter(const az_lora *lora)
{
    uint64_t hash = az_hash64(&lora->dropout, sizeof lora->dropout, 0);
    for (int i = 0; i < lora->n_pairs; i++) {
        const az_pair *p = &lora->pairs[i];
        const char *path = lora->linears[p->linear].path;
        hash = az_hash64(path, strlen(path), hash);
        hash = az_hash64(&p->R, sizeof p->R, hash);
        hash = az_hash64(&p->scale, sizeof p->scale, hash);
    }
    return hash;
}

/* Hexadecimal, as text: attributes are for people. */
typedef struct {
    char s[20];
} hex;

static hex hex_of(uint64_t v)
{
    hex h;
    snprintf(h.s, sizeof h.s, "%016" PRIx64, v);
    return h;
}

static az_err put_trainer(const az_checkpoint *c, const az_trainer *t, az_h5_writer *writer)
{
    bool slow;
    const int64_t per_epoch = c->steps_per_epoch;
    const hex data = hex_of(c->data_hash), eval = hex_of(c->eval_hash);
    const hex adapter = hex_of(hash_adapter(&c->engine->lora));
    const az_h5_attr attrs[] = {
        {"adze", AZ_H5_STRING, .s = PACKAGE_VERSION},
        {"step", AZ_H5_INT, .i = t->step},
        {"total_steps", AZ_H5_INT, .i = c->total_steps},
        {"epoch", AZ_H5_REAL, .r = (double)t->step / (double)per_epoch},
        {"position", AZ_H5_INT, .i = t->step % per_epoch * c->batch_size},
        {"tokens", AZ_H5_INT, .i = t->tokens},
        {"seed", AZ_H5_INT, .i = az_deck_int(c->deck, "train.seed")},
        {"data", AZ_H5_STRING, .s = data.s},
        {"eval_data", AZ_H5_STRING, .s = eval.s},
        {"adapter", AZ_H5_STRING, .s = adapter.s},
        {"updates", AZ_H5_INT, .i = az_optim_get_updates(c->optim)},
        {"skipped", AZ_H5_INT, .i = t->skipped},
        {"loss", AZ_H5_REAL, .r = t->loss},
        {"evaluated_step", AZ_H5_INT, .i = t->evaluated},
        {"eval_loss", AZ_H5_REAL, .r = t->eval_loss},
        {"best_loss", AZ_H5_REAL, .r = t->best_loss},
        {"best_step", AZ_H5_INT, .i = t->best_step},
        {"evaluations_without_improvement", AZ_H5_INT, .i = t->patience},
        {"improved_to", AZ_H5_REAL, .r = t->reference},
        {"ranks", AZ_H5_INT, .i = az_comm_size(c->engine->comm)},
        {"threads", AZ_H5_INT, .i = az_kern_set_threads(0)},
        {"cpu", AZ_H5_STRING, .s = cpu_name()},
        {"blas", AZ_H5_STRING, .s = az_kern_blas_describe(&slow)},
    };
    return az_h5_put_attrs(writer, "/trainer", attrs, sizeof attrs / sizeof *attrs);
}

static az_err put_base(const az_checkpoint *c, az_h5_writer *writer)
{
    const hex print = hex_of(az_shard_get_fingerprint(c->engine->shard));
    const az_h5_attr attrs[] = {
        {"path", AZ_H5_STRING, .s = c->engine->peft.base_model_name_or_path},
        {"fingerprint", AZ_H5_STRING, .s = print.s},
    };
    return az_h5_put_attrs(writer, "/base", attrs, sizeof attrs / sizeof *attrs);
}

/* Which elements of the flat order each rank owns: [ranks, 2], first and number. */
static az_err put_shards(const az_checkpoint *c, az_h5_writer *writer)
{
    az_err err;
    az_comm *comm = c->engine->comm;
    int64_t *table = NULL, mine[2];
    mine[1] = az_optim_get_slice(c->optim, &mine[0]);
    err = AZ_NEW(table, 2 * (size_t)az_comm_size(comm), "checkpoint");
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_allgather(comm, mine, sizeof mine, table);
    AZ_TRY(az_h5_put_table(writer, "/shards", table, az_comm_size(comm), 2));
out:
    az_free(table);
    return err;
}

/* What checkpoints and adapter files have in common. */
static az_err put_common(const az_checkpoint *c, const az_trainer *trainer, az_h5_writer *writer,
                         az_dtype dtype)
{
    az_err err;
    int64_t first;
    const int64_t n = az_optim_get_slice(c->optim, &first);
    AZ_TRY(az_h5_put_arrays(writer, "/adapter", c->arrays, c->n_arrays, dtype,
                            c->engine->flat + first, first, n));
    AZ_TRY(az_h5_put_text(writer, "/adapter_config", c->peft_text.s));
    AZ_TRY(az_h5_put_text(writer, "/deck", c->deck_text.s));
    AZ_TRY(put_trainer(c, trainer, writer));
    AZ_TRY(put_base(c, writer));
out:
    return err;
}

static az_h5_options options_of(const az_deck *deck, const char **hints)
{
    az_h5_options options = {.hints = hints,
                             .n_hints = az_deck_count(deck, "checkpoint.mpiio_hints")};
    for (int i = 0; i < options.n_hints; i++)
        hints[i] = az_deck_item(deck, "checkpoint.mpiio_hints", i);
    if (az_deck_has(deck, "checkpoint.striping_factor"))
        options.striping_factor = az_deck_int(deck, "checkpoint.striping_factor");
    if (az_deck_has(deck, "checkpoint.striping_unit"))
        options.striping_unit = az_deck_int(deck, "checkpoint.striping_unit");
    return options;
}

/* A file for the adapter (out_times NULL) or for all of the run. */
static az_err write_file(const az_checkpoint *c, const az_trainer *trainer, const char *path,
                         az_dtype dtype, az_h5_times *opt_times)
{
    az_err err;
    az_comm *comm = c->engine->comm;
    const bool whole = opt_times != NULL;
    az_h5_times times;
    az_h5_writer *writer = NULL;
    const char **hints = NULL;
    int64_t first, bytes = az_checkpoint_get_bytes(c);
    const int64_t n = az_optim_get_slice(c->optim, &first);
    err = AZ_NEW(hints, (size_t)az_deck_count(c->deck, "checkpoint.mpiio_hints"), "checkpoint");
    AZ_TRY(az_comm_agree(comm, err));
    const az_h5_options options = options_of(c->deck, hints);
    AZ_TRY(az_h5_create(&writer, path, whole ? "checkpoint" : "adapter", whole ? bytes : bytes / 3,
                        &options, comm));
    AZ_TRY(put_common(c, trainer, writer, dtype));
    if (whole) {
        AZ_TRY(az_h5_put_arrays(writer, EXP_AVG, c->arrays, c->n_arrays, AZ_F32,
                                az_optim_get_exp_avg(c->optim), first, n));
        AZ_TRY(az_h5_put_arrays(writer, EXP_AVG_SQ, c->arrays, c->n_arrays, AZ_F32,
                                az_optim_get_exp_avg_sq(c->optim), first, n));
        AZ_TRY(put_shards(c, writer));
    }
    AZ_TRY(az_h5_finish(writer, whole ? opt_times : &times));
out:
    az_h5_destroy(writer);
    az_free(hints);
    return err;
}

az_err az_checkpoint_try(const az_checkpoint *c, const char *dir)
{
    az_err err;
    az_comm *comm = c->engine->comm;
    const az_h5_array array = {"trial", az_comm_size(comm), 1, 0}; /* an element a rank */
    const float own = 0;
    az_h5_writer *writer = NULL;
    const char **hints = NULL;
    char *path = az_path_join(dir, "trial.h5");
    err = path != NULL ? AZ_OK : AZ_EENV;
    if (err == AZ_OK)
        err = AZ_NEW(hints, (size_t)az_deck_count(c->deck, "checkpoint.mpiio_hints"), "checkpoint");
    AZ_TRY(az_comm_agree(comm, err));
    const az_h5_options options = options_of(c->deck, hints);
    AZ_TRY(az_h5_create(&writer, path, "adapter", sizeof own, &options, comm));
    AZ_TRY(az_h5_put_arrays(writer, "/adapter", &array, 1, AZ_F32, &own, az_comm_rank(comm), 1));
out:
    az_h5_destroy(writer);
    az_free(hints);
    az_free(path);
    return err;
}

az_err az_checkpoint_write(const az_checkpoint *c, const az_trainer *trainer, const char *path,
                           az_h5_times *out_times)
{
    return write_file(c, trainer, path, AZ_F32, out_times);
}

az_err az_checkpoint_write_adapter(const az_checkpoint *c, const az_trainer *trainer,
                                   const char *path, az_dtype dtype)
{
    return write_file(c, trainer, path, dtype, NULL);
}

/* ---- reading ---- */

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
    const hex print = hex_of(az_shard_get_fingerprint(c->engine->shard));
    const hex data = hex_of(c->data_hash), adapter = hex_of(hash_adapter(&c->engine->lora));
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
    const hex eval = hex_of(c->eval_hash);
    if (strcmp(get_string(&f, "eval_data"), eval.s) == 0)
        return;
    if (t->best_step >= 0)
        az_say(
            "resume    the evaluation set is another one: the best checkpoint is looked for anew");
    t->eval_loss = t->best_loss = t->reference = NAN;
    t->best_step = -1;
    t->patience = 0;
}

/* Bits depend on these, besides what is fixed. */
static void warn_of_bits(const az_h5_reader *file, const char *path)
{
    bool slow;
    az_str what = {0};
    fields f = {file, path, "/trainer", AZ_OK};
    const char *cpu = get_string(&f, "cpu"), *blas = get_string(&f, "blas");
    const char *blas_now = az_kern_blas_describe(&slow);
    const int64_t threads = get_int(&f, "threads"), threads_now = az_kern_set_threads(0);
    if (f.err != AZ_OK)
        return;
    if (strcmp(cpu, cpu_name()) != 0)
        az_str_add(&what, "; the CPU was %s, now %s", cpu, cpu_name());
    if (strcmp(blas, blas_now) != 0)
        az_str_add(&what, "; the BLAS was %s, now %s", blas, blas_now);
    if (threads != threads_now)
        az_str_add(&what, "; a rank had %lld thread%s, now %lld", (long long)threads,
                   threads == 1 ? "" : "s", (long long)threads_now);
    if (what.len > 0)
        az_warn("%s: the run goes on, but its last bits may differ from those of an undisturbed "
                "one%s",
                path, what.s);
    az_str_fini(&what);
}

/* The adapter from an open file, whole on every rank. By way of moments that are not needed, so
 * that the adapter is left alone where the file is damaged. */
static az_err read_adapter(az_checkpoint *c, az_h5_reader *file)
{
    az_err err;
    int64_t first;
    const int64_t n = az_optim_get_slice(c->optim, &first);
    float *slice = az_optim_get_exp_avg(c->optim);
    AZ_TRY(az_h5_read_arrays(file, "/adapter", c->arrays, c->n_arrays, slice, first, n));
    if (n > 0)
        memcpy(c->engine->flat + first, slice, (size_t)n * sizeof *slice);
    az_optim_share(c->optim, c->engine->flat);
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
    int64_t first;
    const int64_t n = az_optim_get_slice(c->optim, &first);
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
    AZ_TRY(az_h5_read_arrays(file, EXP_AVG, c->arrays, c->n_arrays, az_optim_get_exp_avg(c->optim),
                             first, n));
    AZ_TRY(az_h5_read_arrays(file, EXP_AVG_SQ, c->arrays, c->n_arrays,
                             az_optim_get_exp_avg_sq(c->optim), first, n));
    *out_damaged = false;
    check_eval(c, out_trainer, file, path);
    warn_of_bits(file, path);
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
        return AZ_OK;
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
