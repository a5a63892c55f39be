/* pass: embedding, layers, head and back.
 *
 * Through each unit pass all slots before the next unit is gathered. On the way back slots go in
 * reverse order: the last one's activations of the last layer are then still in the shared arrays.
 * What a slot has not kept is computed again from the layer's input.
 *
 * The host queues all of a pass, and only then waits for what it gives: losses or logits. */
#include <config.h>

#include "pass/pass_priv.h"

/* ---- units and slots ---- */

static void begin(az_pass *p, const az_walk *walk)
{
    p->now = *walk;
    p->held_layer = -1;
    AZ_ASSERT(walk->n >= 0 && walk->n <= (walk->training ? p->back.group : p->most.group));
    const int n_program = az_pass_list_program(p->program, &p->units, walk->training);
    az_shard_begin(p->m.shard, p->program, n_program);
    az_params_begin(p->m.params, walk->training);
    az_pass_begin_laps(p);
}

/* End a pass: the host has what it gives, or waits for the rest of one that was stopped. */
static void end(az_pass *p, az_err err, az_sync why)
{
    if (err != AZ_OK)
        az_dev_record(p->m.kern->dev, p->fetched, AZ_QUEUE_COMPUTE);
    az_dev_sync_event(p->m.kern->dev, p->fetched, why);
    az_shard_end(p->m.shard);
    az_params_end(p->m.params);
}

/* The boundary between two units: all ranks gather the next one, or none does because one was asked
 * to stop. */
static az_err enter(az_pass *p, az_unit_kind kind, int i)
{
    static const char *const names[] = {[AZ_UNIT_EMBED] = "piece of the embedding",
                                        [AZ_UNIT_LAYER] = "layer",
                                        [AZ_UNIT_NORM] = "norm",
                                        [AZ_UNIT_HEAD] = "piece of the head"};
    const unsigned reasons = az_comm_poll(p->m.comm);
    const double now = az_now();
    if (!p->numeric.gpu && p->now.entered > 0 && now - p->now.entered > p->times.longest_unit)
        p->times.longest_unit = now - p->now.entered;
    p->now.entered = now;
    if (reasons != 0)
        return az_fail(AZ_ESTOP, "stopped by %s", az_stop_name(reasons));
    az_shard_gather(p->m.shard, kind, i);
    az_dev_mark(p->m.kern->dev, AZ_QUEUE_COMPUTE, names[kind], i);
    return AZ_OK;
}

/* Where the input of layer l is kept; -1: it is not. */
static int kept_at(const az_pass *p, int l)
{
    return p->now.training && l >= p->units.lowest && l < p->units.n_layers ? l - p->units.lowest
                                                                            : -1;
}

/* A slot's input of layer l, of the head for l = L. What is not kept is passed on in place. */
static void *input_of(const az_pass *p, int l, int slot)
{
    const int64_t D = p->m.config->D, i = kept_at(p, l);
    if (i >= 0)
        return az_kern_at(p->m.kern, p->x, (i * p->back.group + slot) * p->back.tokens * D);
    return az_kern_at(p->m.kern, p->d,
                      slot * (p->now.training ? p->back.tokens : p->most.tokens) * D);
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
    const az_spans *spans = az_params_get_spans(m->params);
    const int64_t off = spans->off[layer];
    const float *own = az_params_get_layer(m->params, layer);
    const void *values = own;
    if (p->narrowed != NULL && spans->off[layer + 1] > off) {
        m->kern->op->narrow(m->kern->self, p->narrowed, own, (size_t)(spans->off[layer + 1] - off));
        values = p->narrowed;
    }
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
                                    .A = az_kern_at(m->kern, values, q->a_off - off),
                                    .B = az_kern_at(m->kern, values, q->b_off - off),
                                    .module = (uint32_t)linear};
        if (p->grad != NULL) {
            a->ads[kind].dA = p->grad + (q->a_off - off);
            a->ads[kind].dB = p->grad + (q->b_off - off);
        }
    }
    az_layer_stack(a->ads);
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
    const az_kern *kern = p->m.kern;
    for (int i = 0; i < p->units.n_embed; i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_EMBED, i));
        const az_view piece = az_shard_get_piece(p->m.shard, &row0);
        for (int s = 0; s < p->now.n; s++) {
            const az_slot *slot = &p->slots[s];
            if (slot->tokens.N > 0)
                kern->op->embed(kern->self, input_of(p, 0, s), piece, row0, slot->ids,
                                slot->tokens.N);
        }
        az_shard_release(p->m.shard);
    }
