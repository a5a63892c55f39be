/* pass: embedding, layers, head and back.
 *
 * Kept of forward: the input of every layer. Backward computes a layer's activations again from it,
 * except for the last layer, whose activations are still in the workspace. */
#include <config.h>

#include <string.h>

#include "model/block.h"
#include "pass/pass.h"

struct az_pass {
    az_model_parts m;
    az_pass_limits most, back; /* of any pass, of az_pass_train */
    az_arena arena;
    az_work work;
    az_head head;
    float *x;    /* inputs of layers: every layer's in training, else two in turn */
    float *d;    /* [N,D] output of the last layer, then the gradient that walks down */
    float *grad; /* gradients of one layer's pairs */
    float *norm; /* [D] final norm */
    float *rope;
    az_seq *seqs;
    az_pass_units units;
    int *program; /* units in the order of this pass, the next one */
    int at;
    bool training;  /* the pass now under way */
    double entered; /* clock at the last unit of this pass; 0: none */
    az_pass_times times;
};

static az_pass_limits max_limits(const az_pass_limits *a, const az_pass_limits *b)
{
    return (az_pass_limits){.tokens = az_max_i64(a->tokens, b->tokens),
                            .targets = az_max_i64(a->targets, b->targets),
                            .longest = az_max_i64(a->longest, b->longest),
                            .sequences = a->sequences > b->sequences ? a->sequences : b->sequences};
}

static void carve(az_pass *p, int64_t R_max, int64_t layer_elements)
{
    const az_config *c = p->m.config;
    const size_t D = (size_t)c->D;
    const bool training = p->back.tokens > 0;
    const int64_t inputs = az_max_i64(c->L * p->back.tokens, 2 * p->most.tokens);
    p->rope = az_arena_take(&p->arena, (size_t)(p->most.longest * c->K), sizeof(float));
    p->work.rope = p->rope;
    az_work_carve(&p->work, &p->arena, c, p->most.tokens, p->back.tokens, p->most.longest, R_max,
                  training && p->m.lora->dropout > 0);
    az_head_carve(&p->head, &p->arena, c, p->most.targets, p->back.targets,
                  az_shard_get_head_rows(p->m.shard));
    p->x = az_arena_take(&p->arena, (size_t)inputs * D, sizeof(float));
    p->d = az_arena_take(&p->arena, (size_t)p->most.tokens * D, sizeof(float));
    p->norm = az_arena_take(&p->arena, D, sizeof(float));
    if (training)
        p->grad = az_arena_take(&p->arena, (size_t)layer_elements, sizeof(float));
    p->seqs = az_arena_take(&p->arena, (size_t)p->most.sequences, sizeof *p->seqs);
    p->program = az_arena_take(&p->arena, (size_t)az_pass_list_program(NULL, &p->units, training),
                               sizeof *p->program);
}

