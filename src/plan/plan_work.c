/* plan: what a step computes: from the samples, or from the deck's limits. And what keys have
 * settled. */
#include <config.h>

#include <string.h>

#include "plan/plan_priv.h"

/* Steps of an epoch that are looked at; more would only be alike. */
enum { MAX_STEPS = 256 };

/* What the datasets and schedules that are there take of this process. */
static int64_t count_text(void)
{
    static const char *const labels[] = {"dataset", "schedule", "data"};
    int64_t sum = 0;
    const char *label;
    size_t bytes, most;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &most); i++)
        for (int k = 0; k < 3; k++)
            sum += strcmp(label, labels[k]) == 0 ? (int64_t)bytes : 0;
    return sum;
}

void az_work_from_samples(az_work_load *work, const az_dataset *train, az_schedule *schedule,
                          const az_pass_limits *opt_eval)
{
    const int64_t steps = az_min_i64(az_schedule_get_steps_per_epoch(schedule), MAX_STEPS);
    double keys = 0;
    *work = (az_work_load){.exact = true, .text_bytes = count_text()};
    work->train.longest = train->longest;
    if (opt_eval != NULL)
        work->eval = *opt_eval;
    az_schedule_get_max(schedule, &work->train.tokens, &work->train.sequences,
                        &work->train.targets);
    for (int64_t s = 0; s < steps; s++) {
        az_step step;
        az_schedule_set_step(schedule, s, &step);
        work->n_micro = az_max_i64(work->n_micro, step.n_micro);
        work->tokens = az_max_i64(work->tokens, step.n_tokens);
        work->targets = az_max_i64(work->targets, step.n_targets);
    }
    for (int64_t i = 0; i < train->n; i++) {
        const double T = (double)(train->start[i + 1] - train->start[i]);
        keys += T * (T + 1) / 2;
    }
    work->keys = keys / (double)az_max_i64(1, train->n_tokens) * (double)work->tokens;
}

void az_work_from_forward(az_work_load *work, const az_pass_limits *limits, const az_step *step,
                          int64_t cache_bytes)
{
    *work = (az_work_load){.exact = true,
                           .eval = *limits,
                           .cache_bytes = cache_bytes,
                           .n_micro = step->n_micro,
                           .tokens = step->n_tokens,
                           .targets = step->n_targets,
                           .text_bytes = count_text()};
}

/* ---- from the deck */

/* Bytes of a list of files; those that are not there count nothing. */
static int64_t count_files(const az_deck *deck, const char *key)
{
    int64_t sum = 0, bytes;
    for (int i = 0; i < az_deck_count(deck, key); i++)
        if (az_file_exists(az_deck_item(deck, key, i))) {
            if (az_file_size(&bytes, az_deck_item(deck, key, i)) == AZ_OK)
                sum += bytes;
            else
                az_err_clear();
        }
    return sum;
}

void az_work_from_deck(az_work_load *work, const az_deck *deck)
{
    const int64_t T = az_deck_int(deck, "data.max_length");
    const int64_t batch = az_deck_int(deck, "train.batch_size");
    const bool by_tokens = az_deck_has(deck, "train.micro_batch_tokens");
    const int64_t most = by_tokens ? az_deck_int(deck, "train.micro_batch_tokens") : 0;
    const int64_t micro =
        by_tokens ? az_max_i64(1, most / T) : az_deck_int(deck, "train.micro_batch_size");
    const int64_t samples = az_min_i64(micro, batch);
    *work = (az_work_load){.n_micro = az_ceil_div(batch, samples),
                           .tokens = batch * T,
                           .targets = batch * (T - 1),
                           .keys = (double)batch * (double)T * ((double)T + 1) / 2};
    work->train = (az_pass_limits){.tokens = by_tokens ? az_max_i64(T, most) : samples * T,
                                   .longest = T,
                                   .sequences = (int)samples};
    work->train.targets = work->train.tokens - samples;
    if (az_deck_has(deck, "eval.split") || az_deck_count(deck, "eval.file") > 0) {
        const int64_t eval = az_max_i64(T, az_deck_int(deck, "eval.micro_batch_tokens"));
        work->eval = (az_pass_limits){.tokens = eval,
                                      .targets = eval,
                                      .longest = T,
                                      .sequences = (int)az_max_i64(1, eval / T)};
    }
    /* A token has a byte or more in its file, and what names it and its sample too; of text it is
     * about four. Two are taken: ids and labels, 8 bytes, of half as many tokens. */
    work->text_bytes = 4 * (count_files(deck, "data.files") + count_files(deck, "eval.file"));
}

void az_plan_read_keys(az_plan_keys *keys, const az_deck *deck)
{
    static const char *const orders[] = {"depth_first", "layer_major"};
    static const char *const levels[] = {
        [AZ_LEVEL_RECOMPUTE] = "recompute", [AZ_LEVEL_CHEAP] = "cheap", [AZ_LEVEL_KEEP] = "keep"};
    static const char *const reduces[] = {"step", "unit"};
    static const char *const placements[] = {"replicated", "gathered"};
    static const char *const scopes[] = {
        [AZ_SCOPE_AUTO] = "auto", [AZ_SCOPE_WORLD] = "world", [AZ_SCOPE_NODE] = "node"};
    const bool map = strcmp(az_deck_string(deck, "model.load"), "map") == 0;
    const int scope = az_deck_find(deck, "shard.scope", scopes, 3);
    *keys = (az_plan_keys){
        .poll = strcmp(az_deck_string(deck, "shard.progress"), "poll") == 0,
        .map = map,
        .scope = map && scope == AZ_SCOPE_AUTO ? AZ_SCOPE_NODE : scope,
        /* who wants the base cut wants no more of it in memory than must be, unless it is said */
        .resident = az_deck_has(deck, "shard.resident") ? az_deck_real(deck, "shard.resident")
                    : scope == AZ_SCOPE_WORLD           ? 0
                                                        : -1,
        .slots = az_deck_has(deck, "shard.slots") ? (int)az_deck_int(deck, "shard.slots") : 0,
        .accumulation = az_deck_find(deck, "shard.accumulation", orders, 2),
        .activations = az_deck_find(deck, "shard.activations", levels, 3),
        .gathered = az_deck_find(deck, "shard.adapter", placements, 2),
        .unit_reduce = az_deck_find(deck, "shard.reduce", reduces, 2),
        .lead = az_deck_has(deck, "checkpoint.lead") ? az_deck_real(deck, "checkpoint.lead") : -1};
}
