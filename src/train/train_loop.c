/* train: steps, evaluations, checkpoints, and the end of a run that is asked to stop.
 *
 * What the state after a step asks for (an evaluation, a checkpoint) is done before the next step,
 * and the checkpoint says which evaluation it has seen; so a run that goes on from a checkpoint
 * does what is left of that step first, and ends with the bits of an undisturbed one.
 *
 * One step: the schedule names the step's micro-batches; in each round every rank passes one of
 * them (or none) through the model, several rounds at a time where the pass takes them; the
 * optimizer sums gradients over ranks and updates; the report tells. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/watch.h"
#include "kern/kern.h"
#include "train/train_priv.h"

/* Seconds between the last moment to stop and the end of the allocation, besides what was measured:
 * Slurm's own work, and file systems that are slow for once. */
#define LEAD_RESERVE 30.0

/* ---- evaluation ---- */

/* A checkpoint of step 0 would be no adapter: the best one is looked for from the first step on. A
 * loss that is not finite is no lower one. */
static void note_eval(az_run *r, double loss)
{
    az_trainer *t = &r->trainer;
    t->evaluated = t->step;
    t->eval_loss = loss;
    if (t->step == 0)
        return;
    const double threshold = az_deck_real(r->deck, "eval.early_stopping_threshold");
    if (isfinite(loss) && (isnan(t->reference) || loss < t->reference - threshold)) {
        t->reference = loss;
        t->patience = 0;
    } else {
        t->patience++;
    }
    if (!isfinite(loss) || (!isnan(t->best_loss) && loss >= t->best_loss))
        return;
    t->best_loss = loss;
    t->best_step = t->step;
}

static bool eval_is_due(const az_run *r)
{
    const int64_t s = r->trainer.step;
    return r->eval != NULL && r->trainer.evaluated < s &&
           (s == 0 || s == r->total_steps || (r->eval_steps > 0 && s % r->eval_steps == 0));
}

static az_err evaluate(az_run *r)
{
    az_err err;
    az_eval_result result;
    az_watch_enter(r->comm, AZ_PHASE_EVAL, r->trainer.step);
    AZ_TRY(az_eval_run(&result, r->eval, r->pass));
    az_report_eval(&r->report, r->trainer.step, &result);
    note_eval(r, result.loss);
out:
    return err;
}

/* Whether evaluations have not become better for so long that the run ends here. */
static bool is_stalled(const az_run *r)
{
    return az_deck_has(r->deck, "eval.early_stopping_patience") &&
           r->trainer.patience >= az_deck_int(r->deck, "eval.early_stopping_patience");
}

static void say_stalled(const az_run *r)
{
    const az_trainer *t = &r->trainer;
    char what[80] = "been a finite number";
    if (!isnan(t->reference))
        snprintf(what, sizeof what, "fallen below %.6g - %g", t->reference,
                 az_deck_real(r->deck, "eval.early_stopping_threshold"));
    az_say("early     the evaluation loss has not %s in %lld evaluations: the run ends after step "
           "%lld",
           what, (long long)t->patience, (long long)t->step);
}

/* ---- one step ---- */

/* Every adapted linear must be reached by the gradient of the first step; that some are not is
 * possible (q and k of sequences that predict from their first token only), but the user is to
 * know. */
static void check_reached(az_run *r)
{
    const az_lora *lora = &r->engine.lora;
    int64_t missing = 0;
    int example = 0;
    for (int i = 0; i < lora->n_pairs; i++) {
        const az_pair *p = &lora->pairs[i];
        r->reached[i] =
            az_optim_has_gradient(r->optim, p->b_off, p->R * lora->linears[p->linear].out);
    }
    az_comm_max_i64(r->comm, r->reached, (size_t)lora->n_pairs);
    for (int i = 0; i < lora->n_pairs; i++)
        if (!r->reached[i] && missing++ == 0)
            example = i;
    if (missing > 0)
        az_warn("no gradient reached %lld of %d adapted linears in the first step, e.g. %s",
                (long long)missing, lora->n_pairs, lora->linears[lora->pairs[example].linear].path);
}

static az_err step(az_run *r)
{
    az_err err = AZ_OK;
    az_step info;
    const int64_t s = r->trainer.step;
    const uint64_t seed = (uint64_t)az_deck_int(r->deck, "train.seed");
    const double lr = az_lr_get(&r->lr, s);
    az_watch_enter(r->comm, AZ_PHASE_STEP, s + 1);
    az_schedule_set_step(r->schedule, s, &info);
    az_optim_begin(r->optim, info.n_micro);
    const int group = az_pass_get_group(r->pass, true);
    for (int round = 0; round < info.n_rounds; round += group) {
        const int left = info.n_rounds - round;
        AZ_TRY(az_pass_train(r->pass, r->schedule, round, left < group ? left : group,
                             1 / (double)info.n_targets, seed, s, r->optim));
    }
    az_optim_result result = az_optim_step(r->optim, lr);
    if (s == 0 && result.finite)
        check_reached(r);
    az_report_step(&r->report, s, &info, &result, lr);
    if (!result.finite && strcmp(az_deck_string(r->deck, "train.on_nonfinite"), "stop") == 0) {
        err = az_fail(AZ_EINPUT,
                      "step %lld: the loss or a gradient is not finite, or a gradient is beyond "
                      "+-%g; nothing was updated (train.on_nonfinite: skip would count the step "
                      "and go on)",
                      (long long)s + 1, AZ_FIXED_RANGE / info.n_micro);
        r->diverged = true;
        goto out;
    }
    r->trainer.step++;
    r->trainer.tokens += info.n_tokens;
    r->trainer.skipped += !result.finite;
    r->trainer.loss = result.loss;
out:
    return err;
}