az_err az_pass_create(az_pass **out_pass, const az_model_parts *parts,
                      const az_pass_limits *forward, const az_pass_limits *opt_backward)
{
    az_err err;
    az_pass *p = NULL;
    int64_t R_max = 0, layer_elements = 0, off;
    *out_pass = NULL;
    for (int i = 0; i < parts->lora->n_pairs; i++)
        R_max = az_max_i64(R_max, parts->lora->pairs[i].R);
    for (int l = 0; l < parts->config->L; l++)
        layer_elements = az_max_i64(layer_elements, az_lora_get_layer(parts->lora, l, &off));
    AZ_TRY(AZ_NEW(p, 1, "activations"));
    p->m = *parts;
    p->units = (az_pass_units){.n_embed = az_shard_count(parts->shard, AZ_UNIT_EMBED),
                               .n_layers = (int)parts->config->L,
                               .n_head = az_shard_count(parts->shard, AZ_UNIT_HEAD),
                               .tied = parts->config->tied,
                               .lowest = az_lora_get_lowest_layer(parts->lora)};
    if (opt_backward != NULL)
        p->back = *opt_backward;
    p->most = max_limits(forward, &p->back);
    carve(p, R_max, layer_elements);
    AZ_TRY(az_arena_init(&p->arena, "activations"));
    carve(p, R_max, layer_elements);
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

/* Add the time since *mark to a counter, less what the gathers in between took. */
static void lap(az_pass *p, double *counter, double *mark)
{
    double now = az_now();
    double gather = az_shard_get_stats(p->m.shard).gather_s;
    *counter += now - *mark - (gather - p->times.gather);
    p->times.gather = gather;
    *mark = now;
}

static void begin(az_pass *p, bool training)
{
    az_pass_list_program(p->program, &p->units, training);
    p->at = 0;
    p->training = training;
    p->entered = 0;
}

static void fill_tokens(az_pass *p, az_tokens *tokens, const az_batch *batch, uint64_t seed,
                        int64_t step, bool training)
{
    const az_pass_limits *limits = training ? &p->back : &p->most;
    AZ_ASSERT(batch->B <= limits->sequences && batch->N <= limits->tokens &&
              batch->n_targets <= limits->targets);
    begin(p, training);
    for (int b = 0; b < batch->B; b++) {
        int64_t row = batch->start[b], len = batch->start[b + 1] - row;
        p->seqs[b] = (az_seq){row, len, row, len};
    }
    *tokens = (az_tokens){.N = batch->N, .pos = batch->pos, .seqs = p->seqs, .n_seqs = batch->B};
    tokens->dropout = (az_dropout){.p = training ? p->m.lora->dropout : 0,
                                   .seed = seed,
                                   .step = (uint32_t)step,
                                   .sample = batch->sample,
                                   .pos = batch->pos};
}

/* The pairs of one layer, with gradients in p->grad; to be released with the layer. */
static void fill_adapters(az_pass *p, az_adapter *ads, int layer)
{
    const int64_t off = az_params_get_spans(p->m.params)->off[layer];
    const float *values = az_params_get_layer(p->m.params, layer);
    for (int kind = 0; kind < AZ_N_LINEARS; kind++) {
        const int linear = layer * AZ_N_LINEARS + kind;
        const int pair = p->m.lora->n_pairs > 0 ? p->m.lora->pair_of[linear] : -1;
        ads[kind] = (az_adapter){0};
        if (pair < 0)
            continue;
        const az_pair *q = &p->m.lora->pairs[pair];
        ads[kind] = (az_adapter){.R = q->R,
                                 .in = p->m.linears[linear].in,
                                 .out = p->m.linears[linear].out,
                                 .scale = (float)q->scale,
                                 .A = values + (q->a_off - off),
                                 .B = values + (q->b_off - off),
                                 .module = (uint32_t)linear};
        if (p->grad != NULL) {
            ads[kind].dA = p->grad + (q->a_off - off);
            ads[kind].dB = p->grad + (q->b_off - off);
        }
    }
}

/* The number of a unit in the order of the model. */
static int unit_of(const az_pass *p, az_unit_kind kind, int i)
{
    const az_pass_units *u = &p->units;
    switch (kind) {
    case AZ_UNIT_EMBED:
        return i;
    case AZ_UNIT_LAYER:
        return u->n_embed + i;
    case AZ_UNIT_NORM:
        return u->n_embed + u->n_layers;
    default:
        return i + (u->tied ? 0 : u->n_embed + u->n_layers + 1);
    }
}

/* The boundary between two units: all ranks gather the next one, or none does because one was asked
 * to stop. */
static az_err enter(az_pass *p, az_unit_kind kind, int i)
{
    const unsigned reasons = az_comm_poll(p->m.comm);
    const double now = az_now();
    if (p->entered > 0 && now - p->entered > p->times.longest_unit)
        p->times.longest_unit = now - p->entered;
    p->entered = now;
    if (reasons != 0)
        return az_fail(AZ_ESTOP, "stopped by %s", az_stop_name(reasons));
    AZ_ASSERT(p->program[p->at] == unit_of(p, kind, i));
    p->at++;
    az_shard_gather(p->m.shard, kind, i);
    return AZ_OK;
}

static az_err embed(az_pass *p, float *x, const int32_t *ids, int64_t N)
{
    az_err err = AZ_OK;
    az_shard *shard = p->m.shard;
    for (int i = 0; i < az_shard_count(shard, AZ_UNIT_EMBED); i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_EMBED, i));
        az_view piece = az_shard_get_piece(shard, &row0);
        if (N > 0)
            az_kern_embed(x, piece, row0, ids, N);
        az_shard_release(shard);
    }
