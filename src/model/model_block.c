/* model/block: one decoder layer.
 *
 * Forward is a chain of stages, each of which fills some activations; backward reads those that the
 * adapters need. What the caller has not kept in between it has made again from the layer's input
 * (az_layer_forward with what is still there), which gives the same bits. */
#include <config.h>

#include "model/block.h"

/* Depth of a linear within its layer, from the input up. */
static const int depth[AZ_N_LINEARS] = {
    [AZ_Q] = 0, [AZ_K] = 0, [AZ_V] = 0, [AZ_O] = 1, [AZ_GATE] = 2, [AZ_UP] = 2, [AZ_DOWN] = 3};

/* The depth at which backward ends, since nothing below is wanted; -1: at the input. */
static int depth_of_end(const int64_t *R, bool lowest)
{
    int end = lowest ? 4 : -1;
    for (int i = 0; i < AZ_N_LINEARS; i++)
        if (R[i] > 0 && depth[i] < end)
            end = depth[i];
    return end;
}

/* An adapted linear reads its input; what else is read depends on where the walk ends. */
unsigned az_layer_get_stages(const int64_t *R, bool lowest)
{
    const int end = depth_of_end(R, lowest);
    unsigned stages = 0;
    if (R[AZ_DOWN] > 0)
        stages |= AZ_STAGE_SILU | AZ_STAGE_DOWN;
    if (R[AZ_GATE] > 0 || R[AZ_UP] > 0)
        stages |= AZ_STAGE_NORM2;
    if (R[AZ_O] > 0)
        stages |= AZ_STAGE_ATTENTION;
    if (R[AZ_Q] > 0 || R[AZ_K] > 0 || R[AZ_V] > 0)
        stages |= AZ_STAGE_NORM1;
    if (end < 3)
        stages |= AZ_STAGE_GATE_UP;
    if (end < 2)
        stages |= AZ_STAGE_O;
    if (end < 1)
        stages |= AZ_STAGE_ATTENTION | AZ_STAGE_QKV;
    return stages;
}

unsigned az_layer_get_heavy(unsigned stages)
{
    return (stages & ~AZ_STAGES_LIGHT) | (stages & AZ_STAGES_LIGHT) >> 1;
}

/* An array of activations. */
static void *take(az_arena *arena, int64_t n, az_numeric numeric)
{
    return az_arena_take(arena, (size_t)n, az_dtype_bytes(numeric.act));
}