/* ---- checkpoints ---- */

double az_run_get_lead(const az_run *r)
{
    if (az_deck_has(r->deck, "checkpoint.lead"))
        return az_deck_real(r->deck, "checkpoint.lead");
    return LEAD_RESERVE + 2 * az_saves_estimate(&r->saves) +
           2 * az_pass_get_times(r->pass).longest_unit;
}

static az_err save(az_run *r)
{
    az_err err;
    const int64_t before = r->saves.n_saves;
    const double begin = az_now();
    az_report_sync(&r->report);
    AZ_TRY(az_run_keep(r));
    AZ_TRY(az_comm_agree(r->comm, az_shard_check_files(r->engine.shard)));
    err = az_saves_write(&r->saves, &r->trainer);
    az_report_pause(&r->report, az_now() - begin);
    r->unsaved = err != AZ_OK;
    AZ_TRY(err);
    if (r->saves.n_saves > before && az_comm_rank(r->comm) == 0)
        az_run_note(r, "running", "", AZ_OK);
    az_saves_remove_old(&r->saves, &r->trainer); /* DIR/state does not name them any more */
out:
    return err;
}

az_err az_run_check_saved(const az_run *r)
{
    if (r->saves.last_step == r->trainer.step || r->trainer.step == 0)
        return AZ_OK;
    return az_fail(AZ_EENV, "%s: the state after step %lld could not be saved; %s%s", r->dir,
                   (long long)r->trainer.step,
                   r->saves.last_name[0] != '\0' ? "the last good checkpoint is "
                                                 : "there is no checkpoint",
                   r->saves.last_name);
}

/* What the state after a step asks for. */
static az_err finish_step(az_run *r, bool *out_last)
{
    az_err err = AZ_OK;
    const size_t calls = az_mem_get_total().calls;
    az_trainer *t = &r->trainer;
    const az_trainer before = *t;
    if (eval_is_due(r))
        AZ_TRY(evaluate(r));
    *out_last = t->step >= r->total_steps;
    if (!*out_last && is_stalled(r)) {
        *out_last = true;
        say_stalled(r);
    }
    const bool due = t->step > 0 && az_saves_is_due(&r->saves, t);
    const bool best = r->saves.keep_best && t->step > 0 && t->best_step == t->step;
    if (*out_last || due || best)
        AZ_TRY(save(r));
    if (best && !*out_last && r->saves.last_step != t->step) {
        /* It could not be saved: the best one is one that is there. */
        const bool earlier = before.best_step < t->step;
        t->best_step = earlier ? before.best_step : -1;
        t->best_loss = earlier ? before.best_loss : NAN;
    }
    if (r->time_limit < INFINITY)
        az_stop_set_time(r->time_limit - az_run_get_lead(r));
out:
    r->outside += az_mem_get_total().calls - calls;
    return err;
}

/* The state after the last step is kept, and the reason said. Overrides AZ_ESTOP only if it cannot
 * be kept. */
static az_err stop(az_run *r)
{
    az_err err = AZ_OK;
    char why[160];
    const az_trainer *t = &r->trainer;
    snprintf(why, sizeof why, "%s", az_err_message());
    az_err_clear();
    if (t->step > 0)
        AZ_TRY(save(r));
    err = az_run_check_saved(r);
    r->unsaved = err != AZ_OK;
    AZ_TRY(err);
    if (r->saves.last_step >= 0)
        err =
            az_fail(AZ_ESTOP,
                    "%s after step %lld of %lld: %s/%s holds it, the same command goes on "
                    "from there",
                    why, (long long)t->step, (long long)r->total_steps, r->dir, r->saves.last_name);
    else
        err = az_fail(AZ_ESTOP, "%s before the first step: the same command starts anew", why);
out:
    return err;
}

/* The state before a step that was not finite is kept: with train.on_nonfinite: skip the run goes
 * on from there. */
static az_err keep_state(az_run *r, az_err why)
{
    char message[400];
    snprintf(message, sizeof message, "%s", az_err_message());
    az_err_clear();
    if (r->trainer.step > 0 && save(r) != AZ_OK) {
        az_warn("no checkpoint: %s", az_err_message());
        az_err_clear();
    }
    return az_fail(why, "%s%s%s", message,
                   r->saves.last_step == r->trainer.step ? "; the state before it is in " : "",
                   r->saves.last_step == r->trainer.step ? r->saves.last_name : "");
}

az_err az_run_loop(az_run *r)
{
    az_err err;
    bool last = false;
    size_t calls = 0;
    AZ_TRY(finish_step(r, &last));
    for (bool first = true; !last; first = false) {
        AZ_TRY(step(r));
        if (first) {
            calls = az_mem_get_total().calls;
            r->outside = 0;
        }
        AZ_TRY(finish_step(r, &last));
    }
    if (calls > 0)
        r->report.allocations = (int64_t)(az_mem_get_total().calls - calls - r->outside);
out:
    if (err != AZ_OK && r->diverged)
        return keep_state(r, err);
    return err == AZ_ESTOP ? stop(r) : err;
}
