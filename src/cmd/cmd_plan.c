/* adze plan: what a training would need and do, on this machine or on one that is not there. Reads
 * config.json, headers of safetensors if there are any, and the sizes of the data files; nothing
 * that grows with the model. */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "plan/plan.h"
#include "train/eval.h"
#include "train/load.h"

/* Data files that are so large together at most are read, so that the plan is that of the run. */
#define READ_MOST ((int64_t)4 << 20)

typedef struct {
    int64_t nodes, ranks, threads, memory, host_memory; /* 0: not given */
    double link, node_link, host_link, flops, disk;
    bool gpu, cpu, json;
} flags;

typedef struct {
    az_comm *comm;
    const az_deck *deck;
    flags flags;
    int *node_ranks;
    az_engine engine; /* its config and headers alone */
    az_plan_input input;
    az_plan *plan;
    az_str text;
} job;

/* ---- arguments */

static az_err bad_value(const char *flag, const char *opt_value, const char *expected)
{
    return az_fail(AZ_EINPUT, "adze plan: %s: found %.80s, expected %s", flag,
                   opt_value != NULL ? opt_value : "nothing", expected);
}

static az_err read_count(int64_t *out, const char *flag, const char *opt_value)
{
    char *end;
    errno = 0;
    const long long v = opt_value != NULL ? strtoll(opt_value, &end, 10) : 0;
    if (opt_value == NULL || end == opt_value || *end != '\0' || errno != 0 || v < 1 || v > 100000)
        return bad_value(flag, opt_value, "a number from 1 to 100000");
    *out = v;
    return AZ_OK;
}

/* One flag with its value. *out_known: whether it is one. */
static az_err read_flag(bool *out_known, flags *f, const char *flag, const char *opt_value)
{
    const char *text = opt_value != NULL ? opt_value : "";
    *out_known = true;
    if (strcmp(flag, "--nodes") == 0)
        return read_count(&f->nodes, flag, opt_value);
    if (strcmp(flag, "--ranks-per-node") == 0)
        return read_count(&f->ranks, flag, opt_value);
    if (strcmp(flag, "--threads") == 0)
        return read_count(&f->threads, flag, opt_value);
    if (strcmp(flag, "--memory") == 0)
        return az_parse_size(&f->memory, text) && f->memory > 0
                   ? AZ_OK
                   : bad_value(flag, opt_value, AZ_SIZE_FORM);
    if (strcmp(flag, "--link") == 0)
        return az_parse_speed(&f->link, text) ? AZ_OK : bad_value(flag, opt_value, AZ_SPEED_FORM);
    if (strcmp(flag, "--node-link") == 0)
        return az_parse_speed(&f->node_link, text) ? AZ_OK
                                                   : bad_value(flag, opt_value, AZ_SPEED_FORM);
    if (strcmp(flag, "--host-memory") == 0)
        return az_parse_size(&f->host_memory, text) && f->host_memory > 0
                   ? AZ_OK
                   : bad_value(flag, opt_value, AZ_SIZE_FORM);
    if (strcmp(flag, "--host-link") == 0)
        return az_parse_speed(&f->host_link, text) ? AZ_OK
                                                   : bad_value(flag, opt_value, AZ_SPEED_FORM);
    if (strcmp(flag, "--disk") == 0)
        return az_parse_speed(&f->disk, text) ? AZ_OK : bad_value(flag, opt_value, AZ_SPEED_FORM);
    if (strcmp(flag, "--flops") == 0)
        return az_parse_rate(&f->flops, text) ? AZ_OK : bad_value(flag, opt_value, AZ_RATE_FORM);
    if (strcmp(flag, "--device") == 0) {
        f->gpu = strcmp(text, "gpu") == 0;
        f->cpu = strcmp(text, "cpu") == 0;
        return f->gpu || f->cpu ? AZ_OK : bad_value(flag, opt_value, "cpu or gpu");
    }
    *out_known = false;
    return AZ_OK;
}

