/* adze generate: continue prompts with the base model, or with the base and an adapter.
 *
 * What is asked for goes to standard output and nothing else: the text that continues one prompt,
 * or a JSON line for each prompt of a file. With generate.output the lines go there, and standard
 * output says how it went. */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "comm/watch.h"
#include "kern/kern.h"
#include "store/json.h"
#include "train/generate.h"
#include "train/planning.h"
#include "train/report.h"

/* Seconds between two progress lines. */
#define PROGRESS_S 0.2

/* All that the command owns. */
typedef struct {
    const az_deck *deck;
    az_comm *comm;
    const char *file, *output; /* generate.file, generate.output, or NULL */
    az_engine engine;
    az_planning planning;
    az_tokenizer *tokenizer; /* rank 0 only */
    az_prompts prompts;
    int32_t eos[AZ_MAX_EOS + 1];
    int n_eos;
    az_generate *generate;
    int64_t n_match;
} job;

static az_err check_keys(const job *j)
{
    az_err err = AZ_OK;
    char *dir = NULL;
    if (j->file == NULL && !az_deck_has(j->deck, "generate.prompt"))
        return az_deck_fail(j->deck, "generate.prompt",
                            "missing; give generate.prompt (text) or generate.file (JSONL)");
    if (j->output != NULL && az_comm_rank(j->comm) == 0) {
        AZ_TRY((dir = az_path_dir(j->output)) != NULL ? AZ_OK : AZ_EENV);
        if (!az_dir_exists(dir))
            err = az_deck_fail(j->deck, "generate.output", "there is no directory %s", dir);
    }
out:
    az_free(dir);
    return err;
}

static void add_eos(job *j, int32_t id)
{
    for (int i = 0; i < j->n_eos; i++)
        if (j->eos[i] == id)
            return;
    if (id >= 0)
        j->eos[j->n_eos++] = id;
}

/* The tokenizer on rank 0, and what ends a completion on all ranks: any end of the model's or of
 * the tokenizer's. */
static az_err open_tokenizer(job *j)
{
    az_err err = AZ_OK;
    if (az_comm_rank(j->comm) == 0)
        err = az_engine_open_tokenizer(&j->tokenizer, j->deck);
    AZ_TRY(az_comm_agree(j->comm, err));
    for (int i = 0; i < j->engine.config.n_eos; i++)
        add_eos(j, j->engine.config.eos[i]);
    if (j->tokenizer != NULL)
        add_eos(j, az_text_get_eos(j->tokenizer));
    az_comm_bcast(j->comm, j->eos, sizeof j->eos, 0);
    az_comm_bcast(j->comm, &j->n_eos, sizeof j->n_eos, 0);
out:
    return err;
}

static void show_progress(int64_t done, int64_t n_prompts, int64_t tokens)
{
    static double last;
    if (!az_log_is_speaker() || az_now() - last < PROGRESS_S)
        return;
    last = az_now();
    fprintf(stderr, "\r%lld of %lld prompts, %s tokens\033[K", (long long)done,
            (long long)n_prompts, az_format_count(tokens));
}

/* A line that is renewed is for people who wait at a terminal for a file. */
static bool wants_progress(const job *j)
{
    return j->file != NULL && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
}

static az_err open_job(job *j)
{
    az_err err;
    const az_deck *d = j->deck;
    az_work_load work;
    const char *adapter = az_deck_string(d, "generate.adapter");
    j->file = az_deck_string(d, "generate.file");
    j->output = az_deck_string(d, "generate.output");
    err = check_keys(j);
    AZ_TRY(az_comm_agree(j->comm, err));
    AZ_TRY(az_engine_read(&j->engine, d, adapter != NULL ? AZ_ADAPTER_PATH : AZ_ADAPTER_NONE,
                          adapter, j->comm));
    AZ_TRY(open_tokenizer(j));
    const az_prompts_options read = {.opt_text = az_deck_string(d, "generate.prompt"),
                                     .opt_file = j->file,
                                     .add_bos = az_deck_bool(d, "data.add_bos"),
                                     .n_rows = j->engine.config.V,
                                     .max_position = j->engine.config.max_position};
    AZ_TRY(az_prompts_load(&j->prompts, &read, j->tokenizer, j->comm));
    const az_generate_options options = {
        .batch_size = (int)az_deck_int(d, "generate.batch_size"),
        .max_new_tokens = az_deck_int(d, "generate.max_new_tokens"),
        .sampling = {.temperature = az_deck_real(d, "generate.temperature"),
                     .top_p = az_deck_real(d, "generate.top_p"),
                     .seed = (uint64_t)az_deck_int(d, "generate.seed")},
        .eos = j->eos,
        .n_eos = j->n_eos,
        .opt_progress = wants_progress(j) ? show_progress : NULL};
    az_generate_get_work(&work, &j->engine, &j->prompts, &options);
    AZ_TRY(az_planning_make(&j->planning, &j->engine, d, &work));
    AZ_TRY(az_engine_load(&j->engine, d, &j->planning.plan, &j->planning.input));
    AZ_TRY(az_generate_create(&j->generate, &j->engine, &j->prompts, &options));
out:
    return err;
}

static void close_job(job *j)
{
    az_generate_destroy(j->generate);
    az_prompts_fini(&j->prompts);
    az_text_close(j->tokenizer);
    az_engine_close(&j->engine);
}