void az_acts_carve(az_acts *acts, az_arena *arena, const az_config *config, int64_t N,
                   const int64_t *R, unsigned stages, az_numeric numeric)
{
    const int64_t D = config->D, F = config->F, HK = config->H * config->K,
                  GK = config->G * config->K;
    az_acts *a = acts;
    const struct {
        unsigned stage;
        void **array;
        int64_t width;
    } table[] = {
        {AZ_STAGE_NORM1, &a->n1, D},
        {AZ_STAGE_QKV, &a->q, HK},
        {AZ_STAGE_QKV, &a->k, GK},
        {AZ_STAGE_QKV, &a->v, GK},
        {AZ_STAGE_QKV, &a->t[AZ_Q], R[AZ_Q]},
        {AZ_STAGE_QKV, &a->t[AZ_K], R[AZ_K]},
        {AZ_STAGE_QKV, &a->t[AZ_V], R[AZ_V]},
        {AZ_STAGE_ATTENTION, &a->att, HK},
        {AZ_STAGE_O, &a->h, D},
        {AZ_STAGE_O, &a->t[AZ_O], R[AZ_O]},
        {AZ_STAGE_NORM2, &a->n2, D},
        {AZ_STAGE_GATE_UP, &a->g, F},
        {AZ_STAGE_GATE_UP, &a->u, F},
        {AZ_STAGE_GATE_UP, &a->t[AZ_GATE], R[AZ_GATE]},
        {AZ_STAGE_GATE_UP, &a->t[AZ_UP], R[AZ_UP]},
        {AZ_STAGE_SILU, &a->a, F},
        {AZ_STAGE_DOWN, &a->t[AZ_DOWN], R[AZ_DOWN]},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((stages & table[i].stage) != 0 && table[i].width > 0)
            *table[i].array = take(arena, N * table[i].width, numeric);
    if ((stages & AZ_STAGE_ATTENTION) != 0)
        a->lse = az_arena_take(arena, (size_t)(N * config->H), sizeof *a->lse);
}

void az_work_carve(az_work *work, az_arena *arena, const az_config *config, int64_t N_back,
                   int64_t longest, int64_t R_max, bool dropout, az_numeric numeric)
{
    const int64_t N = N_back, D = config->D, F = config->F, HK = config->H * config->K,
                  GK = config->G * config->K;
    const float *rope = work->rope;
    *work = (az_work){.rope = rope};
    work->linear_scratch = az_arena_take(arena, az_kern_linear_scratch(numeric), 1);
    work->attention_scratch = az_arena_take(
        arena, az_kern_attention_scratch(numeric, longest, config->H, config->G, config->K), 1);
    if (N == 0)
        return;
    if (dropout)
        work->dropped = take(arena, N * az_max_i64(az_max_i64(D, F), HK), numeric);
    work->dn = take(arena, N * D, numeric);
    work->dq = take(arena, N * HK, numeric);
    work->dk = take(arena, N * GK, numeric);
    work->dv = take(arena, N * GK, numeric);
    work->datt = take(arena, N * HK, numeric);
    work->da = take(arena, N * F, numeric);
    work->dg = take(arena, N * F, numeric);
    work->du = take(arena, N * F, numeric);
    work->dt = take(arena, N * R_max, numeric);
}

/* What one linear of the layer needs besides its input and output. */
typedef struct {
    const az_layer *layer;
    const az_adapter *ads;
    const az_tokens *tokens;
    const az_acts *acts;
    az_work *work;
    const az_kern *kern;
} context;

/* y = x W' + b + adapter; y NULL: only what the adapter's backward needs. */
static void linear(void *opt_y, const void *x, int kind, const context *c)
{
    const az_adapter *ad = &c->ads[kind];
    az_work *w = c->work;
    if (opt_y != NULL)
        c->kern->op->linear_forward(c->kern->self, opt_y, false, x, c->layer->weight[kind],
                                    c->layer->bias[kind], c->tokens->N, w->linear_scratch);
    if (ad->R > 0)
        az_pair_forward(opt_y, c->acts->t[kind], x, ad, &c->tokens->dropout, c->tokens->N,
                        w->dropped, c->kern);
}

/* dx = (or +=) dy W + adapter's part; gradients of the pair. opt_dx NULL: only the pair's gradients
 * are wanted. */
static void linear_backward(void *opt_dx, const void *dy, const void *x, int kind, bool add,
                            const context *c)
{
    const az_adapter *ad = &c->ads[kind];
    az_work *w = c->work;
    if (opt_dx != NULL)
        c->kern->op->linear_backward(c->kern->self, opt_dx, dy, c->layer->weight[kind], add,
                                     c->tokens->N, w->linear_scratch);
    if (ad->R > 0)
        az_pair_backward(opt_dx, dy, x, c->acts->t[kind], ad, &c->tokens->dropout, c->tokens->N,
                         w->dt, w->dropped, c->kern);
}

/* q, k and v, rotated; with a cache, new keys and values go to their rows of it. */
static void project(const void *n1, const az_config *config, const context *c)
{
    const az_acts *a = c->acts;
    const az_tokens *tokens = c->tokens;
    const az_kern_ops *op = c->kern->op;
    az_kern_self *self = c->kern->self;
    const int64_t N = tokens->N, K = config->K, GK = config->G * K;
    linear(a->q, n1, AZ_Q, c);
    linear(a->k, n1, AZ_K, c);
    linear(a->v, n1, AZ_V, c);
    op->rope(self, a->q, tokens->pos, c->work->rope, N, config->H, K, false);
    op->rope(self, a->k, tokens->pos, c->work->rope, N, config->G, K, false);
    if (tokens->opt_cache_k == NULL)
        return;
    op->scatter_rows(self, tokens->opt_cache_k, a->k, tokens->cache_row, N, GK);
    op->scatter_rows(self, tokens->opt_cache_v, a->v, tokens->cache_row, N, GK);
}

static void attend(const az_config *config, const context *c)
{
    const az_acts *a = c->acts;
    const az_tokens *tokens = c->tokens;
    const bool cached = tokens->opt_cache_k != NULL;
    c->kern->op->attention_forward(
        c->kern->self, a->att, a->lse, a->q, cached ? tokens->opt_cache_k : a->k,
        cached ? tokens->opt_cache_v : a->v, tokens->seqs, tokens->n_seqs, config->H, config->G,
        config->K, c->work->attention_scratch);
}

void az_layer_forward(void *opt_out, const void *x, const az_config *config, const az_layer *layer,
                      const az_adapter *ads, const az_tokens *tokens, const az_acts *acts,
                      unsigned have, unsigned want, az_work *work, const az_kern *kern)
{
    const int64_t N = tokens->N, D = config->D;
    const az_acts *a = acts;
    const az_kern_ops *op = kern->op;
    az_kern_self *self = kern->self;
    const context c = {layer, ads, tokens, acts, work, kern};
    unsigned run = want & ~have;
    if (opt_out != NULL)
        run |= AZ_STAGE_DOWN | (AZ_STAGE_O & ~have);
    for (unsigned s = AZ_STAGE_DOWN; s > AZ_STAGE_NORM1; s >>= 1)
        if ((run & s) != 0)
            run |= s >> 1 & ~have;

    if (run & AZ_STAGE_NORM1)
        op->rmsnorm_forward(self, a->n1, x, layer->norm1, config->norm_eps, N, D);
    if (run & AZ_STAGE_QKV)
        project(a->n1, config, &c);
    if (run & AZ_STAGE_ATTENTION)
        attend(config, &c);
    if (run & AZ_STAGE_O) {
        linear(a->h, a->att, AZ_O, &c);
        op->add(self, a->h, x, (size_t)(N * D));
    }
    if (run & AZ_STAGE_NORM2)
        op->rmsnorm_forward(self, a->n2, a->h, layer->norm2, config->norm_eps, N, D);
    if (run & AZ_STAGE_GATE_UP) {
        linear(a->g, a->n2, AZ_GATE, &c);
        linear(a->u, a->n2, AZ_UP, &c);
    }
    if (run & AZ_STAGE_SILU)
        op->silu_gate_forward(self, a->a, a->g, a->u, (size_t)(N * config->F));
    if (run & AZ_STAGE_DOWN)
        linear(opt_out, a->a, AZ_DOWN, &c);
    if (opt_out != NULL)
        op->add(self, opt_out, a->h, (size_t)(N * D));
}

void az_layer_backward(void *d, const void *x, const az_config *config, const az_layer *layer,
                       const az_adapter *ads, const az_tokens *tokens, const az_acts *acts,
                       az_work *work, bool lowest, const az_kern *kern)
{
    const int64_t N = tokens->N, D = config->D, K = config->K;
    const az_acts *a = acts;
    const az_kern_ops *op = kern->op;
    az_kern_self *self = kern->self;
    const context c = {layer, ads, tokens, acts, work, kern};
    int64_t R[AZ_N_LINEARS];
    for (int i = 0; i < AZ_N_LINEARS; i++)
        R[i] = ads[i].R;
    const int end = depth_of_end(R, lowest);
#define WANTED(at) (end < (at))
    linear_backward(WANTED(3) ? work->da : NULL, d, a->a, AZ_DOWN, false, &c);
    if (!WANTED(3))
        return;
    op->silu_gate_backward(self, work->dg, work->du, work->da, a->g, a->u, (size_t)(N * config->F));
    void *dn = WANTED(2) ? work->dn : NULL;
    linear_backward(dn, work->dg, a->n2, AZ_GATE, false, &c);
    linear_backward(dn, work->du, a->n2, AZ_UP, true, &c);
    if (!WANTED(2))
        return;
    op->rmsnorm_backward(self, d, dn, a->h, layer->norm2, config->norm_eps, N, D);

    linear_backward(WANTED(1) ? work->datt : NULL, d, a->att, AZ_O, false, &c);
    if (!WANTED(1))
        return;
    op->attention_backward(self, work->dq, work->dk, work->dv, work->datt, a->att, a->lse, a->q,
                           a->k, a->v, tokens->seqs, tokens->n_seqs, config->H, config->G, K,
                           work->attention_scratch);
    op->rope(self, work->dq, tokens->pos, work->rope, N, config->H, K, true);
    op->rope(self, work->dk, tokens->pos, work->rope, N, config->G, K, true);
    dn = WANTED(0) ? work->dn : NULL;
    linear_backward(dn, work->dq, a->n1, AZ_Q, false, &c);
    linear_backward(dn, work->dk, a->n1, AZ_K, true, &c);
    linear_backward(dn, work->dv, a->n1, AZ_V, true, &c);
    if (WANTED(0))
        op->rmsnorm_backward(self, d, dn, x, layer->norm1, config->norm_eps, N, D);
#undef WANTED
}
