/* train: from the deck to the adapter: what is opened before the first step (train_loop.c) and
 * written after the last one. */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/state.h"
#include "comm/watch.h"
#include "store/hdf5.h"
#include "train/load.h"
#include "train/train_priv.h"

/* A plan that is more off than this share is wrong. */
#define PLAN_LIMIT 0.02

static void plan_steps(az_run *r)
{
    const az_deck *d = r->deck;
    const char *kind = az_deck_string(d, "train.lr_scheduler_type");
    r->total_steps = az_schedule_count_steps(
        r->schedule, az_deck_real(d, "train.num_train_epochs"),
        az_deck_has(d, "train.max_steps") ? az_deck_int(d, "train.max_steps") : 0);
    r->eval_steps = az_deck_has(d, "eval.steps") ? az_deck_int(d, "eval.steps") : 0;
    r->lr = (az_lr){.kind = strcmp(kind, "linear") == 0   ? AZ_LR_LINEAR
                            : strcmp(kind, "cosine") == 0 ? AZ_LR_COSINE
                                                          : AZ_LR_CONSTANT,
                    .peak = az_deck_real(d, "train.learning_rate"),
                    .floor = az_deck_real(d, "train.min_lr"),
                    .warmup = az_deck_int(d, "train.warmup_steps"),
                    .total = r->total_steps};
    if (az_deck_has(d, "train.warmup_ratio"))
        r->lr.warmup =
            (int64_t)ceil(az_deck_real(d, "train.warmup_ratio") * (double)r->total_steps);
}

static az_err open_schedule(az_run *r)
{
    az_err err;
    const az_deck *d = r->deck;
    const az_batching batching = az_load_batching(d);
    err = az_schedule_create(&r->schedule, &r->train, &batching,
                             az_load_attention_cost(&r->engine.config), az_comm_size(r->comm),
                             az_comm_rank(r->comm));
    AZ_TRY(az_comm_agree(r->comm, err));
    plan_steps(r);
    if (r->have_eval)
        AZ_TRY(az_eval_create(&r->eval, &r->engine, &r->held_out,
                              az_deck_int(d, "eval.micro_batch_tokens")));
out:
    return err;
}

static az_err make_plan(az_run *r)
{
    az_work_load work;
    az_pass_limits eval;
    if (r->eval != NULL)
        az_eval_get_limits(r->eval, &eval);
    az_work_from_samples(&work, &r->train, r->schedule, r->eval != NULL ? &eval : NULL);
    return az_planning_make(&r->planning, &r->engine, r->deck, &work);
}

/* One workspace serves training and evaluation; what only backward needs is sized for training. */
static az_err open_pass(az_run *r)
{
    az_err err;
    az_pass_options options = {0};
    const az_model_parts parts = az_engine_get_parts(&r->engine);
    err = az_planning_get_pass(&options, &r->planning, &r->engine);
    AZ_TRY(az_comm_agree(r->comm, err));
    err = az_pass_create(&r->pass, &parts, &options);
out:
    az_free((void *)options.opt_levels);
    return err;
}

static az_err open_optim(az_run *r)
{
    const az_optim_options options = {.beta1 = az_deck_real(r->deck, "train.adam_beta1"),
                                      .beta2 = az_deck_real(r->deck, "train.adam_beta2"),
                                      .eps = az_deck_real(r->deck, "train.adam_epsilon"),
                                      .weight_decay = az_deck_real(r->deck, "train.weight_decay"),
                                      .max_grad_norm =
                                          az_deck_real(r->deck, "train.max_grad_norm")};
    const az_reduce reduce = r->planning.plan.choice.unit_reduce ? AZ_REDUCE_UNIT : AZ_REDUCE_STEP;
    return az_optim_create(&r->optim, r->engine.params, &options, reduce, r->comm);
}

/* ---- the output directory */

/* When the allocation ends, as Slurm says; INFINITY without. Of rank 0: it tells the others. A
 * moment that is past is that of another job, or the end has been put off since. */
