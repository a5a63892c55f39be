/* train/engine: opening a model directory and an adapter on all ranks. */
#include <config.h>

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/kern.h"
#include "store/json.h"
#include "train/engine.h"
#include "train/stage.h"

/* The path goes into JSON: into adapter_config.json, hours later. */
static az_err check_path(const char *path)
{
    az_str quoted = {0};
    az_err err = az_json_quote(&quoted, path, strlen(path));
    az_str_fini(&quoted);
    if (err != AZ_EINPUT)
        return err;
    az_err_clear();
    return az_fail(
        err, "model.path: %s: the name is not valid UTF-8, which adapter_config.json needs", path);
}

/* Config and headers are read on rank 0 and handed on as bytes. */
static az_err share_model(az_engine *e)
{
    az_err err = AZ_OK;
    az_str packed = {0};
    int64_t bytes = 0;
    if (az_comm_rank(e->comm) == 0) {
        AZ_TRY(check_path(e->model_dir));
        AZ_TRY(az_config_read(&e->config, e->model_dir));
        if (e->config_does && !az_store_has_model(e->model_dir))
            AZ_TRY(az_config_imply(&e->set, &e->config));
        else
            AZ_TRY(az_store_open_model(&e->set, e->model_dir));
        AZ_TRY(az_store_pack(&packed, &e->set));
    }
out:
    err = az_comm_agree(e->comm, err);
    if (err == AZ_OK) {
        bytes = (int64_t)packed.len;
        az_comm_bcast(e->comm, &e->config, sizeof e->config, 0);
        az_comm_bcast(e->comm, &bytes, sizeof bytes, 0);
        if (az_comm_rank(e->comm) != 0)
            err = (packed.s = az_alloc((size_t)bytes, 1, "text")) != NULL ? AZ_OK : AZ_EENV;
        err = az_comm_agree(e->comm, err);
    }
    if (err == AZ_OK) {
        az_comm_bcast(e->comm, packed.s, (size_t)bytes, 0);
        if (az_comm_rank(e->comm) != 0)
            err = az_store_unpack(&e->set, packed.s, (size_t)bytes);
        err = az_comm_agree(e->comm, err);
    }
    az_str_fini(&packed);
    return err;
}

static az_err copy_list(az_list *list, const az_deck *deck, const char *key)
{
    az_err err = AZ_OK;
    for (int i = 0; i < az_deck_count(deck, key); i++)
        AZ_TRY(az_list_add(list, az_deck_item(deck, key, i)));
out:
    return err;
}

static az_err copy_pattern(az_pattern *pattern, const az_deck *deck, const char *key)
{
    az_err err = AZ_OK;
    for (int i = 0; i < az_deck_count(deck, key); i++)
        AZ_TRY(az_pattern_add(pattern, az_deck_map_key(deck, key, i),
                              az_deck_map_value(deck, key, i)));
out:
    return err;
}

static az_err copy_string(char **out, const char *s)
{
    az_free(*out);
    *out = az_strdup(s, "PEFT config");
    return *out != NULL ? AZ_OK : AZ_EENV;
}

/* PEFT takes a relative name for one on the hub: the base's directory is written absolute. */
static az_err copy_base_path(char **out, const char *dir)
{
    char absolute[PATH_MAX];
    return copy_string(out, realpath(dir, absolute) != NULL ? absolute : dir);
}

/* A key that is a list, or one string that is a regular expression. */
static az_err copy_targets(az_list *list, char **regex, const az_deck *deck, const char *key)
{
    if (!az_deck_has(deck, key))
        return AZ_OK;
    if (az_deck_is_list(deck, key))
        return copy_list(list, deck, key);
    return copy_string(regex, az_deck_item(deck, key, 0));
}

/* lora.* of the deck as a PEFT config. */
static az_err config_from_deck(az_peft_config *p, const az_deck *deck)
{
    az_err err;
    p->r = az_deck_int(deck, "lora.r");
    p->lora_alpha = az_deck_real(deck, "lora.lora_alpha");
    p->lora_dropout = az_deck_real(deck, "lora.lora_dropout");
    p->use_rslora = az_deck_bool(deck, "lora.use_rslora");
    AZ_TRY(copy_targets(&p->target_modules, &p->target_regex, deck, "lora.target_modules"));
    AZ_TRY(copy_targets(&p->exclude_modules, &p->exclude_regex, deck, "lora.exclude_modules"));
    AZ_TRY(copy_list(&p->layers_pattern, deck, "lora.layers_pattern"));
    AZ_TRY(copy_pattern(&p->rank_pattern, deck, "lora.rank_pattern"));
    AZ_TRY(copy_pattern(&p->alpha_pattern, deck, "lora.alpha_pattern"));
    AZ_TRY(copy_string(&p->init_lora_weights, az_deck_string(deck, "lora.init_lora_weights")));
    int n = az_deck_count(deck, "lora.layers_to_transform");
    if (n > 0) {
        AZ_TRY(AZ_NEW(p->layers_to_transform, (size_t)n, "PEFT config"));
        p->n_layers_to_transform = n;
        for (int i = 0; i < n; i++)
            p->layers_to_transform[i] = az_deck_item_int(deck, "lora.layers_to_transform", i);
    }
out:
    return err;
}

