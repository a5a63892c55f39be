/* train/planning: what is asked of the machine, and what the ranks must have in common. */
#include <config.h>

#include <unistd.h>

#include "kern/kern.h"
#include "train/planning.h"

/* Of the node that has least. Collective. */
static void find_machine(az_machine *machine, const az_deck *deck, az_comm *comm)
{
    *machine = (az_machine){.topology = *az_comm_get_topology(comm),
                            .threads = az_kern_set_threads(0),
                            .cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    az_machine_find_memory(machine,
                           az_deck_has(deck, "run.memory") ? az_deck_size(deck, "run.memory") : 0);
    int64_t least[] = {-machine->memory, -machine->threads, -machine->cores};
    const int64_t mine = machine->memory;
    az_comm_max_i64(comm, least, sizeof least / sizeof *least);
    machine->memory = -least[0];
    machine->threads = (int)-least[1];
    machine->cores = (int)-least[2];
    int64_t rank = mine == machine->memory ? -az_comm_rank(comm) : INT64_MIN;
    az_comm_max_i64(comm, &rank, 1);
    az_comm_bcast(comm, machine->source, sizeof machine->source, (int)-rank);
    az_machine_assume(machine);
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
    find_machine(&p->input.machine, deck, comm);
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
