/* pass: embedding, layers, head and back.
 *
 * Through each unit pass all slots before the next unit is gathered. On the way back slots go in
 * reverse order: the last one's activations of the last layer are then still in the shared arrays.
 * What a slot has not kept is computed again from the layer's input. */
#include <config.h>

#include <string.h>

#include "pass/pass_priv.h"

/* ---- units and slots ---- */

/* Add the time since the last lap to a counter, less what the gathers in between took. */
static void lap(az_pass *p, double *counter)
{
    const double now = az_now();
    const double gather =
        az_shard_get_stats(p->m.shard).waited_s + az_params_get_waited(p->m.params);
    *counter += now - p->now.mark - (gather - p->times.gather);
    p->times.gather = gather;
    p->now.mark = now;
}

static void begin(az_pass *p, const az_walk *walk)
{
    p->now = *walk;
    p->now.slot = -1;
    p->now.mark = az_now();
    p->held_layer = -1;
    AZ_ASSERT(walk->n >= 0 && walk->n <= (walk->training ? p->back.group : p->most.group));
    const int n_program = az_pass_list_program(p->program, &p->units, walk->training);
    az_shard_begin(p->m.shard, p->program, n_program);
    az_params_begin(p->m.params, walk->training);
}

/* The boundary between two units: all ranks gather the next one, or none does because one was asked
 * to stop. */
static az_err enter(az_pass *p, az_unit_kind kind, int i)
{
    const unsigned reasons = az_comm_poll(p->m.comm);
    const double now = az_now();
    if (p->now.entered > 0 && now - p->now.entered > p->times.longest_unit)
        p->times.longest_unit = now - p->now.entered;
    p->now.entered = now;
    if (reasons != 0)
        return az_fail(AZ_ESTOP, "stopped by %s", az_stop_name(reasons));
    az_shard_gather(p->m.shard, kind, i);
    return AZ_OK;
}

/* Batch and tokens of a slot, as p->now.batch and .tokens. */
static void use(az_pass *p, int slot)
{
    az_walk *w = &p->now;
    if (w->schedule == NULL || w->slot == slot)
        return;
    const az_pass_limits *limits = w->training ? &p->back : &p->most;
    az_batch *b = &w->batch;
    az_schedule_get_batch(w->schedule, w->first + slot, b);
    AZ_ASSERT(b->B <= limits->sequences && b->N <= limits->tokens &&
              b->n_targets <= limits->targets);
    for (int i = 0; i < b->B; i++) {
        const int64_t row = b->start[i], len = b->start[i + 1] - row;
        p->seqs[i] = (az_seq){row, len, row, len};
    }
    w->slot = slot;
    w->tokens = (az_tokens){.N = b->N, .pos = b->pos, .seqs = p->seqs, .n_seqs = b->B};
    w->tokens.dropout = (az_dropout){.p = w->training ? p->m.lora->dropout : 0,
                                     .seed = w->seed,
                                     .step = (uint32_t)w->step,
                                     .sample = b->sample,
                                     .pos = b->pos};
}

/* Where the input of layer l is kept; -1: it is not. */
static int kept_at(const az_pass *p, int l)
{
    return p->now.training && l >= p->units.lowest && l < p->units.n_layers ? l - p->units.lowest
                                                                            : -1;
}

/* A slot's input of layer l, of the head for l = L. What is not kept is passed on in place. */
static float *input_of(const az_pass *p, int l, int slot)
{
    const int64_t D = p->m.config->D, i = kept_at(p, l);
    if (i >= 0)
        return p->x + (i * p->back.group + slot) * p->back.tokens * D;
    return p->d + slot * (p->now.training ? p->back.tokens : p->most.tokens) * D;
}

static const az_acts *acts_of(const az_pass *p, int l, int slot)
{
    const int i = kept_at(p, l);
    return i >= 0 ? &p->acts[i * p->back.group + slot] : &p->shared;
}

/* ---- embedding and layers ---- */