out:
    return err;
}

static void forward_slot(az_pass *p, const adapted *a, int l, int slot)
{
    const az_kern *kern = p->m.kern;
    az_tokens tokens = p->slots[slot].tokens;
    if (tokens.N == 0)
        return;
    if (tokens.opt_cache_k != NULL) {
        const int64_t at = (int64_t)l * (int64_t)p->now.cache_stride;
        tokens.opt_cache_k = az_kern_at(kern, tokens.opt_cache_k, at);
        tokens.opt_cache_v = az_kern_at(kern, tokens.opt_cache_v, at);
    }
    az_layer_forward(input_of(p, l + 1, slot), input_of(p, l, slot), p->m.config, &a->base, a->ads,
                     &tokens, acts_of(p, l, slot), 0, 0, &p->work, kern);
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
    az_pass_end_lap(p, AZ_LAP_FORWARD, false);
out:
    return err;
}

static void backward_slot(az_pass *p, const adapted *a, int l, int slot, az_optim *optim)
{
    const int i = kept_at(p, l);
    const bool lowest = i == 0, held = p->held_layer == l && p->held_slot == slot;
    const az_acts *acts = acts_of(p, l, slot);
    const az_tokens *tokens = &p->slots[slot].tokens;
    const void *x = input_of(p, l, slot);
    if (tokens->N == 0)
        return;
    az_pass_end_lap(p, AZ_LAP_BACKWARD, false);
    az_layer_forward(NULL, x, p->m.config, &a->base, a->ads, tokens, acts,
                     held ? AZ_STAGES_ALL : p->kept[i], p->read[i], &p->work, p->m.kern);
    p->held_layer = -1;
    az_pass_end_lap(p, AZ_LAP_BACKWARD, true);
    az_layer_backward(input_of(p, p->units.n_layers, slot), x, p->m.config, &a->base, a->ads,
                      tokens, acts, &p->work, lowest, p->m.kern);
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
    az_pass_end_lap(p, AZ_LAP_BACKWARD, false);
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
    p->m.kern->op->widen(p->m.kern->self, p->norm, norm);
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
    const az_slot *t = &p->slots[slot];
    if (t->n_targets > 0)
        az_head_begin(head_of(p, slot), input_of(p, p->units.n_layers, slot), norm, t->rows,
                      t->n_targets, p->m.config, p->m.kern);
}

/* The gradient at the last layer's output takes that output's place. */
static void end_head(az_pass *p, int slot, az_view norm)
{
    const az_slot *t = &p->slots[slot];
    if (t->n_targets > 0)
        az_head_end(input_of(p, p->units.n_layers, slot), head_of(p, slot), norm, t->rows,
                    t->n_targets, t->tokens.N, p->m.config, p->m.kern);
}

