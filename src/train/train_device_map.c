/* train/device_map: the cheapest assignment of GPUs to ranks.
 *
 * It grows by one rank at a time: the rank takes a GPU, whose rank takes another one, and so on to
 * a free one, along the path that is cheapest in all (Bellman and Ford's relaxation, as moving a
 * rank may gain). What is found so is the cheapest for all ranks. A GPU far from the rank's cores
 * costs more than any disorder. */
#include <config.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/device_map.h"

#define FAR ((int64_t)1 << 40)
#define NEVER (INT64_MAX / 4)

typedef struct {
    int n_ranks, n_gpus;
    const char **uuids; /* [n_gpus] each once, in the order in which ranks see them */
    int *numbers;       /* [n_ranks, n_gpus] the rank's number of it, or -1 */
    int64_t *cost;      /* [n_ranks, n_gpus] */
    int *owner;         /* [n_gpus] the rank that has it, or -1 */
    int64_t *far;       /* [n_gpus] cost of the cheapest path to each */
    int *from;          /* [n_gpus] the rank that takes it on this path */
} assignment;

static int find_gpu(const assignment *a, const char *uuid)
{
    int g = 0;
    while (g < a->n_gpus && strcmp(a->uuids[g], uuid) != 0)
        g++;
    return g;
}

static bool is_near(const az_gpu_view *view, int numa)
{
    return view->numa == 0 || numa < 0 || numa >= 64 || (view->numa >> numa & 1) != 0;
}

static az_err fill(assignment *a, const az_gpu_view *views, int n_ranks)
{
    az_err err;
    size_t most = 0;
    for (int r = 0; r < n_ranks; r++)
        most += (size_t)views[r].n;
    AZ_TRY(AZ_NEW(a->uuids, most, "devices"));
    for (int r = 0; r < n_ranks; r++)
        for (int i = 0; i < views[r].n; i++) {
            const int g = find_gpu(a, views[r].gpus[i].uuid);
            a->uuids[g] = views[r].gpus[i].uuid;
            a->n_gpus += g == a->n_gpus;
        }
    const size_t n = (size_t)a->n_gpus;
    a->n_ranks = n_ranks;
    AZ_TRY(AZ_NEW(a->numbers, n * (size_t)n_ranks, "devices"));
    AZ_TRY(AZ_NEW(a->cost, n * (size_t)n_ranks, "devices"));
    AZ_TRY(AZ_NEW(a->owner, n, "devices"));
    AZ_TRY(AZ_NEW(a->far, n, "devices"));
    AZ_TRY(AZ_NEW(a->from, n, "devices"));
    memset(a->numbers, -1, n * (size_t)n_ranks * sizeof *a->numbers);
    memset(a->owner, -1, n * sizeof *a->owner);
    for (int r = 0; r < n_ranks; r++)
        for (int i = 0; i < views[r].n; i++) {
            const size_t g = (size_t)find_gpu(a, views[r].gpus[i].uuid), at = (size_t)r * n + g;
            a->numbers[at] = i;
            const int64_t off = (int64_t)g - r;
            a->cost[at] = off * off + (is_near(&views[r], views[r].gpus[i].numa) ? 0 : FAR);
        }
out:
    return err;
}

static void fini(assignment *a)
{
    az_free((void *)a->uuids);
    az_free(a->numbers);
    az_free(a->cost);
    az_free(a->owner);
    az_free(a->far);
    az_free(a->from);
}

/* The rank may come to what it sees, at `at` more than its cost. */
static bool reach(assignment *a, int rank, int64_t at)
{
    bool nearer = false;
    for (int g = 0; g < a->n_gpus; g++) {
        const size_t i = (size_t)rank * (size_t)a->n_gpus + (size_t)g;
        if (a->numbers[i] < 0 || a->owner[g] == rank || at + a->cost[i] >= a->far[g])
            continue;
        a->far[g] = at + a->cost[i];
        a->from[g] = rank;
        nearer = true;
    }
    return nearer;
}

static int find_owned(const assignment *a, int rank)
{
    int g = 0;
    while (g < a->n_gpus && a->owner[g] != rank)
        g++;
    return g < a->n_gpus ? g : -1;
}

