/* model/block: one decoder layer.
 *
 * Forward keeps every activation in the workspace; backward reads them. Between the two the
 * workspace may have been used for other layers: the caller then runs forward again (recompute),
 * which gives the same bits. */
#include <config.h>

#include <string.h>

#include "model/block.h"

void az_work_carve(az_work *work, az_arena *arena, const az_config *config, int64_t N,
                   int64_t N_back, int64_t longest, int64_t R_max, bool dropout)
{
    const size_t n = (size_t)N, nb = (size_t)N_back, D = (size_t)config->D, F = (size_t)config->F;
    const size_t hk = (size_t)(config->H * config->K), gk = (size_t)(config->G * config->K);
    size_t widest = D > F ? D : F;
    widest = widest > hk ? widest : hk;
    const float *rope = work->rope;
    *work = (az_work){.N = N, .rope = rope};
    work->n1 = az_arena_take(arena, n * D, sizeof(float));
    work->q = az_arena_take(arena, n * hk, sizeof(float));
    work->k = az_arena_take(arena, n * gk, sizeof(float));
    work->v = az_arena_take(arena, n * gk, sizeof(float));
    work->att = az_arena_take(arena, n * hk, sizeof(float));
    work->lse = az_arena_take(arena, n * (size_t)config->H, sizeof(float));
    work->h = az_arena_take(arena, n * D, sizeof(float));
    work->n2 = az_arena_take(arena, n * D, sizeof(float));
    work->g = az_arena_take(arena, n * F, sizeof(float));
    work->u = az_arena_take(arena, n * F, sizeof(float));
    work->a = az_arena_take(arena, n * F, sizeof(float));
    for (int i = 0; i < AZ_N_LINEARS; i++)
        work->t[i] = az_arena_take(arena, n * (size_t)R_max, sizeof(float));
    work->linear_scratch = az_arena_take(arena, az_kern_linear_scratch(), sizeof(float));
    work->attention_scratch = az_arena_take(
        arena, az_kern_attention_scratch(longest, config->H, config->G, config->K), sizeof(float));
    if (dropout)
        work->dropped = az_arena_take(arena, nb * widest, sizeof(float));
    if (N_back == 0)
        return;
    work->dn = az_arena_take(arena, nb * D, sizeof(float));
    work->dq = az_arena_take(arena, nb * hk, sizeof(float));
    work->dk = az_arena_take(arena, nb * gk, sizeof(float));
    work->dv = az_arena_take(arena, nb * gk, sizeof(float));
    work->datt = az_arena_take(arena, nb * hk, sizeof(float));
    work->da = az_arena_take(arena, nb * F, sizeof(float));
    work->dg = az_arena_take(arena, nb * F, sizeof(float));
    work->du = az_arena_take(arena, nb * F, sizeof(float));
    work->dt = az_arena_take(arena, nb * (size_t)R_max, sizeof(float));
}

/* What one linear of the layer needs besides its input and output. */
typedef struct {
    const az_layer *layer;
    const az_adapter *ads;
    const az_tokens *tokens;
    az_work *work;
} context;

/* y = x W' + b + adapter; y NULL: only what the adapter's backward needs. */
static void linear(float *opt_y, const float *x, int kind, const context *c)
{
    const az_adapter *ad = &c->ads[kind];
    az_work *w = c->work;
    if (opt_y != NULL)
        az_kern_linear_forward(opt_y, x, c->layer->weight[kind], c->layer->bias[kind], c->tokens->N,
                               w->linear_scratch);
    if (ad->R > 0)
        az_pair_forward(opt_y, w->t[kind], x, ad, &c->tokens->dropout, c->tokens->N, w->dropped);
}

/* dx = (or +=) dy W + adapter's part; gradients of the pair. opt_dx NULL: only the pair's gradients
 * are wanted. */
static void linear_backward(float *opt_dx, const float *dy, const float *x, int kind, bool add,
                            const context *c)
{
    const az_adapter *ad = &c->ads[kind];
    az_work *w = c->work;
    if (opt_dx != NULL)
        az_kern_linear_backward(opt_dx, dy, c->layer->weight[kind], add, c->tokens->N,
                                w->linear_scratch);
    if (ad->R > 0)
        az_pair_backward(opt_dx, dy, x, w->t[kind], ad, &c->tokens->dropout, c->tokens->N, w->dt,
                         w->dropped);
}

/* Move new keys and values to their rows of the cache. */
static void fill_cache(const az_config *config, const az_tokens *tokens, const az_work *work)
{
    const size_t width = (size_t)(config->G * config->K);
    for (int64_t n = 0; n < tokens->N; n++) {
        const size_t to = (size_t)tokens->cache_row[n] * width, from = (size_t)n * width;
        memcpy(tokens->opt_cache_k + to, work->k + from, width * sizeof(float));
        memcpy(tokens->opt_cache_v + to, work->v + from, width * sizeof(float));
    }
}