/* Flags may stand anywhere; what is none moves up. */
static az_err read_flags(flags *f, int *io_argc, char **argv)
{
    az_err err = AZ_OK;
    int n = 0;
    for (int i = 0; i < *io_argc; i++) {
        bool known;
        if (strcmp(argv[i], "--json") == 0) {
            f->json = true;
            continue;
        }
        AZ_TRY(read_flag(&known, f, argv[i], i + 1 < *io_argc ? argv[i + 1] : NULL));
        if (!known && strncmp(argv[i], "--", 2) == 0) {
            err = az_fail(AZ_EINPUT,
                          "adze plan: %.80s: no such option; there are --nodes, "
                          "--ranks-per-node, --threads, --memory, --device, --link, --node-link, "
                          "--host-memory, --host-link, --flops, --disk, --json",
                          argv[i]);
            goto out;
        }
        if (known)
            i++;
        else
            argv[n++] = argv[i];
    }
    *io_argc = n;
out:
    return err;
}

/* ---- what is planned for */

/* Of a GPU: as is said, else that of the smallest GPU here. */
static az_err find_gpu_memory(az_machine *m, int64_t given)
{
    az_err err;
    az_gpu_info *gpus = NULL;
    int n, least = 0;
    char why[512] = "";
    if (given > 0) {
        az_machine_find_memory(m, given);
        return AZ_OK;
    }
    AZ_TRY(az_dev_list_gpus(&gpus, &n, why, sizeof why));
    if (n == 0)
        err = az_fail(AZ_EINPUT,
                      "adze plan: for GPUs --memory, that of one GPU, or run.memory is needed, as "
                      "there is none here: %s",
                      why);
    for (int i = 1; i < n; i++)
        if (gpus[i].total_bytes < gpus[least].total_bytes)
            least = i;
    if (n > 0) {
        m->memory = (int64_t)(gpus[least].total_bytes / 50 * 49);
        snprintf(m->source, sizeof m->source, "%s of this machine, less a fiftieth",
                 gpus[least].name);
    }
out:
    az_free(gpus);
    return err;
}

/* The device as the command line says, else as the deck does. */
static az_err find_device(job *j)
{
    az_machine *m = &j->input.machine;
    const flags *f = &j->flags;
    const int64_t in_deck =
        az_deck_has(j->deck, "run.memory") ? az_deck_size(j->deck, "run.memory") : 0;
    const int64_t given = f->memory > 0 ? f->memory : in_deck;
    m->gpu = f->gpu || (!f->cpu && strcmp(az_deck_string(j->deck, "run.device"), "gpu") == 0);
    if (!m->gpu && (f->host_memory > 0 || f->host_link > 0))
        return az_fail(AZ_EINPUT, "adze plan: --host-memory and --host-link need --device gpu");
    m->act =
        m->gpu && strcmp(az_deck_string(j->deck, "run.compute"), "f32") != 0 ? AZ_BF16 : AZ_F32;
    m->nccl = az_device_get_fabric(j->deck).internode == AZ_INTERNODE_NCCL;
    m->host_memory = f->host_memory;
    snprintf(m->host_source, sizeof m->host_source, "as given");
    m->host_link = f->host_link;
    m->host_link_given = f->host_link > 0;
    if (m->gpu)
        return find_gpu_memory(m, given);
    az_machine_find_memory(m, given);
    return AZ_OK;
}

static az_err find_machine(job *j)
{
    az_err err;
    az_machine *m = &j->input.machine;
    const flags *f = &j->flags;
    const int nodes = f->nodes > 0 ? (int)f->nodes : 1, ranks = f->ranks > 0 ? (int)f->ranks : 1;
    const int64_t threads = az_deck_int(j->deck, "run.threads");
    if ((int64_t)nodes * ranks > AZ_PLAN_MAX_RANKS)
        return az_fail(AZ_EINPUT,
                       "adze plan: %d nodes of %d ranks: more than can be planned for, %d ranks",
                       nodes, ranks, AZ_PLAN_MAX_RANKS);
    AZ_TRY(AZ_NEW(j->node_ranks, (size_t)nodes, "plan"));
    for (int i = 0; i < nodes; i++)
        j->node_ranks[i] = ranks;
    m->topology = (az_topology){
        .n_ranks = nodes * ranks, .n_nodes = nodes, .n_lanes = ranks, .node_ranks = j->node_ranks};
    m->threads = (int)(f->threads > 0 ? f->threads : threads);
    m->link = f->link;
    m->link_given = f->link > 0;
    m->node_link = f->node_link;
    m->node_link_given = f->node_link > 0;
    m->flops = f->flops;
    m->flops_given = f->flops > 0;
    m->disk = f->disk;
    AZ_TRY(find_device(j));
    az_machine_assume(m);
out:
    return err;
}

