/* train/generate: the loop that continues prompts.
 *
 * A rank works on one group of prompts at a time. Each sequence has tokens whose keys and values
 * are not in the cache yet: first its prompt, later the one token that was drawn last. A pass takes
 * from every sequence at least one of them and up to AZ_GENERATE_TOKENS in all, so long prompts go
 * through in pieces; where a sequence has none left its next token is drawn. Ranks agree before
 * each pass on whether any of them has work, and one that has none takes part in the gathers.
 *
 * Contents: 1 groups, 2 create and destroy, 3 one pass, 4 run, 5 results */
#include <config.h>

#include <string.h>

#include "comm/watch.h"
#include "model/block.h"
#include "train/generate.h"

typedef struct {
    int64_t prompt;
    int64_t n_prompt, n_new, cached; /* tokens: given, drawn, whose keys and values are known */
    int64_t limit;                   /* of n_prompt + n_new */
    int64_t row0;                    /* first row of the cache */
    int32_t *out;                    /* [limit - n_prompt] */
    bool active;
} sequence;

struct az_generate {
    az_engine *engine;
    const az_prompts *prompts;
    az_generate_options options;
    int n_ranks;
    int64_t n_groups, group; /* of all ranks; the next of this rank */

    az_pass *pass;
    az_arena arena;
    void *cache_k, *cache_v; /* [L, cache_rows, G, K] in the device's memory */
    int64_t cache_rows;
    float *logits; /* [batch_size, V], pinned */
    az_sampler sampler;

    sequence *sequences; /* [batch_size] the group */
    int n_sequences, n_active;
    int32_t *ids, *pos; /* [tokens] what a pass takes */
    int64_t *cache_row;
    az_seq *seqs;  /* [batch_size] */
    int64_t *rows; /* [batch_size] tokens with logits, and whose they are */
    int *row_sequence;

    int32_t *own; /* this rank's new tokens, finished groups without gaps */
    int64_t own_used;
    int64_t *length;     /* [n] 2 * new tokens + finished; after run of all ranks */
    int32_t *all;        /* new tokens of all ranks */
    int64_t *all_start;  /* [n] */
    int64_t bad, n_done; /* prompt with logits that are not finite, or -1; prompts done */
    az_generate_stats stats;
};

/* ---- 1. groups ---- */

static int64_t prompt_tokens(const az_generate *g, int64_t i)
{
    return g->prompts->start[i + 1] - g->prompts->start[i];
}

/* Most tokens that prompt i and its continuation may have. */
static int64_t token_limit(const az_generate *g, int64_t i)
{
    return az_min_i64(prompt_tokens(g, i) + g->options.max_new_tokens,
                      g->engine->config.max_position);
}

static int64_t group_end(const az_generate *g, int64_t group)
{
    return az_min_i64((group + 1) * g->options.batch_size, g->prompts->n);
}

/* The largest of what this rank's groups need. */
typedef struct {
    int64_t prompt_tokens, cache_rows, longest, new_tokens;
} needs;

static needs find_needs(const az_generate *g, int rank)
{
    needs all = {0};
    for (int64_t group = rank; group < g->n_groups; group += g->n_ranks) {
        int64_t tokens = 0, rows = 0;
        for (int64_t i = group * g->options.batch_size; i < group_end(g, group); i++) {
            const int64_t limit = token_limit(g, i);
            tokens += prompt_tokens(g, i);
            rows += limit - 1; /* the last one is never fed */
            all.longest = az_max_i64(all.longest, limit);
            all.new_tokens += limit - prompt_tokens(g, i);
        }
        all.prompt_tokens = az_max_i64(all.prompt_tokens, tokens);
        all.cache_rows = az_max_i64(all.cache_rows, rows);
    }
    return all;
}

static void begin_group(az_generate *g)
{
    const int64_t first = g->group * g->options.batch_size;
    int64_t row = 0;
    int32_t *out = g->own + g->own_used;
    g->n_sequences = (int)(group_end(g, g->group) - first);
    g->n_active = g->n_sequences;
    g->group += g->n_ranks;
    for (int s = 0; s < g->n_sequences; s++) {
        g->sequences[s] = (sequence){.prompt = first + s,
                                     .n_prompt = prompt_tokens(g, first + s),
                                     .limit = token_limit(g, first + s),
                                     .row0 = row,
                                     .out = out,
                                     .active = true};
        row += g->sequences[s].limit - 1;
        out += g->sequences[s].limit - g->sequences[s].n_prompt;
    }
    AZ_ASSERT(row <= g->cache_rows);
}

