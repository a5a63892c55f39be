/* pass: what a pass needs, carved once; the same carving, counted only, tells how much it will be.
 */
#include <config.h>

#include "pass/pass_priv.h"

static az_pass_limits max_limits(const az_pass_limits *a, const az_pass_limits *b)
{
    return (az_pass_limits){.tokens = az_max_i64(a->tokens, b->tokens),
                            .targets = az_max_i64(a->targets, b->targets),
                            .longest = az_max_i64(a->longest, b->longest),
                            .sequences = a->sequences > b->sequences ? a->sequences : b->sequences};
}

void az_pass_get_ranks(int64_t *R, const az_lora *lora, int layer)
{
    for (int kind = 0; kind < AZ_N_LINEARS; kind++) {
        const int pair = lora->n_pairs > 0 ? lora->pair_of[layer * AZ_N_LINEARS + kind] : -1;
        R[kind] = pair >= 0 ? lora->pairs[pair].R : 0;
    }
}

/* Sizes of a pass whose arenas hold nothing yet. */
static void init(az_pass *p, const az_model_parts *parts, const az_pass_units *units,
                 const az_pass_options *options, az_numeric numeric)
{
    p->m = *parts;
    p->numeric = numeric;
    p->units = *units;
    p->most = max_limits(&options->forward, &options->backward);
    p->most.group = options->forward.group > 1 ? options->forward.group : 1;
    p->back = options->backward;
    p->back.group = p->back.tokens == 0 ? 0 : p->back.group > 1 ? p->back.group : 1;
    p->group_most = p->most.group > p->back.group ? p->most.group : p->back.group;
    p->n_inputs = p->back.tokens > 0 ? units->n_layers - units->lowest : 0;
    AZ_ASSERT(p->back.tokens == 0 || units->lowest >= 0);
    p->n_heads = units->n_head > 1 ? p->group_most : 1;
    p->held_layer = -1;
}

/* Parts of one size lie one after the other, and the second of them has just been carved, from
 * `before` on: how many of the `left` that follow need not be carved, as only sizes are counted.
 * A step may have millions of micro-batches. */
static int skip_alike(az_arena *arena, size_t before, int left)
{
    if (arena->base != NULL || left <= 0)
        return 0;
    arena->used += (size_t)left * (arena->used - before);
    return left;
}

/* Ranks [AZ_N_LINEARS] of the largest adapters of any layer. */
static void find_largest(int64_t *largest, const az_pass *p)
{
    int64_t R[AZ_N_LINEARS];
    for (int l = 0; l < p->units.n_layers; l++) {
        az_pass_get_ranks(R, p->m.lora, l);
        for (int kind = 0; kind < AZ_N_LINEARS; kind++)
            largest[kind] = l > 0 ? az_max_i64(largest[kind], R[kind]) : R[kind];
    }
}

/* The activations that slots keep for themselves, and those that they share. */
static void carve_acts(az_pass *p, const int64_t *largest, const az_level *opt_levels)
{
    const az_config *c = p->m.config;
    az_arena *arena = &p->device;
    int64_t R[AZ_N_LINEARS];
    const size_t n = (size_t)p->n_inputs;
    az_acts_carve(&p->shared, arena, c, p->most.tokens, largest, AZ_STAGES_ALL, p->numeric);
    p->acts = az_arena_take(&p->host, n * (size_t)p->back.group, sizeof *p->acts);
    p->kept = az_arena_take(&p->host, n, sizeof *p->kept);
    p->read = az_arena_take(&p->host, n, sizeof *p->read);
    for (int i = 0; i < p->n_inputs; i++) {
        const int l = p->units.lowest + i;
        az_pass_get_ranks(R, p->m.lora, l);
        const unsigned read = az_layer_get_stages(R, i == 0);
        const az_level level = opt_levels != NULL ? opt_levels[l] : AZ_LEVEL_RECOMPUTE;
        const unsigned kept = level == AZ_LEVEL_KEEP    ? read
                              : level == AZ_LEVEL_CHEAP ? az_layer_get_heavy(read)
                                                        : 0;
        for (int s = 0; s < p->back.group; s++) {
            const size_t before = arena->used;
            az_acts own = p->shared;
            az_acts_carve(&own, arena, c, p->back.tokens, R, kept, p->numeric);
            if (p->acts != NULL)
                p->acts[i * p->back.group + s] = own;
            if (s == 1)
                s += skip_alike(arena, before, p->back.group - 2);
        }
        if (p->kept != NULL) {
            p->kept[i] = kept;
            p->read[i] = read;
        }
    }
}

