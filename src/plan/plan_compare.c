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

/* Of the node with the most: all of its ranks together. */
static void sum_tracked(int64_t *tracked, az_comm *comm)
{
    const char *label;
    size_t bytes, most;
    memset(tracked, 0, N_ROWS * sizeof *tracked);
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &most); i++)
        for (int r = 0; r < N_ROWS; r++)
            if (holds(rows[r].labels, label))
                tracked[r] += (int64_t)bytes;
    az_comm_node_sum_i64(comm, tracked, N_ROWS);
    az_comm_max_i64(comm, tracked, N_ROWS);
}

void az_plan_compare(double *out_difference, const az_plan *plan, az_comm *comm)
{
    int64_t tracked[N_ROWS], sum = 0, all = 0;
    sum_tracked(tracked, comm);
    for (int r = 0; r < N_ROWS; r++) {
        int64_t planned = 0;
        for (int c = 0; c < AZ_PLAN_N_CATEGORIES; c++)
            if (rows[r].categories & 1u << c)
                planned += plan->memory[c].domain;
        sum += planned;
        all += tracked[r];
        if (fabs((double)(tracked[r] - planned)) > 0.01 * (double)planned)
            az_say("planned   %-12s %12s, %12s are allocated", rows[r].name,
                   az_format_bytes((double)planned), az_format_bytes((double)tracked[r]));
    }
    *out_difference = fabs((double)(all - sum)) / (double)az_max_i64(1, sum);
    az_say("planned   %s a node for all that depends on the model and the data, %s are allocated: "
           "%.2f %% off",
           az_format_bytes((double)sum), az_format_bytes((double)all), 100 * *out_difference);
}
