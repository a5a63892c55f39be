/* adze data: what will be trained: counts and lengths, steps and micro-batches on a number of
 * ranks, and the first samples token by token with their targets. Reads no weights. */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "store/json.h"
#include "train/load.h"

/* Tokens of a sample that are shown: at its beginning and, if it is longer, at its end. */
#define SHOW_FIRST 48
#define SHOW_LAST 16
#define SHOW_SAMPLES 3

typedef struct {
    const az_deck *deck;
    az_comm *comm;
    int n_ranks;      /* that the arithmetic is for */
    int64_t n_show;   /* samples */
    az_engine engine; /* with its config alone */
    az_tokenizer *tokenizer;
    az_dataset set, held_out;
    az_schedule *schedule;
    az_str text;
} job;

static az_err open_job(job *j)
{
    az_err err = AZ_OK;
    j->engine.comm = j->comm;
    j->engine.model_dir = az_deck_string(j->deck, "model.path");
    if (az_comm_rank(j->comm) == 0)
        err = az_config_read(&j->engine.config, j->engine.model_dir);
    AZ_TRY(az_comm_agree(j->comm, err));
    az_comm_bcast(j->comm, &j->engine.config, sizeof j->engine.config, 0);
    err = az_engine_open_tokenizer(&j->tokenizer, j->deck);
    AZ_TRY(az_comm_agree(j->comm, err));
    AZ_TRY(az_load_files(&j->set, j->deck, "data.files", &j->engine, j->tokenizer));
    if (az_deck_has(j->deck, "eval.split") && az_deck_count(j->deck, "eval.file") == 0)
        err = az_data_split(&j->set, &j->held_out, az_deck_real(j->deck, "eval.split"),
                            (uint64_t)az_deck_int(j->deck, "train.seed"));
    AZ_TRY(az_comm_agree(j->comm, err));
    const az_batching batching = az_load_batching(j->deck);
    err = az_schedule_create(&j->schedule, &j->set, &batching,
                             az_load_attention_cost(&j->engine.config), j->n_ranks, 0);
    err = az_comm_agree(j->comm, err);
out:
    return err;
}

static void close_job(job *j)
{
    az_str_fini(&j->text);
    az_schedule_destroy(j->schedule);
    az_data_fini(&j->held_out);
    az_data_fini(&j->set);
    az_text_close(j->tokenizer);
}

