/* model/block: one decoder layer.
 *
 * Forward is a chain of stages, each of which fills some activations; backward reads those that the
 * adapters need. What the caller has not kept in between it has made again from the layer's input
 * (az_layer_forward with what is still there), which gives the same bits. */
#include <config.h>

#include "model/block.h"

/* Linears of each input: kinds [first[i], first[i + 1]). */
static const int first[AZ_N_INPUTS + 1] = {AZ_Q, AZ_O, AZ_GATE, AZ_DOWN, AZ_N_LINEARS};

void az_layer_stack(az_adapter *ads)
{
    for (int i = 0; i < AZ_N_INPUTS; i++)
        az_pair_stack(ads + first[i], first[i + 1] - first[i]);
}

/* Sum of the ranks of the adapters of an input. */
static int64_t sum_ranks(const int64_t *R, int input)
{
    int64_t sum = 0;
    for (int kind = first[input]; kind < first[input + 1]; kind++)
        sum += R[kind];
    return sum;
}

/* The input at which backward ends, since nothing below is wanted; -1: at the layer's own. */
static int find_end(const int64_t *R, bool lowest)
{
    for (int i = 0; lowest && i < AZ_N_INPUTS; i++)
        if (sum_ranks(R, i) > 0)
            return i;
    return lowest ? AZ_N_INPUTS : -1;
}

