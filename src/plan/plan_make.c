/* plan: choose, explain, and refuse. */
#include <config.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan_priv.h"

static void reason(az_plan *plan, const char *name, const char *value, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void reason(az_plan *plan, const char *name, const char *value, const char *fmt, ...)
{
    va_list args;
    AZ_ASSERT(plan->n_reasons < AZ_PLAN_MAX_REASONS);
    snprintf(plan->reasons[plan->n_reasons].name, sizeof plan->reasons[0].name, "%s", name);
    snprintf(plan->reasons[plan->n_reasons].value, sizeof plan->reasons[0].value, "%s", value);
    va_start(args, fmt);
    vsnprintf(plan->reasons[plan->n_reasons++].why, sizeof plan->reasons[0].why, fmt, args);
    va_end(args);
}

static void warn(az_plan *plan, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void warn(az_plan *plan, const char *fmt, ...)
{
    va_list args;
    AZ_ASSERT(plan->n_warnings < AZ_PLAN_MAX_WARNINGS);
    va_start(args, fmt);
    vsnprintf(plan->warnings[plan->n_warnings++], AZ_PLAN_LINE, fmt, args);
    va_end(args);
}

static void explain_scope(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    const az_plan_keys *keys = &s->in->keys;
    const bool gpu = s->in->machine.gpu, all = c->n_resident == s->list.n_units;
    const char *domain = gpu ? "GPU" : "node";
    if (keys->map && !gpu)
        reason(plan, "scope", "node",
               "model.load: map: the copy is the system's cache of the files, %s that it may take "
               "back at any time and then reads again",
               az_format_bytes((double)plan->base_bytes));
    else if (s->domains.n_nodes == 1)
        reason(plan, "scope", "node", "there is one %s: it holds the base, %s", domain,
               az_format_bytes((double)plan->base_bytes));
    else if (keys->scope != AZ_SCOPE_AUTO)
        reason(plan, "scope", c->scope == AZ_SCOPE_NODE ? "node" : "world", "shard.scope says so");
    else if (all)
        reason(plan, "scope", "node", "a whole copy of %s fits in each %s: no weights move",
               az_format_bytes((double)plan->base_bytes), domain);
    else if (c->scope == AZ_SCOPE_NODE)
        reason(plan, "scope", "node",
               "a copy fits in the GPUs of a node together: no weights "
               "leave a node");
    else if (gpu && az_plan_find_cut(s, c) == AZ_CUT_HOST)
        reason(plan, "scope", "world",
               "a copy of %s does not fit in a GPU beside what is computed: each node's own memory "
               "holds 1/%d, which MPI brings together (comm.internode)",
               az_format_bytes((double)plan->base_bytes), s->in->machine.topology.n_nodes);
    else
        reason(plan, "scope", "world",
               "a copy of %s does not fit in a %s beside what is computed: each holds 1/%d",
               az_format_bytes((double)plan->base_bytes), domain, s->domains.n_nodes);
}

static void explain_residency(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    const az_plan_keys *keys = &s->in->keys;
    char value[64];
    snprintf(value, sizeof value, "%.0f %%", 100 * c->resident);
    if (c->n_resident == s->list.n_units)
        reason(plan, "residency", value, "nothing is gathered");
    else if (keys->resident >= 0)
        reason(plan, "residency", value, "%s says so: %d of %d units",
               keys->scope == AZ_SCOPE_WORLD && keys->resident == 0 ? "shard.scope"
                                                                    : "shard.resident",
               c->n_resident, s->list.n_units);
    else
        reason(plan, "residency", value,
               "memory left over keeps %d of %d units whole; as much less is gathered",
               c->n_resident, s->list.n_units);
}

static void explain_slots(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    char value[64];
    snprintf(value, sizeof value, "%d", c->slots);
    if (c->slots == 0)
        reason(plan, "slots", value, "nothing is gathered");
    else if (s->in->keys.slots > 0)
        reason(plan, "slots", value, "shard.slots says so");
    else
        reason(plan, "slots", value,
               c->slots == 1 ? "no memory for a second one: nothing hides behind computing"
               : c->slots == 2
                   ? "the next unit comes while one is used; more would bring nothing"
                   : "the next units come while one is used, and what is used again soon stays");
}

/* On GPUs: what is cut of the base lies in the nodes' own memory. */
static bool hosts_hold_base(const az_plan *plan, const az_sizes *s)
{
    return s->in->machine.gpu && plan->choice.slots > 0 &&
           az_plan_find_cut(s, &plan->choice) == AZ_CUT_HOST;
}

/* Who brings what is cut while ranks compute, and what that costs. */
static void explain_transport(az_plan *plan, const az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    const int lanes = m->topology.n_lanes;
    const bool mpi = plan->choice.gathered && m->topology.n_nodes > 1 && !m->nccl;
    if (plan->choice.slots == 0 && !plan->choice.gathered)
        return;
    if (m->gpu && !hosts_hold_base(plan, s)) {
        reason(plan, "transport", mpi ? "NCCL, between nodes MPI" : "NCCL",
               "from GPU to GPU, ahead of what is computed");
        return;
    }
    if (s->in->keys.poll)
        reason(plan, "transport", "poll",
               "shard.progress says so: units come mostly while a rank waits");
    else
        reason(plan, "transport", "thread",
               "%d thread%s a node beside those that compute, which want%s a core of %s own", lanes,
               lanes > 1 ? "s" : "", lanes > 1 ? "" : "s", lanes > 1 ? "their" : "its");
    if (!s->in->keys.poll && !m->gpu && m->cores > 0 && s->max_ranks * m->threads >= m->cores)
        warn(plan,
             "units come over the network, and all %d cores of a node compute: the threads that "
             "bring them (shard.progress) have no core; fewer run.threads would leave them one",
             m->cores);
}

static void explain_activations(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    char value[64];
    snprintf(value, sizeof value, "%d keep, %d cheap, %d not", c->n_keep, c->n_cheap,
             c->n_recompute);
    if (s->in->keys.activations >= 0)
        reason(plan, "activations", value, "shard.activations says so");
    else if (c->n_recompute == 0 && c->n_cheap == 0)
        reason(plan, "activations", value, "all layers' fit: nothing is computed again");
    else
        reason(plan, "activations", value,
               "layers by what fits (cheap: outputs of products and attention); %.1f %% of the "
               "operations are made again",
               100 * plan->traffic.flops_again / plan->traffic.flops);
}

static void explain_order(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    char value[64];
    snprintf(value, sizeof value, c->group == 1 ? "depth first" : "layer-major, groups of %d",
             c->group);
    if (s->rounds <= 1)
        reason(plan, "accumulation", value, "a rank has one micro-batch a step");
    else if (s->in->keys.accumulation >= 0)
        reason(plan, "accumulation", value, "shard.accumulation says so");
    else if (c->group == 1)
        reason(plan, "accumulation", value,
               plan->traffic.fetches == 0 ? "nothing is gathered"
                                          : "a larger group would take memory and no less time");
    else
        reason(plan, "accumulation", value,
               "%lld micro-batches a rank share %lld pass%s over the base: gathers divided by %.3g",
               (long long)s->rounds, (long long)az_ceil_div(s->rounds, c->group),
               az_ceil_div(s->rounds, c->group) == 1 ? "" : "es",
               (double)s->rounds / (double)az_ceil_div(s->rounds, c->group));
}

static void explain_adapter(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    const char *domain = s->in->machine.gpu ? "GPU" : "node";
    if (s->in->keys.gathered >= 0)
        reason(plan, "adapter", c->gathered ? "gathered" : "replicated", "shard.adapter says so");
    else if (c->gathered)
        reason(plan, "adapter", "gathered", "a whole copy, %s, is better spent otherwise",
               az_format_bytes(4.0 * (double)s->off[s->spans.n]));
    else
        reason(plan, "adapter", "replicated", "one copy a %s, %s", domain,
               az_format_bytes(4.0 * (double)s->off[s->spans.n]));
    if (s->in->keys.unit_reduce >= 0)
        reason(plan, "reduce", c->unit_reduce ? "unit" : "step", "shard.reduce says so");
    else if (c->unit_reduce)
        reason(plan, "reduce", "unit", "sums of two layers are held instead of all, %s",
               az_format_bytes(8.0 * (double)s->off[s->spans.n]));
    else
        reason(plan, "reduce", "step", "sums of all layers fit: they are reduced once a step");
    if (!s->in->machine.gpu)
        reason(plan, "offload", "none", "the memory of the node is the only one there is");
    else if (hosts_hold_base(plan, s))
        reason(plan, "offload", "base", "what is cut of the base lies in the nodes' own memory");
    else
        reason(plan, "offload", "none", "everything stays in the memory of the GPUs");
}

static void warn_of_idle(az_plan *plan, const az_sizes *s)
{
    const int64_t n = s->in->work.n_micro, ranks = s->in->machine.topology.n_ranks;
    const double idle = 1 - (double)n / (double)(s->rounds * ranks);
    if (n < ranks)
        warn(plan,
             "%lld ranks will idle in every step: it has %lld micro-batches for %lld ranks (a "
             "larger train.batch_size or smaller micro-batches would give them work)",
             (long long)(ranks - n), (long long)n, (long long)ranks);
    else if (n % ranks != 0)
        warn(plan,
             "%lld micro-batches do not fill %lld ranks %lld times: %.0f %% of their time is "
             "idle",
             (long long)n, (long long)ranks, (long long)s->rounds, 100 * idle);
}

static void warn_of_saves(az_plan *plan, const az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    if (m->disk <= 0 || s->in->keys.lead < 0)
        return;
    const double save = (double)plan->checkpoint_bytes / m->disk;
    if (save > s->in->keys.lead)
        warn(plan,
             "a checkpoint of %s takes %s at %s/s, longer than checkpoint.lead, %s: it would not "
             "be whole when the allocation ends",
             az_format_bytes((double)plan->checkpoint_bytes), az_format_seconds(save),
             az_format_bytes(m->disk), az_format_seconds(s->in->keys.lead));
}

/* Mapped files are read again where the system has no room to keep them. */
static void warn_of_cache(az_plan *plan, const az_sizes *s)
{
    const int64_t left = s->in->machine.memory - plan->total.domain;
    if (s->in->keys.map && plan->fits && plan->base_bytes > left)
        warn(plan,
             "the files of the model, %s, do not fit into the %s that are left of a node's memory: "
             "they will be read again in every step (model.load without map cuts the base instead)",
             az_format_bytes((double)plan->base_bytes), az_format_bytes((double)left));
}

void az_plan_explain(az_plan *plan, const az_sizes *s)
{
    plan->n_reasons = plan->n_warnings = 0;
    explain_scope(plan, s);
    explain_residency(plan, s);
    explain_slots(plan, s);
    explain_transport(plan, s);
    explain_activations(plan, s);
    explain_order(plan, s);
    explain_adapter(plan, s);
    warn_of_idle(plan, s);
    warn_of_saves(plan, s);
    warn_of_cache(plan, s);
}

az_err az_plan_make(az_plan *plan, const az_plan_input *input)
{
    az_err err;
    az_sizes sizes;
    AZ_TRY(az_sizes_init(&sizes, input));
    err = az_plan_choose(plan, &sizes);
    if (err == AZ_OK)
        az_plan_explain(plan, &sizes);
    if (err == AZ_OK && !plan->fits)
        err = az_plan_find_change(plan, input);
    az_sizes_fini(&sizes);
out:
    return err;
}

az_err az_plan_check(const az_plan *plan, const az_plan_input *input)
{
    if (plan->fits)
        return AZ_OK;
    const az_machine *m = &input->machine;
    if (!az_plan_fits_domain(plan, m))
        return az_fail(AZ_EINPUT, "the run does not fit: it needs %s a %s of %s (%s); %s",
                       az_format_bytes((double)plan->total.domain), m->gpu ? "GPU" : "node",
                       az_format_bytes((double)m->memory), m->source, plan->change_text);
    return az_fail(AZ_EINPUT,
                   "the run does not fit: it needs %s of a node's own memory, beside its GPUs, of "
                   "%s (%s); %s",
                   az_format_bytes((double)plan->host_total.domain),
                   az_format_bytes((double)m->host_memory), m->host_source, plan->change_text);
}