static void say_start(const job *j)
{
    const az_generate_stats s = az_generate_get_stats(j->generate);
    if (j->output != NULL) {
        az_report_start(&j->engine, "generation");
        az_engine_say(&j->engine);
        az_plan_say(&j->planning.plan, &j->planning.input);
        az_say("prompts   %s, %s tokens; keys and values %s, all workspaces %s on rank 0",
               az_format_count(j->prompts.n), az_format_count(j->prompts.start[j->prompts.n]),
               az_format_bytes((double)s.cache_bytes), az_format_bytes((double)s.bytes));
    }
    if (s.n_short > 0)
        az_warn("%lld of %lld prompts: the model's max_position_embeddings, %lld, ends the "
                "completion before generate.max_new_tokens",
                (long long)s.n_short, (long long)j->prompts.n,
                (long long)j->engine.config.max_position);
}

static az_err add_ids(az_str *out, const char *name, const int32_t *ids, int64_t n)
{
    az_err err;
    AZ_TRY(az_str_add(out, "\"%s\": [", name));
    for (int64_t i = 0; i < n; i++)
        AZ_TRY(az_str_add(out, "%s%d", i > 0 ? ", " : "", (int)ids[i]));
    err = az_str_add(out, "], ");
out:
    return err;
}

static az_err add_text(az_str *out, const char *name, const char *text, size_t bytes)
{
    az_err err;
    AZ_TRY(az_str_add(out, "\"%s\": ", name));
    AZ_TRY(az_json_quote(out, text, bytes));
    err = az_str_add(out, ", ");
out:
    return err;
}

static az_err decode(az_str *out, const job *j, const az_completion *c)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%s", "")); /* so that it is a string */
    if (j->tokenizer != NULL)
        err = az_text_decode(out, j->tokenizer, c->ids, (size_t)c->n, true);
out:
    return err;
}

/* One prompt as a JSON line. */
static az_err add_row(az_str *out, job *j, int64_t i)
{
    az_err err;
    az_str text = {0};
    const az_prompts *p = &j->prompts;
    const az_completion c = az_generate_get(j->generate, i);
    AZ_TRY(decode(&text, j, &c));
    AZ_TRY(az_str_add(out, "{"));
    if (p->text[i] != NULL)
        AZ_TRY(add_text(out, "prompt", p->text[i], strlen(p->text[i])));
    else
        AZ_TRY(add_ids(out, "input_ids", p->ids + p->start[i], p->start[i + 1] - p->start[i]));
    if (j->tokenizer != NULL)
        AZ_TRY(add_text(out, "completion", text.s, text.len));
    if (p->text[i] == NULL)
        AZ_TRY(add_ids(out, "completion_ids", c.ids, c.n));
    if (p->expected[i] != NULL) {
        const bool match =
            text.len == strlen(p->expected[i]) && memcmp(text.s, p->expected[i], text.len) == 0;
        j->n_match += match;
        AZ_TRY(add_text(out, "expected", p->expected[i], strlen(p->expected[i])));
        AZ_TRY(az_str_add(out, "\"match\": %s, ", match ? "true" : "false"));
    }
    err = az_str_add(out, "\"tokens\": %lld, \"finished\": %s}\n", (long long)c.n,
                     c.finished ? "true" : "false");
out:
    az_str_fini(&text);
    return err;
}

static az_err say_completion(const job *j)
{
    az_err err;
    az_str text = {0};
    const az_completion c = az_generate_get(j->generate, 0);
    AZ_TRY(decode(&text, j, &c));
    errno = 0;
    fwrite(text.s, 1, text.len, stdout); /* may hold zero bytes */
    putchar('\n');
    az_log_flush();
out:
    az_str_fini(&text);
    return err;
}

/* How it went: on standard output, unless that is the rows. */
static void say_summary(const job *j)
{
    FILE *to = j->output != NULL ? stdout : stderr;
    const az_generate_stats s = az_generate_get_stats(j->generate);
    if (j->output != NULL)
        fprintf(to, "wrote     %s: %s completions, %s tokens in %s, %.1f tokens/s\n", j->output,
                az_format_count(j->prompts.n), az_format_count(s.tokens),
                az_format_seconds(s.seconds),
                (double)s.tokens / (s.seconds > 1e-9 ? s.seconds : 1e-9));
    if (j->prompts.n_expected > 0)
        fprintf(to, "exact match: %lld of %lld (%.1f %%)\n", (long long)j->n_match,
                (long long)j->prompts.n_expected,
                100.0 * (double)j->n_match / (double)j->prompts.n_expected);
}

/* On rank 0. */
static az_err report(job *j)
{
    az_err err = AZ_OK;
    az_str rows = {0};
    if (j->file == NULL)
        AZ_TRY(say_completion(j));
    if (j->file != NULL || j->output != NULL)
        for (int64_t i = 0; i < j->prompts.n; i++)
            AZ_TRY(add_row(&rows, j, i));
    if (j->output != NULL)
        AZ_TRY(az_file_write_atomic(j->output, rows.s, rows.len));
    errno = 0;
    if (j->output == NULL && j->file != NULL)
        fwrite(rows.s, 1, rows.len, stdout);
    az_log_flush();
    if (j->file != NULL)
        say_summary(j);
out:
    az_str_fini(&rows);
    return err;
}

az_err az_cmd_generate(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_deck *deck = NULL;
    job j = {.comm = opt_comm};
    AZ_TRY(az_cmd_open_deck(&deck, opt_comm, argc, argv));
    j.deck = deck;
    AZ_TRY(open_job(&j));
    say_start(&j);
    err = az_generate_run(j.generate);
    if (wants_progress(&j) && az_log_is_speaker())
        fputs("\r\033[K", stderr);
    AZ_TRY(err);
    az_watch_enter(opt_comm, AZ_PHASE_SAVE, -1);
    if (az_comm_rank(opt_comm) == 0)
        err = report(&j);
    err = az_comm_agree(opt_comm, err);
out:
    close_job(&j);
    az_deck_close(deck);
    return err;
}
