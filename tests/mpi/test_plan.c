/* A plan beside what is allocated by it: all that depends on the model and the data within 2 %, for
 * both scopes, residency, orders of accumulation, levels of activations and ways of the gradient.
 * The model is random, large enough that its own memory is most of what there is. */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "tests/mpi/check.h"
#include "train/engine.h"
#include "train/load.h"

static az_comm *comm;

static char dir[] = "tests/mpi/plan-model";

/* One samples file and a model of some MB, made by rank 0. */
static void make_files(void)
{
    if (az_comm_rank(comm) == 0) {
        CHECK(az_dir_create(dir) == AZ_OK);
        CHECK(system(
                  "tests/tools/random_model tests/mpi/plan-model 256 640 6 4 2 64 2000 bf16 0 3") ==
              0);
        FILE *f = fopen("tests/mpi/plan-model/data.jsonl", "w");
        for (int s = 0; f != NULL && s < 40; s++) {
            fprintf(f, "{\"input_ids\": [1");
            for (int t = 1; t < 40 + 3 * s; t++)
                fprintf(f, ", %d", (s * 131 + t * 17) % 2000);
            fprintf(f, "]}\n");
        }
        CHECK(f != NULL && fclose(f) == 0);
        f = fopen("tests/mpi/plan-model/deck.yaml", "w");
        CHECK(f != NULL && fprintf(f, "model: {path: .}\n"
                                      "data: {files: [data.jsonl]}\n"
                                      "lora: {r: 32, target_modules: all-linear}\n"
                                      "train: {batch_size: 16, micro_batch_size: 1}\n") > 0);
        CHECK(f != NULL && fclose(f) == 0);
    }
    az_comm_barrier(comm);
}

typedef struct {
    az_deck *deck;
    az_engine engine;
    az_dataset set;
    az_schedule *schedule;
    az_plan_input input;
    az_plan *plan;
    az_pass *pass;
    az_optim *optim;
} run;

static az_err plan_run(run *r)
{
    az_err err;
    const az_batching batching = az_load_batching(r->deck);
    AZ_TRY(az_engine_read(&r->engine, r->deck, AZ_ADAPTER_DECK, NULL, comm));
    AZ_TRY(az_load_files(&r->set, r->deck, "data.files", &r->engine, NULL));
    AZ_TRY(az_schedule_create(&r->schedule, &r->set, &batching,
                              az_load_attention_cost(&r->engine.config), az_comm_size(comm),
                              az_comm_rank(comm)));
    r->input = (az_plan_input){.config = &r->engine.config,
                               .table = &r->engine.table,
                               .set = &r->engine.set,
                               .lora = &r->engine.lora};
    az_work_from_samples(&r->input.work, &r->set, r->schedule, NULL);
    az_plan_read_keys(&r->input.keys, r->deck);
    r->input.machine.topology = *az_comm_get_topology(comm);
    az_machine_find_memory(&r->input.machine, az_deck_size(r->deck, "run.memory"));
    az_machine_assume(&r->input.machine);
    AZ_TRY(AZ_NEW(r->plan, 1, "plan"));
    AZ_TRY(az_plan_make(r->plan, &r->input));
    AZ_TRY(az_plan_check(r->plan, &r->input));
out:
    return err;
}

