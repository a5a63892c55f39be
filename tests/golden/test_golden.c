/* Golden: first gradients and a whole short training against transformers + peft (make_llama.py),
 * on any number of ranks.
 *
 * Per folder: loss and every adapter gradient of the first step, before any update; then the
 * training of the folder's own deck through az_train_run: losses of every step, and the change of
 * every adapter tensor. */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deck/deck.h"
#include "kern/kern.h"
#include "train/engine.h"
#include "train/planning.h"
#include "train/train.h"
#include "tests/mpi/check.h"
#include "tests/golden/way.h"

static az_comm *comm;

/* f32 tensor of a file; NULL if it is not there. Free with az_free. */
static float *read_tensor(const char *path, const char *name, int64_t *out_n)
{
    az_tensor_set set = {0};
    float *v = NULL;
    int fd = -1, file = -1;
    if (az_store_open_file(&set, path) == AZ_OK) {
        const az_tensor *t = az_store_find(&set, name);
        if (t != NULL && t->dtype == AZ_F32) {
            v = az_alloc((size_t)t->bytes, 1, "test");
            *out_n = t->bytes / 4;
            if (az_store_read(v, &set, t, 0, t->bytes, &fd, &file) != AZ_OK) {
                az_free(v);
                v = NULL;
            }
        }
    }
    if (fd >= 0)
        close(fd);
    az_store_close(&set);
    if (v == NULL)
        fprintf(stderr, "%s: no f32 tensor %s\n", path, name);
    return v;
}

/* max|got - ref| / max|ref| */
static double worst(const double *got, const float *ref, int64_t n)
{
    double d = 0, m = 0;
    for (int64_t i = 0; i < n; i++) {
        d = !(fabs(got[i] - (double)ref[i]) <= d) ? fabs(got[i] - (double)ref[i]) : d;
        m = fmax(m, fabs((double)ref[i]));
    }
    return d / m;
}

static void check_gradient(az_engine *e, const int64_t *sums, const char *expect, int pair,
                           char which)
{
    const az_pair *p = &e->lora.pairs[pair];
    const az_linear *linear = &e->linears[p->linear];
    const int64_t n = p->R * (which == 'A' ? linear->in : linear->out);
    const int64_t *mine = sums + (which == 'A' ? p->a_off : p->b_off);
    char *key = az_peft_key(linear->path, which), name[300];
    snprintf(name, sizeof name, "grad.%s", key);
    int64_t n_ref = 0;
    float *ref = read_tensor(expect, name, &n_ref);
    CHECK(ref != NULL && n_ref == n);
    if (ref != NULL && n_ref == n) {
        double *got = az_alloc((size_t)n, sizeof *got, "test");
        for (int64_t i = 0; i < n; i++)
            got[i] = (double)mine[i] * AZ_FIXED_UNIT;
        double err = worst(got, ref, n);
        if (!(err <= now->tol))
            fprintf(stderr, "%s: %s: %s: max|d|/max|ref| = %.3g\n", now->name, expect, name, err);
        CHECK(err <= now->tol);
        az_free(got);
    }
    az_free(ref);
    az_free(key);
}

/* A pass takes the memory that is told from the sizes alone. */
static void check_measure(const az_engine *e, const az_pass_options *how, int group, az_level level)
{
    az_pass *pass = NULL;
    az_level levels[16];
    az_pass_options options = *how;
    const az_model_parts parts = az_engine_get_parts(e);
    const az_pass_units units = {.n_embed = az_shard_count(e->shard, AZ_UNIT_EMBED),
                                 .n_layers = (int)e->config.L,
                                 .n_head = az_shard_count(e->shard, AZ_UNIT_HEAD),
                                 .tied = e->config.tied,
                                 .lowest = az_lora_get_lowest_layer(&e->lora),
                                 .head_rows = az_shard_get_head_rows(e->shard)};
    CHECK(e->config.L <= 16);
    for (int l = 0; l < 16; l++)
        levels[l] = l % 3 == 2 ? AZ_LEVEL_RECOMPUTE : level;
    options.backward.group = group;
    options.opt_levels = levels;
    const size_t before = az_mem_get_total().bytes;
    CHECK(az_pass_create(&pass, &parts, &options) == AZ_OK);
    const size_t bytes = az_mem_get_total().bytes - before;
    const az_pass_sizes sizes = az_pass_get_sizes(pass);
    const az_pass_sizes told =
        az_pass_measure(&e->config, &e->lora, &units, &options, e->device.kern.numeric);
    CHECK(e->device.kern.numeric.gpu || bytes == sizes.device + sizes.host);
    CHECK(told.device == sizes.device && told.host == sizes.host);
    az_pass_destroy(pass);
}