/* Close the gaps between the new tokens of a group that is done. */
static void end_group(az_generate *g)
{
    for (int s = 0; s < g->n_sequences; s++) {
        const sequence *q = &g->sequences[s];
        memmove(g->own + g->own_used, q->out, (size_t)q->n_new * sizeof *q->out);
        g->own_used += q->n_new;
    }
}

/* ---- 2. create and destroy ---- */

static void carve(az_generate *g, const az_pass_limits *limits)
{
    const size_t n = (size_t)limits->tokens, b = (size_t)limits->sequences;
    const int64_t V = g->engine->config.V;
    az_sampler_carve(&g->sampler, &g->arena, g->options.sampling.temperature > 0 ? V : 0);
    g->sequences = az_arena_take(&g->arena, b, sizeof *g->sequences);
    g->ids = az_arena_take(&g->arena, n, sizeof *g->ids);
    g->pos = az_arena_take(&g->arena, n, sizeof *g->pos);
    g->cache_row = az_arena_take(&g->arena, n, sizeof *g->cache_row);
    g->seqs = az_arena_take(&g->arena, b, sizeof *g->seqs);
    g->rows = az_arena_take(&g->arena, b, sizeof *g->rows);
    g->row_sequence = az_arena_take(&g->arena, b, sizeof *g->row_sequence);
}

static int64_t tokens_at_once(const az_generate *g)
{
    return az_max_i64(AZ_GENERATE_TOKENS, g->options.batch_size);
}

static az_pass_limits limits_of(const az_generate *g, const needs *need)
{
    const int64_t b = az_min_i64(g->options.batch_size, g->prompts->n);
    return (az_pass_limits){.tokens =
                                az_max_i64(az_min_i64(need->prompt_tokens, tokens_at_once(g)), b),
                            .targets = b,
                            .longest = az_max_i64(need->longest, 1),
                            .sequences = (int)b};
}

/* Bytes of the keys, and of the values. */
static size_t cache_size(const az_generate *g, const needs *need)
{
    const az_config *c = &g->engine->config;
    return (size_t)(c->L * need->cache_rows * c->G * c->K) *
           az_dtype_bytes(g->engine->device.kern.numeric.act);
}

static size_t logits_size(const az_generate *g, const az_pass_limits *limits)
{
    return (size_t)(limits->sequences * g->engine->config.V) * sizeof *g->logits;
}

static az_err allocate(az_generate *g)
{
    az_err err;
    const needs need = find_needs(g, az_comm_rank(g->engine->comm));
    const az_pass_limits limits = limits_of(g, &need);
    const size_t cache = cache_size(g, &need);
    az_dev *dev = g->engine->device.dev;
    void *logits;
    g->cache_rows = need.cache_rows;
    carve(g, &limits);
    AZ_TRY(az_arena_init(&g->arena, "generation"));
    carve(g, &limits);
    AZ_TRY(az_dev_alloc(&g->cache_k, dev, cache, "key/value cache"));
    AZ_TRY(az_dev_alloc(&g->cache_v, dev, cache, "key/value cache"));
    AZ_TRY(az_dev_alloc_host(&logits, dev, logits_size(g, &limits), "generation"));
    g->logits = logits;
    AZ_TRY(AZ_NEW(g->own, (size_t)need.new_tokens, "completions"));
    AZ_TRY(AZ_NEW(g->length, (size_t)g->prompts->n, "completions"));
    AZ_TRY(AZ_NEW(g->all_start, (size_t)g->prompts->n, "completions"));
    g->stats.cache_bytes = 2 * cache;
    g->stats.bytes = 2 * cache + g->arena.size + logits_size(g, &limits);
out:
    err = az_comm_agree(g->engine->comm, err);
    const az_model_parts parts = az_engine_get_parts(g->engine);
    if (err == AZ_OK)
        err = az_pass_create(&g->pass, &parts, &(az_pass_options){.forward = limits});
    return err;
}

static void describe(az_generate *g, az_engine *engine, const az_prompts *prompts,
                     const az_generate_options *options)
{
    *g = (az_generate){.engine = engine,
                       .prompts = prompts,
                       .options = *options,
                       .n_ranks = az_comm_size(engine->comm),
                       .group = az_comm_rank(engine->comm),
                       .n_groups = az_ceil_div(prompts->n, options->batch_size),
                       .bad = -1};
}

