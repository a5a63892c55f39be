/* plan: what would make a plan fit that does not: more memory, fewer tokens a micro-batch, or more
 * nodes. Each is searched for by planning again. The smallest is the one that changes its number by
 * the smallest factor. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan_priv.h"

enum { MAX_NODES = 1 << 14 };

/* As much or more, of which az_format_bytes writes all digits: who gives what is written has
 * enough. */
static double round_up(double bytes)
{
    double unit = 1;
    while (bytes / unit >= 1024 && unit < 0x1p50)
        unit *= 1024;
    return unit > 1 ? ceil(100 * bytes / unit) / 100 * unit : ceil(bytes);
}

/* Whether there is a plan that fits, and the memory of the best or leanest one. */
static az_err probe(bool *out_fits, int64_t *out_need, const az_plan_input *input)
{
    az_err err;
    az_sizes sizes;
    az_plan *plan = NULL;
    AZ_TRY(az_sizes_init(&sizes, input));
    err = AZ_NEW(plan, 1, "plan");
    if (err == AZ_OK)
        err = az_plan_choose(plan, &sizes);
    if (err == AZ_OK) {
        *out_fits = plan->fits;
        *out_need = plan->total.domain;
    }
    az_free(plan);
    az_sizes_fini(&sizes);
out:
    return err;
}

void az_work_shrink(az_work_load *work, int64_t tokens)
{
    az_pass_limits *limits[] = {&work->train, &work->eval};
    for (int i = 0; i < 2; i++) {
        az_pass_limits *l = limits[i];
        l->tokens = az_min_i64(l->tokens, tokens);
        l->targets = az_min_i64(l->targets, tokens);
        l->longest = az_min_i64(l->longest, tokens);
        l->sequences = (int)az_min_i64(l->sequences, az_max_i64(1, tokens));
    }
}

static az_err find_tokens(az_plan_change *change, const az_plan_input *input)
{
    az_err err = AZ_OK;
    az_plan_input other = *input;
    int64_t need, lo = 0, hi = az_max_i64(input->work.train.tokens, input->work.eval.tokens);
    bool fits;
    while (hi - lo > az_max_i64(1, lo / 64)) {
        const int64_t mid = lo + (hi - lo) / 2;
        other.work = input->work;
        az_work_shrink(&other.work, mid);
        AZ_TRY(probe(&fits, &need, &other));
        if (fits)
            lo = mid;
        else
            hi = mid;
    }
    change->tokens = lo < 16 ? 0 : lo; /* fewer train nothing */
out:
    return err;
}

/* n nodes like the first ones, with as many ranks each as the fullest has. */
static az_err probe_nodes(bool *out_fits, const az_plan_input *input, int n)
{
    az_err err;
    az_plan_input other = *input;
    int *ranks = NULL, most = 0;
    int64_t need;
    *out_fits = false;
    for (int i = 0; i < input->machine.topology.n_nodes; i++)
        if (input->machine.topology.node_ranks[i] > most)
            most = input->machine.topology.node_ranks[i];
    if ((int64_t)n * most > AZ_PLAN_MAX_RANKS)
        return AZ_OK;
    AZ_TRY(AZ_NEW(ranks, (size_t)n, "plan"));
    for (int i = 0; i < n; i++)
        ranks[i] = most;
    other.machine.topology =
        (az_topology){.n_ranks = n * most, .n_nodes = n, .n_lanes = most, .node_ranks = ranks};
    err = probe(out_fits, &need, &other);
out:
    az_free(ranks);
    return err;
}

static az_err find_nodes(az_plan_change *change, const az_plan_input *input)
{
    az_err err = AZ_OK;
    const int now = input->machine.topology.n_nodes;
    int lo = now, hi = now;
    bool fits = false;
    while (!fits && hi < MAX_NODES && hi < 1024 * now) {
        lo = hi;
        hi *= 2;
        AZ_TRY(probe_nodes(&fits, input, hi));
    }
    if (!fits)
        goto out;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        AZ_TRY(probe_nodes(&fits, input, mid));
        if (fits)
            hi = mid;
        else
            lo = mid;
    }
    change->nodes = hi;
