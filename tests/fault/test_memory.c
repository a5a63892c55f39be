/* An allocation that fails on one rank ends the command with the same code on all ranks: no hang,
 * no leak, no adapter. Each command is run over and over, with another allocation failing each
 * time. */
#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "store/h5.h"
#include "store/peft.h"
#include "tests/mpi/check.h"
#include "tests/mpi/files.h"

/* Allocations tried for a command and a rank, spread evenly over all of them. */
#define TRIES 60

static az_comm *comm;
static char deck[400], prompts[400];
static char out[] = "output.dir=tests/fault/out-memory/run";
static char kept[] = "eval.adapter=tests/fault/out-memory/a.h5";
static char resume[] = "checkpoint.resume=tests/fault/out-memory/run/checkpoint-000001.h5";
static const char run_dir[] = "tests/fault/out-memory/run";
static const char adapter[] = "tests/fault/out-memory/run/adapter";

typedef struct {
    const char *name;
    bool keep; /* what the run before wrote, so that the command goes on from it */
    int n;
    char *args[6];
} command;

static az_err run(const command *c)
{
    char *argv[8] = {(char *)(uintptr_t)c->name, deck};
    memcpy(argv + 2, c->args, (size_t)c->n * sizeof *c->args);
    az_err_clear();
    return az_cmd_find(c->name)->run(comm, c->n + 2, argv);
}

static void remove_results(const command *c)
{
    if (az_comm_rank(comm) == 0) {
        remove_files(adapter);
        rmdir(adapter);
        if (!c->keep)
            remove_files(run_dir);
    }
    az_comm_barrier(comm);
}

static bool adapter_is_whole(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    const bool model = az_file_exists(path);
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    return model && az_file_exists(path);
}

static void say_blocks(void)
{
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (bytes > 0)
            fprintf(stderr, "rank %d: %zu bytes for %s\n", az_comm_rank(comm), bytes, label);
}

/* Allocation n of rank fails. Whether the command failed. */
static bool fail_one(const command *c, int rank, long n)
{
    const size_t blocks = az_mem_get_total().blocks;
    remove_results(c);
    az_mem_set_fault(az_comm_rank(comm) == rank ? n : -1);
    az_err err = run(c);
    az_mem_set_fault(-1);
    CHECK(err == AZ_OK || err == AZ_EENV);
    CHECK(err == AZ_OK || strstr(az_err_message(), "out of memory") != NULL);
    CHECK(fcntl(0, F_GETFD) >= 0); /* a file number that was never had must not be closed */
    CHECK(az_mem_get_total().blocks == blocks);
    int64_t codes[2] = {err, -err};
    az_comm_max_i64(comm, codes, 2);
    CHECK(codes[0] == -codes[1]);
    /* adapter.h5 comes after it */
    CHECK(err == AZ_OK || !az_dir_exists(adapter) || adapter_is_whole());
    if (az_mem_get_total().blocks != blocks)
        say_blocks();
    int64_t failed = n_failed; /* all ranks go on, or none */
    az_comm_max_i64(comm, &failed, 1);
    n_failed = (int)failed;
    if (n_failed > 0 && az_comm_rank(comm) == rank)
        fprintf(stderr, "adze %s, allocation %ld of rank %d: code %d, %s\n", c->name, n, rank, err,
                az_err_message());
    return err != AZ_OK;
}

static void try_command(const command *c)
{
    remove_results(c);
    if (run(c) != AZ_OK) { /* what libraries keep is there after it */
        fprintf(stderr, "adze %s: %s\n", c->name, az_err_message());
        n_failed++;
        return;
    }
    remove_results(c);
    size_t before = az_mem_get_total().calls;
    CHECK(run(c) == AZ_OK);
    int64_t calls = (int64_t)(az_mem_get_total().calls - before);
    int64_t n_tries = 0, n_ended = 0;
    for (int rank = 0; rank < az_comm_size(comm); rank++) {
        int64_t total = az_comm_rank(comm) == rank ? calls : 0;
        az_comm_max_i64(comm, &total, 1);
        const int64_t tries = az_min_i64(total, TRIES);
        for (int64_t i = 0; i < tries && n_failed == 0; i++) {
            n_ended += fail_one(c, rank, (long)(i * total / tries));
            n_tries++;
        }
    }
    if (az_comm_rank(comm) == 0)
        fprintf(stderr, "adze %s: %lld of %lld failing allocations ended it\n", c->name,
                (long long)n_ended, (long long)n_tries);
    CHECK(n_ended > n_tries / 2);
}

