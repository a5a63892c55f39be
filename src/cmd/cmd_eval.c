/* adze eval: loss and perplexity of the base model, or of the base with an adapter, on a file. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "cmd/cmd.h"
#include "comm/watch.h"
#include "kern/kern.h"
#include "store/json.h"
#include "train/eval.h"
#include "train/load.h"
#include "train/planning.h"
#include "train/report.h"

/* All that the command owns. */
typedef struct {
    const az_deck *deck;
    az_comm *comm;
    az_engine engine;
    az_planning planning;
    az_tokenizer *tokenizer;
    az_dataset set;
    const char *what; /* set is */
    az_eval *eval;
    az_pass *pass;
} job;

static az_err open_job(job *j)
{
    az_err err;
    az_work_load work;
    const char *adapter = az_deck_string(j->deck, "eval.adapter");
    AZ_TRY(az_engine_read(&j->engine, j->deck, adapter != NULL ? AZ_ADAPTER_PATH : AZ_ADAPTER_NONE,
                          adapter, j->comm));
    err = az_engine_open_tokenizer(&j->tokenizer, j->deck);
    AZ_TRY(az_comm_agree(j->comm, err));
    AZ_TRY(az_load_eval(&j->set, &j->what, j->deck, &j->engine, j->tokenizer));
    AZ_TRY(az_eval_create(&j->eval, &j->engine, &j->set,
                          az_deck_int(j->deck, "eval.micro_batch_tokens")));
    az_eval_get_work(j->eval, &work);
    AZ_TRY(az_planning_make(&j->planning, &j->engine, j->deck, &work));
    AZ_TRY(az_engine_load(&j->engine, j->deck, &j->planning.plan, &j->planning.input));
    const az_model_parts parts = az_engine_get_parts(&j->engine);
    AZ_TRY(az_pass_create(&j->pass, &parts, &(az_pass_options){.forward = work.eval}));
out:
    return err;
}

static void close_job(job *j)
{
    az_pass_destroy(j->pass);
    az_eval_destroy(j->eval);
    az_data_fini(&j->set);
    az_text_close(j->tokenizer);
    az_engine_close(&j->engine);
}

static void say_start(const job *j)
{
    az_report_start(&j->engine, "evaluation");
    az_engine_say(&j->engine);
    az_report_data("data", j->what, &j->set);
    az_plan_say(&j->planning.plan, &j->planning.input);
}

static void say_result(const az_eval_result *r)
{
    az_say("loss        %.6f", r->loss);
    az_say("perplexity  %.6g", r->perplexity);
    az_say("tokens      %lld", (long long)r->tokens);
    az_say("targets     %lld", (long long)r->targets);
    az_say("samples     %lld", (long long)r->samples);
    az_say("seconds     %.2f (%s tokens/s)", r->seconds,
           az_format_count((long long)((double)r->tokens / fmax(r->seconds, 1e-9))));
}

static az_err add_real(az_str *out, const char *name, double value)
{
    az_err err;
    AZ_TRY(az_str_add(out, ", \"%s\": ", name));
    AZ_TRY(az_json_add_real(out, value));
out:
    return err;
}

static az_err say_json(const job *j, const az_eval_result *r)
{
    az_err err;
    az_str out = {0};
    AZ_TRY(az_str_add(&out, "{\"model\": "));
    AZ_TRY(az_json_add_text(&out, j->engine.model_dir));
    AZ_TRY(az_str_add(&out, ", \"adapter\": "));
    AZ_TRY(az_json_add_text(&out, az_deck_string(j->deck, "eval.adapter")));
    AZ_TRY(add_real(&out, "loss", r->loss));
    AZ_TRY(add_real(&out, "perplexity", r->perplexity));
    AZ_TRY(add_real(&out, "seconds", r->seconds));
    AZ_TRY(az_str_add(&out, ", \"tokens\": %lld, \"targets\": %lld, \"samples\": %lld}",
                      (long long)r->tokens, (long long)r->targets, (long long)r->samples));
    az_say("%s", out.s);
out:
    az_str_fini(&out);
    return err;
}

static az_err run_job(job *j, bool json)
{
    az_err err;
    az_eval_result result;
    AZ_TRY(open_job(j));
    if (!json)
        say_start(j);
    az_watch_enter(j->comm, AZ_PHASE_EVAL, -1);
    AZ_TRY(az_eval_run(&result, j->eval, j->pass));
    if (json)
        err = say_json(j, &result);
    else
        say_result(&result);
    AZ_TRY(az_comm_agree(j->comm, err));
    if (!isfinite(result.loss))
        err = az_fail(AZ_EINPUT, "the loss is not finite: base or adapter hold bad numbers, or "
                                 "their product overflows");
out:
    return err;
}

az_err az_cmd_eval(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_deck *deck = NULL;
    bool json = false;
    int n = 0;
    for (int i = 0; i < argc; i++) /* the flag may stand anywhere */
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            argv[n++] = argv[i];
    job j = {.comm = opt_comm};
    AZ_TRY(az_cmd_open_deck(&deck, opt_comm, n, argv));
    j.deck = deck;
    err = run_job(&j, json);
out:
    close_job(&j);
    az_deck_close(deck);
    return err;
}