/* A head of one piece: slot by slot. */
static az_err pass_whole(az_pass *p, az_view norm, double scale)
{
    az_err err;
    AZ_TRY(enter(p, AZ_UNIT_HEAD, 0));
    const az_view piece = az_shard_get_piece(p->m.shard, NULL);
    for (int s = 0; s < p->now.n; s++) {
        const az_slot *t = &p->slots[s];
        begin_head(p, s, norm);
        if (t->n_targets > 0)
            az_head_whole(&p->losses[s], head_of(p, s), piece, t->labels, t->n_targets, scale,
                          p->m.config, p->m.kern);
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
            const az_slot *t = &p->slots[s];
            if (t->n_targets > 0 && gradient)
                az_head_backward(head_of(p, s), piece, row0, t->labels, t->n_targets, scale, i == 0,
                                 p->m.config, p->m.kern);
            else if (t->n_targets > 0)
                az_head_forward(head_of(p, s), piece, row0, t->labels, t->n_targets, p->m.config,
                                p->m.kern);
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
    for (int s = 0; s < p->now.n; s++)
        if (p->slots[s].n_targets > 0)
            az_head_loss(&p->losses[s], head_of(p, s), p->slots[s].n_targets, p->m.kern);
    if (scale == 0)
        goto out;
    AZ_TRY(walk_head(p, true, scale));
    for (int s = 0; s < p->now.n; s++)
        end_head(p, s, norm);
out:
    return err;
}

/* Losses of the slots from the last layer's outputs, on their way to the host; with scale != 0 the
 * outputs become gradients. */
static az_err head(az_pass *p, double scale)
{
    az_err err;
    az_view norm;
    az_dev *dev = p->m.kern->dev;
    const size_t bytes = (size_t)p->now.n * sizeof *p->losses;
    AZ_TRY(gather_norm(&norm, p));
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, p->losses, 0, bytes); /* 0.0 where there is no target */
    AZ_TRY(p->units.n_head == 1 ? pass_whole(p, norm, scale) : pass_pieces(p, norm, scale));
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, p->losses_fetched, p->losses, bytes);
    az_dev_record(dev, p->fetched, AZ_QUEUE_COMPUTE);
    az_pass_end_lap(p, AZ_LAP_HEAD, false);
out:
    return err;
}

/* ---- passes ---- */

az_err az_pass_train(az_pass *pass, az_schedule *schedule, int first, int n, double scale,
                     uint64_t seed, int64_t step, az_optim *optim)
{
    az_err err;
    begin(pass, &(az_walk){.training = true, .n = n, .seed = seed, .step = step});
    az_pass_load_batches(pass, schedule, first, n);
    AZ_TRY(forward(pass));
    AZ_TRY(head(pass, scale));
    AZ_TRY(backward(pass, optim));
out:
    end(pass, err, AZ_SYNC_LOSS);
    for (int s = 0; err == AZ_OK && s < n; s++)
        az_optim_add_loss(optim, pass->losses_fetched[s] * scale);
    return err;
}

az_err az_pass_eval(const double **out_losses, az_pass *pass, az_schedule *schedule, int first,
                    int n)
{
    az_err err;
    begin(pass, &(az_walk){.n = n});
    az_pass_load_batches(pass, schedule, first, n);
    AZ_TRY(forward(pass));
    AZ_TRY(head(pass, 0));
    *out_losses = pass->losses_fetched;
out:
    end(pass, err, AZ_SYNC_LOSS);
    return err;
}

az_err az_pass_logits(az_pass *pass, const az_feed *feed, float *logits)
{
    az_err err;
    az_pass *p = pass;
    az_view norm;
    begin(p,
          &(az_walk){.n = 1,
                     .cache_stride = (size_t)(feed->cache_rows * p->m.config->G * p->m.config->K)});
    az_pass_load_feed(p, feed);
    AZ_TRY(forward(p));
    AZ_TRY(gather_norm(&norm, p));
    begin_head(p, 0, norm);
    for (int i = 0; i < p->units.n_head; i++) {
        int64_t row0;
        AZ_TRY(enter(p, AZ_UNIT_HEAD, i));
        const az_view piece = az_shard_get_piece(p->m.shard, &row0);
        if (feed->n_rows > 0)
            az_head_logits(logits, head_of(p, 0), piece, row0, feed->n_rows, p->m.config,
                           p->m.kern);
        az_shard_release(p->m.shard);
    }
    az_dev_record(p->m.kern->dev, p->fetched, AZ_QUEUE_COMPUTE);
    az_pass_end_lap(p, AZ_LAP_HEAD, false);
out:
    end(p, err, AZ_SYNC_LOGITS);
    return err;
}