/* All as planned. */
static az_err allocate_run(run *r)
{
    az_err err;
    const az_plan_choice *c = &r->plan->choice;
    const int L = (int)r->engine.config.L;
    az_unit_list list = {0};
    bool *resident = NULL;
    az_level *levels = NULL;
    int64_t *off = NULL;
    const az_optim_options optim = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    AZ_TRY(az_shard_list_units(&list, &r->engine.config, &r->engine.table, &r->engine.set));
    AZ_TRY(AZ_NEW(resident, (size_t)list.n_units, "test"));
    AZ_TRY(AZ_NEW(levels, (size_t)L, "test"));
    AZ_TRY(AZ_NEW(off, (size_t)L + 1, "test"));
    AZ_TRY(az_plan_fill_resident(resident, r->plan, &r->input));
    az_plan_fill_levels(levels, c, L);
    az_lora_fill_spans(off, &r->engine.lora, L);
    r->engine.device = (az_device){.dev = az_dev_get_cpu(), .kern = *az_kern_get_cpu()};
    AZ_TRY(az_params_create(&r->engine.params, &(az_spans){L, off},
                            c->gathered ? AZ_PARAMS_GATHERED : AZ_PARAMS_REPLICATED,
                            AZ_PROGRESS_AUTO, az_kern_get_cpu(), NULL, comm));
    const az_shard_options shard = {.opt_resident = resident,
                                    .n_slots = c->slots > 0 ? c->slots : 1};
    AZ_TRY(az_shard_create(&r->engine.shard, &r->engine.config, &r->engine.table, &r->engine.set,
                           comm, &shard));
    az_pass_options pass = {.backward = r->input.work.train, .opt_levels = levels};
    pass.backward.group = c->group;
    const az_model_parts parts = az_engine_get_parts(&r->engine);
    AZ_TRY(az_pass_create(&r->pass, &parts, &pass));
    AZ_TRY(az_optim_create(&r->optim, r->engine.params, &optim,
                           c->unit_reduce ? AZ_REDUCE_UNIT : AZ_REDUCE_STEP, comm));
out:
    az_shard_free_units(&list);
    az_free(resident);
    az_free(levels);
    az_free(off);
    return err;
}

static void close_run(run *r)
{
    az_optim_destroy(r->optim);
    az_pass_destroy(r->pass);
    az_free(r->plan);
    az_schedule_destroy(r->schedule);
    az_data_fini(&r->set);
    az_engine_close(&r->engine);
    az_deck_close(r->deck);
}

static void check(const char *const *keys)
{
    run r = {0};
    double off = 1;
    int n = 0;
    char *args[8];
    while (keys[n] != NULL) {
        args[n] = az_strdup(keys[n], "test");
        n++;
    }
    az_err err = az_deck_open(&r.deck, "tests/mpi/plan-model/deck.yaml", args, n);
    if (err == AZ_OK)
        err = plan_run(&r);
    if (err == AZ_OK)
        err = allocate_run(&r);
    if (err == AZ_OK)
        az_plan_compare(&off, r.plan, &r.input, comm);
    CHECK(err == AZ_OK);
    CHECK(off <= 0.02);
    if (err == AZ_OK && strcmp(az_deck_string(r.deck, "shard.scope"), "world") == 0 &&
        az_comm_get_topology(comm)->n_nodes > 1)
        CHECK(r.plan->choice.slots > 0 && r.plan->traffic.base_in > 0);
    if (err == AZ_OK && off <= 0.02) { /* a plan that is wrong is found out */
        double wrong = 0;
        r.plan->memory[AZ_PLAN_ACTIVATIONS].domain += r.plan->total.domain / 20;
        az_plan_compare(&wrong, r.plan, &r.input, comm);
        CHECK(wrong > 0.02);
    }
    if (az_comm_rank(comm) == 0 && (err != AZ_OK || off > 0.02)) {
        fprintf(stderr, "%s", az_err_message());
        for (int i = 0; i < n; i++)
            fprintf(stderr, " %s", args[i]);
        fprintf(stderr, "\n");
    }
    az_err_clear();
    close_run(&r);
    for (int i = 0; i < n; i++)
        az_free(args[i]);
}

int main(int argc, char **argv)
{
    static const char *const runs[][8] = {
        {"run.memory=2GiB", NULL},
        {"run.memory=1GiB", "shard.scope=world", "shard.activations=recompute", NULL},
        {"run.memory=1GiB", "shard.scope=world", "shard.resident=0.5", "shard.slots=3", NULL},
        {"run.memory=1GiB", "shard.accumulation=layer_major", "shard.activations=keep", NULL},
        {"run.memory=1GiB", "shard.reduce=unit", "shard.activations=cheap", NULL},
        {"run.memory=1GiB", "shard.adapter=gathered", "shard.reduce=unit", NULL},
    };
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        return 1;
    }
    az_log_set_speaker(az_comm_rank(comm) == 0);
    make_files();
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        check(runs[i]);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(comm);
    return failed > 0;
}