/* What a layer is computed with, while its unit is gathered. */
typedef struct {
    az_layer base;
    az_adapter ads[AZ_N_LINEARS]; /* with gradients in p->grad */
} adapted;

/* The pairs of one layer; to be released with the layer. */
static void fill_adapters(adapted *a, const az_pass *p, int layer)
{
    const az_model_parts *m = &p->m;
    const int64_t off = az_params_get_spans(m->params)->off[layer];
    const float *values = az_params_get_layer(m->params, layer);
    for (int kind = 0; kind < AZ_N_LINEARS; kind++) {
        const int linear = layer * AZ_N_LINEARS + kind;
        const int pair = m->lora->n_pairs > 0 ? m->lora->pair_of[linear] : -1;
        a->ads[kind] = (az_adapter){0};
        if (pair < 0)
            continue;
        const az_pair *q = &m->lora->pairs[pair];
        a->ads[kind] = (az_adapter){.R = q->R,
                                    .in = m->linears[linear].in,
                                    .out = m->linears[linear].out,
                                    .scale = (float)q->scale,
                                    .A = values + (q->a_off - off),
                                    .B = values + (q->b_off - off),
                                    .module = (uint32_t)linear};
        if (p->grad != NULL) {
            a->ads[kind].dA = p->grad + (q->a_off - off);
            a->ads[kind].dB = p->grad + (q->b_off - off);
        }
    }
}

static az_err open_layer(adapted *a, az_pass *p, int layer)
{
    az_err err;
    AZ_TRY(enter(p, AZ_UNIT_LAYER, layer));
    az_shard_get_layer(p->m.shard, &a->base);
    fill_adapters(a, p, layer);
out:
    return err;
}

static void close_layer(az_pass *p)
{
    az_params_release_layer(p->m.params);
    az_shard_release(p->m.shard);
}

static az_err embed(az_pass *p)
{
    az_err err = AZ_OK;
    for (int i = 0; i < p->units.n_embed; i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_EMBED, i));
        const az_view piece = az_shard_get_piece(p->m.shard, &row0);
        for (int s = 0; s < p->now.n; s++) {
            use(p, s);
            if (p->now.tokens.N > 0)
                az_kern_embed_cpu(input_of(p, 0, s), piece, row0, p->now.batch.ids,
                                  p->now.tokens.N);
        }
        az_shard_release(p->m.shard);
    }
out:
    return err;
}

static void forward_slot(az_pass *p, const adapted *a, int l, int slot)
{
    use(p, slot);
    az_tokens tokens = p->now.tokens;
    if (tokens.N == 0)
        return;
    if (tokens.opt_cache_k != NULL) {
        tokens.opt_cache_k += (size_t)l * p->now.cache_stride;
        tokens.opt_cache_v += (size_t)l * p->now.cache_stride;
    }
    az_layer_forward(input_of(p, l + 1, slot), input_of(p, l, slot), p->m.config, &a->base, a->ads,
                     &tokens, acts_of(p, l, slot), 0, 0, &p->work);
    p->held_layer = l;
    p->held_slot = slot;
}

static az_err forward(az_pass *p)
{
    az_err err;
    adapted a;
    AZ_TRY(embed(p));
    for (int l = 0; l < p->units.n_layers; l++) {
        AZ_TRY(open_layer(&a, p, l));
        for (int s = 0; s < p->now.n; s++)
            forward_slot(p, &a, l, s);
        close_layer(p);
    }
    lap(p, &p->times.forward);
out:
    return err;
}

