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

/* Sizes of a pass whose arena holds nothing yet. */
static void init(az_pass *p, const az_model_parts *parts, const az_pass_units *units,
                 const az_pass_options *options)
{
    p->m = *parts;
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

/* The activations that slots keep for themselves, and those that they share. */
static void carve_acts(az_pass *p, const az_level *opt_levels)
{
    const az_config *c = p->m.config;
    az_arena *arena = &p->arena;
    int64_t R[AZ_N_LINEARS], largest[AZ_N_LINEARS] = {0};
    const size_t n = (size_t)p->n_inputs;
    for (int l = 0; l < p->units.n_layers; l++) {
        az_pass_get_ranks(R, p->m.lora, l);
        for (int kind = 0; kind < AZ_N_LINEARS; kind++)
            largest[kind] = az_max_i64(largest[kind], R[kind]);
    }
    az_acts_carve(&p->shared, arena, c, p->most.tokens, largest, AZ_STAGES_ALL);
    p->acts = az_arena_take(arena, n * (size_t)p->back.group, sizeof *p->acts);
    p->kept = az_arena_take(arena, n, sizeof *p->kept);
    p->read = az_arena_take(arena, n, sizeof *p->read);
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
            az_acts_carve(&own, arena, c, p->back.tokens, R, kept);
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
    const int both = p->most.group < p->back.group ? p->most.group : p->back.group;
    p->heads = az_arena_take(&p->arena, (size_t)p->n_heads, sizeof *p->heads);
    for (int s = 0; s < p->n_heads; s++) {
        az_head head;
        const size_t before = p->arena.used;
        const int64_t back = s < p->back.group ? p->back.targets : 0;
        az_head_carve(&head, &p->arena, p->m.config, s < p->most.group ? p->most.targets : back,
                      back, p->units.head_rows, s > 0 ? &first : NULL);
        if (s == 0)
            first = head;
        if (p->heads != NULL)
            p->heads[s] = head;
        if (s == 2 && s < both) /* the first has the scratch too */
            s += skip_alike(&p->arena, before, az_min_i64(both, p->n_heads) - s - 1);
        else if (s == az_max_i64(both, 1) + 1)
            s += skip_alike(&p->arena, before, p->n_heads - s - 1);
    }
}

static void carve(az_pass *p, const az_level *opt_levels)
{
    const az_config *c = p->m.config;
    const az_lora *lora = p->m.lora;
    const size_t D = (size_t)c->D;
    const bool training = p->back.tokens > 0;
    const int64_t kept = (int64_t)p->n_inputs * p->back.group * p->back.tokens,
                  passing =
                      az_max_i64(p->back.group * p->back.tokens, p->most.group * p->most.tokens);
    int64_t R_max = 0, layer_elements = 0, off;
    for (int i = 0; i < lora->n_pairs; i++)
        R_max = az_max_i64(R_max, lora->pairs[i].R);
    for (int l = 0; l < p->units.n_layers; l++)
        layer_elements = az_max_i64(layer_elements, az_lora_get_layer(lora, l, &off));
    p->rope = az_arena_take(&p->arena, (size_t)(p->most.longest * c->K), sizeof(float));
    p->work.rope = p->rope;
    az_work_carve(&p->work, &p->arena, c, p->back.tokens, p->most.longest, R_max,
                  lora->dropout > 0);
    carve_acts(p, opt_levels);
    carve_heads(p);
    p->x = az_arena_take(&p->arena, (size_t)kept * D, sizeof(float));
    p->d = az_arena_take(&p->arena, (size_t)passing * D, sizeof(float));
    p->norm = az_arena_take(&p->arena, D, sizeof(float));
    if (training)
        p->grad = az_arena_take(&p->arena, (size_t)layer_elements, sizeof(float));
    p->losses = az_arena_take(&p->arena, (size_t)p->group_most, sizeof *p->losses);
    p->seqs = az_arena_take(&p->arena, (size_t)p->most.sequences, sizeof *p->seqs);
    p->program = az_arena_take(&p->arena, (size_t)az_pass_list_program(NULL, &p->units, training),
                               sizeof *p->program);
}

size_t az_pass_measure(const az_config *config, const az_lora *lora, const az_pass_units *units,
                       const az_pass_options *options)
{
    az_pass p = {0};
    init(&p, &(az_model_parts){.config = config, .lora = lora}, units, options);
    carve(&p, options->opt_levels);
    return p.arena.used + sizeof p;
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
    init(p, parts, &units, options);
    carve(p, options->opt_levels);
    AZ_TRY(az_arena_init(&p->arena, "activations"));
    carve(p, options->opt_levels);
    az_config_fill_rope(p->rope, parts->config, p->most.longest);
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
    az_arena_fini(&opt_pass->arena);
    az_free(opt_pass);
}

size_t az_pass_get_bytes(const az_pass *pass)
{
    return pass->arena.size + sizeof *pass;
}

int az_pass_get_group(const az_pass *pass, bool training)
{
    return training ? pass->back.group : pass->most.group;
}