void az_generate_get_work(az_work_load *out_work, az_engine *engine, const az_prompts *prompts,
                          const az_generate_options *options)
{
    az_generate g;
    size_t bytes = 0;
    az_pass_limits most = {0};
    describe(&g, engine, prompts, options);
    for (int rank = 0; rank < g.n_ranks; rank++) {
        const needs need = find_needs(&g, rank);
        const az_pass_limits limits = limits_of(&g, &need);
        const size_t cache = 2 * cache_size(&g, &need);
        bytes = cache > bytes ? cache : bytes;
        most.tokens = az_max_i64(most.tokens, limits.tokens);
        most.longest = az_max_i64(most.longest, limits.longest);
        most.targets = limits.targets;
        most.sequences = limits.sequences;
    }
    carve(&g, &most);
    const az_step step = {.n_micro = (int)g.n_groups};
    az_work_from_forward(out_work, &most, &step,
                         (int64_t)(bytes + logits_size(&g, &most) + g.arena.used));
}

az_err az_generate_create(az_generate **out_generate, az_engine *engine, const az_prompts *prompts,
                          const az_generate_options *options)
{
    az_err err;
    az_generate *g = NULL;
    AZ_ASSERT(options->batch_size > 0 && options->max_new_tokens > 0 && prompts->n > 0);
    *out_generate = NULL;
    err = AZ_NEW(g, 1, "generation");
    AZ_TRY(az_comm_agree(engine->comm, err));
    describe(g, engine, prompts, options);
    for (int64_t i = 0; i < prompts->n; i++)
        g->stats.n_short += token_limit(g, i) < prompt_tokens(g, i) + options->max_new_tokens;
    AZ_TRY(allocate(g));
    const az_pass_sizes pass = az_pass_get_sizes(g->pass);
    g->stats.bytes += pass.device + pass.host;
out:
    if (err != AZ_OK)
        az_generate_destroy(g);
    else
        *out_generate = g;
    return err;
}

void az_generate_destroy(az_generate *opt_generate)
{
    az_generate *g = opt_generate;
    if (g == NULL)
        return;
    az_pass_destroy(g->pass);
    az_arena_fini(&g->arena);
    az_dev_free(g->engine->device.dev, g->cache_k);
    az_dev_free(g->engine->device.dev, g->cache_v);
    az_dev_free_host(g->engine->device.dev, g->logits);
    az_free(g->own);
    az_free(g->length);
    az_free(g->all);
    az_free(g->all_start);
    az_free(g);
}

/* ---- 3. one pass ---- */

static int32_t token_at(const az_generate *g, const sequence *q, int64_t i)
{
    return i < q->n_prompt ? g->prompts->ids[g->prompts->start[q->prompt] + i]
                           : q->out[i - q->n_prompt];
}

/* Put the next take tokens of a sequence into the feed. */
static void add_tokens(az_generate *g, az_feed *feed, int s, int64_t take)
{
    sequence *q = &g->sequences[s];
    g->seqs[feed->n_seqs++] = (az_seq){feed->N, take, q->row0, q->cached + take};
    for (int64_t i = 0; i < take; i++, q->cached++, feed->N++) {
        g->ids[feed->N] = token_at(g, q, q->cached);
        g->pos[feed->N] = (int32_t)q->cached;
        g->cache_row[feed->N] = q->row0 + q->cached;
    }
    if (q->cached == q->n_prompt + q->n_new) {
        g->row_sequence[feed->n_rows] = s;
        g->rows[feed->n_rows++] = feed->N - 1;
    }
}

static void fill_feed(az_generate *g, az_feed *feed)
{
    *feed = (az_feed){.ids = g->ids,
                      .pos = g->pos,
                      .seqs = g->seqs,
                      .opt_cache_k = g->cache_k,
                      .opt_cache_v = g->cache_v,
                      .cache_rows = g->cache_rows,
                      .cache_row = g->cache_row,
                      .rows = g->rows};
    int64_t left = tokens_at_once(g);
    int after = g->n_active; /* sequences that are still to get a token */
    for (int s = 0; s < g->n_sequences && g->n_active > 0; s++) {
        const sequence *q = &g->sequences[s];
        if (!q->active)
            continue;
        const int64_t take = az_min_i64(q->n_prompt + q->n_new - q->cached, left - --after);
        left -= take;
        add_tokens(g, feed, s, take);
    }
}

static bool is_eos(const az_generate *g, int32_t id)
{
    for (int i = 0; i < g->options.n_eos; i++)
        if (g->options.eos[i] == id)
            return true;
    return false;
}

