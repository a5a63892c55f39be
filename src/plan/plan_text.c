/* plan: in words, for `adze plan` and for the banner of a run. */
#include <config.h>

#include <stdio.h>

#include "plan/plan_priv.h"

static const char *domain_of(const az_plan_input *in)
{
    return in->machine.gpu ? "GPU" : "node";
}

static const char *format_speed(double bytes_per_s)
{
    static char text[2][40];
    static int k;
    k = !k;
    snprintf(text[k], sizeof text[k], "%.3g Gbit/s", bytes_per_s / 125e6);
    return text[k];
}

static const char *format_flops(double flops, const char *unit)
{
    static char text[4][40];
    static int k;
    static const char prefix[] = " kMGTPEZ";
    int p = 0;
    while (flops >= 1000 && prefix[p + 1] != '\0') {
        flops /= 1000;
        p++;
    }
    k = (k + 1) % 4;
    snprintf(text[k], sizeof text[k], "%.3g %.*s%s", flops, p > 0, prefix + p, unit);
    return text[k];
}

static az_err add_machine(az_str *out, const az_plan_input *in)
{
    az_err err;
    const az_machine *m = &in->machine;
    const az_topology *t = &m->topology;
    int least = t->node_ranks[0], most = least;
    for (int i = 1; i < t->n_nodes; i++) {
        least = t->node_ranks[i] < least ? t->node_ranks[i] : least;
        most = t->node_ranks[i] > most ? t->node_ranks[i] : most;
    }
    AZ_TRY(az_str_add(out, "machine   %d node%s x ", t->n_nodes, t->n_nodes == 1 ? "" : "s"));
    AZ_TRY(least == most ? az_str_add(out, "%d", most) : az_str_add(out, "%d to %d", least, most));
    if (m->gpu)
        AZ_TRY(az_str_add(out, " GPU%s (a rank each)", most == 1 ? "" : "s"));
    else
        AZ_TRY(az_str_add(out, " rank%s x %d thread%s", most == 1 ? "" : "s", m->threads,
                          m->threads == 1 ? "" : "s"));
    AZ_TRY(az_str_add(out, "; %s of memory a %s (%s)\n", az_format_bytes((double)m->memory),
                      domain_of(in), m->source));
    AZ_TRY(az_str_add(out, "          link of a node %s%s, ", format_speed(m->link),
                      m->link_given ? "" : " (assumed)"));
    if (m->gpu)
        AZ_TRY(az_str_add(out, "of a GPU within its node %s%s, ", format_speed(m->node_link),
                          m->node_link_given ? "" : " (assumed)"));
    AZ_TRY(az_str_add(out, "%s a rank%s\n", format_flops(m->flops, "FLOP/s"),
                      m->flops_given ? "" : " (assumed)"));
    if (m->gpu)
        AZ_TRY(az_str_add(out, "          this version trains on CPUs alone: for GPUs it can plan, "
                               "not run\n"));
out:
    return err;
}

static az_err add_step(az_str *out, const az_plan *plan, const az_plan_input *in)
{
    const az_work_load *w = &in->work;
    return az_str_add(out,
                      "step      %s tokens in %s micro-batches of at most %s (longest sample %s), "
                      "%s on the busiest rank; %s\n",
                      az_format_count(w->tokens), az_format_count(w->n_micro),
                      az_format_count(w->train.tokens), az_format_count(w->train.longest),
                      az_format_count(plan->rounds),
                      w->exact ? "from the samples" : "at most, as the deck says");
}

static az_err add_row(az_str *out, const char *name, const az_plan_memory *m)
{
    return az_str_add(out, "  %-16s %12s %14s %14s %12s\n", name,
                      az_format_bytes((double)m->shared), az_format_bytes((double)m->most),
                      az_format_bytes((double)m->least), az_format_bytes((double)m->domain));
}