out:
    return err;
}

/* Input of layer l; the last layer's output goes to d. */
static float *input_of(const az_pass *p, int l)
{
    const az_config *c = p->m.config;
    if (l == c->L)
        return p->d;
    const int64_t at = p->training ? l * p->back.tokens : l % 2 * p->most.tokens;
    return p->x + at * c->D;
}

/* Through all layers. cache_stride: elements of one layer's cache, which tokens refers to for layer
 * 0. */
static az_err forward(az_pass *p, const int32_t *ids, const az_tokens *tokens, size_t cache_stride)
{
    az_err err;
    az_layer layer;
    az_adapter ads[AZ_N_LINEARS];
    az_tokens here = *tokens;
    AZ_TRY(embed(p, input_of(p, 0), ids, tokens->N));
    for (int l = 0; l < p->m.config->L; l++) {
        AZ_TRY(enter(p, AZ_UNIT_LAYER, l));
        az_shard_get_layer(p->m.shard, &layer);
        fill_adapters(p, ads, l);
        if (tokens->N > 0)
            az_layer_forward(input_of(p, l + 1), input_of(p, l), p->m.config, &layer, ads, &here,
                             &p->work);
        if (here.opt_cache_k != NULL) {
            here.opt_cache_k += cache_stride;
            here.opt_cache_v += cache_stride;
        }
        az_params_release_layer(p->m.params);
        az_shard_release(p->m.shard);
    }
out:
    return err;
}

static az_err gather_norm(az_view *out_norm, az_pass *p)
{
    az_err err;
    az_shard *shard = p->m.shard;
    AZ_TRY(enter(p, AZ_UNIT_NORM, 0));
    az_view norm = az_shard_get_piece(shard, NULL);
    az_widen(p->norm, norm.data, norm.dtype, (size_t)norm.cols);
    az_shard_release(shard);
    *out_norm = (az_view){p->norm, AZ_F32, 1, norm.cols};
out:
    return err;
}

/* One walk over the pieces of the head: fold them into the sums, or add their gradient. */
static az_err walk_head(az_pass *p, const az_batch *batch, bool gradient, double scale)
{
    az_err err = AZ_OK;
    for (int i = 0; i < az_shard_count(p->m.shard, AZ_UNIT_HEAD); i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_HEAD, i));
        az_view piece = az_shard_get_piece(p->m.shard, &row0);
        if (batch->n_targets > 0 && gradient)
            az_head_backward(&p->head, piece, row0, batch->labels, batch->n_targets, scale, i == 0,
                             p->m.config);
        else if (batch->n_targets > 0)
            az_head_forward(&p->head, piece, row0, batch->labels, batch->n_targets, p->m.config);
        az_shard_release(p->m.shard);
    }
out:
    return err;
}

/* Loss of the batch from the last layer's output in d; with scale != 0 d becomes the gradient. */
static az_err head(double *out_loss, az_pass *p, const az_batch *batch, double scale)
{
    az_err err;
    const bool have = batch->n_targets > 0;
    double loss = 0;
    az_view norm;
    AZ_TRY(gather_norm(&norm, p));
    if (have)
        az_head_begin(&p->head, p->d, norm, batch->rows, batch->n_targets, p->m.config);
    if (az_shard_count(p->m.shard, AZ_UNIT_HEAD) == 1) {
        AZ_TRY(enter(p, AZ_UNIT_HEAD, 0));
        if (have)
            loss = az_head_whole(&p->head, az_shard_get_piece(p->m.shard, NULL), batch->labels,
                                 batch->n_targets, scale, p->m.config);
        az_shard_release(p->m.shard);
    } else {
        AZ_TRY(walk_head(p, batch, false, 0));
        if (have)
            loss = az_head_loss(&p->head, batch->n_targets);
        if (scale != 0)
            AZ_TRY(walk_head(p, batch, true, scale));
    }
    if (scale != 0 && have)
        az_head_end(p->d, &p->head, norm, batch->rows, batch->n_targets, batch->N, p->m.config);
    *out_loss = loss;
out:
    return err;
}

