/* train/load: from the keys of the deck to datasets. */
#include <config.h>

#include <string.h>

#include "train/load.h"

az_err az_load_files(az_dataset *set, const az_deck *deck, const char *key, const az_engine *engine,
                     az_tokenizer *opt_tokenizer)
{
    az_err err;
    const int n = az_deck_count(deck, key);
    const char **files = NULL;
    const az_data_options options = {.max_length = az_deck_int(deck, "data.max_length"),
                                     .drop_long =
                                         strcmp(az_deck_string(deck, "data.overlong"), "drop") == 0,
                                     .add_eos = az_deck_bool(deck, "data.add_eos"),
                                     .add_bos = az_deck_bool(deck, "data.add_bos"),
                                     .eos = az_engine_get_eos(engine, opt_tokenizer),
                                     .n_rows = engine->config.V};
    err = AZ_NEW(files, (size_t)n, "text");
    AZ_TRY(az_comm_agree(engine->comm, err));
    for (int i = 0; i < n; i++)
        files[i] = az_deck_item(deck, key, i);
    AZ_TRY(az_data_load(set, files, n, opt_tokenizer, &options, engine->comm));
    if (set->longest > engine->config.max_position)
        az_warn("%s: the longest sample has %lld tokens; the model has learnt no positions beyond "
                "max_position_embeddings, %lld (data.max_length would cut there)",
                key, (long long)set->longest, (long long)engine->config.max_position);
out:
    az_free(files);
    return err;
}

/* Keep the part that eval.split says from training. Collective. */
static az_err split_off(az_dataset *train, az_dataset *held_out, const az_deck *deck,
                        const az_engine *engine)
{
    const az_err err = az_data_split(train, held_out, az_deck_real(deck, "eval.split"),
                                     (uint64_t)az_deck_int(deck, "train.seed"));
    return az_comm_agree(engine->comm, err);
}

az_err az_load_samples(az_dataset *train, az_dataset *held_out, bool *out_have_eval,
                       const az_deck *deck, const az_engine *engine)
{
    az_err err;
    az_tokenizer *tokenizer = NULL;
    const bool file = az_deck_count(deck, "eval.file") > 0, split = az_deck_has(deck, "eval.split");
    *out_have_eval = file || split;
    err = az_engine_open_tokenizer(&tokenizer, deck);
    AZ_TRY(az_comm_agree(engine->comm, err));
    AZ_TRY(az_load_files(train, deck, "data.files", engine, tokenizer));
    if (file)
        err = az_load_files(held_out, deck, "eval.file", engine, tokenizer);
    else if (split)
        err = split_off(train, held_out, deck, engine);
out:
    az_text_close(tokenizer);
    return err;
}

az_err az_load_eval(az_dataset *set, const char **out_what, const az_deck *deck,
                    const az_engine *engine, az_tokenizer *opt_tokenizer)
{
    az_err err = AZ_OK;
    az_dataset train = {0};
    const bool split = az_deck_has(deck, "eval.split");
    if (az_deck_count(deck, "eval.file") > 0) {
        *out_what = "eval.file";
        return az_load_files(set, deck, "eval.file", engine, opt_tokenizer);
    }
    if (az_deck_count(deck, "data.files") == 0)
        return az_deck_fail(deck, "eval.file",
                            "missing; give eval.file or data.files to evaluate on");
    AZ_TRY(az_load_files(split ? &train : set, deck, "data.files", engine, opt_tokenizer));
    *out_what = split ? "the part of data.files held out by eval.split" : "data.files";
    if (split)
        err = split_off(&train, set, deck, engine);
out:
    az_data_fini(&train);
    return err;
}

az_batching az_load_batching(const az_deck *deck)
{
    const bool by_tokens = az_deck_has(deck, "train.micro_batch_tokens");
    return (az_batching){
        .batch_size = az_deck_int(deck, "train.batch_size"),
        .micro_batch_size = by_tokens ? 0 : az_deck_int(deck, "train.micro_batch_size"),
        .micro_batch_tokens = by_tokens ? az_deck_int(deck, "train.micro_batch_tokens") : 0,
        .shuffle = az_deck_bool(deck, "data.shuffle"),
        .seed = (uint64_t)az_deck_int(deck, "train.seed")};
}

double az_load_attention_cost(const az_config *config)
{
    const double hk = (double)(config->H * config->K), gk = (double)(config->G * config->K);
    const double D = (double)config->D, F = (double)config->F;
    return hk / (D * (2 * hk + 2 * gk) + 3 * D * F);
}
