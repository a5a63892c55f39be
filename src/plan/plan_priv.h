/* plan, inside. */
#ifndef AZ_PLAN_PRIV_H
#define AZ_PLAN_PRIV_H

#include "comm/spread.h"
#include "lora/params.h"
#include "optim/optim.h"
#include "plan/plan.h"

/* What is the same for all choices: sizes as the modules tell them. Start from {0}. */
typedef struct {
    const az_plan_input *in;
    bool training;       /* else evaluation or generation */
    az_topology domains; /* what shares a memory is a node here */
    int *domain_ranks;   /* of it */
    int node_domains;    /* domains of the smallest node */
    int max_ranks;       /* ranks of the fullest node, or of a GPU: 1 */
    int most_ranks;      /* of the fullest node */
    az_unit_list list;
    az_pass_units cut;
    int *program, n_program; /* of a step's group */
    bool *resident;          /* [units] scratch of one count */
    size_t *cut_bytes;
    az_level *levels; /* [L] likewise */
    int64_t *off;     /* of spans */
    az_spans spans;
    az_params_sizes params[2];   /* by az_params_placement; without GPUs all is the device's */
    az_spread_traffic brought;   /* of parameters, where they are gathered */
    az_optim_gpu_sizes optim[2]; /* by az_reduce, likewise */
    size_t fabric;               /* pinned bytes of a rank with a GPU */
    size_t page;                 /* of shared memory */
    size_t tables;               /* names and tables, in each process */
    int64_t rounds;              /* micro-batches that the busiest rank has in a step */
    /* Operations of a step over all ranks without what is computed again, and what a layer costs
     * to be computed again (by level, over the step's tokens). */
    double flops, again[AZ_LEVEL_KEEP + 1], head_again;
    int n_back; /* layers that backward passes through */
} az_sizes;

az_err az_sizes_init(az_sizes *sizes, const az_plan_input *input);
void az_sizes_fini(az_sizes *sizes);

/* plan->choice is given; count memory, traffic and time. The resident units follow from
 * choice.spend. Fails for want of memory only. */
az_err az_plan_count(az_plan *plan, az_sizes *sizes);
/* Memory alone, and whether it fits. */
void az_plan_count_memory(az_plan *plan, az_sizes *sizes);
/* Traffic and time of a choice whose residency sizes hold. */
az_err az_plan_count_cost(az_plan *plan, az_sizes *sizes);
/* The best choice that fits, or the leanest, counted. */
az_err az_plan_choose(az_plan *plan, az_sizes *sizes);
/* Micro-batches of at most so many tokens. */
void az_work_shrink(az_work_load *work, int64_t tokens);
/* What would make it fit. */
az_err az_plan_find_change(az_plan *plan, const az_plan_input *input);
/* Reasons and warnings. */
void az_plan_explain(az_plan *plan, const az_sizes *sizes);

/* What a unit that is not resident is cut over; each part is a node to the functions of shard. */
az_topology az_plan_cut_over(const az_sizes *sizes, const az_plan_choice *choice);
/* With GPUs: where it lies. */
az_gpu_cut az_plan_find_cut(const az_sizes *sizes, const az_plan_choice *choice);

#endif
