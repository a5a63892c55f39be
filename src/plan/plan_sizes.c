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
/* With GPUs, where they are not there to be asked: assumptions. */
static const int64_t libraries_gpu = 544 * MIB;      /* context, kernels; workspace of cuBLAS */
static const int64_t communicator_gpu = 256 * MIB;   /* of NCCL, on a GPU */
static const int64_t libraries_gpu_host = 384 * MIB; /* in each process: CUDA, cuBLAS */
static const int64_t communicator_host = 96 * MIB;   /* likewise NCCL */
static const int64_t comm_rank = 6 * MIB;            /* MPI's buffers in each process; 4.5 */
static const int64_t comm_neighbour = 128 << 10;     /* for each rank of the node; 100 KiB */
static const int64_t comm_peer = 1 << 10;            /* for each rank of the job */
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
    s->most_ranks = s->max_ranks;
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

/* What the adapter takes, for each way to keep and to reduce it. */
static void measure_adapter(az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    for (int p = 0; p < 2; p++)
        if (m->gpu) {
            s->params[p] = az_params_measure_gpu(&s->spans, (az_params_placement)p, &m->topology);
            s->optim[p] = az_optim_measure_gpu(&s->spans, &m->topology, (az_reduce)p);
        } else {
            s->params[p].device =
                az_params_measure(&s->spans, (az_params_placement)p, &m->topology);
            s->optim[p].device = az_optim_measure(&s->spans, &m->topology, (az_reduce)p);
        }
    const az_fabric_options fabric = {.internode = m->nccl ? AZ_INTERNODE_NCCL : AZ_INTERNODE_MPI};
    s->fabric = m->gpu ? az_fabric_measure(&m->topology, &fabric) : 0;
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
    AZ_TRY(az_params_count_walk(&s->brought, &s->spans));
    measure_adapter(s);
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

static void add_to(az_plan_memory *m, size_t shared, size_t most, size_t least)
{
    m->shared += (int64_t)shared;
    m->most += (int64_t)most;
    m->least += (int64_t)least;
}

static void add(az_plan *plan, az_plan_category c, size_t shared, size_t most, size_t least)
{
    add_to(&plan->memory[c], shared, most, least);
}

static void add_footprint(az_plan *plan, az_plan_category c, az_footprint f)
{
    add(plan, c, f.shared, f.most, f.least);
}

/* Of a node's own memory: with GPUs apart. */
static void add_host(az_plan *plan, const az_sizes *s, az_plan_category c, size_t shared,
                     size_t each)
{
    add_to(s->in->machine.gpu ? &plan->host[c] : &plan->memory[c], shared, each, each);
}

static void add_host_footprint(az_plan *plan, az_plan_category c, az_footprint f)
{
    add_to(&plan->host[c], f.shared, f.most, f.least);
}

az_gpu_cut az_plan_find_cut(const az_sizes *s, const az_plan_choice *choice)
{
    const az_machine *m = &s->in->machine;
    return az_shard_find_cut(choice->scope, m->nccl, &m->topology);
}

az_topology az_plan_cut_over(const az_sizes *s, const az_plan_choice *choice)
{
    const az_machine *m = &s->in->machine;
    return m->gpu ? az_shard_list_gpus(az_plan_find_cut(s, choice), &m->topology) : s->domains;
}

static bool is_mapped(const az_sizes *s)
{
    return s->in->keys.map && !s->in->machine.gpu;
}

static az_shard_gpu_sizes measure_base(const az_sizes *s, const az_plan_choice *c,
                                       const az_topology *over)
{
    az_shard_gpu_sizes sizes = {0};
    const az_machine *m = &s->in->machine;
    if (m->gpu)
        return az_shard_measure_gpus(&s->list, s->resident, c->slots, false, az_plan_find_cut(s, c),
                                     &m->topology);
    sizes.gpu = az_shard_measure(&s->list, s->resident, c->slots, false, over);
    sizes.host.own = sizes.gpu.own;
    return sizes;
}

static void count_base(az_plan *plan, az_sizes *s)
{
    az_plan_choice *c = &plan->choice;
    const az_topology over = az_plan_cut_over(s, c);
    size_t whole = 0;
    az_shard_choose_resident(s->resident, &s->list, c->spend, &over);
    c->n_resident = 0;
    for (int u = 0; u < s->list.n_units; u++)
        if (s->resident[u]) {
            whole += s->list.units[u].bytes;
            c->n_resident++;
        }
    c->resident = (double)whole / (double)s->list.bytes;
    const az_shard_gpu_sizes sizes = measure_base(s, c, &over);
    const bool all = c->n_resident == s->list.n_units;
    if (!is_mapped(s)) /* the system's cache of files is nobody's memory */
        add(plan, all ? AZ_PLAN_COPY : AZ_PLAN_RESIDENT, whole, 0, 0);
    add(plan, AZ_PLAN_SLICES, sizes.gpu.held - whole, 0, 0);
    add(plan, AZ_PLAN_SLOTS, sizes.gpu.slots, 0, 0);
    add_host(plan, s, AZ_PLAN_LIBRARIES, 0, sizes.host.own);
    if (s->in->machine.gpu) {
        add_host(plan, s, AZ_PLAN_SLICES, sizes.host.held, 0);
        add_host(plan, s, AZ_PLAN_SLOTS, sizes.host.slots, 0);
    }
    c->slots = sizes.gpu.n_slots;
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
    az_head head = {0};
    az_plan_fill_levels(s->levels, &plan->choice, in->config->L);
    az_pass_options options = {.forward = *eval, .backward = *train, .opt_levels = s->levels};
    options.backward.group = plan->choice.group;
    const az_numeric numeric = {in->machine.gpu, in->machine.act};
    const az_pass_sizes all = az_pass_measure(in->config, in->lora, &s->cut, &options, numeric);
    az_head_carve(&head, &arena, in->config, az_max_i64(train->targets, eval->targets),
                  train->targets, s->list.head_rows, NULL, numeric);
    add(plan, AZ_PLAN_HEAD, 0, arena.used, arena.used);
    add(plan, AZ_PLAN_ACTIVATIONS, 0, all.device - arena.used, all.device - arena.used);
    add(plan, AZ_PLAN_ACTIVATIONS, 0, (size_t)in->work.cache_bytes, (size_t)in->work.cache_bytes);
    add_host(plan, s, AZ_PLAN_ACTIVATIONS, 0, all.host);
}

/* While the adapter is written rank 0 holds more of it, instead of activations, which are gone. */
static void count_writing(az_plan *plan, const az_sizes *s)
{
    const size_t whole = plan->choice.gathered ? 4 * (size_t)s->off[s->spans.n] : 0;
    const size_t need = whole + az_lora_measure_write(s->in->lora);
    const size_t gone =
        s->in->machine.gpu
            ? (size_t)plan->host[AZ_PLAN_ACTIVATIONS].most
            : (size_t)(plan->memory[AZ_PLAN_ACTIVATIONS].most + plan->memory[AZ_PLAN_HEAD].most);
    plan->writing = need > gone ? (int64_t)(need - gone) : 0;
    add_host(plan, s, AZ_PLAN_ADAPTER, (size_t)plan->writing, 0);
}

static void count_adapter(az_plan *plan, const az_sizes *s)
{
    const az_optim_gpu_sizes *o =
        &s->optim[plan->choice.unit_reduce ? AZ_REDUCE_UNIT : AZ_REDUCE_STEP];
    const az_params_sizes *p =
        &s->params[plan->choice.gathered ? AZ_PARAMS_GATHERED : AZ_PARAMS_REPLICATED];
    add_footprint(plan, AZ_PLAN_ADAPTER, p->device);
    add_host_footprint(plan, AZ_PLAN_ADAPTER, p->host);
    plan->checkpoint_bytes = 12 * s->off[s->spans.n];
    if (!s->training)
        return;
    add_footprint(plan, AZ_PLAN_GRADIENT, o->device.gradient);
    add_footprint(plan, AZ_PLAN_MOMENTS, o->device.moments);
    add_footprint(plan, AZ_PLAN_MOMENTS, o->device.other);
    add_host_footprint(plan, AZ_PLAN_GRADIENT, o->host.gradient);
    add_host_footprint(plan, AZ_PLAN_MOMENTS, o->host.moments);
    add_host_footprint(plan, AZ_PLAN_MOMENTS, o->host.other);
}

/* What a GPU's context and communicators take, where that is not yet taken. */
static void count_context(az_plan *plan, const az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    const int n = (s->node_domains > 1) + (m->nccl && m->topology.n_nodes > 1);
    const size_t context = m->measured ? 0 : (size_t)libraries_gpu;
    const size_t communicators = m->measured ? 0 : (size_t)(n * communicator_gpu);
    add(plan, AZ_PLAN_LIBRARIES, 0, context, context);
    add(plan, AZ_PLAN_COMMUNICATION, 0, communicators, communicators);
    add_host(plan, s, AZ_PLAN_LIBRARIES, 0, (size_t)libraries_gpu_host);
    add_host(plan, s, AZ_PLAN_COMMUNICATION, 0, s->fabric + (size_t)(n * communicator_host));
}

static void count_process(az_plan *plan, const az_sizes *s)
{
    const az_plan_input *in = s->in;
    const az_plan_memory *own_memory = in->machine.gpu ? plan->host : plan->memory;
    const az_topology *t = &in->machine.topology;
    const int64_t ranks = s->most_ranks, all = t->n_ranks;
    const size_t comm = (size_t)(comm_rank + comm_neighbour * ranks + comm_peer * all);
    size_t shared = 0, own = 0;
    add_host(plan, s, AZ_PLAN_LIBRARIES, 0, s->tables);
    add_host(plan, s, AZ_PLAN_LIBRARIES, (size_t)libraries_node,
             (size_t)(libraries_rank + libraries_thread * in->machine.threads));
    add_host(plan, s, AZ_PLAN_TEXT, 0, (size_t)in->work.text_bytes);
    add_host(plan, s, AZ_PLAN_COMMUNICATION, 0, comm);
    if (in->machine.gpu)
        count_context(plan, s);
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        shared += c != AZ_PLAN_LIBRARIES ? (size_t)own_memory[c].shared : 0;
        own += (size_t)own_memory[c].most;
    }
    /* slots and held units are mapped twice where something is cut */
    const size_t mapped = shared + (size_t)own_memory[AZ_PLAN_SLOTS].shared;
    const size_t files = is_mapped(s) ? s->list.bytes : 0;
    add_host(plan, s, AZ_PLAN_PAGE_TABLES, 0,
             (size_t)own_rank + az_shared_measure_tables(mapped, s->page) +
                 az_shared_measure_tables(files, 4096) + az_shared_measure_tables(own, 4096));
}

