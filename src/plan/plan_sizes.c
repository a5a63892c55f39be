/* plan: sizes, asked of the modules that allocate by them, and their sum by category. */
#include <config.h>

#include <string.h>

#include "comm/shared.h"
#include "model/block.h"
#include "plan/plan_priv.h"

/* What processes take besides what is allocated here: measured with an idle rank of a tiny model
 * (PSS of 1, 2, 4 and 16 ranks, MPICH 4.0 over UCX, OpenBLAS 0.3.21, HDF5 1.10; doc/parallel.md),
 * and a fifth more. */
enum { MIB = 1 << 20 };
static const int64_t libraries_node = 24 * MIB;  /* code and tables, once a node; 20 measured */
static const int64_t libraries_rank = 10 * MIB;  /* their data in each process; 8 */
static const int64_t libraries_thread = 6 * MIB; /* packing buffers of the BLAS, stacks; 5 */
static const int64_t libraries_gpu = 512 * MIB;  /* context of the driver: an assumption */
static const int64_t comm_rank = 6 * MIB;        /* MPI's buffers in each process; 4.5 */
static const int64_t comm_neighbour = 128 << 10; /* for each rank of the node; 100 KiB */
static const int64_t comm_peer = 1 << 10;        /* for each rank of the job */
static const int64_t own_rank = 1 * MIB; /* page tables of the program itself, small tables; 0.3 */

/* A GPU is a domain of one rank. What is cut in scope node is cut over the GPUs of a node. */
static az_err find_domains(az_sizes *s)
{
    az_err err = AZ_OK;
    const az_topology *t = &s->in->machine.topology;
    s->max_ranks = 0;
    for (int i = 0; i < t->n_nodes; i++)
        if (t->node_ranks[i] > s->max_ranks)
            s->max_ranks = t->node_ranks[i];
    s->domains = *t;
    s->node_domains = 1;
    if (!s->in->machine.gpu)
        goto out;
    AZ_TRY(AZ_NEW(s->domain_ranks, (size_t)t->n_ranks, "plan"));
    for (int i = 0; i < t->n_ranks; i++)
        s->domain_ranks[i] = 1;
    s->domains = (az_topology){
        .n_ranks = t->n_ranks, .n_nodes = t->n_ranks, .n_lanes = 1, .node_ranks = s->domain_ranks};
    s->node_domains = t->n_lanes;
    s->max_ranks = 1;
out:
    return err;
}

/* How often the program of a step uses each unit. */
static az_err find_program(az_sizes *s)
{
    az_err err;
    az_unit_list *list = &s->list;
    s->cut = (az_pass_units){.n_embed = list->count[AZ_UNIT_EMBED],
                             .n_layers = list->count[AZ_UNIT_LAYER],
                             .n_head = list->count[AZ_UNIT_HEAD],
                             .tied = s->in->config->tied,
                             .lowest = az_lora_get_lowest_layer(s->in->lora),
                             .head_rows = list->head_rows};
    s->n_program = az_pass_list_program(NULL, &s->cut, s->training);
    AZ_TRY(AZ_NEW(s->program, (size_t)s->n_program, "plan"));
    az_pass_list_program(s->program, &s->cut, s->training);
    for (int u = 0; u < list->n_units; u++)
        list->units[u].uses = 0;
    for (int i = 0; i < s->n_program; i++)
        list->units[s->program[i]].uses++;
out:
    return err;
}

/* Operations of a step, of all ranks. */
static void find_flops(az_sizes *s)
{
    const az_work_load *w = &s->in->work;
    const int64_t L = s->in->config->L;
    const double tokens = (double)w->tokens, keys = tokens > 0 ? w->keys / tokens : 0;
    const az_flops head = az_flops_of_head(s->in->config, s->cut.n_head);
    int64_t R[AZ_N_LINEARS];
    s->flops = (double)w->targets * (head.forward + head.backward);
    s->head_again = (double)w->targets * head.recompute[0];
    s->n_back = s->cut.lowest < 0 || !s->training ? 0 : (int)L - s->cut.lowest;
    for (int l = 0; l < L; l++) {
        az_pass_get_ranks(R, s->in->lora, l);
        const az_flops f = az_flops_of_layer(s->in->config, R, keys, l == s->cut.lowest);
        s->flops += tokens * (f.forward + (l >= L - s->n_back ? f.backward : 0));
        if (l == L - 1)
            for (int k = 0; k <= AZ_LEVEL_KEEP; k++)
                s->again[k] = tokens * f.recompute[k];
    }
}