static double find_time_limit(const az_run *r)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    char *rest;
    if (text == NULL || text[0] == '\0' || az_comm_rank(r->comm) != 0)
        return INFINITY;
    const long long end = strtoll(text, &rest, 10);
    const double left = *rest == '\0' ? (double)end - (double)time(NULL) : -1;
    if (left <= 0) {
        az_warn("SLURM_JOB_END_TIME is %.40s, which is no moment to come: the end of the "
                "allocation is not known",
                text);
        return INFINITY;
    }
    if (left <= az_run_get_lead(r))
        az_warn("the allocation ends in %.0f s, and the run is to stop %.0f s before "
                "(checkpoint.lead): there is no time for a step",
                left, az_run_get_lead(r));
    return az_now() + left;
}

az_err az_run_keep(az_run *r)
{
    az_err err = AZ_OK;
    if (az_comm_rank(r->comm) == 0)
        err = az_outdir_keep(r->outdir);
    err = az_comm_agree(r->comm, err);
    r->lost = err != AZ_OK;
    return err;
}

void az_run_note(const az_run *r, const char *state, const char *reason, int code)
{
    const az_state note = {.state = state,
                           .reason = reason,
                           .code = code,
                           .step = r->trainer.step,
                           .total_steps = r->total_steps,
                           .checkpoint = r->saves.last_name};
    const char *message = az_err_message();
    const bool failing = message[0] != '\0';
    if (az_state_write(r->dir, &note) != AZ_OK && !failing) {
        az_warn("%s", az_err_message());
        az_err_clear();
    }
}

/* The deck as understood; whether the adapter will find its place. On rank 0. */
static az_err prepare_output(az_run *r)
{
    az_err err;
    az_str text = {0};
    char *path = NULL;
    AZ_TRY((path = az_path_join(r->dir, "adapter")) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_lora_check_place(&r->engine.lora, path));
    az_free(path);
    AZ_TRY((path = az_path_join(r->dir, "run.yaml")) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_device_add_comment(&text, &r->engine.device, r->comm));
    AZ_TRY(az_deck_write(&text, r->deck));
    AZ_TRY(az_file_write_atomic(path, text.s, text.len));
    az_run_note(r, "running", "", AZ_OK);
out:
    az_str_fini(&text);
    az_free(path);
    return err;
}

/* The checkpoint that the run goes on from, if there is one, then what is written at the start. */
static az_err open_output(az_run *r)
{
    az_err err;
    r->checkpoint = (az_checkpoint){.deck = r->deck,
                                    .engine = &r->engine,
                                    .optim = r->optim,
                                    .steps_per_epoch = az_schedule_get_steps_per_epoch(r->schedule),
                                    .batch_size = az_deck_int(r->deck, "train.batch_size"),
                                    .total_steps = r->total_steps,
                                    .data_hash = az_data_hash(&r->train),
                                    .eval_hash = r->have_eval ? az_data_hash(&r->held_out) : 0};
    AZ_TRY(az_checkpoint_init(&r->checkpoint));
    az_saves_init(&r->saves, &r->checkpoint, r->dir);
    AZ_TRY(az_saves_resume(&r->saves, &r->trainer));
    err = az_comm_rank(r->comm) == 0 ? prepare_output(r) : AZ_OK;
    AZ_TRY(az_comm_agree(r->comm, err));
    r->opened = true;
    AZ_TRY(az_checkpoint_try(&r->checkpoint, r->dir)); /* nothing is worse than to learn it later */
    r->time_limit = find_time_limit(r);
    err = az_report_init(&r->report, r->deck, r->total_steps, r->checkpoint.steps_per_epoch,
                         &r->trainer, &r->engine);
    AZ_TRY(az_comm_agree(r->comm, err));
out:
    return err;
}

/* ---- results */