static az_err add_memory(az_str *out, const az_plan *plan, const az_plan_input *in)
{
    az_err err;
    AZ_TRY(az_str_add(out, "memory    %-8s %12s %14s %14s %12s\n", "",
                      in->machine.gpu ? "on a GPU" : "shared", "heaviest rank", "lightest rank",
                      in->machine.gpu ? "a GPU" : "a node"));
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        const bool host = in->machine.gpu && !az_plan_on_device((az_plan_category)c);
        char name[40];
        if (plan->memory[c].domain == 0)
            continue;
        snprintf(name, sizeof name, "%s%s", az_plan_category_name((az_plan_category)c),
                 host ? "*" : "");
        AZ_TRY(add_row(out, name, &plan->memory[c]));
    }
    AZ_TRY(add_row(out, "total", &plan->total));
    if (in->machine.gpu)
        AZ_TRY(az_str_add(out, "  * of a rank, in the memory of its node: not in the total\n"));
    const double left = (double)(in->machine.memory - plan->total.domain);
    if (plan->fits)
        err = az_str_add(out, "fits      %s of %s are left\n", az_format_bytes(left),
                         az_format_bytes((double)in->machine.memory));
    else
        err = az_str_add(out, "does not fit: %s are missing of %s a %s; %s\n",
                         az_format_bytes(-left), az_format_bytes((double)plan->total.domain),
                         domain_of(in), plan->change_text);
out:
    return err;
}

static az_err add_cost(az_str *out, const az_plan *plan)
{
    az_err err;
    const az_plan_traffic *t = &plan->traffic;
    const az_plan_time *s = &plan->time;
    AZ_TRY(az_str_add(out,
                      "traffic   a step brings into a node, and takes out of it, %s of weights (%s "
                      "fetches) and %s of the adapter; %s move within a node\n",
                      az_format_bytes((double)t->base_in), az_format_count(t->fetches),
                      az_format_bytes((double)t->adapter_in), az_format_bytes((double)t->in_node)));
    AZ_TRY(az_str_add(out, "work      %s a step, %.1f %% of it made again\n",
                      format_flops(t->flops, "FLOP"), 100 * t->flops_again / t->flops));
    AZ_TRY(az_str_add(out,
                      "estimate  computing %s, weights %s, adapter %s, a step %s: good for "
                      "comparing choices, no promise\n",
                      az_format_seconds(s->compute), az_format_seconds(s->transfer),
                      az_format_seconds(s->exchange), az_format_seconds(s->step)));
out:
    return err;
}

static az_err add_choices(az_str *out, const az_plan *plan)
{
    az_err err = AZ_OK;
    for (int i = 0; i < plan->n_reasons; i++)
        AZ_TRY(az_str_add(out, "%s%-13s %-28s %s\n", i == 0 ? "choices   " : "          ",
                          plan->reasons[i].name, plan->reasons[i].value, plan->reasons[i].why));
    for (int i = 0; i < plan->n_warnings; i++)
        AZ_TRY(az_str_add(out, "warning   %s\n", plan->warnings[i]));
out:
    return err;
}

az_err az_plan_add_text(az_str *out, const az_plan *plan, const az_plan_input *input)
{
    az_err err;
    AZ_TRY(add_machine(out, input));
    AZ_TRY(add_step(out, plan, input));
    AZ_TRY(add_memory(out, plan, input));
    AZ_TRY(add_cost(out, plan));
    AZ_TRY(add_choices(out, plan));
out:
    return err;
}

/* Categories of a hundredth or more, in one line. */
static az_err add_categories(az_str *out, const az_plan *plan)
{
    az_err err = AZ_OK;
    double small = 0;
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        const double bytes = (double)plan->memory[c].domain;
        if (bytes >= 0.01 * (double)plan->total.domain)
            AZ_TRY(az_str_add(out, "%s %s, ", az_plan_category_name((az_plan_category)c),
                              az_format_bytes(bytes)));
        else
            small += bytes;
    }
    err = az_str_add(out, "all else %s", az_format_bytes(small));
out:
    return err;
}

void az_plan_say(const az_plan *plan, const az_plan_input *input)
{
    az_str text = {0};
    const az_plan_memory *m = &plan->total;
    az_say("memory    %s may be filled on a node: %s",
           az_format_bytes((double)input->machine.memory), input->machine.source);
    if (add_categories(&text, plan) == AZ_OK)
        az_say("plan      %s a node (%s shared, %s a rank): %s", az_format_bytes((double)m->domain),
               az_format_bytes((double)m->shared), az_format_bytes((double)m->most), text.s);
    for (int i = 0; i < plan->n_reasons; i++)
        az_say("          %-13s %-24s %s", plan->reasons[i].name, plan->reasons[i].value,
               plan->reasons[i].why);
    az_say("          a step brings %s of weights and %s of the adapter into a node, and makes %s",
           az_format_bytes((double)plan->traffic.base_in),
           az_format_bytes((double)plan->traffic.adapter_in),
           format_flops(plan->traffic.flops, "FLOP"));
    for (int i = 0; i < plan->n_warnings; i++)
        az_warn("%s", plan->warnings[i]);
    az_str_fini(&text);
}