/* Give the rank a GPU; false: none is left for it. */
static bool place(assignment *a, int rank)
{
    int best = -1;
    for (int g = 0; g < a->n_gpus; g++)
        a->far[g] = NEVER;
    bool nearer = reach(a, rank, 0);
    while (nearer) {
        nearer = false;
        for (int g = 0; g < a->n_gpus; g++) {
            const int owner = a->owner[g];
            if (owner >= 0 && a->far[g] < NEVER)
                nearer |= reach(a, owner,
                                a->far[g] - a->cost[(size_t)owner * (size_t)a->n_gpus + (size_t)g]);
        }
    }
    for (int g = 0; g < a->n_gpus; g++)
        if (a->owner[g] < 0 && a->far[g] < NEVER && (best < 0 || a->far[g] < a->far[best]))
            best = g;
    for (int g = best; g >= 0;) {
        const int taker = a->from[g], given_up = find_owned(a, taker);
        a->owner[g] = taker;
        g = taker == rank ? -1 : given_up;
    }
    return best >= 0;
}

/* The rank finds all that it sees taken by others. */
static az_err refuse(const assignment *a, const az_gpu_view *views, int rank, const char *host)
{
    if (a->n_ranks > a->n_gpus)
        return az_fail(
            AZ_EINPUT,
            "%s has %d ranks, which see %d GPU%s (%s%s): each needs one of its own. Start as many "
            "tasks as GPUs (srun or sbatch --ntasks-per-node=%d), or if the node has more GPUs let "
            "each task see them all (--gpus-per-node=N --gpu-bind=none, without "
            "CUDA_VISIBLE_DEVICES), or give run.device=cpu",
            host, a->n_ranks, a->n_gpus, a->n_gpus == 1 ? "" : "s", a->uuids[0],
            a->n_gpus == 1 ? "" : ", ...", a->n_gpus);
    return az_fail(AZ_EINPUT,
                   "%s: local rank %d would share the GPU %s with another rank, as it sees no "
                   "other that is free. Let each task see all GPUs of its node (srun or sbatch "
                   "--gpus-per-node=N --gpu-bind=none, without CUDA_VISIBLE_DEVICES) or another "
                   "one (--gpus-per-task=1), or give run.device=cpu",
                   host, rank, views[rank].gpus[0].uuid);
}

static bool is_narrow(const assignment *a)
{
    for (int g = 0; g < a->n_gpus; g++)
        for (int r = 0; a->owner[g] >= 0 && r < a->n_ranks; r++)
            if (a->numbers[(size_t)r * (size_t)a->n_gpus + (size_t)g] < 0)
                return true;
    return false;
}

az_err az_device_map(int *index, az_mapping *out_mapping, const az_gpu_view *views, int n_ranks,
                     const char *host)
{
    az_err err = AZ_OK;
    assignment a = {0};
    for (int r = 0; r < n_ranks; r++)
        if (views[r].n == 0)
            return az_fail(AZ_EINPUT,
                           "%s: local rank %d sees no GPU, as others do. Let each task see all "
                           "GPUs of its node (srun or sbatch --gpus-per-node=N --gpu-bind=none, "
                           "without CUDA_VISIBLE_DEVICES), or give run.device=cpu",
                           host, r);
    AZ_TRY(fill(&a, views, n_ranks));
    for (int r = 0; r < n_ranks; r++)
        if (!place(&a, r))
            AZ_TRY(refuse(&a, views, r, host));
    for (int g = 0; g < a.n_gpus; g++)
        if (a.owner[g] >= 0)
            index[a.owner[g]] = a.numbers[(size_t)a.owner[g] * (size_t)a.n_gpus + (size_t)g];
    *out_mapping = (az_mapping){.n_gpus = a.n_gpus, .narrow = is_narrow(&a)};
out:
    fini(&a);
    return err;
}

/* ---- what Linux says */

/* Whether a list such as "0-3,8" has a CPU that this process may run on. */
static bool holds_own(const char *list, const cpu_set_t *own)
{
    char *rest;
    for (const char *p = list; *p >= '0' && *p <= '9'; p = *rest == ',' ? rest + 1 : rest) {
        const long first = strtol(p, &rest, 10);
        const long last = *rest == '-' ? strtol(rest + 1, &rest, 10) : first;
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, own))
                return true;
    }
    return false;
}

uint64_t az_device_find_numa(void)
{
    uint64_t found = 0;
    char path[64], list[4096];
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) != 0)
        return 0;
    for (int node = 0; node < 64; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        FILE *f = fopen(path, "r");
        if (f == NULL)
            continue;
        if (fgets(list, sizeof list, f) != NULL && holds_own(list, &own))
            found |= (uint64_t)1 << node;
        fclose(f);
    }
    return found;
}

int az_device_get_numa(const char *pci)
{
    int numa = -1;
    char path[80];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.20s/numa_node", pci);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return -1;
    if (fscanf(f, "%d", &numa) != 1)
        numa = -1;
    fclose(f);
    return numa;
}