/* adapter.h5, and on rank 0 adapter/. */
static az_err write_adapter(az_run *r)
{
    az_err err = AZ_OK;
    char *dir = NULL, *file = NULL;
    const float *flat;
    const az_dtype dtype =
        strcmp(az_deck_string(r->deck, "output.adapter_dtype"), "bf16") == 0 ? AZ_BF16 : AZ_F32;
    dir = az_path_join(r->dir, "adapter");
    file = az_path_join(r->dir, "adapter.h5");
    err = dir != NULL && file != NULL ? AZ_OK : AZ_EENV;
    AZ_TRY(az_comm_agree(r->comm, err));
    az_pass_destroy(r->pass); /* no step follows: rank 0 needs memory to write and to check */
    r->pass = NULL;
    az_watch_enter(r->comm, AZ_PHASE_SAVE, r->trainer.step);
    AZ_TRY(az_run_keep(r));
    AZ_TRY(az_comm_agree(r->comm, az_shard_check_files(r->engine.shard)));
    AZ_TRY(az_params_gather_all(&flat, r->engine.params));
    if (az_comm_rank(r->comm) == 0)
        err = az_lora_write(flat, &r->engine.lora, &r->engine.peft, dtype, dir);
    az_params_release_all(r->engine.params);
    AZ_TRY(az_comm_agree(r->comm, err));
    AZ_TRY(az_checkpoint_write_adapter(&r->checkpoint, &r->trainer, file, dtype));
    az_say("adapter   %s and %s", dir, file);
out:
    az_free(dir);
    az_free(file);
    return err;
}

/* The adapter that is the result: the last one, or the best. The last is written all the same where
 * the best cannot be read. */
static void choose_adapter(az_run *r)
{
    const az_trainer *t = &r->trainer;
    if (!az_deck_bool(r->deck, "checkpoint.load_best_model_at_end") || t->best_step < 0 ||
        t->best_step == t->step)
        return;
    if (az_saves_load_adapter(&r->saves, t->best_step) == AZ_OK) {
        az_say("best      the adapter after step %lld, evaluation loss %.4f",
               (long long)t->best_step, t->best_loss);
        return;
    }
    az_warn("%s; the adapter is that after the last step", az_err_message());
    az_err_clear();
    r->best_lost = true;
}

/* What must be said of results that are not what the deck asks for. */
static az_err check_results(az_run *r)
{
    az_err err;
    AZ_TRY(az_report_close(&r->report));
    AZ_TRY(az_run_check_saved(r));
    if (r->best_lost)
        err = az_fail(AZ_EENV,
                      "%s: the adapter is that after the last step, as the checkpoint of step "
                      "%lld, which had the lowest evaluation loss, could not be read",
                      r->dir, (long long)r->trainer.best_step);
out:
    return err;
}

/* The run ends as its state cannot be saved: its adapter may fit all the same. */
static az_err rescue_adapter(az_run *r, az_err why)
{
    az_str message = {0};
    const az_err kept = az_comm_agree(r->comm, az_str_add(&message, "%s", az_err_message()));
    az_err_clear();
    if (kept == AZ_OK && write_adapter(r) != AZ_OK) {
        az_warn("not all of the adapter could be written: %s", az_err_message());
        az_err_clear();
    }
    az_fail(why, "%s", kept == AZ_OK ? message.s : "the state could not be saved");
    az_str_fini(&message);
    return why;
}

/* What was allocated is what was planned, but for rounding. */
static void compare_plan(const az_run *r)
{
    double off;
    az_plan_compare(&off, &r->planning.plan, &r->planning.input, r->comm);
    if (!(off <= PLAN_LIMIT))
        az_warn("the memory of this run is not what was planned for it: please report this");
}

/* What a batch script needs to know of checkpoints. */
static void say_saves(const az_run *r)
{
    const az_saves *s = &r->saves;
    if (s->n_saves == 0)
        return;
    az_say("saves     %lld checkpoint%s, the longest in %s%s; before the end of an allocation: "
           "--signal=USR1@%.0f",
           (long long)s->n_saves, s->n_saves == 1 ? "" : "s", az_format_seconds(s->longest_s),
           s->n_failed > 0 ? ", some failed" : "", ceil(az_run_get_lead(r)));
}

