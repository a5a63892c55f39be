/* plan: everything in it, as JSON. Bytes and operations are numbers, seconds too. */
#include <config.h>

#include "plan/plan_priv.h"
#include "store/json.h"

/* ,"name": value */
static az_err add_int(az_str *out, const char *name, int64_t v)
{
    return az_str_add(out, ", \"%s\": %lld", name, (long long)v);
}

static az_err add_real(az_str *out, const char *name, double v)
{
    az_err err;
    AZ_TRY(az_str_add(out, ", \"%s\": ", name));
    err = az_json_add_real(out, v);
out:
    return err;
}

static az_err add_bool(az_str *out, const char *name, bool v)
{
    return az_str_add(out, ", \"%s\": %s", name, v ? "true" : "false");
}

static az_err add_text(az_str *out, const char *name, const char *v)
{
    az_err err;
    AZ_TRY(az_str_add(out, ", \"%s\": ", name));
    err = az_json_add_text(out, v);
out:
    return err;
}

static az_err add_machine(az_str *out, const az_plan_input *in)
{
    az_err err;
    const az_machine *m = &in->machine;
    AZ_TRY(az_str_add(out, "{\"device\": \"%s\"", m->gpu ? "gpu" : "cpu"));
    AZ_TRY(add_int(out, "nodes", m->topology.n_nodes));
    AZ_TRY(add_int(out, "ranks", m->topology.n_ranks));
    AZ_TRY(add_int(out, "lanes", m->topology.n_lanes));
    AZ_TRY(add_int(out, "threads", m->threads));
    AZ_TRY(add_text(out, "compute", m->act == AZ_BF16 ? "bf16" : "f32"));
    AZ_TRY(add_int(out, "memory", m->memory));
    AZ_TRY(add_text(out, "memory_source", m->source));
    AZ_TRY(add_real(out, "link", m->link));
    AZ_TRY(add_bool(out, "link_assumed", !m->link_given));
    AZ_TRY(add_real(out, "node_link", m->node_link));
    AZ_TRY(add_bool(out, "node_link_assumed", !m->node_link_given));
    AZ_TRY(add_real(out, "flops", m->flops));
    AZ_TRY(add_bool(out, "flops_assumed", !m->flops_given));
    if (m->gpu) {
        AZ_TRY(add_int(out, "host_memory", m->host_memory));
        AZ_TRY(add_text(out, "host_memory_source", m->host_source));
        AZ_TRY(add_real(out, "host_link", m->host_link));
        AZ_TRY(add_bool(out, "host_link_assumed", !m->host_link_given));
        AZ_TRY(add_text(out, "internode", m->nccl ? "nccl" : "mpi"));
    }
    err = az_str_add(out, "}");
out:
    return err;
}

static az_err add_work(az_str *out, const az_plan *plan, const az_plan_input *in)
{
    az_err err;
    const az_work_load *w = &in->work;
    AZ_TRY(az_str_add(out, "{\"tokens\": %lld", (long long)w->tokens));
    AZ_TRY(add_int(out, "targets", w->targets));
    AZ_TRY(add_int(out, "micro_batches", w->n_micro));
    AZ_TRY(add_int(out, "rounds", plan->rounds));
    AZ_TRY(add_int(out, "micro_batch_tokens", w->train.tokens));
    AZ_TRY(add_int(out, "longest", w->train.longest));
    AZ_TRY(add_int(out, "eval_tokens", w->eval.tokens));
    AZ_TRY(add_bool(out, "from_samples", w->exact));
    err = az_str_add(out, "}");
out:
    return err;
}

static az_err add_memory_row(az_str *out, const char *name, const az_plan_memory *m)
{
    az_err err;
    AZ_TRY(az_str_add(out, "{\"category\": \"%s\"", name));
    AZ_TRY(add_int(out, "shared", m->shared));
    AZ_TRY(add_int(out, "heaviest", m->most));
    AZ_TRY(add_int(out, "lightest", m->least));
    AZ_TRY(add_int(out, "sum", m->domain));
    err = az_str_add(out, "}");
out:
    return err;
}

static az_err add_table(az_str *out, const az_plan_memory *memory)
{
    az_err err = AZ_OK;
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        AZ_TRY(az_str_add(out, "%s\n    ", c == 0 ? "[" : ","));
        AZ_TRY(add_memory_row(out, az_plan_category_name((az_plan_category)c), &memory[c]));
    }
    err = az_str_add(out, "]");
out:
    return err;
}

static az_err add_memory(az_str *out, const az_plan *plan, const az_plan_input *in)
{
    az_err err;
    AZ_TRY(add_table(out, plan->memory));
    AZ_TRY(az_str_add(out, ",\n  \"total\": "));
    AZ_TRY(add_memory_row(out, "total", &plan->total));
    if (!in->machine.gpu)
        goto out;
    AZ_TRY(az_str_add(out, ",\n  \"host_memory\": "));
    AZ_TRY(add_table(out, plan->host));
    AZ_TRY(az_str_add(out, ",\n  \"host_total\": "));
    err = add_memory_row(out, "total", &plan->host_total);
out:
    return err;
}

