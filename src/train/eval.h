/* train/eval: loss and perplexity of a dataset, during training and for `adze eval`.
 *
 * Every sample counts once and every target weighs the same: the loss is the sum over targets by
 * their number. Sums are exact, so neither the number of ranks nor who computed what changes a bit.
 */
#ifndef AZ_TRAIN_EVAL_H
#define AZ_TRAIN_EVAL_H

#include "base/base.h"
#include "data/data.h"
#include "plan/plan.h"
#include "train/engine.h"

typedef struct az_eval az_eval;

typedef struct {
    double loss;       /* mean negative log-likelihood per target; NaN if not finite */
    double perplexity; /* exp(loss) */
    int64_t samples, tokens, targets;
    double seconds;
} az_eval_result;

/* set is borrowed and has samples. micro_batch_tokens: tokens that a rank takes at once; a longer
 * sample stands alone. Collective. */
az_err az_eval_create(az_eval **out_eval, az_engine *engine, const az_dataset *set,
                      int64_t micro_batch_tokens);
void az_eval_destroy(az_eval *opt_eval);
/* What a pass must allow so that it can be used here. */
void az_eval_get_limits(const az_eval *eval, az_pass_limits *out_limits);
/* What a plan must know of it, as the only work of a job; the memory of datasets and schedules that
 * are there is looked up. */
void az_eval_get_work(const az_eval *eval, az_work_load *out_work);
/* With the adapter as it is now, without dropout. The result is the same on all ranks. Allocates
 * nothing. Fails only with AZ_ESTOP, as a pass does. Collective. */
az_err az_eval_run(az_eval_result *out_result, az_eval *eval, az_pass *pass);

#endif
