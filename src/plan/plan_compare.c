/* plan: what was planned beside what is allocated. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "plan/plan_priv.h"

/* Labels of the memory report (base/mem.h) that make up one row, and the categories that were
 * planned for it. What no row takes is of the process: names, tables, the deck. */
typedef struct {
    const char *name;
    const char *labels; /* with | between */
    unsigned categories;
} row;

#define BIT(c) (1u << AZ_PLAN_##c)
static const row rows[] = {
    {"base", "base slices", BIT(SLICES) | BIT(COPY) | BIT(RESIDENT)},
    {"gather slots", "gathered unit", BIT(SLOTS)},
    {"activations", "activations", BIT(ACTIVATIONS) | BIT(HEAD)},
    {"adapter", "adapter", BIT(ADAPTER)},
    {"gradient", "adapter gradients", BIT(GRADIENT)},
    {"moments", "moments|optimizer", BIT(MOMENTS)},
    {"text", "dataset|schedule|data", BIT(TEXT)},
};
/* Of a sum below this nothing is said: the heaviest rank stands for all, and the smallest slices
 * are of unlike sizes. */
#define SMALL ((int64_t)1 << 20)

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool holds(const char *labels, const char *label)
{
    const size_t n = strlen(label);
    for (const char *p = labels; p != NULL; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, label, n) == 0 && (p[n] == '|' || p[n] == '\0'))
            return true;
    }
    return false;
}

/* Of the node with the most, all of its ranks together; on_gpu: of the GPU with the most. Labels of
 * GPUs begin with "GPU " (dev/dev.h). */
static void sum_tracked(int64_t *tracked, bool on_gpu, az_comm *comm)
{
    const char *label;
    size_t bytes, most;
    memset(tracked, 0, N_ROWS * sizeof *tracked);
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &most); i++) {
        const bool gpu = strncmp(label, "GPU ", 4) == 0;
        for (int r = 0; r < N_ROWS && gpu == on_gpu; r++)
            if (holds(rows[r].labels, label + (gpu ? 4 : 0)))
                tracked[r] += (int64_t)bytes;
    }
    if (!on_gpu)
        az_comm_node_sum_i64(comm, tracked, N_ROWS);
    az_comm_max_i64(comm, tracked, N_ROWS);
}

static double compare(const az_plan_memory *memory, int64_t writing, bool on_gpu, const char *where,
                      az_comm *comm)
{
    int64_t tracked[N_ROWS], sum = 0, all = 0;
    sum_tracked(tracked, on_gpu, comm);
    for (int r = 0; r < N_ROWS; r++) {
        int64_t planned = 0;
        for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++)
            if (rows[r].categories & 1u << c)
                planned += memory[c].domain - (c == AZ_PLAN_ADAPTER ? writing : 0);
        sum += planned;
        all += tracked[r];
        if (fabs((double)(tracked[r] - planned)) > 0.01 * (double)planned)
            az_say("planned   %-12s %12s, %12s are allocated", rows[r].name,
                   az_format_bytes((double)planned), az_format_bytes((double)tracked[r]));
    }
    const double off = fabs((double)(all - sum)) / (double)az_max_i64(SMALL, sum);
    az_say("planned   %s %s for all that depends on the model and the data, %s are allocated: "
           "%.2f %% off",
           az_format_bytes((double)sum), where, az_format_bytes((double)all), 100 * off);
    return off;
}

void az_plan_compare(double *out_difference, const az_plan *plan, const az_plan_input *input,
                     az_comm *comm)
{
    if (!input->machine.gpu) {
        *out_difference = compare(plan->memory, plan->writing, false, "a node", comm);
        return;
    }
    const double gpu = compare(plan->memory, 0, true, "a GPU", comm);
    const double host = compare(plan->host, plan->writing, false, "a node, beside its GPUs,", comm);
    *out_difference = fmax(gpu, host);
}
