/* train/planning: the plan of a job on the machine that it runs on. */
#ifndef AZ_TRAIN_PLANNING_H
#define AZ_TRAIN_PLANNING_H

#include "base/base.h"
#include "deck/deck.h"
#include "plan/plan.h"
#include "train/engine.h"

typedef struct {
    az_plan_input input;
    az_plan plan;
    int64_t free_bytes; /* of this rank's GPU, before anything was allocated */
} az_planning;

/* After az_engine_read. The memory is that of the node that has least for the job, or what is free
 * on the GPU that has least; links of GPUs are measured. Rank 0's plan is everyone's. Fails with
 * AZ_EINPUT where the job does not fit. Collective. */
az_err az_planning_make(az_planning *planning, const az_engine *engine, const az_deck *deck,
                        const az_work_load *work);
/* After all is allocated, before the first step: whether the GPUs have as much left as was planned;
 * else it is said. Collective. */
az_err az_planning_check_free(const az_planning *planning, const az_engine *engine);
/* How the plan fills passes: the largest micro-batches, groups and levels. Free opt_levels of
 * *out_options with az_free. Local. */
az_err az_planning_get_pass(az_pass_options *out_options, const az_planning *planning,
                            const az_engine *engine);

#endif