static az_err add_choice(az_str *out, const az_plan *plan)
{
    az_err err;
    const az_plan_choice *c = &plan->choice;
    AZ_TRY(az_str_add(out, "{\"scope\": \"%s\"", c->scope == AZ_SCOPE_NODE ? "node" : "world"));
    AZ_TRY(add_real(out, "resident", c->resident));
    AZ_TRY(add_int(out, "resident_units", c->n_resident));
    AZ_TRY(add_int(out, "slots", c->slots));
    AZ_TRY(add_int(out, "group", c->group));
    AZ_TRY(add_int(out, "layers_kept", c->n_keep));
    AZ_TRY(add_int(out, "layers_kept_in_part", c->n_cheap));
    AZ_TRY(add_int(out, "layers_recomputed", c->n_recompute));
    AZ_TRY(add_text(out, "adapter", c->gathered ? "gathered" : "replicated"));
    AZ_TRY(add_text(out, "reduce", c->unit_reduce ? "unit" : "step"));
    err = az_str_add(out, "}");
out:
    return err;
}

static az_err add_reasons(az_str *out, const az_plan *plan)
{
    az_err err;
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < plan->n_reasons; i++) {
        AZ_TRY(az_str_add(out, "%s\n    {\"choice\": \"%s\"", i == 0 ? "" : ",",
                          plan->reasons[i].name));
        AZ_TRY(add_text(out, "value", plan->reasons[i].value));
        AZ_TRY(add_text(out, "why", plan->reasons[i].why));
        AZ_TRY(az_str_add(out, "}"));
    }
    AZ_TRY(az_str_add(out, "],\n  \"warnings\": ["));
    for (int i = 0; i < plan->n_warnings; i++) {
        AZ_TRY(az_str_add(out, "%s", i == 0 ? "" : ", "));
        AZ_TRY(az_json_add_text(out, plan->warnings[i]));
    }
    err = az_str_add(out, "]");
out:
    return err;
}

static az_err add_cost(az_str *out, const az_plan *plan)
{
    az_err err;
    const az_plan_traffic *t = &plan->traffic;
    AZ_TRY(az_str_add(out, "{\"weights_into_node\": %lld", (long long)t->base_in));
    AZ_TRY(add_int(out, "fetches", t->fetches));
    AZ_TRY(add_int(out, "adapter_into_node", t->adapter_in));
    AZ_TRY(add_int(out, "within_node", t->in_node));
    AZ_TRY(add_int(out, "weights_within_node", t->base_within));
    AZ_TRY(add_int(out, "weights_from_host", t->base_up));
    AZ_TRY(add_real(out, "flops", t->flops));
    AZ_TRY(add_real(out, "flops_made_again", t->flops_again));
    AZ_TRY(az_str_add(out, "},\n  \"estimate\": {\"compute_s\": "));
    AZ_TRY(az_json_add_real(out, plan->time.compute));
    AZ_TRY(add_real(out, "weights_s", plan->time.transfer));
    AZ_TRY(add_real(out, "adapter_s", plan->time.exchange));
    AZ_TRY(add_real(out, "step_s", plan->time.step));
    err = az_str_add(out, "}");
out:
    return err;
}

static az_err add_change(az_str *out, const az_plan *plan)
{
    az_err err;
    if (plan->fits)
        return az_str_add(out, "null");
    AZ_TRY(az_str_add(out, "{\"memory\": %lld", (long long)plan->change.memory));
    AZ_TRY(add_int(out, "host_memory", plan->change.host_memory));
    AZ_TRY(add_int(out, "micro_batch_tokens", plan->change.tokens));
    AZ_TRY(add_int(out, "nodes", plan->change.nodes));
    AZ_TRY(add_text(out, "text", plan->change_text));
    err = az_str_add(out, "}");
out:
    return err;
}

az_err az_plan_add_json(az_str *out, const az_plan *plan, const az_plan_input *input)
{
    az_err err;
    AZ_TRY(az_str_add(out, "{\"fits\": %s", plan->fits ? "true" : "false"));
    AZ_TRY(add_int(out, "base_bytes", plan->base_bytes));
    AZ_TRY(add_int(out, "checkpoint_bytes", plan->checkpoint_bytes));
    AZ_TRY(az_str_add(out, ",\n  \"machine\": "));
    AZ_TRY(add_machine(out, input));
    AZ_TRY(az_str_add(out, ",\n  \"step\": "));
    AZ_TRY(add_work(out, plan, input));
    AZ_TRY(az_str_add(out, ",\n  \"memory\": "));
    AZ_TRY(add_memory(out, plan, input));
    AZ_TRY(az_str_add(out, ",\n  \"traffic\": "));
    AZ_TRY(add_cost(out, plan));
    AZ_TRY(az_str_add(out, ",\n  \"choice\": "));
    AZ_TRY(add_choice(out, plan));
    AZ_TRY(az_str_add(out, ",\n  \"reasons\": "));
    AZ_TRY(add_reasons(out, plan));
    AZ_TRY(az_str_add(out, ",\n  \"change\": "));
    AZ_TRY(add_change(out, plan));
    err = az_str_add(out, "}\n");
out:
    return err;
}