out:
    return err;
}

/* ---- in words */

typedef struct {
    double factor;
    char text[AZ_PLAN_LINE];
} way;

static void say_memory(way *w, const az_plan *plan, const az_plan_input *in)
{
    const bool domain = plan->change.memory > 0;
    const double need = round_up((double)(domain ? plan->change.memory : plan->change.host_memory));
    const double have = (double)(domain ? in->machine.memory : in->machine.host_memory);
    w->factor = need / fmax(have, 1);
    snprintf(w->text, sizeof w->text, "%s of memory a %s instead of %s (%s more)",
             az_format_bytes(need), in->machine.gpu && domain ? "GPU" : "node",
             az_format_bytes(have), az_format_bytes(need - have));
    if (domain && plan->change.host_memory > 0)
        snprintf(w->text + strlen(w->text), sizeof w->text - strlen(w->text),
                 ", and %s of a node's own memory",
                 az_format_bytes(round_up((double)plan->change.host_memory)));
}

static void say_tokens(way *w, const az_plan *plan, const az_plan_input *in)
{
    const long long tokens = plan->change.tokens, longest = in->work.train.longest;
    w->factor = (double)az_max_i64(in->work.train.tokens, in->work.eval.tokens) / (double)tokens;
    if (tokens >= longest)
        snprintf(w->text, sizeof w->text,
                 "micro-batches of at most %lld tokens (train.micro_batch_tokens=%lld%s)", tokens,
                 tokens, in->work.eval.tokens > tokens ? ", eval.micro_batch_tokens likewise" : "");
    else
        snprintf(
            w->text, sizeof w->text,
            "at most %lld tokens a micro-batch (data.max_length=%lld with micro-batches of one "
            "sample%s)",
            tokens, tokens,
            in->work.eval.tokens > tokens ? ", eval.micro_batch_tokens likewise" : "");
}

static void say_nodes(way *w, const az_plan *plan, const az_plan_input *in)
{
    w->factor = (double)plan->change.nodes / (double)in->machine.topology.n_nodes;
    snprintf(w->text, sizeof w->text, "%d nodes of this kind instead of %d", plan->change.nodes,
             in->machine.topology.n_nodes);
}

static void say_ways(az_plan *plan, const az_plan_input *in)
{
    way ways[3];
    int n = 0, first = 0;
    char *out = plan->change_text;
    const size_t size = sizeof plan->change_text;
    if (plan->change.memory > 0 || plan->change.host_memory > 0)
        say_memory(&ways[n++], plan, in);
    if (plan->change.tokens > 0)
        say_tokens(&ways[n++], plan, in);
    if (plan->change.nodes > 0)
        say_nodes(&ways[n++], plan, in);
    for (int i = 1; i < n; i++)
        if (ways[i].factor < ways[first].factor)
            first = i;
    snprintf(out, size, "the smallest change that fits: %s", ways[first].text);
    for (int i = 0; i < n; i++)
        if (i != first)
            snprintf(out + strlen(out), size - strlen(out), "; or %s", ways[i].text);
}

az_err az_plan_find_change(az_plan *plan, const az_plan_input *input)
{
    az_err err;
    const az_machine *m = &input->machine;
    plan->change =
        (az_plan_change){.memory = az_plan_fits_domain(plan, m) ? 0 : plan->total.domain,
                         .host_memory = az_plan_fits_host(plan, m) ? 0 : plan->host_total.domain};
    AZ_TRY(find_tokens(&plan->change, input));
    if (plan->total.domain - plan->total.shared < input->machine.memory) /* what nodes divide */
        AZ_TRY(find_nodes(&plan->change, input));
    say_ways(plan, input);
out:
    return err;
}