/* Loss and gradients of the first step of the folder's deck. */
static void check_first(const az_deck *deck, const char *expect)
{
    az_engine e = {0};
    az_dataset set = {0};
    az_schedule *schedule = NULL;
    az_pass *pass = NULL;
    az_optim *optim = NULL;
    static az_planning planning;
    if (az_engine_read(&e, deck, AZ_ADAPTER_DECK, NULL, comm) != AZ_OK) {
        CHECK(!"the model is read");
        az_engine_close(&e);
        return;
    }
    const char *files[] = {az_deck_item(deck, "data.files", 0)};
    const az_data_options options = {.max_length = 64, .n_rows = e.config.V, .eos = -1};
    CHECK(az_data_load(&set, files, 1, NULL, &options, comm) == AZ_OK);
    const az_batching batching = {.batch_size = 4, .micro_batch_size = 2};
    CHECK(az_schedule_create(&schedule, &set, &batching, 0, az_comm_size(comm),
                             az_comm_rank(comm)) == AZ_OK);
    az_work_load work;
    az_work_from_samples(&work, &set, schedule, NULL);
    CHECK(az_planning_make(&planning, &e, deck, &work) == AZ_OK);
    CHECK(az_engine_load(&e, deck, &planning.plan, &planning.input) == AZ_OK);
    const az_pass_options how = {.backward = work.train};
    const az_model_parts parts = az_engine_get_parts(&e);
    CHECK(az_pass_create(&pass, &parts, &how) == AZ_OK);
    check_measure(&e, &how, 3, AZ_LEVEL_CHEAP);
    if (!e.device.kern.numeric.gpu) {
        check_measure(&e, &how, 0, AZ_LEVEL_RECOMPUTE);
        check_measure(&e, &how, 2, AZ_LEVEL_KEEP);
    }
    const az_optim_options adamw = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    CHECK(az_optim_create(&optim, e.params, &adamw, AZ_REDUCE_STEP, comm) == AZ_OK);
    if (n_failed > 0) {
        fprintf(stderr, "%s\n", az_err_message());
        return;
    }
    az_step step;
    az_schedule_set_step(schedule, 0, &step);
    az_optim_begin(optim, step.n_micro);
    for (int round = 0; round < step.n_rounds; round++)
        CHECK(az_pass_train(pass, schedule, round, 1, 1 / (double)step.n_targets, 0, 0, optim) ==
              AZ_OK);
    int64_t *sums = az_alloc((size_t)e.lora.n_elements, sizeof *sums, "test");
    az_comm_barrier(comm); /* all of the node have added */
    az_optim_copy_sums(sums, optim);
    az_comm_sum_i64(comm, sums, (size_t)e.lora.n_elements);
    for (int i = 0; i < e.lora.n_pairs; i++) {
        check_gradient(&e, sums, expect, i, 'A');
        check_gradient(&e, sums, expect, i, 'B');
    }
    az_optim_result result = az_optim_step(optim, 0);
    int64_t n;
    float *loss = read_tensor(expect, "loss", &n);
    CHECK(loss != NULL && fabs(result.loss - (double)loss[0]) <= now->tol_loss * (double)loss[0]);
    az_free(loss);
    az_free(sums);
    az_optim_destroy(optim);
    az_pass_destroy(pass);
    az_schedule_destroy(schedule);
    az_data_fini(&set);
    az_engine_close(&e);
}

/* |dW - dW_ref| / |dW_ref| of one tensor between the adapter at the start and after training. */
static void check_change(const char *key, const char *start, const char *got, const char *ref)
{
    int64_t n0 = 0, n1 = 0, n2 = 0;
    float *w0 = read_tensor(start, key, &n0), *w1 = read_tensor(got, key, &n1);
    float *w2 = read_tensor(ref, key, &n2);
    CHECK(w0 != NULL && w1 != NULL && w2 != NULL && n0 == n1 && n1 == n2);
    if (w0 != NULL && w1 != NULL && w2 != NULL && n0 == n1 && n1 == n2) {
        double d = 0, m = 0;
        for (int64_t i = 0; i < n0; i++) {
            d += pow((double)w1[i] - (double)w2[i], 2);
            m += pow((double)w2[i] - (double)w0[i], 2);
        }
        if (!(sqrt(d / m) <= now->tol_train))
            fprintf(stderr, "%s: %s: |dW - ref| / |ref| = %.3g\n", got, key, sqrt(d / m));
        CHECK(sqrt(d / m) <= now->tol_train);
    }
    az_free(w0);
    az_free(w1);
    az_free(w2);
}