static void end_sequence(az_generate *g, sequence *q, bool finished)
{
    q->active = false;
    g->length[q->prompt] = 2 * q->n_new + finished;
    g->n_done++;
    if (--g->n_active == 0)
        end_group(g);
}

/* Draw a token for every sequence that has logits. */
static void draw_tokens(az_generate *g, int64_t n_rows)
{
    const int64_t V = g->engine->config.V;
    for (int64_t r = 0; r < n_rows; r++) {
        sequence *q = &g->sequences[g->row_sequence[r]];
        const int64_t position = q->n_prompt + q->n_new;
        const int32_t id = az_sampler_pick(&g->sampler, g->logits + r * V, V, &g->options.sampling,
                                           position, q->prompt);
        g->stats.tokens++;
        if (id < 0) {
            g->bad = q->prompt;
            return;
        }
        const bool finished = is_eos(g, id);
        if (!finished)
            q->out[q->n_new++] = id;
        if (finished || position + 1 == q->limit)
            end_sequence(g, q, finished);
    }
}

/* ---- 4. run ---- */

/* Everyone's new tokens to everyone. */
static az_err share_results(az_generate *g)
{
    az_err err;
    az_comm *comm = g->engine->comm;
    size_t *bytes = NULL, *offsets = NULL;
    int64_t end = 0;
    az_comm_sum_i64(comm, g->length, (size_t)g->prompts->n);
    AZ_TRY(AZ_NEW(bytes, (size_t)g->n_ranks, "completions"));
    AZ_TRY(AZ_NEW(offsets, (size_t)g->n_ranks, "completions"));
    for (int rank = 0; rank < g->n_ranks; rank++) {
        offsets[rank] = (size_t)end * sizeof *g->all;
        for (int64_t group = rank; group < g->n_groups; group += g->n_ranks)
            for (int64_t i = group * g->options.batch_size; i < group_end(g, group); i++) {
                g->all_start[i] = end;
                end += g->length[i] / 2;
            }
        bytes[rank] = (size_t)end * sizeof *g->all - offsets[rank];
    }
    AZ_TRY(AZ_NEW(g->all, (size_t)end, "completions"));
out:
    err = az_comm_agree(comm, err);
    if (err == AZ_OK)
        az_comm_allgatherv(comm, g->own, g->all, bytes, offsets);
    az_free(bytes);
    az_free(offsets);
    return err;
}

az_err az_generate_run(az_generate *generate)
{
    enum { WORK, BAD, DONE, TOKENS, N_SUMS };
    az_err err;
    az_generate *g = generate;
    az_comm *comm = g->engine->comm;
    const double begin = az_now();
    int64_t sums[N_SUMS];
    az_feed feed;
    AZ_ASSERT(g->all == NULL);
    for (;;) {
        if (g->n_active == 0 && g->group < g->n_groups)
            begin_group(g);
        sums[WORK] = g->n_active > 0;
        sums[BAD] = g->bad >= 0;
        sums[DONE] = g->n_done;
        sums[TOKENS] = g->stats.tokens;
        az_comm_sum_i64(comm, sums, N_SUMS);
        if (g->options.opt_progress != NULL)
            g->options.opt_progress(sums[DONE], g->prompts->n, sums[TOKENS]);
        if (sums[BAD] > 0 || sums[WORK] == 0)
            break;
        az_watch_enter(comm, AZ_PHASE_GENERATE, g->stats.passes + 1);
        fill_feed(g, &feed);
        AZ_TRY(az_pass_logits(g->pass, &feed, g->logits));
        draw_tokens(g, feed.n_rows);
        g->stats.passes++;
    }
    err = g->bad < 0 ? AZ_OK
                     : az_fail(AZ_EINPUT,
                               "prompt %lld: the model gives logits that are not finite (NaN or "
                               "infinite): base or adapter hold bad numbers",
                               (long long)g->bad + 1);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(share_results(g));
    g->stats.tokens = sums[TOKENS];
    g->stats.seconds = az_now() - begin;
out:
    return err;
}

/* ---- 5. results ---- */

az_completion az_generate_get(const az_generate *generate, int64_t prompt)
{
    const az_generate *g = generate;
    AZ_ASSERT(g->all != NULL && prompt >= 0 && prompt < g->prompts->n);
    return (az_completion){.ids = g->all + g->all_start[prompt],
                           .n = g->length[prompt] / 2,
                           .finished = g->length[prompt] % 2 != 0};
}

az_generate_stats az_generate_get_stats(const az_generate *generate)
{
    return generate->stats;
}