/* Sums of each slot's targets; the scratch is the first one's. */
static void carve_heads(az_pass *p)
{
    az_head first = {0};
    az_arena *arena = &p->device;
    const int both = p->most.group < p->back.group ? p->most.group : p->back.group;
    p->heads = az_arena_take(&p->host, (size_t)p->n_heads, sizeof *p->heads);
    for (int s = 0; s < p->n_heads; s++) {
        az_head head = {.linear_scratch = p->work.linear_scratch};
        const size_t before = arena->used;
        const int64_t back = s < p->back.group ? p->back.targets : 0;
        az_head_carve(&head, arena, p->m.config, s < p->most.group ? p->most.targets : back, back,
                      p->units.head_rows, s > 0 ? &first : NULL, p->numeric);
        if (s == 0)
            first = head;
        if (p->heads != NULL)
            p->heads[s] = head;
        if (s == 2 && s < both) /* the first has the scratch too */
            s += skip_alike(arena, before, az_min_i64(both, p->n_heads) - s - 1);
        else if (s == az_max_i64(both, 1) + 1)
            s += skip_alike(arena, before, p->n_heads - s - 1);
    }
}

/* Arrays for all the micro-batches of a pass. */
static void carve_batches(az_batches *b, az_arena *arena, const az_pass *p)
{
    const az_pass_limits *most = &p->most, *back = &p->back;
    const size_t tokens =
        (size_t)az_max_i64(most->group * most->tokens, back->group * back->tokens);
    const size_t targets =
        (size_t)az_max_i64(most->group * most->targets, back->group * back->targets);
    b->ids = az_arena_take(arena, tokens, sizeof *b->ids);
    b->pos = az_arena_take(arena, tokens, sizeof *b->pos);
    b->sample = az_arena_take(arena, tokens, sizeof *b->sample);
    b->rows = az_arena_take(arena, targets, sizeof *b->rows);
    b->labels = az_arena_take(arena, targets, sizeof *b->labels);
    if (back->tokens == 0) /* training uses no cache */
        b->cache_row = az_arena_take(arena, (size_t)most->tokens, sizeof *b->cache_row);
}

/* What the host looks at besides what is carved with activations and heads. */
static void carve_host(az_pass *p)
{
    az_arena *arena = &p->host;
    const size_t group = (size_t)p->group_most;
    p->slots = az_arena_take(arena, group, sizeof *p->slots);
    p->seqs = az_arena_take(arena, group * (size_t)p->most.sequences, sizeof *p->seqs);
    carve_batches(&p->staged, arena, p);
    p->losses_fetched = az_arena_take(arena, group, sizeof *p->losses_fetched);
    p->program =
        az_arena_take(arena, (size_t)az_pass_list_program(NULL, &p->units, p->back.tokens > 0),
                      sizeof *p->program);
}

static void carve(az_pass *p, const az_level *opt_levels)
{
    const az_config *c = p->m.config;
    const az_lora *lora = p->m.lora;
    const size_t D = (size_t)c->D, act = az_dtype_bytes(p->numeric.act);
    az_arena *arena = &p->device;
    const int64_t kept = (int64_t)p->n_inputs * p->back.group * p->back.tokens,
                  passing =
                      az_max_i64(p->back.group * p->back.tokens, p->most.group * p->most.tokens);
    int64_t largest[AZ_N_LINEARS] = {0}, layer_elements = 0, off;
    find_largest(largest, p);
    for (int l = 0; l < p->units.n_layers; l++)
        layer_elements = az_max_i64(layer_elements, az_lora_get_layer(lora, l, &off));
    p->rope = az_arena_take(arena, (size_t)(p->most.longest * c->K), sizeof(float));
    p->work.rope = p->rope;
    az_work_carve(&p->work, arena, c, p->back.tokens, p->most.longest, largest, lora->dropout > 0,
                  p->numeric);
    carve_acts(p, largest, opt_levels);
    carve_heads(p);
    p->x = az_arena_take(arena, (size_t)kept * D, act);
    p->d = az_arena_take(arena, (size_t)passing * D, act);
    p->norm = az_arena_take(arena, D, sizeof(float));
    if (p->numeric.act != AZ_F32)
        p->narrowed = az_arena_take(arena, (size_t)layer_elements, act);
    if (p->back.tokens > 0)
        p->grad = az_arena_take(arena, (size_t)layer_elements, sizeof(float));
    p->losses = az_arena_take(arena, (size_t)p->group_most, sizeof *p->losses);
    carve_batches(&p->batches, arena, p);
    carve_host(p);
}