/* Losses of metrics.jsonl against the peer's. */
static void check_losses(const char *dir, const char *ref)
{
    int64_t n = 0;
    size_t bytes;
    float *losses = read_tensor(ref, "losses", &n);
    char *path = az_path_join(dir, "metrics.jsonl"), *text = NULL;
    CHECK(az_file_read(&text, &bytes, path) == AZ_OK);
    int64_t i = 0;
    for (char *line = text; line != NULL && *line != '\0'; i++) {
        const char *at = strstr(line, "\"loss\": ");
        CHECK(at != NULL && i < n);
        if (at != NULL && i < n)
            CHECK(fabs(atof(at + 8) - (double)losses[i]) <=
                  fmax(TOL_GOLDEN_TRAIN, now->tol_loss) * (double)losses[i]);
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    CHECK(i == n);
    az_free(losses);
    az_free(path);
    az_free(text);
}

static void check_training(const char *folder, const char *name)
{
    char path[400], dir[200], out[260], start[400], got[400], ref[400];
    snprintf(path, sizeof path, "%s/deck.yaml", folder);
    snprintf(dir, sizeof dir, "tests/golden/out-%s-%d/%s", now->name, az_comm_size(comm), name);
    snprintf(out, sizeof out, "output.dir=%s", dir);
    snprintf(start, sizeof start, "%s/adapter/adapter_model.safetensors", folder);
    snprintf(got, sizeof got, "%s/adapter/adapter_model.safetensors", dir);
    snprintf(ref, sizeof ref, "%s/train.safetensors", folder);
    char *overrides[] = {out, (char *)(uintptr_t)now->keys[0], (char *)(uintptr_t)now->keys[1]};
    az_deck *deck = NULL;
    az_tensor_set set = {0};
    CHECK(az_deck_open(&deck, path, overrides, 3) == AZ_OK);
    CHECK(deck != NULL && az_train_run(deck, comm) == AZ_OK);
    if (az_comm_rank(comm) == 0 && n_failed == 0) {
        CHECK(az_store_open_file(&set, start) == AZ_OK);
        for (int64_t i = 0; i < set.n_tensors; i++)
            check_change(set.tensors[i].name, start, got, ref);
        check_losses(dir, ref);
        az_store_close(&set);
    }
    az_deck_close(deck);
    az_comm_barrier(comm);
}

static void check_folder(const char *name)
{
    const char *src = getenv("srcdir");
    char folder[300], path[400], expect[400];
    char *overrides[] = {(char *)(uintptr_t)now->keys[0], (char *)(uintptr_t)now->keys[1]};
    snprintf(folder, sizeof folder, "%s/tests/golden/llama-%s", src != NULL ? src : ".", name);
    snprintf(path, sizeof path, "%s/deck.yaml", folder);
    snprintf(expect, sizeof expect, "%s/expect.safetensors", folder);
    az_deck *deck = NULL;
    CHECK(az_deck_open(&deck, path, overrides, 2) == AZ_OK);
    if (deck != NULL)
        check_first(deck, expect);
    az_deck_close(deck);
    if (n_failed == 0 && (now->opt_trained == NULL || strcmp(now->opt_trained, name) == 0))
        check_training(folder, name);
    if (n_failed > 0)
        fprintf(stderr, "failed in llama-%s on %s: %s\n", name, now->name, az_err_message());
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    n_failed = (int)failed;
}

int main(void)
{
    static const char *const names[] = {"gqa", "tied", "headdim", "rope3", "bf16", "layers"};
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    for (now = ways; now < ways + N_WAYS; now++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            check_folder(names[i]);
    az_comm_fini(comm);
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (bytes > 0)
            fprintf(stderr, "%zu bytes of %s are still allocated\n", bytes, label);
    return n_failed != 0 || az_mem_get_total().blocks != 0;
}
