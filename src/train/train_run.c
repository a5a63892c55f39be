/* train: from the deck to the adapter.
 *
 * One step: the schedule names the step's micro-batches; in each round every rank passes one of
 * them (or none) through the model; the optimizer sums gradients over ranks and updates; the report
 * tells. */
#include <config.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch.h"
#include "kern/kern.h"
#include "store/hdf5.h"
#include "train/load.h"
#include "train/outdir.h"
#include "train/report.h"
#include "train/train.h"

/* All that a run owns. */
typedef struct {
    const az_deck *deck;
    az_comm *comm;
    az_outdir *outdir;
    az_engine engine;
    az_dataset train, held_out;
    bool have_eval;
    az_schedule *schedule;
    az_eval *eval;
    az_pass *pass;
    az_optim *optim;
    az_report report;
    az_lr lr;
    int64_t total_steps, eval_steps;
    int64_t *reached; /* [n_pairs] whether a gradient came to the pair's B */
} run;

static az_err load_data(run *r)
{
    az_err err;
    az_tokenizer *tokenizer = NULL;
    err = az_engine_open_tokenizer(&tokenizer, r->deck);
    AZ_TRY(az_comm_agree(r->comm, err));
    AZ_TRY(az_load_files(&r->train, r->deck, "data.files", &r->engine, tokenizer));
    if (az_deck_count(r->deck, "eval.file") > 0) {
        AZ_TRY(az_load_files(&r->held_out, r->deck, "eval.file", &r->engine, tokenizer));
        r->have_eval = true;
    } else if (az_deck_has(r->deck, "eval.split")) {
        err = az_data_split(&r->train, &r->held_out, az_deck_real(r->deck, "eval.split"),
                            (uint64_t)az_deck_int(r->deck, "train.seed"));
        AZ_TRY(az_comm_agree(r->comm, err));
        r->have_eval = true;
    }
out:
    az_text_close(tokenizer);
    return err;
}

static void plan_steps(run *r)
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

static az_err open_schedule(run *r)
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

/* One workspace serves training and evaluation; what only backward needs is sized for training. */
static az_err open_pass(run *r)
{
    az_pass_limits train = {.longest = r->train.longest}, eval = {0};
    az_schedule_get_max(r->schedule, &train.tokens, &train.sequences, &train.targets);
    if (r->eval != NULL)
        az_eval_get_limits(r->eval, &eval);
    return az_pass_create(&r->pass, &r->engine, &eval, &train);
}

static az_err open_optim(run *r)
{
    const az_optim_options options = {.beta1 = az_deck_real(r->deck, "train.adam_beta1"),
                                      .beta2 = az_deck_real(r->deck, "train.adam_beta2"),
                                      .eps = az_deck_real(r->deck, "train.adam_epsilon"),
                                      .weight_decay = az_deck_real(r->deck, "train.weight_decay"),
                                      .max_grad_norm =
                                          az_deck_real(r->deck, "train.max_grad_norm")};
    return az_optim_create(&r->optim, r->engine.lora.n_elements, &options, r->comm);
}

/* The output directory, with the deck as understood. On rank 0, then agreed. */
static az_err open_output(run *r)
{
    az_err err = AZ_OK;
    az_str text = {0};
    char *path = NULL;
    const char *dir = az_deck_string(r->deck, "output.dir");
    if (az_comm_rank(r->comm) == 0) {
        AZ_TRY(az_dir_create(dir));
        AZ_TRY((path = az_path_join(dir, "adapter")) != NULL ? AZ_OK : AZ_EENV);
        AZ_TRY(az_lora_check_place(&r->engine.lora, path));
        az_free(path);
        AZ_TRY((path = az_path_join(dir, "run.yaml")) != NULL ? AZ_OK : AZ_EENV);
        AZ_TRY(az_deck_write(&text, r->deck));
        AZ_TRY(az_file_write_atomic(path, text.s, text.len));
    }
    AZ_TRY(az_watch_set_dir(r->comm, dir));
    AZ_TRY(az_report_init(&r->report, r->deck, r->total_steps,
                          az_schedule_get_steps_per_epoch(r->schedule), r->comm));
out:
    az_str_fini(&text);
    az_free(path);
    return az_comm_agree(r->comm, err);
}

static az_err evaluate(run *r, int64_t step)
{
    az_err err = AZ_OK;
    az_eval_result result;
    if (r->eval == NULL)
        return AZ_OK;
    az_watch_enter(r->comm, AZ_PHASE_EVAL, step);
    AZ_TRY(az_eval_run(&result, r->eval, r->pass));
    az_report_eval(&r->report, step, &result);
out:
    return err;
}