static az_err backward(az_pass *p, const az_batch *batch, const az_tokens *tokens, az_optim *optim,
                       double *mark)
{
    az_err err = AZ_OK;
    az_layer layer;
    az_adapter ads[AZ_N_LINEARS];
    const int last = (int)p->m.config->L - 1, lowest = az_lora_get_lowest_layer(p->m.lora);
    for (int l = last; l >= lowest; l--) {
        AZ_TRY(enter(p, AZ_UNIT_LAYER, l));
        az_shard_get_layer(p->m.shard, &layer);
        fill_adapters(p, ads, l);
        if (batch->B > 0) {
            lap(p, &p->times.backward, mark);
            if (l != last)
                az_layer_forward(NULL, input_of(p, l), p->m.config, &layer, ads, tokens, &p->work);
            lap(p, &p->times.recompute, mark);
            az_layer_backward(p->d, input_of(p, l), p->m.config, &layer, ads, tokens, &p->work,
                              l == lowest);
            az_optim_add(optim, l, p->grad);
        }
        az_params_release_layer(p->m.params);
        az_shard_release(p->m.shard);
        az_optim_end_unit(optim, l);
    }
    lap(p, &p->times.backward, mark);
out:
    return err;
}

az_err az_pass_train(az_pass *pass, const az_batch *batch, double scale, uint64_t seed,
                     int64_t step, az_optim *optim)
{
    az_err err;
    az_tokens tokens;
    double mark = az_now(), loss = 0;
    fill_tokens(pass, &tokens, batch, seed, step, true);
    AZ_TRY(forward(pass, batch->ids, &tokens, 0));
    lap(pass, &pass->times.forward, &mark);
    AZ_TRY(head(&loss, pass, batch, scale));
    lap(pass, &pass->times.head, &mark);
    if (batch->B > 0)
        az_optim_add_loss(optim, loss * scale);
    AZ_TRY(backward(pass, batch, &tokens, optim, &mark));
out:
    return err;
}

az_err az_pass_eval(double *out_loss, az_pass *pass, const az_batch *batch)
{
    az_err err;
    az_tokens tokens;
    double mark = az_now();
    fill_tokens(pass, &tokens, batch, 0, 0, false);
    AZ_TRY(forward(pass, batch->ids, &tokens, 0));
    lap(pass, &pass->times.forward, &mark);
    AZ_TRY(head(out_loss, pass, batch, 0));
    lap(pass, &pass->times.head, &mark);
out:
    return err;
}

az_err az_pass_logits(az_pass *pass, const az_feed *feed, float *logits)
{
    az_err err;
    az_pass *p = pass;
    const az_tokens tokens = {.N = feed->N,
                              .pos = feed->pos,
                              .seqs = feed->seqs,
                              .n_seqs = feed->n_seqs,
                              .opt_cache_k = feed->opt_cache_k,
                              .opt_cache_v = feed->opt_cache_v,
                              .cache_row = feed->cache_row};
    AZ_ASSERT(feed->N <= pass->most.tokens && feed->n_rows <= pass->most.targets);
    begin(p, false);
    double mark = az_now();
    AZ_TRY(forward(pass, feed->ids, &tokens,
                   (size_t)(feed->cache_rows * p->m.config->G * p->m.config->K)));
    lap(pass, &pass->times.forward, &mark);
    az_view norm;
    AZ_TRY(gather_norm(&norm, pass));
    if (feed->n_rows > 0)
        az_head_begin(&pass->head, pass->d, norm, feed->rows, feed->n_rows, p->m.config);
    for (int i = 0; i < az_shard_count(p->m.shard, AZ_UNIT_HEAD); i++) {
        int64_t row0;
        AZ_TRY(enter(pass, AZ_UNIT_HEAD, i));
        az_view piece = az_shard_get_piece(p->m.shard, &row0);
        if (feed->n_rows > 0)
            az_head_logits(logits, &pass->head, piece, row0, feed->n_rows, p->m.config);
        az_shard_release(p->m.shard);
    }
    lap(pass, &pass->times.head, &mark);
out:
    return err;
}

az_pass_times az_pass_get_times(const az_pass *pass)
{
    return pass->times;
}

size_t az_pass_get_bytes(const az_pass *pass)
{
    return pass->arena.size;
}