/* Ranks beyond the lanes hold the least; the fullest domain has all the lanes and them. */
static void sum_up(az_plan_memory *total, az_plan_memory *memory, int64_t lanes, int64_t ranks)
{
    *total = (az_plan_memory){0};
    for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++) {
        az_plan_memory *m = &memory[c];
        m->domain = m->shared + lanes * m->most + (ranks - lanes) * m->least;
        total->shared += m->shared;
        total->most += m->most;
        total->least += m->least;
        total->domain += m->domain;
    }
}

bool az_plan_fits_domain(const az_plan *plan, const az_machine *machine)
{
    return plan->total.domain <= machine->memory;
}

bool az_plan_fits_host(const az_plan *plan, const az_machine *machine)
{
    return !machine->gpu || machine->host_memory == 0 ||
           plan->host_total.domain <= machine->host_memory;
}

void az_plan_count_memory(az_plan *plan, az_sizes *s)
{
    const az_machine *m = &s->in->machine;
    memset(plan->memory, 0, sizeof plan->memory);
    memset(plan->host, 0, sizeof plan->host);
    plan->rounds = s->rounds;
    plan->writing = 0;
    count_base(plan, s);
    count_activations(plan, s);
    count_adapter(plan, s);
    if (s->training)
        count_writing(plan, s);
    count_process(plan, s);
    sum_up(&plan->total, plan->memory, s->domains.n_lanes, s->max_ranks);
    sum_up(&plan->host_total, plan->host, m->topology.n_lanes, s->most_ranks);
    plan->fits = az_plan_fits_domain(plan, m) && az_plan_fits_host(plan, m);
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
    AZ_TRY(az_sizes_init(&s, input));
    const az_topology over = az_plan_cut_over(&s, &plan->choice);
    az_shard_choose_resident(resident, &s.list, plan->choice.spend, &over);
    az_sizes_fini(&s);
out:
    return err;
}