static int compare_lengths(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static az_err say_counts(const job *j)
{
    az_err err;
    const az_dataset *set = &j->set;
    const long long max_length = az_deck_int(j->deck, "data.max_length");
    int64_t *lengths = NULL;
    AZ_TRY(AZ_NEW(lengths, (size_t)set->n, "text"));
    for (int64_t i = 0; i < set->n; i++)
        lengths[i] = set->start[i + 1] - set->start[i];
    qsort(lengths, (size_t)set->n, sizeof *lengths, compare_lengths);
    for (int f = 0; f < az_deck_count(j->deck, "data.files"); f++)
        az_say("%s %s", f == 0 ? "files    " : "         ", az_deck_item(j->deck, "data.files", f));
    az_say("samples   %s, of %s tokens; %s of these (%.1f %%) are targets", az_format_count(set->n),
           az_format_count(set->n_tokens), az_format_count(set->n_targets),
           100 * (double)set->n_targets / (double)set->n_tokens);
    az_say("lengths   shortest %lld, median %lld, nine in ten at most %lld, longest %lld tokens",
           (long long)lengths[0], (long long)lengths[(set->n - 1) / 2],
           (long long)lengths[(set->n - 1) * 9 / 10], (long long)lengths[set->n - 1]);
    az_say("cut       %s to data.max_length = %lld", az_format_count(set->n_cut), max_length);
    az_say("dropped   %s longer than data.max_length, %s without a target",
           az_format_count(set->n_dropped_long), az_format_count(set->n_dropped_empty));
    if (j->held_out.n > 0)
        az_say(
            "held out  %s samples for evaluation (eval.split), not counted above but for cut and "
            "dropped",
            az_format_count(j->held_out.n));
out:
    az_free(lengths);
    return err;
}

static void say_steps(const job *j)
{
    const az_deck *d = j->deck;
    const az_batching b = az_load_batching(d);
    const int64_t per_epoch = az_schedule_get_steps_per_epoch(j->schedule);
    const int64_t steps = az_schedule_count_steps(
        j->schedule, az_deck_real(d, "train.num_train_epochs"),
        az_deck_has(d, "train.max_steps") ? az_deck_int(d, "train.max_steps") : 0);
    int64_t n_micro = 0, n_rounds = 0, max_tokens, max_targets;
    int max_sequences;
    double idle = 0;
    az_step step = {0};
    for (int64_t s = 0; s < per_epoch; s++) {
        az_schedule_set_step(j->schedule, s, &step);
        n_micro += step.n_micro;
        n_rounds += step.n_rounds;
        idle += step.idle / (double)per_epoch;
    }
    az_schedule_get_max(j->schedule, &max_tokens, &max_sequences, &max_targets);
    az_say("steps     %lld samples a step: %s an epoch (the last one of %lld), %s in all = %.2f "
           "epochs",
           (long long)b.batch_size, az_format_count(per_epoch), (long long)step.n_samples,
           az_format_count(steps), (double)steps / (double)per_epoch);
    if (b.micro_batch_size > 0)
        az_say("batches   micro-batches of %lld samples: %s in the first epoch, none above %s "
               "tokens",
               (long long)b.micro_batch_size, az_format_count(n_micro),
               az_format_count(max_tokens));
    else
        az_say("batches   micro-batches of at most %lld tokens (a longer sample alone): %s in the "
               "first epoch",
               (long long)b.micro_batch_tokens, az_format_count(n_micro));
    az_say("ranks     %d: %s rounds in the first epoch, %.1f %% of the ranks' time idle",
           j->n_ranks, az_format_count(n_rounds), 100 * idle);
}

/* One token: place, id, text, and whether it is a target. */
static az_err say_token(job *j, int64_t first, int64_t t)
{
    az_err err = AZ_OK;
    az_str piece = {0};
    const int32_t id = j->set.ids[first + t], label = j->set.labels[first + t];
    const bool target = t > 0 && label != AZ_NO_LABEL;
    j->text.len = 0;
    AZ_TRY(az_str_add(&j->text, "  %6lld %7ld", (long long)t, (long)id));
    if (target && label != id)
        AZ_TRY(az_str_add(&j->text, "  target %ld", (long)label));
    else if (target || j->tokenizer != NULL)
        AZ_TRY(az_str_add(&j->text, target ? "  target" : "        "));
    if (j->tokenizer != NULL) {
        AZ_TRY(az_text_decode(&piece, j->tokenizer, &id, 1, false));
        AZ_TRY(az_str_add(&j->text, "  "));
        AZ_TRY(az_json_quote(&j->text, piece.s != NULL ? piece.s : "", piece.len));
    }
    az_say("%s", j->text.s);
out:
    az_str_fini(&piece);
    return err;
}

static az_err say_samples(job *j)
{
    az_err err = AZ_OK;
    const az_dataset *set = &j->set;
    for (int64_t i = 0; i < az_min_i64(j->n_show, set->n); i++) {
        const int64_t first = set->start[i], n = set->start[i + 1] - first;
        const bool whole = n <= SHOW_FIRST + SHOW_LAST;
        az_say("\nsample %lld: %lld tokens, %lld targets (position, id%s)", (long long)i,
               (long long)n, (long long)set->targets[i], j->tokenizer != NULL ? ", text" : "");
        for (int64_t t = 0; t < (whole ? n : SHOW_FIRST); t++)
            AZ_TRY(say_token(j, first, t));
        if (whole)
            continue;
        az_say("     ... %lld more ...", (long long)(n - SHOW_FIRST - SHOW_LAST));
        for (int64_t t = n - SHOW_LAST; t < n; t++)
            AZ_TRY(say_token(j, first, t));
    }
out:
    return err;
}

static az_err run_job(job *j)
{
    az_err err;
    AZ_TRY(open_job(j));
    err = say_counts(j);
    if (err == AZ_OK)
        say_steps(j);
    if (err == AZ_OK && az_log_is_speaker())
        err = say_samples(j);
    err = az_comm_agree(j->comm, err);
out:
    return err;
}

static az_err read_number(int64_t *out, const char *flag, const char *opt_value, int64_t lo)
{
    char *end;
    errno = 0;
    const long long v = opt_value != NULL ? strtoll(opt_value, &end, 10) : 0;
    if (opt_value == NULL || end == opt_value || *end != '\0' || errno != 0 || v < lo ||
        v > 1000000)
        return az_fail(AZ_EINPUT, "adze data: %s: found %s, expected a number from %lld to 1000000",
                       flag, opt_value != NULL ? opt_value : "nothing", (long long)lo);
    *out = v;
    return AZ_OK;
}

az_err az_cmd_data(az_comm *opt_comm, int argc, char **argv)
{
    az_err err = AZ_OK;
    az_deck *deck = NULL;
    job j = {.comm = opt_comm};
    int64_t n_ranks = az_comm_size(opt_comm), n_show = SHOW_SAMPLES;
    int n = 0;
    for (int i = 0; i < argc; i++) { /* the flags may stand anywhere */
        if (strcmp(argv[i], "--ranks") == 0) {
            AZ_TRY(read_number(&n_ranks, argv[i], i + 1 < argc ? argv[i + 1] : NULL, 1));
            i++;
        } else if (strcmp(argv[i], "--samples") == 0) {
            AZ_TRY(read_number(&n_show, argv[i], i + 1 < argc ? argv[i + 1] : NULL, 0));
            i++;
        } else {
            argv[n++] = argv[i];
        }
    }
    j.n_ranks = (int)n_ranks;
    j.n_show = n_show;
    AZ_TRY(az_cmd_open_deck(&deck, opt_comm, n, argv));
    j.deck = deck;
    err = run_job(&j);
out:
    close_job(&j);
    az_deck_close(deck);
    return err;
}