static void close_run(az_run *r)
{
    az_report_fini(&r->report);
    az_checkpoint_fini(&r->checkpoint);
    az_optim_destroy(r->optim);
    az_pass_destroy(r->pass);
    az_eval_destroy(r->eval);
    az_schedule_destroy(r->schedule);
    az_data_fini(&r->held_out);
    az_data_fini(&r->train);
    az_engine_close(&r->engine);
    az_free(r->reached);
    az_outdir_close(r->outdir);
}

/* What the end of the run means for who reads DIR/state. A run that is refused before it wrote
 * anything leaves no file, but an earlier run's must not speak for it. */
static void note_end(const az_run *r, az_err err)
{
    if (r->outdir == NULL || az_comm_rank(r->comm) != 0 || r->lost)
        return;
    const char *state = err == AZ_OK ? "done" : err == AZ_ESTOP ? "requeue" : "failed";
    const char *reason = err == AZ_OK ? "" : az_err_message();
    if (r->opened)
        az_run_note(r, state, reason, err);
    else if (az_state_exists(r->dir))
        az_state_change(r->dir, state, reason, err);
}

static az_err open_run(az_run *r)
{
    az_err err;
    const char *hdf5;
    AZ_TRY(az_comm_agree(r->comm, az_deck_check(r->deck, "train")));
    AZ_TRY(az_comm_agree(r->comm, az_hdf5_check(&hdf5)));
    AZ_TRY(az_outdir_open(&r->outdir, r->dir, r->comm));
    err = az_watch_set_dir(r->comm, r->dir);
    AZ_TRY(az_comm_agree(r->comm, err));
    AZ_TRY(az_engine_read(&r->engine, r->deck, AZ_ADAPTER_DECK, NULL, r->comm));
    AZ_TRY(az_load_samples(&r->train, &r->held_out, &r->have_eval, r->deck, &r->engine));
    AZ_TRY(open_schedule(r));
    AZ_TRY(make_plan(r));
    az_report_banner(r->deck, &r->engine, &r->train, r->have_eval ? &r->held_out : NULL,
                     r->schedule, r->total_steps, hdf5);
    az_plan_say(&r->planning.plan, &r->planning.input);
    AZ_TRY(az_engine_load(&r->engine, r->deck, &r->planning.plan, &r->planning.input));
    AZ_TRY(open_pass(r));
    AZ_TRY(open_optim(r));
    err = AZ_NEW(r->reached, (size_t)r->engine.lora.n_pairs, "optimizer");
    AZ_TRY(az_comm_agree(r->comm, err));
    az_report_base(&r->engine);
    AZ_TRY(az_planning_check_free(&r->planning, &r->engine));
    AZ_TRY(open_output(r));
out:
    return err;
}

az_err az_train_run(const az_deck *deck, az_comm *comm)
{
    az_err err;
    az_run r = {.deck = deck,
                .comm = comm,
                .dir = az_deck_string(deck, "output.dir"),
                .trainer = az_trainer_none,
                .time_limit = INFINITY};
    uint64_t hash = 0;
    AZ_TRY(open_run(&r));
    if (az_deck_bool(deck, "run.poison"))
        hash = az_shard_hash(r.engine.shard);
    err = az_run_loop(&r);
    if (err != AZ_OK && r.unsaved && r.trainer.step > 0)
        err = rescue_adapter(&r, err);
    AZ_TRY(err);
    if (az_deck_bool(deck, "run.poison")) {
        AZ_ASSERT(hash == az_shard_hash(r.engine.shard));
        az_say("base      unchanged, hash of what rank 0's node holds %016llx",
               (unsigned long long)hash);
    }
    az_report_summary(&r.report, &r.engine, r.pass, r.optim);
    compare_plan(&r);
    say_saves(&r);
    choose_adapter(&r);
    AZ_TRY(write_adapter(&r));
    AZ_TRY(check_results(&r));
out:
    note_end(&r, err);
    close_run(&r);
    return err;
}