/* A name of one of adze's files that is not there is not that of a directory. */
static bool is_file(const char *path)
{
    const size_t n = strlen(path);
    return az_file_exists(path) ||
           (n > 3 && strcmp(path + n - 3, ".h5") == 0 && !az_dir_exists(path));
}

/* Rank 0 looks which it is. Collective. */
static az_err open_kept(az_kept_adapter *k, az_comm *comm)
{
    bool file = k->path != NULL && az_comm_rank(comm) == 0 && is_file(k->path);
    az_comm_bcast(comm, &file, sizeof file, 0);
    return file ? az_h5_open(&k->h5, k->path, comm) : AZ_OK;
}

/* Which adapter there is to be. Local; the same on all ranks, as all read the same config. */
static az_err open_adapter(az_engine *e, const az_deck *deck)
{
    az_err err;
    const az_kept_adapter *k = &e->kept;
    if (k->path != NULL) {
        AZ_TRY(k->h5 != NULL ? az_peft_read_h5_config(&e->peft, k->h5, k->path)
                             : az_peft_read_config(&e->peft, k->path));
        if (az_deck_has(deck, "lora.lora_dropout"))
            e->peft.lora_dropout = az_deck_real(deck, "lora.lora_dropout");
    } else {
        AZ_TRY(az_peft_config_init(&e->peft));
        AZ_TRY(config_from_deck(&e->peft, deck));
    }
    AZ_TRY(copy_base_path(&e->peft.base_model_name_or_path, e->model_dir));
    err = az_lora_create(&e->lora, &e->peft, e->linears, e->n_linears,
                         az_config_default_targets(&e->config));
out:
    return err;
}

static az_progress_kind progress_of(const az_deck *deck)
{
    static const char *const movers[] = {
        [AZ_PROGRESS_AUTO] = "auto", [AZ_PROGRESS_THREAD] = "thread", [AZ_PROGRESS_POLL] = "poll"};
    return (az_progress_kind)az_deck_find(deck, "shard.progress", movers, 3);
}

/* Memory for the adapter's values; without pairs it has none. Collective. */
static az_err open_params(az_engine *e, const az_deck *deck, bool gathered)
{
    az_err err;
    const int n_layers = (int)e->config.L;
    int64_t *off = NULL;
    err = AZ_NEW(off, (size_t)n_layers + 1, "adapter");
    AZ_TRY(az_comm_agree(e->comm, err));
    az_lora_fill_spans(off, &e->lora, n_layers);
    AZ_TRY(az_params_create(&e->params, &(az_spans){n_layers, off},
                            gathered ? AZ_PARAMS_GATHERED : AZ_PARAMS_REPLICATED, progress_of(deck),
                            &e->device.kern, e->device.fabric, e->comm));
out:
    az_free(off);
    return err;
}

/* Each owner reads its slice from a file. Collective. */
static az_err read_file(az_engine *e, const az_kept_adapter *k)
{
    az_err err;
    int64_t first, n;
    az_h5_array *arrays = NULL;
    float *slice = az_params_get_slice(e->params, &first, &n);
    err = az_lora_list_arrays(&arrays, &e->lora);
    AZ_TRY(az_comm_agree(e->comm, err));
    AZ_TRY(az_h5_read_arrays(k->h5, "/adapter", arrays, 2 * e->lora.n_pairs, slice, first, n));
    err = az_lora_check_finite(slice, &e->lora, first, n, k->path);
    AZ_TRY(az_comm_agree(e->comm, err));
    az_params_share(e->params);
out:
    az_lora_free_arrays(arrays, &e->lora);
    return err;
}