/* An adapted linear reads its input; what else is read depends on where the walk ends. */
unsigned az_layer_get_stages(const int64_t *R, bool lowest)
{
    const int end = find_end(R, lowest);
    unsigned stages = 0;
    if (sum_ranks(R, AZ_IN_DOWN) > 0)
        stages |= AZ_STAGE_SILU | AZ_STAGE_DOWN;
    if (sum_ranks(R, AZ_IN_GATE_UP) > 0)
        stages |= AZ_STAGE_NORM2;
    if (sum_ranks(R, AZ_IN_O) > 0)
        stages |= AZ_STAGE_ATTENTION;
    if (sum_ranks(R, AZ_IN_QKV) > 0)
        stages |= AZ_STAGE_NORM1;
    if (end < AZ_IN_DOWN)
        stages |= AZ_STAGE_GATE_UP;
    if (end < AZ_IN_GATE_UP)
        stages |= AZ_STAGE_O;
    if (end < AZ_IN_O)
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
        {AZ_STAGE_QKV, &a->t[AZ_IN_QKV], sum_ranks(R, AZ_IN_QKV)},
        {AZ_STAGE_ATTENTION, &a->att, HK},
        {AZ_STAGE_O, &a->h, D},
        {AZ_STAGE_O, &a->t[AZ_IN_O], sum_ranks(R, AZ_IN_O)},
        {AZ_STAGE_NORM2, &a->n2, D},
        {AZ_STAGE_GATE_UP, &a->g, F},
        {AZ_STAGE_GATE_UP, &a->u, F},
        {AZ_STAGE_GATE_UP, &a->t[AZ_IN_GATE_UP], sum_ranks(R, AZ_IN_GATE_UP)},
        {AZ_STAGE_SILU, &a->a, F},
        {AZ_STAGE_DOWN, &a->t[AZ_IN_DOWN], sum_ranks(R, AZ_IN_DOWN)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((stages & table[i].stage) != 0 && table[i].width > 0)
            *table[i].array = take(arena, N * table[i].width, numeric);
    if ((stages & AZ_STAGE_ATTENTION) != 0)
        a->lse = az_arena_take(arena, (size_t)(N * config->H), sizeof *a->lse);
}

void az_work_carve(az_work *work, az_arena *arena, const az_config *config, int64_t N_back,
                   int64_t longest, const int64_t *R, bool dropout, az_numeric numeric)
{
    const int64_t N = N_back, D = config->D, F = config->F, HK = config->H * config->K,
                  GK = config->G * config->K;
    const float *rope = work->rope;
    int64_t width = 0;
    for (int i = 0; i < AZ_N_INPUTS; i++)
        width = az_max_i64(width, sum_ranks(R, i));
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
    work->dt = take(arena, N * width, numeric);
}

/* What linears of the layer need besides their input and outputs. */
typedef struct {
    const az_layer *layer;
    const az_adapter *ads;
    const az_tokens *tokens;
    const az_acts *acts;
    az_work *work;
    const az_kern *kern;
} context;

/* y = x W' + b + adapter for the linears of an input; y NULL: only what the adapter's backward
 * needs. */
static void linears(void *const *opt_ys, const void *x, int input, const context *c)
{
    const int n = first[input + 1] - first[input];
    const az_adapter *ads = c->ads + first[input];
    const az_view *W = c->layer->weight + first[input], *b = c->layer->bias + first[input];
    void *t = c->acts->t[input];
    const int64_t N = c->tokens->N;
    for (int i = 0; i < n; i++)
        if (opt_ys[i] != NULL)
            c->kern->op->linear_forward(c->kern->self, opt_ys[i], false, x, W[i], b[i], N,
                                        c->work->linear_scratch);
    az_pair_forward_in(t, x, ads, n, &c->tokens->dropout, N, c->work->dropped, c->kern);
    for (int i = 0; i < n; i++)
        if (opt_ys[i] != NULL && ads[i].R > 0)
            az_pair_forward_out(opt_ys[i], t, &ads[i], N, c->kern);
}

/* dx = sum of dy W + adapters' part over the linears of an input x; gradients of the pairs. opt_dx
 * NULL: only the pairs' gradients are wanted. */
static void linears_backward(void *opt_dx, const void *const *dys, const void *x, int input,
                             const context *c)
{
    const int n = first[input + 1] - first[input];
    const az_adapter *ads = c->ads + first[input];
    const az_view *W = c->layer->weight + first[input];
    void *t = c->acts->t[input], *dt = c->work->dt;
    const int64_t N = c->tokens->N;
    for (int i = 0; i < n; i++) {
        if (opt_dx != NULL)
            c->kern->op->linear_backward(c->kern->self, opt_dx, dys[i], W[i], i > 0, N,
                                         c->work->linear_scratch);
        if (ads[i].R > 0)
            az_pair_backward_out(dt, dys[i], t, &ads[i], N, c->kern);
    }
    az_pair_backward_in(opt_dx, dt, x, ads, n, &c->tokens->dropout, N, c->work->dropped, c->kern);
}

/* q, k and v, rotated; with a cache, new keys and values go to their rows of it. */
static void project(const void *n1, const az_config *config, const context *c)
{
    const az_acts *a = c->acts;
    const az_tokens *tokens = c->tokens;
    const az_kern_ops *op = c->kern->op;
    az_kern_self *self = c->kern->self;
    const int64_t N = tokens->N, K = config->K, GK = config->G * K;
    linears((void *[]){a->q, a->k, a->v}, n1, AZ_IN_QKV, c);
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
        linears((void *[]){a->h}, a->att, AZ_IN_O, &c);
        op->add(self, a->h, x, (size_t)(N * D));
    }
    if (run & AZ_STAGE_NORM2)
        op->rmsnorm_forward(self, a->n2, a->h, layer->norm2, config->norm_eps, N, D);
    if (run & AZ_STAGE_GATE_UP)
        linears((void *[]){a->g, a->u}, a->n2, AZ_IN_GATE_UP, &c);
    if (run & AZ_STAGE_SILU)
        op->silu_gate_forward(self, a->a, a->g, a->u, (size_t)(N * config->F));
    if (run & AZ_STAGE_DOWN)
        linears((void *[]){opt_out}, a->a, AZ_IN_DOWN, &c);
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
    const int end = find_end(R, lowest);
#define WANTED(at) (end < (at))
    linears_backward(WANTED(AZ_IN_DOWN) ? work->da : NULL, (const void *[]){d}, a->a, AZ_IN_DOWN,
                     &c);
    if (!WANTED(AZ_IN_DOWN))
        return;
    op->silu_gate_backward(self, work->dg, work->du, work->da, a->g, a->u, (size_t)(N * config->F));
    void *dn = WANTED(AZ_IN_GATE_UP) ? work->dn : NULL;
    linears_backward(dn, (const void *[]){work->dg, work->du}, a->n2, AZ_IN_GATE_UP, &c);
    if (!WANTED(AZ_IN_GATE_UP))
        return;
    op->rmsnorm_backward(self, d, dn, a->h, layer->norm2, config->norm_eps, N, D);

    linears_backward(WANTED(AZ_IN_O) ? work->datt : NULL, (const void *[]){d}, a->att, AZ_IN_O, &c);
    if (!WANTED(AZ_IN_O))
        return;
    op->attention_backward(self, work->dq, work->dk, work->dv, work->datt, a->att, a->lse, a->q,
                           a->k, a->v, tokens->seqs, tokens->n_seqs, config->H, config->G, K,
                           work->attention_scratch);
    op->rope(self, work->dq, tokens->pos, work->rope, N, config->H, K, true);
    op->rope(self, work->dk, tokens->pos, work->rope, N, config->G, K, true);
    dn = WANTED(AZ_IN_QKV) ? work->dn : NULL;
    linears_backward(dn, (const void *[]){work->dq, work->dk, work->dv}, a->n1, AZ_IN_QKV, &c);
    if (WANTED(AZ_IN_QKV))
        op->rmsnorm_backward(self, d, dn, x, layer->norm1, config->norm_eps, N, D);
#undef WANTED
}