/* adapter.h5 for the deck, from the golden adapter. On rank 0. */
static az_err put_file(const char *src, const char *path)
{
    az_err err;
    az_comm *self = NULL;
    az_h5_writer *w = NULL;
    az_h5_times times;
    az_tensor_set set = {0};
    az_h5_array arrays[16];
    float *values = NULL;
    char dir[400], *config = NULL;
    size_t bytes;
    int64_t n = 0;
    int fd = -1, file = -1;
    snprintf(dir, sizeof dir, "%s/tests/golden/llama-gqa/adapter", src);
    AZ_TRY(az_comm_create_self(&self));
    AZ_TRY(az_peft_open_tensors(&set, dir));
    CHECK(set.n_tensors <= 16 && set.tensors[0].dtype == AZ_F32);
    for (int64_t i = 0; i < set.n_tensors && n_failed == 0; i++) {
        const az_tensor *t = &set.tensors[i];
        arrays[i] = (az_h5_array){t->name, t->shape[0], t->shape[1], n};
        AZ_TRY(AZ_GROW(values, (size_t)(n + t->bytes / 4), "adapter"));
        AZ_TRY(az_store_read(values + n, &set, t, 0, t->bytes, &fd, &file));
        n += t->bytes / 4;
    }
    strcat(dir, "/adapter_config.json");
    AZ_TRY(az_file_read(&config, &bytes, dir));
    AZ_TRY(az_h5_create(&w, path, "adapter", 1 << 16, &(az_h5_options){0}, self));
    AZ_TRY(az_h5_put_arrays(w, "/adapter", arrays, (int)set.n_tensors, AZ_F32, values, 0, n));
    AZ_TRY(az_h5_put_text(w, "/adapter_config", config));
    AZ_TRY(az_h5_finish(w, &times));
out:
    if (fd >= 0)
        close(fd);
    az_h5_destroy(w);
    az_free(config);
    az_free(values);
    az_store_close(&set);
    az_comm_fini(self);
    return err;
}

int main(void)
{
    const char *src = getenv("srcdir");
    src = src != NULL ? src : ".";
    snprintf(deck, sizeof deck, "%s/tests/golden/llama-gqa/deck.yaml", src);
    snprintf(prompts, sizeof prompts, "generate.file=tests/fault/out-memory/prompts.jsonl");
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    if (az_comm_rank(comm) == 0 &&
        (az_dir_create("tests/fault/out-memory") != AZ_OK ||
         az_file_write_atomic(strchr(prompts, '=') + 1, "{\"input_ids\": [1, 2]}\n", 21) != AZ_OK ||
         put_file(src, strchr(kept, '=') + 1) != AZ_OK))
        return 99;
    az_comm_barrier(comm);
    az_log_set_speaker(false);
    const command commands[] = {
        {"train",
         false,
         4,
         {out, "train.max_steps=1", "eval.split=0.2", "checkpoint.on_error=stop"}},
        {"train",
         true,
         4,
         {out, "train.max_steps=1", "eval.split=0.2", "checkpoint.on_error=stop"}},
        {"train",
         true,
         5,
         {out, "train.max_steps=1", "eval.split=0.2", "checkpoint.on_error=stop", resume}},
        {"eval", true, 0, {NULL}},
        {"eval", true, 1, {kept}},
        {"generate", true, 2, {prompts, "generate.max_new_tokens=2"}},
        {"data", true, 0, {NULL}},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands && n_failed == 0; i++)
        try_command(&commands[i]);
    int64_t any = n_failed;
    az_comm_max_i64(comm, &any, 1);
    az_comm_fini(comm);
    return any != 0;
}