az_pass_sizes az_pass_measure(const az_config *config, const az_lora *lora,
                              const az_pass_units *units, const az_pass_options *options,
                              az_numeric numeric)
{
    az_pass p = {0};
    init(&p, &(az_model_parts){.config = config, .lora = lora}, units, options, numeric);
    carve(&p, options->opt_levels);
    return (az_pass_sizes){p.device.used, p.host.used + sizeof p};
}

/* The table of rotary angles is made on the host. */
static az_err fill_rope(az_pass *p)
{
    az_err err;
    const int64_t P = p->most.longest;
    az_dev *dev = p->m.kern->dev;
    float *table = NULL;
    if (!p->numeric.gpu) {
        az_config_fill_rope(p->rope, p->m.config, P);
        return AZ_OK;
    }
    AZ_TRY(AZ_NEW(table, (size_t)(P * p->m.config->K), "activations"));
    az_config_fill_rope(table, p->m.config, P);
    az_dev_copy_in(dev, AZ_QUEUE_COMPUTE, p->rope, table,
                   (size_t)(P * p->m.config->K) * sizeof *table); /* waits: it is not pinned */
out:
    az_free(table);
    return err;
}

static az_err allocate(az_pass *p)
{
    az_err err;
    void *pinned;
    const size_t host = p->host.used;
    az_dev *dev = p->m.kern->dev;
    AZ_TRY(az_dev_arena_init(dev, &p->device, "activations"));
    AZ_TRY(az_dev_alloc_host(&pinned, dev, host, "activations"));
    p->host = (az_arena){.base = pinned, .size = host};
    AZ_TRY(az_pass_create_laps(p));
out:
    return err;
}

az_err az_pass_create(az_pass **out_pass, const az_model_parts *parts,
                      const az_pass_options *options)
{
    az_err err;
    az_pass *p = NULL;
    const az_pass_units units = {.n_embed = az_shard_count(parts->shard, AZ_UNIT_EMBED),
                                 .n_layers = (int)parts->config->L,
                                 .n_head = az_shard_count(parts->shard, AZ_UNIT_HEAD),
                                 .tied = parts->config->tied,
                                 .lowest = az_lora_get_lowest_layer(parts->lora),
                                 .head_rows = az_shard_get_head_rows(parts->shard)};
    *out_pass = NULL;
    AZ_TRY(AZ_NEW(p, 1, "activations"));
    init(p, parts, &units, options, parts->kern->numeric);
    carve(p, options->opt_levels);
    AZ_TRY(allocate(p));
    carve(p, options->opt_levels);
    AZ_TRY(fill_rope(p));
out:
    err = az_comm_agree(parts->comm, err);
    if (err != AZ_OK)
        az_pass_destroy(p);
    else
        *out_pass = p;
    return err;
}

void az_pass_destroy(az_pass *opt_pass)
{
    if (opt_pass == NULL)
        return;
    az_dev *dev = opt_pass->m.kern->dev;
    az_pass_destroy_laps(opt_pass);
    az_dev_arena_fini(dev, &opt_pass->device); /* waits for what is queued and uses it */
    az_dev_free_host(dev, opt_pass->host.base);
    az_free(opt_pass);
}

az_pass_sizes az_pass_get_sizes(const az_pass *pass)
{
    return (az_pass_sizes){pass->device.size, pass->host.size + sizeof *pass};
}

int az_pass_get_group(const az_pass *pass, bool training)
{
    return training ? pass->back.group : pass->most.group;
}