/* Names of tensors, tables of weights and linears, as they are allocated. */
static size_t count_tables(const az_plan_input *in)
{
    size_t names = 0;
    for (int64_t i = 0; i < in->set->n_tensors; i++)
        names += strlen(in->set->tensors[i].name) + 1 + sizeof(az_tensor);
    return names + (size_t)in->table->n_weights * sizeof(az_weight) +
           (size_t)in->lora->n_linears * (sizeof(az_linear) + sizeof(int)) +
           (size_t)in->lora->n_pairs * sizeof(az_pair);
}

az_err az_sizes_init(az_sizes *s, const az_plan_input *input)
{
    az_err err;
    const int64_t L = input->config->L;
    *s = (az_sizes){.in = input, .training = input->work.train.tokens > 0};
    AZ_TRY(find_domains(s));
    AZ_TRY(az_shard_list_units(&s->list, input->config, input->table, input->set));
    AZ_TRY(find_program(s));
    AZ_TRY(AZ_NEW(s->resident, (size_t)s->list.n_units, "plan"));
    AZ_TRY(AZ_NEW(s->cut_bytes, (size_t)s->list.n_units, "plan"));
    AZ_TRY(AZ_NEW(s->levels, (size_t)L, "plan"));
    AZ_TRY(AZ_NEW(s->off, (size_t)L + 1, "plan"));
    az_lora_fill_spans(s->off, input->lora, (int)L);
    s->spans = (az_spans){.n = (int)L, .off = s->off};
    s->params[AZ_PARAMS_REPLICATED] =
        az_params_measure(&s->spans, AZ_PARAMS_REPLICATED, &s->domains);
    s->params[AZ_PARAMS_GATHERED] = az_params_measure(&s->spans, AZ_PARAMS_GATHERED, &s->domains);
    AZ_TRY(az_params_count_walk(&s->brought, &s->spans));
    s->optim[AZ_REDUCE_STEP] = az_optim_measure(&s->spans, &s->domains, AZ_REDUCE_STEP);
    s->optim[AZ_REDUCE_UNIT] = az_optim_measure(&s->spans, &s->domains, AZ_REDUCE_UNIT);
    s->rounds = az_ceil_div(input->work.n_micro, input->machine.topology.n_ranks);
    s->tables = count_tables(input);
    s->page = az_shared_guess_page(s->list.bytes);
    find_flops(s);
out:
    if (err != AZ_OK)
        az_sizes_fini(s);
    return err;
}

void az_sizes_fini(az_sizes *s)
{
    az_shard_free_units(&s->list);
    az_free(s->domain_ranks);
    az_free(s->program);
    az_free(s->resident);
    az_free(s->cut_bytes);
    az_free(s->levels);
    az_free(s->off);
    *s = (az_sizes){0};
}

/* ---- memory by category */

static void add(az_plan *plan, az_plan_category c, size_t shared, size_t most, size_t least)
{
    az_plan_memory *m = &plan->memory[c];
    m->shared += (int64_t)shared;
    m->most += (int64_t)most;
    m->least += (int64_t)least;
}

static void add_footprint(az_plan *plan, az_plan_category c, az_footprint f)
{
    add(plan, c, f.shared, f.most, f.least);
}

/* In scope node GPUs hold a slice of their node's. */
static void cut_over(const az_sizes *s, const az_plan_choice *choice, az_topology *out)
{
    *out = s->domains;
    if (s->in->machine.gpu && choice->scope == AZ_SCOPE_NODE)
        out->n_nodes = out->n_ranks = s->node_domains;
}

static bool is_mapped(const az_sizes *s)
{
    return s->in->keys.map && !s->in->machine.gpu;
}

