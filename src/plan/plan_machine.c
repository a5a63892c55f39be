/* plan: the machine: memory that there is, and what is assumed where nothing is said. */
#include <config.h>

#include <stdio.h>
#include <unistd.h>

#include "plan/plan_priv.h"

/* Assumptions, said as such. A core of a server of the last ten years multiplies matrices in f32 at
 * this speed or more; a GPU of its time likewise. */
static const double link_cpu = 1.25e9, link_gpu = 12.5e9; /* 10 and 100 Gbit/s */
static const double node_link = 25e9;                     /* PCI Express 4.0, 16 lanes */
static const double flops_thread = 30e9, flops_gpu = 15e12, flops_gpu_bf16 = 150e12;

static int64_t find_memory(char *text, size_t size)
{
    const char *source;
    const int64_t limit = az_limits_get_memory(&source), reserve = az_limits_get_reserve(limit);
    snprintf(text, size, "%.100s, %s, less a reserve of %s", source, az_format_bytes((double)limit),
             az_format_bytes((double)reserve));
    return limit - reserve > 0 ? limit - reserve : 0;
}

void az_machine_find_memory(az_machine *machine, int64_t opt_given)
{
    machine->memory = opt_given;
    if (opt_given > 0)
        snprintf(machine->source, sizeof machine->source, "as given");
    else
        machine->memory = find_memory(machine->source, sizeof machine->source);
}

void az_machine_find_host_memory(az_machine *machine)
{
    machine->host_memory = find_memory(machine->host_source, sizeof machine->host_source);
}

void az_machine_assume(az_machine *machine)
{
    if (machine->threads <= 0) {
        const long cores = sysconf(_SC_NPROCESSORS_ONLN);
        const long ranks = machine->topology.node_ranks[0];
        machine->threads = cores > ranks ? (int)(cores / ranks) : 1;
    }
    if (!machine->link_given)
        machine->link = machine->gpu ? link_gpu : link_cpu;
    if (!machine->node_link_given)
        machine->node_link = node_link;
    if (!machine->host_link_given)
        machine->host_link = node_link;
    if (!machine->flops_given)
        machine->flops = !machine->gpu             ? flops_thread * machine->threads
                         : machine->act == AZ_BF16 ? flops_gpu_bf16
                                                   : flops_gpu;
}
