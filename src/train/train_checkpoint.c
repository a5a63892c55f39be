/* train/checkpoint: what a run is, to a file. The way back is train_checkpoint_read.c. */
#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kern/kern.h"
#include "train/checkpoint_priv.h"

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

/* ---- what a checkpoint knows a run by ---- */

const char *az_checkpoint_get_cpu(void)
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

uint64_t az_checkpoint_hash_adapter(const az_lora *lora)
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

az_hex az_checkpoint_hex(uint64_t v)
{
    az_hex h;
    snprintf(h.s, sizeof h.s, "%016" PRIx64, v);
    return h;
}

/* ---- writing ---- */

static az_err put_trainer(const az_checkpoint *c, const az_trainer *t, az_h5_writer *writer)
{
    bool slow;
    const int64_t per_epoch = c->steps_per_epoch;
    const az_hex data = az_checkpoint_hex(c->data_hash), eval = az_checkpoint_hex(c->eval_hash);
    const az_hex adapter = az_checkpoint_hex(az_checkpoint_hash_adapter(&c->engine->lora));
    char device[160];
    az_device_describe(device, sizeof device, &c->engine->device);
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
        {"device", AZ_H5_STRING, .s = device},
        {"cpu", AZ_H5_STRING, .s = az_checkpoint_get_cpu()},
        {"blas", AZ_H5_STRING, .s = az_kern_blas_describe(&slow)},
    };
    return az_h5_put_attrs(writer, "/trainer", attrs, sizeof attrs / sizeof *attrs);
}

static az_err put_base(const az_checkpoint *c, az_h5_writer *writer)
{
    const az_hex print = az_checkpoint_hex(az_shard_get_fingerprint(c->engine->shard));
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
    az_params_get_slice(c->engine->params, &mine[0], &mine[1]);
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
    int64_t first, n;
    const float *slice = az_params_get_slice(c->engine->params, &first, &n);
    AZ_TRY(az_h5_put_arrays(writer, "/adapter", c->arrays, c->n_arrays, dtype, slice, first, n));
    AZ_TRY(az_h5_put_text(writer, "/adapter_config", c->peft_text.s));
    AZ_TRY(az_h5_put_text(writer, "/deck", c->deck_text.s));
    AZ_TRY(put_trainer(c, trainer, writer));
    AZ_TRY(put_base(c, writer));
out:
    return err;
}

/* A file with the hints of the deck. Collective. */
static az_err create_file(az_h5_writer **out_writer, const az_checkpoint *c, const char *path,
                          const char *kind, int64_t bytes)
{
    az_err err;
    const az_deck *d = c->deck;
    const char **hints = NULL;
    az_h5_options options = {.n_hints = az_deck_count(d, "checkpoint.mpiio_hints")};
    err = AZ_NEW(hints, (size_t)options.n_hints, "checkpoint");
    AZ_TRY(az_comm_agree(c->engine->comm, err));
    for (int i = 0; i < options.n_hints; i++)
        hints[i] = az_deck_item(d, "checkpoint.mpiio_hints", i);
    options.hints = hints;
    if (az_deck_has(d, "checkpoint.striping_factor"))
        options.striping_factor = az_deck_int(d, "checkpoint.striping_factor");
    if (az_deck_has(d, "checkpoint.striping_unit"))
        options.striping_unit = az_deck_int(d, "checkpoint.striping_unit");
    AZ_TRY(az_h5_create(out_writer, path, kind, bytes, &options, c->engine->comm));
out:
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
    char *path = az_path_join(dir, "trial.h5");
    AZ_TRY(az_comm_agree(comm, path != NULL ? AZ_OK : AZ_EENV));
    AZ_TRY(create_file(&writer, c, path, "adapter", sizeof own));
    AZ_TRY(az_h5_put_arrays(writer, "/adapter", &array, 1, AZ_F32, &own, az_comm_rank(comm), 1));
out:
    az_h5_destroy(writer);
    az_free(path);
    return err;
}

/* A file for the adapter (opt_times NULL) or for all of the run. */
static az_err write_file(const az_checkpoint *c, const az_trainer *trainer, const char *path,
                         az_dtype dtype, az_h5_times *opt_times)
{
    az_err err;
    const bool whole = opt_times != NULL;
    az_h5_times times;
    az_h5_writer *writer = NULL;
    int64_t first, n, bytes = az_checkpoint_get_bytes(c);
    az_params_get_slice(c->engine->params, &first, &n);
    az_params_pull(c->engine->params);
    if (whole)
        az_optim_pull(c->optim);
    AZ_TRY(
        create_file(&writer, c, path, whole ? "checkpoint" : "adapter", whole ? bytes : bytes / 3));
    AZ_TRY(put_common(c, trainer, writer, dtype));
    if (whole) {
        AZ_TRY(az_h5_put_arrays(writer, AZ_EXP_AVG, c->arrays, c->n_arrays, AZ_F32,
                                az_optim_get_exp_avg(c->optim), first, n));
        AZ_TRY(az_h5_put_arrays(writer, AZ_EXP_AVG_SQ, c->arrays, c->n_arrays, AZ_F32,
                                az_optim_get_exp_avg_sq(c->optim), first, n));
        AZ_TRY(put_shards(c, writer));
    }
    AZ_TRY(az_h5_finish(writer, whole ? opt_times : &times));
out:
    az_h5_destroy(writer);
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
