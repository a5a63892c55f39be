/* train/planning: what is asked of the machine, and what the ranks must have in common. */
#include <config.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kern/kern.h"
#include "train/planning.h"

/* The least of all ranks, and the words of the lowest rank that has it. Collective. */
static void share_least(int64_t *memory, char *source, size_t size, az_comm *comm)
{
    int64_t least = -*memory;
    az_comm_max_i64(comm, &least, 1);
    int64_t rank = *memory == -least ? -az_comm_rank(comm) : INT64_MIN;
    az_comm_max_i64(comm, &rank, 1);
    az_comm_bcast(comm, source, size, (int)-rank);
    *memory = -least;
}

/* What is left to the driver and to blocks that are larger than what is asked for. */
static int64_t get_gpu_reserve(int64_t bytes)
{
    return az_max_i64(bytes / 50, (int64_t)64 << 20);
}

/* A GPU is filled up to run.memory and no further: contexts, communicators and kernels have taken
 * some of it, and what others have is taken, too. Collective. */
static az_err limit_memory(az_machine *machine, int64_t taken, int64_t given, az_comm *comm)
{
    char source[sizeof machine->source];
    int64_t left = given - taken;
    snprintf(source, sizeof source, "run.memory, %s, of which CUDA, NCCL and others have taken %s",
             az_format_bytes((double)given), az_format_bytes((double)taken));
    share_least(&left, source, sizeof source, comm);
    if (left <= 0)
        return az_fail(AZ_EINPUT, "nothing is left to fill of a GPU: %s: give more", source);
    if (left > machine->memory) {
        az_warn(
            "run.memory: %s a GPU are to be filled, but there are %s (%s): the plan takes these",
            az_format_bytes((double)given), az_format_bytes((double)machine->memory),
            machine->source);
        return AZ_OK;
    }
    machine->memory = left;
    memcpy(machine->source, source, sizeof source);
    return AZ_OK;
}

/* What may be filled of the GPU that has least, now that contexts, communicators and kernels are
 * loaded. Collective. */
static az_err find_gpu_memory(az_machine *machine, int64_t *out_free, const az_engine *engine,
                              int64_t opt_given)
{
    az_err err;
    size_t now = 0, total;
    char host[64] = "";
    az_dev *dev = engine->device.dev;
    err = az_dev_get_memory(dev, &now, &total);
    AZ_TRY(az_comm_agree(engine->comm, err));
    *out_free = (int64_t)now;
    const int64_t reserve = az_min_i64(get_gpu_reserve((int64_t)now), (int64_t)now);
    gethostname(host, sizeof host - 1);
    machine->measured = true;
    machine->memory = (int64_t)now - reserve;
    snprintf(machine->source, sizeof machine->source,
             "GPU %s of rank %d on %.40s has %s free, less a reserve of %s",
             az_dev_get_info(dev)->pci, az_comm_rank(engine->comm), host,
             az_format_bytes((double)now), az_format_bytes((double)reserve));
    share_least(&machine->memory, machine->source, sizeof machine->source, engine->comm);
    if (opt_given > 0)
        err = limit_memory(machine, (int64_t)(total - now), opt_given, engine->comm);
out:
    return err;
}

/* Into a node come what its lanes take together. Collective. */
static az_err find_links(az_machine *machine, az_fabric *fabric)
{
    az_err err;
    az_fabric_links links;
    AZ_TRY(az_fabric_measure_links(fabric, &links));
    machine->host_link = links.host;
    machine->node_link = links.node;
    machine->link = links.between * machine->topology.n_lanes;
    machine->host_link_given = links.host > 0;
    machine->node_link_given = links.node > 0;
    machine->link_given = links.between > 0;
out:
    return err;
}

/* Of the node that has least. Collective. */
static az_err find_machine(az_planning *p, const az_engine *engine, const az_deck *deck)
{
    az_err err = AZ_OK;
    az_machine *machine = &p->input.machine;
    az_comm *comm = engine->comm;
    const int64_t given = az_deck_has(deck, "run.memory") ? az_deck_size(deck, "run.memory") : 0;
    *machine = (az_machine){.topology = *az_comm_get_topology(comm),
                            .threads = az_kern_set_threads(0),
                            .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                            .gpu = az_dev_is_gpu(engine->device.dev),
                            .act = engine->device.kern.numeric.act};
    int64_t least[] = {-machine->threads, -machine->cores};
    az_comm_max_i64(comm, least, sizeof least / sizeof *least);
    machine->threads = (int)-least[0];
    machine->cores = (int)-least[1];
    if (machine->gpu) {
        machine->nccl = az_fabric_uses_nccl_between_nodes(engine->device.fabric);
        AZ_TRY(find_links(machine, engine->device.fabric));
        AZ_TRY(find_gpu_memory(machine, &p->free_bytes, engine, given));
        az_machine_find_host_memory(machine);
        share_least(&machine->host_memory, machine->host_source, sizeof machine->host_source, comm);
    } else {
        az_machine_find_memory(machine, given);
        share_least(&machine->memory, machine->source, sizeof machine->source, comm);
    }
    az_machine_assume(machine);
out:
    return err;
}

az_err az_planning_make(az_planning *p, const az_engine *engine, const az_deck *deck,
                        const az_work_load *work)
{
    az_err err = AZ_OK;
    az_comm *comm = engine->comm;
    p->input = (az_plan_input){.config = &engine->config,
                               .table = &engine->table,
                               .set = &engine->set,
                               .lora = &engine->lora,
                               .work = *work};
    AZ_TRY(find_machine(p, engine, deck));
    az_plan_read_keys(&p->input.keys, deck);
    if (az_comm_rank(comm) == 0) {
        err = az_plan_make(&p->plan, &p->input);
        if (err == AZ_OK)
            err = az_plan_check(&p->plan, &p->input);
    }
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_bcast(comm, &p->plan, sizeof p->plan, 0);
out:
    return err;
}

az_err az_planning_check_free(const az_planning *p, const az_engine *engine)
{
    az_err err;
    size_t now = 0, total;
    char text[320] = "", host[64] = "";
    az_dev *dev = engine->device.dev;
    if (!p->input.machine.gpu)
        return AZ_OK;
    err = az_dev_get_memory(dev, &now, &total);
    AZ_TRY(az_comm_agree(engine->comm, err));
    const int64_t expected = p->free_bytes - p->plan.total.domain - get_gpu_reserve(p->free_bytes);
    int64_t missing = az_max_i64(0, expected - (int64_t)now);
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text,
             "GPU %s of rank %d on %.40s has %s free before the first step, %s less than was "
             "planned: another program uses it, too",
             az_dev_get_info(dev)->pci, az_comm_rank(engine->comm), host,
             az_format_bytes((double)now), az_format_bytes((double)missing));
    missing = -missing;
    share_least(&missing, text, sizeof text, engine->comm);
    if (missing < 0)
        az_warn("%s", text);
out:
    return err;
}

az_err az_planning_get_pass(az_pass_options *out_options, const az_planning *p,
                            const az_engine *engine)
{
    az_err err;
    az_level *levels = NULL;
    const int64_t L = engine->config.L;
    AZ_TRY(AZ_NEW(levels, (size_t)L, "plan"));
    az_plan_fill_levels(levels, &p->plan.choice, L);
    *out_options = (az_pass_options){
        .forward = p->input.work.eval, .backward = p->input.work.train, .opt_levels = levels};
    out_options->backward.group = p->plan.choice.group;
out:
    return err;
}