/* Rank 0 reads a directory. Collective. */
static az_err read_dir(az_engine *e, const az_kept_adapter *k)
{
    az_err err = AZ_OK;
    float *flat = NULL;
    if (az_comm_rank(e->comm) == 0) {
        AZ_TRY(AZ_NEW(flat, (size_t)e->lora.n_elements, "adapter file"));
        AZ_TRY(az_lora_read(flat, &e->lora, k->path));
    }
out:
    err = az_comm_agree(e->comm, err);
    if (err == AZ_OK)
        err = az_params_hand_out(e->params, flat);
    az_free(flat);
    return err;
}

/* The adapter's values: each owner makes its slice, or they are read. Collective. */
static az_err fill_adapter(az_engine *e, const az_deck *deck)
{
    int64_t first, n;
    if (e->kept.h5 != NULL)
        return read_file(e, &e->kept);
    if (e->kept.path != NULL)
        return read_dir(e, &e->kept);
    float *slice = az_params_get_slice(e->params, &first, &n);
    az_lora_fill(slice, &e->lora, &e->peft, (uint64_t)az_deck_int(deck, "train.seed"), first, n);
    az_params_share(e->params);
    return AZ_OK;
}

/* An adapter may be put on another base than it was made with (a later version of it, say), but the
 * user is to know. Local. */
static void check_base(const az_engine *e, const az_kept_adapter *k)
{
    char now[20];
    const az_h5_attr *was = az_h5_find_attr(k->h5, "/base", "fingerprint"),
                     *from = az_h5_find_attr(k->h5, "/base", "path");
    snprintf(now, sizeof now, "%016" PRIx64, az_shard_get_fingerprint(e->shard));
    if (was != NULL && was->type == AZ_H5_STRING && strcmp(was->s, now) != 0)
        az_warn("%s: this adapter was made with another base (fingerprint %s of %s; %s has %s)",
                k->path, was->s, from != NULL && from->type == AZ_H5_STRING ? from->s : "?",
                e->model_dir, now);
}

static az_load_way find_way(const az_deck *deck)
{
    static const char *const ways[] = {[AZ_LOAD_AUTO] = "auto",
                                       [AZ_LOAD_JOB] = "job",
                                       [AZ_LOAD_NODE] = "node",
                                       [AZ_LOAD_MAP] = "map"};
    const az_load_way way = (az_load_way)az_deck_find(deck, "model.load", ways, 4);
    if (way == AZ_LOAD_AUTO && az_deck_has(deck, "model.stage"))
        return AZ_LOAD_NODE; /* each node has all files */
    return way;
}

static az_err load_base(az_engine *e, const az_deck *deck, const az_plan *plan,
                        const az_plan_input *input)
{
    az_err err;
    az_unit_list units = {0};
    bool *resident = NULL;
    AZ_TRY(az_shard_list_units(&units, &e->config, &e->table, &e->set));
    AZ_TRY(AZ_NEW(resident, (size_t)units.n_units, "base index"));
    err = az_plan_fill_resident(resident, plan, input);
out:
    err = az_comm_agree(e->comm, err);
    const az_shard_options options = {.opt_resident = resident,
                                      .n_slots = plan->choice.slots > 0 ? plan->choice.slots : 1,
                                      .load = find_way(deck),
                                      .progress = progress_of(deck),
                                      .poison = az_deck_bool(deck, "run.poison"),
                                      .opt_dev = e->device.dev,
                                      .opt_fabric = e->device.fabric,
                                      .scope = plan->choice.scope};
    if (err == AZ_OK)
        err = az_shard_create(&e->shard, &e->config, &e->table, &e->set, e->comm, &options);
    az_free(resident);
    az_shard_free_units(&units);
    return err;
}

az_err az_engine_read(az_engine *e, const az_deck *deck, az_adapter_source source,
                      const char *opt_path, az_comm *comm)
{
    az_err err;
    e->comm = comm;
    e->source = source;
    e->model_dir = az_deck_string(deck, "model.path");
    e->kept.path = source == AZ_ADAPTER_DECK ? az_deck_string(deck, "lora.init_from") : opt_path;
    err = az_kern_start((int)az_deck_int(deck, "run.threads"));
    AZ_TRY(az_comm_agree(comm, err));
    if (e->config_does)
        AZ_TRY(az_comm_agree(comm, az_device_open_cpu(&e->device)));
    else
        AZ_TRY(az_device_open(&e->device, deck, comm));
    AZ_TRY(share_model(e));
    err = az_table_create(&e->table, &e->config, &e->set);
    AZ_TRY(az_comm_agree(comm, err));
    if (source != AZ_ADAPTER_NONE)
        AZ_TRY(open_kept(&e->kept, comm));
    err = az_config_list_linears(&e->linears, &e->n_linears, &e->config);
    if (err == AZ_OK && source != AZ_ADAPTER_NONE)
        err = open_adapter(e, deck);
    AZ_TRY(az_comm_agree(comm, err));
out:
    return err;
}