static void count_base(az_plan *plan, az_sizes *s)
{
    az_plan_choice *c = &plan->choice;
    az_topology over;
    size_t whole = 0;
    cut_over(s, c, &over);
    az_shard_choose_resident(s->resident, &s->list, c->spend, &over);
    c->n_resident = 0;
    for (int u = 0; u < s->list.n_units; u++)
        if (s->resident[u]) {
            whole += s->list.units[u].bytes;
            c->n_resident++;
        }
    c->resident = (double)whole / (double)s->list.bytes;
    const az_shard_sizes sizes = az_shard_measure(&s->list, s->resident, c->slots, false, &over);
    const bool all = c->n_resident == s->list.n_units;
    if (!is_mapped(s)) /* the system's cache of files is nobody's memory */
        add(plan, all ? AZ_PLAN_COPY : AZ_PLAN_RESIDENT, whole, 0, 0);
    add(plan, AZ_PLAN_SLICES, sizes.held - whole, 0, 0);
    add(plan, AZ_PLAN_SLOTS, sizes.slots, 0, 0);
    add(plan, AZ_PLAN_LIBRARIES, 0, sizes.own, sizes.own);
    c->slots = sizes.n_slots;
    plan->base_bytes = (int64_t)s->list.bytes;
}

/* The last layers are kept: their backward comes first. */
void az_plan_fill_levels(az_level *levels, const az_plan_choice *choice, int64_t L)
{
    for (int64_t l = 0; l < L; l++)
        levels[l] = l >= L - choice->n_keep                     ? AZ_LEVEL_KEEP
                    : l >= L - choice->n_keep - choice->n_cheap ? AZ_LEVEL_CHEAP
                                                                : AZ_LEVEL_RECOMPUTE;
}

static void count_activations(az_plan *plan, az_sizes *s)
{
    const az_plan_input *in = s->in;
    const az_pass_limits *train = &in->work.train, *eval = &in->work.eval;
    az_arena arena = {0};
    az_head head;
    az_plan_fill_levels(s->levels, &plan->choice, in->config->L);
    az_pass_options options = {.forward = *eval, .backward = *train, .opt_levels = s->levels};
    options.backward.group = plan->choice.group;
    const az_numeric numeric = {in->machine.gpu, AZ_F32};
    const az_pass_sizes all = az_pass_measure(in->config, in->lora, &s->cut, &options, numeric);
    az_head_carve(&head, &arena, in->config, az_max_i64(train->targets, eval->targets),
                  train->targets, s->list.head_rows, NULL, numeric);
    add(plan, AZ_PLAN_HEAD, 0, arena.used, arena.used);
    const size_t rest = all.device - arena.used;
    add(plan, AZ_PLAN_ACTIVATIONS, 0, rest, rest);
    add(plan, numeric.gpu ? AZ_PLAN_TEXT : AZ_PLAN_ACTIVATIONS, 0, all.host, all.host);
    add(plan, AZ_PLAN_ACTIVATIONS, 0, (size_t)in->work.cache_bytes, (size_t)in->work.cache_bytes);
}

/* While the adapter is written rank 0 holds more of it, instead of activations, which are gone. */
static void count_writing(az_plan *plan, const az_sizes *s)
{
    const size_t whole = plan->choice.gathered ? 4 * (size_t)s->off[s->spans.n] : 0;
    const size_t need = whole + az_lora_measure_write(s->in->lora);
    const size_t gone =
        (size_t)(plan->memory[AZ_PLAN_ACTIVATIONS].most + plan->memory[AZ_PLAN_HEAD].most);
    if (need > gone && !s->in->machine.gpu) /* on the host, then */
        add(plan, AZ_PLAN_ADAPTER, need - gone, 0, 0);
}

static void count_adapter(az_plan *plan, const az_sizes *s)
{
    const az_optim_sizes *o = &s->optim[plan->choice.unit_reduce ? AZ_REDUCE_UNIT : AZ_REDUCE_STEP];
    add_footprint(plan, AZ_PLAN_ADAPTER,
                  s->params[plan->choice.gathered ? AZ_PARAMS_GATHERED : AZ_PARAMS_REPLICATED]);
    plan->checkpoint_bytes = 12 * s->off[s->spans.n];
    if (!s->training)
        return;
    add_footprint(plan, AZ_PLAN_GRADIENT, o->gradient);
    add_footprint(plan, AZ_PLAN_MOMENTS, o->moments);
    add_footprint(plan, AZ_PLAN_MOMENTS, o->other);
}

