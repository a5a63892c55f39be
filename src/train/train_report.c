/* train/report: progress lines and metrics. */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/report.h"

/* Whether a line of metrics.jsonl is of what a checkpoint has seen. */
static bool is_seen(const char *line, const az_trainer *trainer)
{
    long long step;
    if (sscanf(line, "{\"step\": %lld,", &step) != 1)
        return false;
    return step <= (strstr(line, "\"eval_loss\"") != NULL ? trainer->evaluated : trainer->step);
}

/* Keep what the checkpoint has seen. A last line that was cut by the end of the earlier run goes.
 * What is no file (a pipe, /dev/null) holds no lines. */
static az_err cut_metrics(const char *path, const az_trainer *trainer)
{
    az_err err = AZ_OK;
    char *text = NULL;
    az_str kept = {0};
    size_t bytes = 0;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return AZ_OK;
    AZ_TRY(az_file_read(&text, &bytes, path));
    for (char *line = text, *end; (end = memchr(line, '\n', bytes - (size_t)(line - text))) != NULL;
         line = end + 1) {
        *end = '\0';
        if (is_seen(line, trainer))
            AZ_TRY(az_str_add(&kept, "%s\n", line));
    }
    AZ_TRY(az_file_write_atomic(path, kept.s != NULL ? kept.s : "", kept.len));
out:
    az_str_fini(&kept);
    az_free(text);
    return err;
}

az_err az_report_init(az_report *r, const az_deck *deck, int64_t total_steps,
                      int64_t steps_per_epoch, const az_trainer *trainer, const az_engine *engine)
{
    az_comm *comm = engine->comm;
    const az_shard *shard = engine->shard;
    const char *progress = az_deck_string(deck, "output.progress");
    *r = (az_report){.comm = comm,
                     .shard = shard,
                     .before = az_shard_get_stats(shard),
                     .total_steps = total_steps,
                     .steps_per_epoch = steps_per_epoch,
                     .logging_steps = az_deck_int(deck, "train.logging_steps"),
                     .first_loss = NAN,
                     .last_loss = NAN,
                     .first_eval = NAN,
                     .last_eval = NAN};
    r->screen = strcmp(progress, "none") == 0                            ? AZ_SCREEN_NONE
                : strcmp(progress, "auto") == 0 && isatty(STDOUT_FILENO) ? AZ_SCREEN_TERMINAL
                                                                         : AZ_SCREEN_LINES;
    az_device_count_waits(&engine->device, &r->waits);
    r->begin = r->last = az_now();
    az_err err =
        az_deck_bool(deck, "run.time_operations") ? az_dev_start_times(engine->device.dev) : AZ_OK;
    if (err != AZ_OK || az_comm_rank(comm) != 0)
        return err;
    r->metrics_path = az_path_join(az_deck_string(deck, "output.dir"), "metrics.jsonl");
    if (r->metrics_path == NULL)
        return AZ_EENV;
    if (trainer->step > 0)
        err = cut_metrics(r->metrics_path, trainer);
    if (err != AZ_OK)
        return err;
    r->metrics = fopen(r->metrics_path, trainer->step > 0 ? "a" : "w");
    if (r->metrics == NULL)
        err = az_fail(AZ_EENV, "%s: cannot write: %s", r->metrics_path, strerror(errno));
    return err;
}

/* Note the first failure. A run does not end for want of its record: the adapter is worth more. */
static void check_metrics(az_report *r, bool failed)
{
    if (!failed || r->metrics_errno != 0)
        return;
    r->metrics_errno = errno != 0 ? errno : EIO;
    az_warn("%s: cannot write: %s; the run goes on", r->metrics_path, strerror(r->metrics_errno));
}

static void flush_metrics(az_report *r)
{
    errno = 0;
    check_metrics(r, fflush(r->metrics) != 0 || ferror(r->metrics));
}

void az_report_sync(az_report *r)
{
    if (r->metrics == NULL)
        return;
    errno = 0;
    check_metrics(r, fflush(r->metrics) != 0 ||
                         (fsync(fileno(r->metrics)) != 0 && errno != EINVAL && errno != EROFS));
}

static void close_metrics(az_report *r)
{
    if (r->metrics == NULL)
        return;
    errno = 0;
    check_metrics(r, fclose(r->metrics) != 0);
    r->metrics = NULL;
}

/* The file that is written is not the one of that name any more. */
static bool is_gone(const az_report *r)
{
    struct stat mine, named;
    return r->metrics != NULL && fstat(fileno(r->metrics), &mine) == 0 && S_ISREG(mine.st_mode) &&
           (stat(r->metrics_path, &named) != 0 || mine.st_dev != named.st_dev ||
            mine.st_ino != named.st_ino);
}

az_err az_report_close(az_report *r)
{
    az_err err = AZ_OK;
    if (r->metrics_errno == 0 && is_gone(r))
        r->metrics_errno = ENOENT;
    close_metrics(r);
    if (r->metrics_errno != 0)
        err = az_fail(AZ_EENV, "%s: steps are missing in it: %s", r->metrics_path,
                      strerror(r->metrics_errno));
    return az_comm_agree(r->comm, err);
}

void az_report_fini(az_report *r)
{
    close_metrics(r);
    az_free(r->metrics_path);
    r->metrics_path = NULL;
}