/* Whether the samples can be read in no time. */
static bool is_small(const job *j)
{
    static const char *const keys[] = {"data.files", "eval.file"};
    int64_t sum = 0, bytes;
    if (az_deck_count(j->deck, "data.files") == 0)
        return false;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < az_deck_count(j->deck, keys[k]); i++) {
            if (!az_file_exists(az_deck_item(j->deck, keys[k], i)) ||
                az_file_size(&bytes, az_deck_item(j->deck, keys[k], i)) != AZ_OK) {
                az_err_clear();
                return false;
            }
            sum += bytes;
        }
    return sum <= READ_MOST;
}

/* The samples as a run would read them. */
static az_err read_samples(job *j)
{
    az_err err;
    bool have_eval;
    az_dataset train = {0}, held_out = {0};
    az_schedule *schedule = NULL;
    az_eval *eval = NULL;
    az_pass_limits limits;
    const az_batching batching = az_load_batching(j->deck);
    AZ_TRY(az_load_samples(&train, &held_out, &have_eval, j->deck, &j->engine));
    AZ_TRY(az_schedule_create(&schedule, &train, &batching,
                              az_load_attention_cost(&j->engine.config),
                              j->input.machine.topology.n_ranks, 0));
    if (have_eval) {
        AZ_TRY(az_eval_create(&eval, &j->engine, &held_out,
                              az_deck_int(j->deck, "eval.micro_batch_tokens")));
        az_eval_get_limits(eval, &limits);
    }
    az_work_from_samples(&j->input.work, &train, schedule, have_eval ? &limits : NULL);
out:
    az_eval_destroy(eval);
    az_schedule_destroy(schedule);
    az_data_fini(&held_out);
    az_data_fini(&train);
    return err;
}

static az_err find_work(job *j)
{
    if (is_small(j))
        return read_samples(j);
    az_work_from_deck(&j->input.work, j->deck);
    return AZ_OK;
}

static az_err open_job(job *j)
{
    az_err err;
    AZ_TRY(az_comm_create_self(&j->comm));
    j->engine.config_does = true;
    AZ_TRY(az_engine_read(&j->engine, j->deck, AZ_ADAPTER_DECK, NULL, j->comm));
    j->input.config = &j->engine.config;
    j->input.table = &j->engine.table;
    j->input.set = &j->engine.set;
    j->input.lora = &j->engine.lora;
    az_plan_read_keys(&j->input.keys, j->deck);
    AZ_TRY(find_machine(j));
    AZ_TRY(find_work(j));
out:
    return err;
}

static az_err say(job *j)
{
    az_err err;
    if (j->flags.json)
        err = az_plan_add_json(&j->text, j->plan, &j->input);
    else
        err = az_plan_add_text(&j->text, j->plan, &j->input);
    AZ_TRY(err);
    if (!j->flags.json)
        az_engine_say(&j->engine);
    az_say("%.*s", (int)j->text.len - 1, j->text.s);
    err = j->plan->fits ? AZ_OK : AZ_ENOFIT;
out:
    return err;
}

az_err az_cmd_plan(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_deck *deck = NULL;
    job j = {0};
    (void)opt_comm;
    AZ_TRY(read_flags(&j.flags, &argc, argv));
    AZ_TRY(az_cmd_open_deck(&deck, NULL, argc, argv));
    j.deck = deck;
    AZ_TRY(open_job(&j));
    AZ_TRY(AZ_NEW(j.plan, 1, "plan"));
    AZ_TRY(az_plan_make(j.plan, &j.input));
    err = say(&j);
out:
    az_str_fini(&j.text);
    az_free(j.plan);
    az_free(j.node_ranks);
    az_engine_close(&j.engine);
    az_comm_fini(j.comm);
    az_deck_close(deck);
    return err;
}