static void backward_slot(az_pass *p, const adapted *a, int l, int slot, az_optim *optim)
{
    const int i = kept_at(p, l);
    const bool lowest = i == 0, held = p->held_layer == l && p->held_slot == slot;
    const az_acts *acts = acts_of(p, l, slot);
    const float *x = input_of(p, l, slot);
    use(p, slot);
    if (p->now.tokens.N == 0)
        return;
    lap(p, &p->times.backward);
    az_layer_forward(NULL, x, p->m.config, &a->base, a->ads, &p->now.tokens, acts,
                     held ? AZ_STAGES_ALL : p->kept[i], p->read[i], &p->work);
    p->held_layer = -1;
    lap(p, &p->times.recompute);
    az_layer_backward(input_of(p, p->units.n_layers, slot), x, p->m.config, &a->base, a->ads,
                      &p->now.tokens, acts, &p->work, lowest);
    az_optim_add(optim, l, p->grad);
}

static az_err backward(az_pass *p, az_optim *optim)
{
    az_err err = AZ_OK;
    adapted a;
    for (int l = p->units.n_layers - 1; l >= p->units.lowest; l--) {
        AZ_TRY(open_layer(&a, p, l));
        for (int s = p->now.n - 1; s >= 0; s--)
            backward_slot(p, &a, l, s, optim);
        close_layer(p);
        az_optim_end_unit(optim, l);
    }
    lap(p, &p->times.backward);
out:
    return err;
}

/* ---- head ---- */

/* The final norm is small: it is widened once and let go. */
static az_err gather_norm(az_view *out_norm, az_pass *p)
{
    az_err err;
    AZ_TRY(enter(p, AZ_UNIT_NORM, 0));
    const az_view norm = az_shard_get_piece(p->m.shard, NULL);
    az_widen(p->norm, norm.data, norm.dtype, (size_t)norm.cols);
    az_shard_release(p->m.shard);
    *out_norm = (az_view){p->norm, AZ_F32, 1, norm.cols};
out:
    return err;
}

static az_head *head_of(az_pass *p, int slot)
{
    return &p->heads[p->n_heads > 1 ? slot : 0];
}

/* Targets of a slot; its head is told of them. */
static void begin_head(az_pass *p, int slot, az_view norm)
{
    use(p, slot);
    p->losses[slot] = 0;
    if (p->now.batch.n_targets > 0)
        az_head_begin(head_of(p, slot), input_of(p, p->units.n_layers, slot), norm,
                      p->now.batch.rows, p->now.batch.n_targets, p->m.config);
}

/* The gradient at the last layer's output takes that output's place. */
static void end_head(az_pass *p, int slot, az_view norm)
{
    use(p, slot);
    if (p->now.batch.n_targets > 0)
        az_head_end(input_of(p, p->units.n_layers, slot), head_of(p, slot), norm, p->now.batch.rows,
                    p->now.batch.n_targets, p->now.batch.N, p->m.config);
}

/* A head of one piece: slot by slot. */
static az_err pass_whole(az_pass *p, az_view norm, double scale)
{
    az_err err;
    AZ_TRY(enter(p, AZ_UNIT_HEAD, 0));
    const az_view piece = az_shard_get_piece(p->m.shard, NULL);
    for (int s = 0; s < p->now.n; s++) {
        begin_head(p, s, norm);
        if (p->now.batch.n_targets > 0)
            p->losses[s] = az_head_whole(head_of(p, s), piece, p->now.batch.labels,
                                         p->now.batch.n_targets, scale, p->m.config);
        if (scale != 0)
            end_head(p, s, norm);
    }
    az_shard_release(p->m.shard);
out:
    return err;
}

/* One walk over the pieces of the head: fold them into the sums, or add their gradient. */
static az_err walk_head(az_pass *p, bool gradient, double scale)
{
    az_err err = AZ_OK;
    for (int i = 0; i < p->units.n_head; i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_HEAD, i));
        const az_view piece = az_shard_get_piece(p->m.shard, &row0);
        for (int s = 0; s < p->now.n; s++) {
            use(p, s);
            const az_batch *b = &p->now.batch;
            if (b->n_targets > 0 && gradient)
                az_head_backward(head_of(p, s), piece, row0, b->labels, b->n_targets, scale, i == 0,
                                 p->m.config);
            else if (b->n_targets > 0)
                az_head_forward(head_of(p, s), piece, row0, b->labels, b->n_targets, p->m.config);
        }
        az_shard_release(p->m.shard);
    }