/* JSON has no NaN. */
static void put_number(FILE *f, const char *key, double v)
{
    if (isfinite(v))
        fprintf(f, ", \"%s\": %.9g", key, v);
    else
        fprintf(f, ", \"%s\": null", key);
}

static void write_metrics(az_report *r, int64_t step, const az_step *s,
                          const az_optim_result *result, double lr, double seconds, double waited,
                          int64_t received)
{
    FILE *f = r->metrics;
    if (f == NULL)
        return;
    fprintf(f, "{\"step\": %lld", (long long)step + 1);
    put_number(f, "epoch", (double)(step + 1) / (double)r->steps_per_epoch);
    put_number(f, "loss", result->loss);
    put_number(f, "learning_rate", lr);
    put_number(f, "grad_norm", result->grad_norm);
    fprintf(f, ", \"samples\": %lld, \"tokens\": %lld, \"targets\": %lld", (long long)s->n_samples,
            (long long)s->n_tokens, (long long)s->n_targets);
    put_number(f, "idle", s->idle);
    put_number(f, "seconds", seconds);
    put_number(f, "waited", waited);
    fprintf(f, ", \"received_bytes\": %lld", (long long)received);
    fputs("}\n", f);
    flush_metrics(r);
}

/* Text of one progress line, without its end. */
static void print_line(const az_report *r, int64_t step, const az_optim_result *result, double lr,
                       bool cut)
{
    const double rate = (double)r->since_tokens / fmax(r->since_s, 1e-9);
    const double left =
        (r->last - r->begin) / (double)r->steps * (double)(r->total_steps - step - 1);
    const int width = snprintf(NULL, 0, "%lld", (long long)r->total_steps);
    if (!result->finite) {
        printf("step %*lld/%lld  not finite: skipped  lr %.3e", width, (long long)step + 1,
               (long long)r->total_steps, lr);
        return;
    }
    printf("step %*lld/%lld  loss %.4f  lr %.3e  norm %.3f%s  %s tok/s  left %s", width,
           (long long)step + 1, (long long)r->total_steps,
           r->loss_sum / (double)(r->since_steps > 0 ? r->since_steps : 1), lr, result->grad_norm,
           result->clip < 1 ? "*" : " ", az_format_count((long long)rate), az_format_seconds(left));
    if (cut)
        printf("  waited %.0f %%", 100 * r->since_waited_s / fmax(r->since_s, 1e-9));
}

void az_report_step(az_report *r, int64_t step, const az_step *s, const az_optim_result *result,
                    double lr)
{
    const double now = az_now(), seconds = now - r->last;
    const az_shard_stats base = az_shard_get_stats(r->shard);
    const double waited = base.waited_s - r->before.waited_s;
    const int64_t received = base.received_bytes - r->before.received_bytes;
    r->before = base;
    r->last = now;
    r->steps++;
    r->tokens += s->n_tokens;
    r->idle_s += s->idle * seconds;
    r->since_s += seconds;
    r->since_waited_s += waited;
    r->since_tokens += s->n_tokens;
    if (result->finite) {
        if (r->steps - r->skipped == 1)
            r->first_loss = result->loss;
        r->last_loss = result->loss;
        r->loss_sum += result->loss;
        r->since_steps++;
    } else {
        r->skipped++;
    }
    if (!az_log_is_speaker())
        return;
    write_metrics(r, step, s, result, lr, seconds, waited, received);
    const bool keep =
        (step + 1) % r->logging_steps == 0 || step + 1 == r->total_steps || !result->finite;
    errno = 0;
    if (r->screen == AZ_SCREEN_TERMINAL || (keep && r->screen == AZ_SCREEN_LINES)) {
        if (r->partial)
            fputs("\r\033[K", stdout);
        print_line(r, step, result, lr, base.n_resident < base.n_units);
        if (keep)
            putchar('\n');
        az_log_flush();
        r->partial = !keep;
    }
    if (keep) {
        r->loss_sum = r->since_s = r->since_waited_s = 0;
        r->since_steps = r->since_tokens = 0;
    }
}

void az_report_pause(az_report *r, double seconds)
{
    r->begin += seconds;
    r->last = az_now();
    r->before = az_shard_get_stats(r->shard);
}

void az_report_eval(az_report *r, int64_t step, const az_eval_result *result)
{
    if (isnan(r->first_eval))
        r->first_eval = result->loss;
    r->last_eval = result->loss;
    r->eval_s += result->seconds;
    az_report_pause(r, result->seconds);
    if (!az_log_is_speaker())
        return;
    if (r->partial)
        fputs("\r\033[K", stdout);
    r->partial = false;
    az_say("eval after step %lld: loss %.4f, perplexity %.3f on %s targets", (long long)step,
           result->loss, result->perplexity, az_format_count(result->targets));
    if (r->metrics == NULL)
        return;
    fprintf(r->metrics, "{\"step\": %lld", (long long)step);
    put_number(r->metrics, "eval_loss", result->loss);
    put_number(r->metrics, "eval_perplexity", result->perplexity);
    fprintf(r->metrics, ", \"eval_targets\": %lld", (long long)result->targets);
    put_number(r->metrics, "eval_seconds", result->seconds);
    fputs("}\n", r->metrics);
    flush_metrics(r);
}
