/* plan: the search. Few choices are discrete (micro-batches a group, slots, where the adapter lies,
 * when gradients are reduced, scope): all are tried. What memory each leaves is spent on
 * activations and on residency, one before the other, both ways round; the shortest step of those
 * that fit is taken. Each count is a walk over the units, so thousands take less than a second. */
#include <config.h>

#include "plan/plan_priv.h"

typedef struct {
    az_sizes *s;
    const az_plan_keys *keys;
    az_plan now, best;
    bool found; /* best fits */
    bool lean;  /* best holds the leanest so far */
} search;

/* Less time, if by more than a hundredth; then fewer bytes over the network; then less memory. */
static bool is_better(const az_plan *a, const az_plan *b)
{
    const double x = a->time.step, y = b->time.step;
    if (x < 0.99 * y || y < 0.99 * x)
        return x < y;
    const int64_t p = a->traffic.base_in + a->traffic.adapter_in,
                  q = b->traffic.base_in + b->traffic.adapter_in;
    if (p != q)
        return p < q;
    if (x != y)
        return x < y;
    return a->total.domain < b->total.domain;
}

/* Count what s->now.choice says; keep it if it is the best that fits, or the leanest of none. */
static az_err try(search *s)
{
    az_err err;
    AZ_TRY(az_plan_count(&s->now, s->s));
    const bool better = s->now.fits
                            ? !s->found || is_better(&s->now, &s->best)
                            : !s->found && (!s->lean || s->now.total.domain < s->best.total.domain);
    if (better) {
        s->best = s->now;
        s->found = s->found || s->now.fits;
        s->lean = true;
    }
out:
    return err;
}

static void set_levels(az_plan_choice *c, int n_back, int n_keep, int n_cheap)
{
    c->n_keep = n_keep;
    c->n_cheap = n_cheap;
    c->n_recompute = n_back - n_keep - n_cheap;
}

/* Whether more of something still fits. */
static bool fits_with(search *s, int n_keep, int n_cheap)
{
    const az_plan_choice before = s->now.choice;
    set_levels(&s->now.choice, s->s->n_back, n_keep, n_cheap);
    az_plan_count_memory(&s->now, s->s);
    s->now.choice = before;
    return s->now.fits;
}

/* The most layers, up to most, that can have a level more: of `keep`, taken from those that have
 * the cheap half, or of the cheap half. */