out:
    return err;
}

static az_err pass_pieces(az_pass *p, az_view norm, double scale)
{
    az_err err;
    for (int s = 0; s < p->now.n; s++)
        begin_head(p, s, norm);
    AZ_TRY(walk_head(p, false, 0));
    for (int s = 0; s < p->now.n; s++) {
        use(p, s);
        if (p->now.batch.n_targets > 0)
            p->losses[s] = az_head_loss(head_of(p, s), p->now.batch.n_targets);
    }
    if (scale == 0)
        goto out;
    AZ_TRY(walk_head(p, true, scale));
    for (int s = 0; s < p->now.n; s++)
        end_head(p, s, norm);
out:
    return err;
}

/* Losses of the slots from the last layer's outputs; with scale != 0 these become gradients. */
static az_err head(az_pass *p, double scale)
{
    az_err err;
    az_view norm;
    AZ_TRY(gather_norm(&norm, p));
    AZ_TRY(p->units.n_head == 1 ? pass_whole(p, norm, scale) : pass_pieces(p, norm, scale));
    lap(p, &p->times.head);
out:
    return err;
}

/* ---- passes ---- */

az_err az_pass_train(az_pass *pass, az_schedule *schedule, int first, int n, double scale,
                     uint64_t seed, int64_t step, az_optim *optim)
{
    az_err err;
    begin(pass, &(az_walk){.training = true,
                           .n = n,
                           .schedule = schedule,
                           .first = first,
                           .seed = seed,
                           .step = step});
    AZ_TRY(forward(pass));
    AZ_TRY(head(pass, scale));
    for (int s = 0; s < n; s++)
        az_optim_add_loss(optim, pass->losses[s] * scale);
    AZ_TRY(backward(pass, optim));
out:
    az_shard_end(pass->m.shard);
    az_params_end(pass->m.params);
    return err;
}

az_err az_pass_eval(const double **out_losses, az_pass *pass, az_schedule *schedule, int first,
                    int n)
{
    az_err err;
    begin(pass, &(az_walk){.n = n, .schedule = schedule, .first = first});
    AZ_TRY(forward(pass));
    AZ_TRY(head(pass, 0));
    *out_losses = pass->losses;
out:
    az_shard_end(pass->m.shard);
    az_params_end(pass->m.params);
    return err;
}

az_err az_pass_logits(az_pass *pass, const az_feed *feed, float *logits)
{
    az_err err;
    az_pass *p = pass;
    az_view norm;
    AZ_ASSERT(feed->N <= p->most.tokens && feed->n_rows <= p->most.targets);
    begin(p,
          &(az_walk){.n = 1,
                     .batch = {.ids = feed->ids, .rows = feed->rows, .n_targets = feed->n_rows},
                     .tokens = {.N = feed->N,
                                .pos = feed->pos,
                                .seqs = feed->seqs,
                                .n_seqs = feed->n_seqs,
                                .opt_cache_k = feed->opt_cache_k,
                                .opt_cache_v = feed->opt_cache_v,
                                .cache_row = feed->cache_row},
                     .cache_stride = (size_t)(feed->cache_rows * p->m.config->G * p->m.config->K)});
    AZ_TRY(forward(p));
    AZ_TRY(gather_norm(&norm, p));
    begin_head(p, 0, norm);
    for (int i = 0; i < p->units.n_head; i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_HEAD, i));
        const az_view piece = az_shard_get_piece(p->m.shard, &row0);
        if (feed->n_rows > 0)
            az_head_logits(logits, head_of(p, 0), piece, row0, feed->n_rows, p->m.config);
        az_shard_release(p->m.shard);
    }
    lap(p, &p->times.head);
out:
    az_shard_end(pass->m.shard);
    az_params_end(p->m.params);
    return err;
}

az_pass_times az_pass_get_times(const az_pass *pass)
{
    return pass->times;
}
