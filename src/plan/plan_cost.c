/* plan: bytes that move and operations that are made in a step, and how long that may take. */
#include <config.h>

#include <math.h>

#include "plan/plan_priv.h"

/* Where the bytes of weights come from, of which each domain's slots take so many. From other nodes
 * each byte comes to a node once. GPUs of a node hand each other what they hold or have been
 * brought; with AZ_CUT_HOST each takes its stretch from the node's own memory first. */
static void count_bytes(az_plan_traffic *t, const az_sizes *s, const az_plan_choice *c,
                        double bytes)
{
    const double nodes = s->in->machine.topology.n_nodes, here = s->node_domains;
    const az_gpu_cut cut = s->in->machine.gpu ? az_plan_find_cut(s, c) : AZ_CUT_ALL;
    const double over = cut == AZ_CUT_ALL ? nodes * here : here; /* parts of which one is there */
    const double in = cut == AZ_CUT_NODE ? 0 : bytes * (nodes - 1) / nodes;
    t->base_in = (int64_t)in;
    t->base_within =
        (int64_t)fmax(0, here * bytes * (over - 1) / over - (cut == AZ_CUT_ALL ? in : 0));
    t->base_up = cut == AZ_CUT_HOST ? (int64_t)bytes : 0;
    t->in_node = t->base_within + t->base_up;
}

/* Weights. A fetch brings a unit into each domain's slot. */
static az_err count_fetches(az_plan *plan, az_sizes *s)
{
    az_err err = AZ_OK;
    const az_plan_choice *c = &plan->choice;
    const int64_t passes = az_ceil_div(s->rounds, c->group);
    az_spread_traffic walk = {0};
    for (int u = 0; u < s->list.n_units; u++)
        s->cut_bytes[u] = s->resident[u] ? 0 : s->list.units[u].bytes;
    if (c->n_resident < s->list.n_units)
        AZ_TRY(az_spread_count(&walk, s->cut_bytes, s->list.n_units, s->program, s->n_program,
                               c->slots));
    plan->traffic.fetches = walk.fetches * passes;
    count_bytes(&plan->traffic, s, c, (double)walk.bytes * (double)passes);
out:
    return err;
}

/* Adapter: sums (8 bytes) are reduced to their owners, parameters (4 bytes) shared by them after an
 * update, or brought layer by layer. Of all of it a node sends and takes all but its own share. */
static void count_exchange(az_plan *plan, const az_sizes *s)
{
    const double n = (double)s->off[s->spans.n];
    const double nodes = s->in->machine.topology.n_nodes, here = s->node_domains;
    const double passes = (double)az_ceil_div(s->rounds, plan->choice.group);
    const double sums = plan->choice.unit_reduce ? passes : 1;
    const double brought = plan->choice.gathered ? (double)s->brought.first_bytes +
                                                       (passes - 1) * (double)s->brought.bytes
                                                 : 4 * n;
    plan->traffic.adapter_in = (int64_t)((8 * n * sums + brought) * (nodes - 1) / nodes);
    plan->traffic.in_node += (int64_t)((8 * n * sums + brought) * (here - 1));
}

static void count_flops(az_plan *plan, const az_sizes *s)
{
    const az_plan_choice *c = &plan->choice;
    /* the last layer's activations are still there when its backward begins, depth first */
    const int kept = c->n_keep + c->n_cheap;
    const int recompute = s->n_back - kept - (c->group == 1 && kept == 0 && s->n_back > 0);
    plan->traffic.flops_again =
        s->head_again + (recompute > 0 ? recompute * s->again[AZ_LEVEL_RECOMPUTE] : 0) +
        c->n_cheap * s->again[AZ_LEVEL_CHEAP] + c->n_keep * s->again[AZ_LEVEL_KEEP];
    plan->traffic.flops = s->flops + plan->traffic.flops_again;
}

/* From one node to the next, where several in turn hand data on: a guess for good networks. */
static const double hop_s = 1e-5;

/* The busiest rank has all rounds; with two slots or more transfers hide behind what is computed,
 * all but one unit's. */
static void estimate_time(az_plan *plan, const az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    const az_plan_traffic *t = &plan->traffic;
    az_plan_time *time = &plan->time;
    const double busiest = (double)s->rounds / (double)az_max_i64(1, s->in->work.n_micro);
    time->compute = t->flops * busiest / m->flops;
    /* GPUs of a node take their parts at the same time, each over a link of its own. */
    const double within = m->gpu ? 1 / (m->node_link * s->node_domains) : 0;
    const double turn = hop_s * (double)(s->in->machine.topology.n_nodes - 1);
    time->transfer = (double)t->base_in / m->link + (double)t->base_within * within;
    if (m->gpu)
        time->transfer += (double)t->base_up / (m->host_link * s->node_domains);
    if (t->base_in > 0)
        time->transfer += turn * (double)t->fetches;
    time->exchange = (double)t->adapter_in / m->link +
                     (double)(t->in_node - t->base_within - t->base_up) * within + 2 * turn;
    const double one = t->fetches > 0 ? time->transfer / (double)t->fetches : 0;
    const double walk = plan->choice.slots == 1 || s->in->keys.poll
                            ? time->compute + time->transfer
                            : fmax(time->compute, time->transfer) + one;
    time->step = walk + time->exchange;
}

az_err az_plan_count_cost(az_plan *plan, az_sizes *s)
{
    az_err err;
    AZ_TRY(count_fetches(plan, s));
    count_exchange(plan, s);
    count_flops(plan, s);
    estimate_time(plan, s);
out:
    return err;
}