static int most_layers(search *s, bool keep, int most)
{
    int lo = 0, hi = most;
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (keep ? fits_with(s, mid, most - mid) : fits_with(s, 0, mid))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* As many layers as fit keep the cheap half, which saves nearly all that there is to save. */
static void spend_on_cheap(search *s)
{
    const int n = s->s->n_back, forced = s->keys->activations;
    if (forced >= 0)
        set_levels(&s->now.choice, n, forced == AZ_LEVEL_KEEP ? n : 0,
                   forced == AZ_LEVEL_CHEAP ? n : 0);
    else
        set_levels(&s->now.choice, n, 0, most_layers(s, false, n));
}

/* Then as many of them as fit keep all. */
static void spend_on_keep(search *s)
{
    const int n = s->now.choice.n_cheap;
    if (s->keys->activations >= 0 || n == 0)
        return;
    const int keep = most_layers(s, true, n);
    set_levels(&s->now.choice, s->s->n_back, keep, n - keep);
}

/* Bytes that make a share of the base resident, beyond what is held of cut units. */
static size_t spend_for(const search *s, double resident)
{
    const az_topology over = az_plan_cut_over(s->s, &s->now.choice);
    return (size_t)(resident * (double)az_shard_count_excess(&s->s->list, &over));
}

/* What is left is room for units. If all fit but for their slots, which they then do not need, they
 * are resident altogether. */
static void spend_on_residency(search *s)
{
    az_plan_choice *c = &s->now.choice;
    const az_topology over = az_plan_cut_over(s->s, c);
    const size_t all = az_shard_count_excess(&s->s->list, &over);
    const int slots = c->slots;
    if (s->keys->resident >= 0) {
        c->spend = spend_for(s, s->keys->resident);
        return;
    }
    if (c->scope == AZ_SCOPE_NODE && !s->s->in->machine.gpu)
        return; /* settled */
    c->spend = all;
    az_plan_count_memory(&s->now, s->s);
    if (s->now.fits)
        return;
    c->spend = 0;
    c->slots = slots;
    az_plan_count_memory(&s->now, s->s);
    const int64_t left = s->s->in->machine.memory - s->now.total.domain;
    c->slots = slots;
    c->spend = left <= 0 ? 0 : left > (int64_t)all ? all : (size_t)left;
}

/* One choice of everything discrete, and both orders of spending. */
static az_err try_orders(search *s, const az_plan_choice *base)
{
    az_err err;
    for (int residency_first = 0; residency_first < 2; residency_first++) {
        s->now.choice = *base;
        set_levels(&s->now.choice, s->s->n_back, 0, 0);
        if (!residency_first || s->keys->activations >= 0)
            spend_on_cheap(s);
        spend_on_residency(s);
        if (residency_first)
            spend_on_cheap(s);
        spend_on_keep(s);
        AZ_TRY(try(s));
        if (s->s->domains.n_nodes == 1)
            break;
    }
out:
    return err;
}

static az_err try_scope(search *s, az_plan_choice *base)
{
    az_err err = AZ_OK;
    static const int slots[] = {1, 2, 3, 4, 6, 8};
    const bool cut = s->s->domains.n_nodes > 1;
    const int given = s->keys->slots;
    for (size_t k = 0; k < sizeof slots / sizeof slots[0]; k++) {
        base->slots = given > 0 ? given : slots[k];
        base->spend = base->scope == AZ_SCOPE_NODE && !s->s->in->machine.gpu
                          ? az_shard_count_excess(&s->s->list, &s->s->domains)
                          : 0;
        AZ_TRY(try_orders(s, base));
        if (given > 0 || !cut || (base->scope == AZ_SCOPE_NODE && !s->s->in->machine.gpu))
            break;
    }
out:
    return err;
}

static az_err try_scopes(search *s, az_plan_choice *base)
{
    az_err err = AZ_OK;
    const bool gpu = s->s->in->machine.gpu;
    for (int scope = AZ_SCOPE_WORLD; scope <= AZ_SCOPE_NODE; scope++) {
        if (s->keys->scope != AZ_SCOPE_AUTO && s->keys->scope != scope)
            continue;
        if (scope == AZ_SCOPE_NODE && s->keys->scope == AZ_SCOPE_AUTO &&
            (!gpu || s->s->node_domains == 1 || s->s->in->machine.topology.n_nodes == 1))
            continue; /* world with every unit resident is the same */
        base->scope = (az_scope)scope;
        AZ_TRY(try_scope(s, base));
    }
out:
    return err;
}

/* Whether what a node computes with, with so many micro-batches a group, can be counted in 64 bits:
 * beyond 2^62 bytes no memory would do. The widths are more than a layer has. */
static bool can_count(const az_sizes *s, int64_t group)
{
    const az_config *c = s->in->config;
    const az_lora *lora = s->in->lora;
    int64_t widest = c->D + c->F + (c->H + 2 * c->G) * c->K;
    for (int i = 0; i < lora->n_pairs; i++)
        widest = az_max_i64(widest, lora->pairs[i].R);
    const double tokens =
        (double)group * (double)s->in->work.train.tokens + (double)s->in->work.eval.tokens;
    return tokens * 32 * (double)widest * (double)(c->L + 2) * sizeof(float) * s->max_ranks <
           0x1p62;
}

/* Groups of 1, 2, 4, ... micro-batches, and all of a step. */
static int64_t next_group(int64_t group, int64_t rounds)
{
    if (group == rounds)
        return rounds + 1;
    return az_min_i64(2 * group, rounds);
}

az_err az_plan_choose(az_plan *plan, az_sizes *sizes)
{
    az_err err = AZ_OK;
    search s = {.s = sizes, .keys = &sizes->in->keys};
    const int64_t rounds = az_max_i64(1, sizes->rounds);
    const int forced = s.keys->accumulation;
    for (int64_t group = forced == 1 ? rounds : 1; group <= rounds;
         group = next_group(group, rounds)) {
        if (!can_count(sizes, group) && s.lean)
            break;
        if (!can_count(sizes, group)) {
            err = az_fail(
                AZ_EINPUT,
                "the plan: micro-batches of %lld tokens, %lld at a time, need more memory than "
                "can be counted",
                (long long)az_max_i64(sizes->in->work.train.tokens, sizes->in->work.eval.tokens),
                (long long)group);
            goto out;
        }
        for (int how = 0; how < 4; how++) {
            az_plan_choice base = {
                .group = (int)group, .unit_reduce = how % 2 == 1, .gathered = how / 2 == 1};
            if (s.keys->unit_reduce >= 0 && base.unit_reduce != (s.keys->unit_reduce == 1))
                continue;
            if (s.keys->gathered >= 0 ? base.gathered != (s.keys->gathered == 1)
                                      : base.gathered && sizes->domains.n_nodes == 1)
                continue;
            AZ_TRY(try_scopes(&s, &base));
        }
        if (forced == 0)
            break;
    }
    *plan = s.best;
    if (!sizes->in->machine.gpu && plan->choice.n_resident == sizes->list.n_units)
        plan->choice.scope = AZ_SCOPE_NODE;
    if (sizes->in->machine.gpu && sizes->in->machine.topology.n_nodes == 1)
        plan->choice.scope = AZ_SCOPE_NODE;
out:
    return err;
}
