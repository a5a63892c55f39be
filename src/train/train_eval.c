/* train/eval: all samples as one step, in order, cut into micro-batches by tokens and dealt to the
 * ranks in rounds. A rank without a micro-batch takes part in the round's gathers. */
#include <config.h>

#include <math.h>

#include "kern/kern.h"
#include "train/eval.h"
#include "train/load.h"

struct az_eval {
    az_engine *engine;
    const az_dataset *set;
    az_schedule *schedule;
    az_step step;
};

az_err az_eval_create(az_eval **out_eval, az_engine *engine, const az_dataset *set,
                      int64_t micro_batch_tokens)
{
    az_err err;
    az_eval *e = NULL;
    const az_batching batching = {.batch_size = set->n, .micro_batch_tokens = micro_batch_tokens};
    *out_eval = NULL;
    if (set->n == 0)
        return az_fail(AZ_EINPUT, "evaluation: there is no sample with a target");
    AZ_TRY(AZ_NEW(e, 1, "data"));
    e->engine = engine;
    e->set = set;
    AZ_TRY(az_schedule_create(&e->schedule, set, &batching, az_load_attention_cost(&engine->config),
                              az_comm_size(engine->comm), az_comm_rank(engine->comm)));
    az_schedule_set_step(e->schedule, 0, &e->step);
out:
    err = az_comm_agree(engine->comm, err);
    if (err != AZ_OK)
        az_eval_destroy(e);
    else
        *out_eval = e;
    return err;
}

void az_eval_destroy(az_eval *opt_eval)
{
    if (opt_eval == NULL)
        return;
    az_schedule_destroy(opt_eval->schedule);
    az_free(opt_eval);
}

void az_eval_get_limits(const az_eval *eval, az_pass_limits *out_limits)
{
    *out_limits = (az_pass_limits){.longest = eval->set->longest};
    az_schedule_get_max(eval->schedule, &out_limits->tokens, &out_limits->sequences,
                        &out_limits->targets);
}

void az_eval_get_work(const az_eval *eval, az_work_load *out_work)
{
    az_pass_limits limits = {0};
    az_eval_get_limits(eval, &limits);
    az_work_from_forward(out_work, &limits, &eval->step, 0);
}

az_err az_eval_run(az_eval_result *out_result, az_eval *eval, az_pass *pass)
{
    az_err err = AZ_OK;
    enum { LOSS, OVERFLOW, N_SUMS };
    const az_step *step = &eval->step;
    const double begin = az_now(), n_targets = (double)step->n_targets;
    const double limit = AZ_FIXED_RANGE / step->n_micro;
    int64_t sums[N_SUMS] = {0};
    const int group = az_pass_get_group(pass, false);
    for (int round = 0; round < step->n_rounds; round += group) {
        const int left = step->n_rounds - round, n = left < group ? left : group;
        const double *losses;
        AZ_TRY(az_pass_eval(&losses, pass, eval->schedule, round, n));
        for (int i = 0; i < n; i++)
            sums[LOSS] += az_kern_to_fixed(losses[i] / n_targets, limit, &sums[OVERFLOW]);
    }
    az_comm_sum_i64(eval->engine->comm, sums, N_SUMS);
    const double loss = sums[OVERFLOW] == 0 ? (double)sums[LOSS] * AZ_FIXED_UNIT : NAN;
    *out_result = (az_eval_result){.loss = loss,
                                   .perplexity = exp(loss),
                                   .samples = step->n_samples,
                                   .tokens = step->n_tokens,
                                   .targets = step->n_targets,
                                   .seconds = az_now() - begin};
out:
    return err;
}