static void count_process(az_plan *plan, const az_sizes *s)
{
    const az_plan_input *in = s->in;
    const int64_t ranks = s->max_ranks, all = in->machine.topology.n_ranks;
    const size_t tables = s->tables;
    const size_t text = (size_t)in->work.text_bytes;
    const size_t comm = (size_t)(comm_rank + comm_neighbour * ranks + comm_peer * all);
    size_t shared = 0;
    add(plan, AZ_PLAN_LIBRARIES, 0, tables, tables);
    if (in->machine.gpu) {
        add(plan, AZ_PLAN_LIBRARIES, 0, (size_t)libraries_gpu, (size_t)libraries_gpu);
    } else {
        const size_t own = (size_t)(libraries_rank + libraries_thread * in->machine.threads);
        add(plan, AZ_PLAN_LIBRARIES, (size_t)libraries_node, own, own);
    }
    add(plan, AZ_PLAN_TEXT, 0, text, text);
    add(plan, AZ_PLAN_COMMUNICATION, 0, comm, comm);
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++)
        if (c != AZ_PLAN_LIBRARIES)
            shared += (size_t)plan->memory[c].shared;
    /* slots and held units are mapped twice where something is cut */
    const size_t mapped = shared + (size_t)plan->memory[AZ_PLAN_SLOTS].shared;
    size_t own = 0;
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++)
        own += (size_t)plan->memory[c].most;
    const size_t files = is_mapped(s) ? s->list.bytes : 0;
    const size_t tables_bytes = (size_t)own_rank + az_shared_measure_tables(mapped, s->page) +
                                az_shared_measure_tables(files, 4096) +
                                az_shared_measure_tables(own, 4096);
    add(plan, AZ_PLAN_PAGE_TABLES, 0, tables_bytes, tables_bytes);
}

/* Ranks beyond the lanes hold the least; the fullest domain has all the lanes and them. On a GPU
 * only what is there counts. */
static void sum_up(az_plan *plan, const az_sizes *s)
{
    const int64_t lanes = s->domains.n_lanes, ranks = s->max_ranks;
    plan->total = (az_plan_memory){0};
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        az_plan_memory *m = &plan->memory[c];
        m->domain = m->shared + lanes * m->most + (ranks - lanes) * m->least;
        if (s->in->machine.gpu && !az_plan_on_device((az_plan_category)c))
            continue;
        plan->total.shared += m->shared;
        plan->total.most += m->most;
        plan->total.least += m->least;
        plan->total.domain += m->domain;
    }
    plan->fits = plan->total.domain <= s->in->machine.memory;
}

void az_plan_count_memory(az_plan *plan, az_sizes *s)
{
    memset(plan->memory, 0, sizeof plan->memory);
    plan->rounds = s->rounds;
    count_base(plan, s);
    count_activations(plan, s);
    count_adapter(plan, s);
    if (s->training)
        count_writing(plan, s);
    count_process(plan, s);
    sum_up(plan, s);
}

az_err az_plan_count(az_plan *plan, az_sizes *s)
{
    az_plan_count_memory(plan, s);
    return az_plan_count_cost(plan, s);
}

const char *az_plan_category_name(az_plan_category category)
{
    static const char *const names[AZ_PLAN_N_CATEGORIES] = {
        "base slices", "shared copy", "resident units", "gather slots", "activations",
        "head chunk",  "adapter",     "gradient",       "moments",      "communication",
        "text",        "page tables", "libraries"};
    return names[category];
}

az_err az_plan_fill_resident(bool *resident, const az_plan *plan, const az_plan_input *input)
{
    az_err err;
    az_sizes s;
    az_topology over;
    AZ_TRY(az_sizes_init(&s, input));
    cut_over(&s, &plan->choice, &over);
    az_shard_choose_resident(resident, &s.list, plan->choice.spend, &over);
    az_sizes_fini(&s);
out:
    return err;
}