void az_layer_forward(float *opt_out, const float *x, const az_config *config,
                      const az_layer *layer, const az_adapter *ads, const az_tokens *tokens,
                      az_work *work)
{
    const int64_t N = tokens->N, D = config->D, K = config->K;
    const context c = {layer, ads, tokens, work};
    const float *k = work->k, *v = work->v;

    az_kern_rmsnorm_forward(work->n1, x, layer->norm1, config->norm_eps, N, D);
    linear(work->q, work->n1, AZ_Q, &c);
    linear(work->k, work->n1, AZ_K, &c);
    linear(work->v, work->n1, AZ_V, &c);
    az_kern_rope(work->q, tokens->pos, work->rope, N, config->H, K, false);
    az_kern_rope(work->k, tokens->pos, work->rope, N, config->G, K, false);
    if (tokens->opt_cache_k != NULL) {
        fill_cache(config, tokens, work);
        k = tokens->opt_cache_k;
        v = tokens->opt_cache_v;
    }
    az_kern_attention_forward(work->att, work->lse, work->q, k, v, tokens->seqs, tokens->n_seqs,
                              config->H, config->G, K, work->attention_scratch);
    linear(work->h, work->att, AZ_O, &c);
    az_kern_add(work->h, x, (size_t)(N * D));

    az_kern_rmsnorm_forward(work->n2, work->h, layer->norm2, config->norm_eps, N, D);
    linear(work->g, work->n2, AZ_GATE, &c);
    linear(work->u, work->n2, AZ_UP, &c);
    az_kern_silu_gate_forward(work->a, work->g, work->u, (size_t)(N * config->F));
    linear(opt_out, work->a, AZ_DOWN, &c);
    if (opt_out != NULL)
        az_kern_add(opt_out, work->h, (size_t)(N * D));
}

/* Depth of a linear within its layer, from the input up. */
static const int depth[AZ_N_LINEARS] = {
    [AZ_Q] = 0, [AZ_K] = 0, [AZ_V] = 0, [AZ_O] = 1, [AZ_GATE] = 2, [AZ_UP] = 2, [AZ_DOWN] = 3};

void az_layer_backward(float *d, const float *x, const az_config *config, const az_layer *layer,
                       const az_adapter *ads, const az_tokens *tokens, az_work *work, bool lowest)
{
    const int64_t N = tokens->N, D = config->D, K = config->K;
    const context c = {layer, ads, tokens, work};
    int stop = -1; /* depth below which nothing is wanted */
    if (lowest) {
        stop = 4;
        for (int i = 0; i < AZ_N_LINEARS; i++)
            if (ads[i].R > 0 && depth[i] < stop)
                stop = depth[i];
    }
#define WANTED(at) (stop < (at))
    linear_backward(WANTED(3) ? work->da : NULL, d, work->a, AZ_DOWN, false, &c);
    if (!WANTED(3))
        return;
    az_kern_silu_gate_backward(work->dg, work->du, work->da, work->g, work->u,
                               (size_t)(N * config->F));
    float *dn = WANTED(2) ? work->dn : NULL;
    linear_backward(dn, work->dg, work->n2, AZ_GATE, false, &c);
    linear_backward(dn, work->du, work->n2, AZ_UP, true, &c);
    if (!WANTED(2))
        return;
    az_kern_rmsnorm_backward(d, dn, work->h, layer->norm2, config->norm_eps, N, D);

    linear_backward(WANTED(1) ? work->datt : NULL, d, work->att, AZ_O, false, &c);
    if (!WANTED(1))
        return;
    az_kern_attention_backward(work->dq, work->dk, work->dv, work->datt, work->att, work->lse,
                               work->q, work->k, work->v, tokens->seqs, tokens->n_seqs, config->H,
                               config->G, K, work->attention_scratch);
    az_kern_rope(work->dq, tokens->pos, work->rope, N, config->H, K, true);
    az_kern_rope(work->dk, tokens->pos, work->rope, N, config->G, K, true);
    dn = WANTED(0) ? work->dn : NULL;
    linear_backward(dn, work->dq, work->n1, AZ_Q, false, &c);
    linear_backward(dn, work->dk, work->n1, AZ_K, true, &c);
    linear_backward(dn, work->dv, work->n1, AZ_V, true, &c);
    if (WANTED(0))
        az_kern_rmsnorm_backward(d, dn, x, layer->norm1, config->norm_eps, N, D);
#undef WANTED
}