/* Every adapted linear must be reached by the gradient of the first step; that some are not is
 * possible (q and k of sequences that predict from their first token only), but the user is to
 * know. */
static void check_reached(run *r)
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

static az_err step(run *r, int64_t s)
{
    az_err err = AZ_OK;
    az_step info;
    az_batch batch;
    const uint64_t seed = (uint64_t)az_deck_int(r->deck, "train.seed");
    const double lr = az_lr_get(&r->lr, s);
    az_watch_enter(r->comm, AZ_PHASE_STEP, s + 1);
    az_schedule_set_step(r->schedule, s, &info);
    az_optim_begin(r->optim, info.n_micro);
    for (int round = 0; round < info.n_rounds; round++) {
        az_schedule_get_batch(r->schedule, round, &batch);
        AZ_TRY(az_pass_train(r->pass, &batch, 1 / (double)info.n_targets, seed, s, r->optim));
    }
    const double begin = az_now();
    az_optim_result result = az_optim_step(r->optim, r->engine.flat, lr);
    r->report.optim_s += az_now() - begin;
    if (s == 0 && result.finite)
        check_reached(r);
    az_report_step(&r->report, s, &info, &result, lr);
    if (!result.finite && strcmp(az_deck_string(r->deck, "train.on_nonfinite"), "stop") == 0)
        err = az_fail(AZ_EINPUT,
                      "step %lld: the loss or a gradient is not finite, or a gradient is beyond "
                      "+-%g; nothing was updated (train.on_nonfinite: skip would count the step "
                      "and go on)",
                      (long long)s + 1, AZ_FIXED_RANGE / info.n_micro);
out:
    return err;
}

static az_err loop(run *r)
{
    az_err err = AZ_OK;
    size_t calls = 0;
    AZ_TRY(evaluate(r, 0));
    for (int64_t s = 0; s < r->total_steps; s++) {
        AZ_TRY(step(r, s));
        if (s == 0)
            calls = az_mem_get_total().calls;
        const bool last = s + 1 == r->total_steps;
        if (last || (r->eval_steps > 0 && (s + 1) % r->eval_steps == 0))
            AZ_TRY(evaluate(r, s + 1));
    }
    r->report.allocations = (int64_t)(az_mem_get_total().calls - calls);
out:
    return err;
}

static az_err write_adapter(run *r)
{
    az_err err = AZ_OK;
    char *dir = NULL;
    az_watch_enter(r->comm, AZ_PHASE_SAVE, r->total_steps);
    if (az_comm_rank(r->comm) == 0) {
        dir = az_path_join(az_deck_string(r->deck, "output.dir"), "adapter");
        AZ_TRY(dir != NULL ? AZ_OK : AZ_EENV);
        AZ_TRY(az_lora_write(r->engine.flat, &r->engine.lora, &r->engine.peft, AZ_F32, dir));
        az_say("adapter   %s", dir);
    }
out:
    az_free(dir);
    return az_comm_agree(r->comm, err);
}

static void close_run(run *r)
{
    az_report_fini(&r->report);
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

az_err az_train_run(const az_deck *deck, az_comm *comm)
{
    az_err err;
    run r = {.deck = deck, .comm = comm};
    uint64_t hash = 0;
    const char *hdf5;
    AZ_TRY(az_deck_check(deck, "train"));
    AZ_TRY(az_comm_agree(comm, az_hdf5_check(&hdf5)));
    AZ_TRY(az_outdir_open(&r.outdir, az_deck_string(deck, "output.dir"), comm));
    AZ_TRY(az_engine_open(&r.engine, deck, AZ_ADAPTER_DECK, NULL, comm));
    AZ_TRY(load_data(&r));
    AZ_TRY(open_schedule(&r));
    AZ_TRY(open_pass(&r));
    AZ_TRY(open_optim(&r));
    err = AZ_NEW(r.reached, (size_t)r.engine.lora.n_pairs, "optimizer");
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(open_output(&r));
    az_report_banner(deck, &r.engine, &r.train, r.have_eval ? &r.held_out : NULL, r.schedule,
                     r.total_steps, az_pass_get_bytes(r.pass), hdf5);
    if (az_deck_bool(deck, "run.poison"))
        hash = az_shard_hash(r.engine.shard);
    AZ_TRY(loop(&r));
    if (az_deck_bool(deck, "run.poison")) {
        AZ_ASSERT(hash == az_shard_hash(r.engine.shard));
        az_say("base      unchanged, hash of rank 0's slices %016llx", (unsigned long long)hash);
    }
    az_report_summary(&r.report, &r.engine, r.pass);
    AZ_TRY(write_adapter(&r));
    AZ_TRY(az_report_close(&r.report));
out:
    close_run(&r);
    return err;
}
