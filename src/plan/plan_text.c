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
    static char text[4][40];
    static int k;
    k = (k + 1) % 4;
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
    if (m->gpu && m->host_memory > 0)
        AZ_TRY(az_str_add(out, "          %s of a node's own memory (%s)\n",
                          az_format_bytes((double)m->host_memory), m->host_source));
    AZ_TRY(az_str_add(out, "          link of a node %s%s, ", format_speed(m->link),
                      m->link_given ? "" : " (assumed)"));
    if (m->gpu)
        AZ_TRY(az_str_add(out, "of a GPU within its node %s%s, from its host %s%s, ",
                          format_speed(m->node_link), m->node_link_given ? "" : " (assumed)",
                          format_speed(m->host_link), m->host_link_given ? "" : " (assumed)"));
    AZ_TRY(az_str_add(out, "%s a rank%s", format_flops(m->flops, "FLOP/s"),
                      m->flops_given ? "" : " (assumed)"));
    if (m->gpu)
        AZ_TRY(az_str_add(out, " in %s", m->act == AZ_BF16 ? "bf16" : "f32"));
    if (m->gpu && t->n_nodes > 1)
        AZ_TRY(az_str_add(out, ", %s between nodes", m->nccl ? "NCCL" : "MPI"));
    AZ_TRY(az_str_add(out, "\n"));
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

static az_err add_table(az_str *out, const az_plan_memory *memory, const az_plan_memory *total,
                        bool on_gpu, bool beside)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%-9s %-8s %12s %14s %14s %12s\n", beside ? "host" : "memory", "",
                      on_gpu ? "on a GPU" : "shared", "heaviest rank", "lightest rank",
                      on_gpu ? "a GPU" : "a node"));
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++)
        if (memory[c].domain > 0)
            AZ_TRY(add_row(out, az_plan_category_name((az_plan_category)c), &memory[c]));
    err = add_row(out, "total", total);
out:
    return err;
}

static az_err add_memory(az_str *out, const az_plan *plan, const az_plan_input *in)
{
    az_err err;
    const az_machine *m = &in->machine;
    AZ_TRY(add_table(out, plan->memory, &plan->total, m->gpu, false));
    if (m->gpu)
        AZ_TRY(add_table(out, plan->host, &plan->host_total, false, true));
    const double left = (double)(m->memory - plan->total.domain);
    const double host_left = (double)(m->host_memory - plan->host_total.domain);
    if (plan->fits) {
        AZ_TRY(az_str_add(out, "fits      %s of %s are left", az_format_bytes(left),
                          az_format_bytes((double)m->memory)));
        if (m->gpu && m->host_memory > 0)
            AZ_TRY(az_str_add(out, " a GPU, %s of %s a node", az_format_bytes(host_left),
                              az_format_bytes((double)m->host_memory)));
        err = az_str_add(out, "\n");
    } else if (!az_plan_fits_domain(plan, m)) {
        err = az_str_add(out, "does not fit: %s are missing of %s a %s; %s\n",
                         az_format_bytes(-left), az_format_bytes((double)plan->total.domain),
                         domain_of(in), plan->change_text);
    } else {
        err = az_str_add(out,
                         "does not fit: %s are missing of %s of a node's own memory, beside its "
                         "GPUs; %s\n",
                         az_format_bytes(-host_left),
                         az_format_bytes((double)plan->host_total.domain), plan->change_text);
    }
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
static az_err add_categories(az_str *out, const az_plan_memory *memory, const az_plan_memory *total)
{
    az_err err = AZ_OK;
    double small = 0;
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        const double bytes = (double)memory[c].domain;
        if (bytes >= 0.01 * (double)total->domain)
            AZ_TRY(az_str_add(out, "%s %s, ", az_plan_category_name((az_plan_category)c),
                              az_format_bytes(bytes)));
        else
            small += bytes;
    }
    err = az_str_add(out, "all else %s", az_format_bytes(small));
out:
    return err;
}

static void say_total(const char *name, const char *where, const az_plan_memory *memory,
                      const az_plan_memory *total)
{
    az_str text = {0};
    if (add_categories(&text, memory, total) == AZ_OK)
        az_say("%-9s %s %s (%s shared, %s a rank): %s", name,
               az_format_bytes((double)total->domain), where,
               az_format_bytes((double)total->shared), az_format_bytes((double)total->most),
               text.s);
    az_str_fini(&text);
}

static void say_links(const az_machine *m)
{
    if (!m->measured)
        return;
    az_say("links     measured: from the host into a GPU %s%s%s%s%s", format_speed(m->host_link),
           m->node_link_given ? ", from the others of its node " : "",
           m->node_link_given ? format_speed(m->node_link) : "",
           m->link_given ? ", into a node from others " : "",
           m->link_given ? format_speed(m->link) : "");
}

void az_plan_say(const az_plan *plan, const az_plan_input *input)
{
    const az_machine *m = &input->machine;
    az_say("memory    %s may be filled on a %s: %s", az_format_bytes((double)m->memory),
           domain_of(input), m->source);
    if (m->gpu)
        az_say("          %s of a node's own: %s", az_format_bytes((double)m->host_memory),
               m->host_source);
    say_links(m);
    say_total("plan", m->gpu ? "a GPU" : "a node", plan->memory, &plan->total);
    if (m->gpu)
        say_total("", "a node beside its GPUs", plan->host, &plan->host_total);
    for (int i = 0; i < plan->n_reasons; i++)
        az_say("          %-13s %-24s %s", plan->reasons[i].name, plan->reasons[i].value,
               plan->reasons[i].why);
    az_say("          a step brings %s of weights and %s of the adapter into a node, and makes %s",
           az_format_bytes((double)plan->traffic.base_in),
           az_format_bytes((double)plan->traffic.adapter_in),
           format_flops(plan->traffic.flops, "FLOP"));
    for (int i = 0; i < plan->n_warnings; i++)
        az_warn("%s", plan->warnings[i]);
}