az_err az_engine_load(az_engine *e, const az_deck *deck, const az_plan *plan,
                      const az_plan_input *input)
{
    az_err err;
    const char *stage = az_deck_string(deck, "model.stage");
    if (stage != NULL)
        AZ_TRY(az_stage_model(&e->set, e->model_dir, stage, e->comm));
    AZ_TRY(open_params(e, deck, plan->choice.gathered));
    if (e->source != AZ_ADAPTER_NONE)
        AZ_TRY(fill_adapter(e, deck));
    AZ_TRY(load_base(e, deck, plan, input));
    if (e->kept.h5 != NULL)
        check_base(e, &e->kept);
out:
    az_h5_close(e->kept.h5);
    e->kept.h5 = NULL;
    return err;
}

void az_engine_close(az_engine *engine)
{
    az_h5_close(engine->kept.h5);
    az_shard_destroy(engine->shard);
    az_params_destroy(engine->params);
    az_device_close(&engine->device);
    az_lora_fini(&engine->lora);
    az_peft_config_fini(&engine->peft);
    az_free(engine->linears);
    az_table_fini(&engine->table);
    az_store_close(&engine->set);
    *engine = (az_engine){0};
}

az_model_parts az_engine_get_parts(const az_engine *engine)
{
    return (az_model_parts){.comm = engine->comm,
                            .kern = &engine->device.kern,
                            .shard = engine->shard,
                            .config = &engine->config,
                            .linears = engine->linears,
                            .lora = &engine->lora,
                            .params = engine->params};
}

az_err az_engine_open_tokenizer(az_tokenizer **out_tokenizer, const az_deck *deck)
{
    az_err err = AZ_OK;
    *out_tokenizer = NULL;
    const char *named = az_deck_string(deck, "data.tokenizer");
    const char *dir = named != NULL ? named : az_deck_string(deck, "model.path");
    char *path = az_path_join(dir, "tokenizer.json");
    if (path == NULL)
        return AZ_EENV;
    if (named != NULL || az_file_exists(path))
        err = az_text_open(out_tokenizer, dir);
    az_free(path);
    return err;
}

int32_t az_engine_get_eos(const az_engine *engine, const az_tokenizer *opt_tokenizer)
{
    int32_t eos = opt_tokenizer != NULL ? az_text_get_eos(opt_tokenizer) : -1;
    if (eos < 0 && engine->config.n_eos > 0)
        eos = engine->config.eos[0];
    return eos;
}

void az_engine_say(const az_engine *engine)
{
    const az_config *c = &engine->config;
    const long long base = az_config_count(c), own = engine->lora.n_elements;
    const char *type = az_dtype_name((az_dtype)engine->set.tensors[0].dtype);
    for (int64_t i = 1; i < engine->set.n_tensors; i++)
        if (engine->set.tensors[i].dtype != engine->set.tensors[0].dtype)
            type = "mixed types";
    az_say("model     %s: %s, %lld layers, hidden %lld, %d heads / %d kv of %lld, ffn %lld, vocab "
           "%lld, %s, %s parameters",
           engine->model_dir, c->model_type, (long long)c->L, (long long)c->D, c->H, c->G,
           (long long)c->K, (long long)c->F, (long long)c->V, type, az_format_count(base));
    if (engine->lora.n_pairs == 0) {
        az_say("adapter   none");
        return;
    }
    int64_t r_min = engine->lora.pairs[0].R, r_max = r_min;
    for (int i = 1; i < engine->lora.n_pairs; i++) {
        r_min = az_min_i64(r_min, engine->lora.pairs[i].R);
        r_max = az_max_i64(r_max, engine->lora.pairs[i].R);
    }
    az_str r = {0};
    if (az_str_add(&r, r_min == r_max ? "r %lld" : "r %lld to %lld", (long long)r_min,
                   (long long)r_max) == AZ_OK)
        az_say("adapter   LoRA %s, alpha %g, dropout %g on %d linears", r.s,
               engine->peft.lora_alpha, engine->lora.dropout, engine->lora.n_pairs);
    az_str_fini(&r);
    az_say("trainable %s of %s parameters (%.4f %%)", az_format_count(own),
           az_format_count(base + own), 100.0 * (double)own / (double)(base + own));
}
