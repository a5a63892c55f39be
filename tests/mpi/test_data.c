/* data: a load on several ranks gives what a load on one rank gives, and fails as that fails. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/mpi/check.h"
#include "tests/unit/data_stub.h"

enum { FILES = 3 };

static char dir[64], names[FILES][120];
static const char *files[FILES];
static az_tokenizer tokenizer;

static uint32_t draw(uint32_t seed, uint32_t i, uint32_t limit)
{
    uint32_t w[4];
    az_philox(w, seed, i, 0, 0, 0);
    return w[0] % limit;
}

/* Lines of all kinds, blank ones, long ones, both line ends, at times no end. bad: line number of
 * the last file's and of the second file's error, or 0. */
static void write_file(int f, uint32_t seed, int n_lines, int bad)
{
    FILE *out = fopen(names[f], "wb");
    CHECK(out != NULL);
    if (out == NULL)
        return;
    for (int i = 1; i <= n_lines; i++) {
        const char *end = i == n_lines && seed % 2 ? "" : i % 3 ? "\n" : "\r\n";
        int kind = (int)draw(seed, (uint32_t)i, 5), n = (int)draw(seed, 1000 + (uint32_t)i, 90);
        if (i == bad)
            fprintf(out, "{\"text\": %d}%s", i, end);
        else if (kind == 0 && i > 1)
            fprintf(out, "%s", i % 3 ? "\n" : " \r\n");
        else if (kind == 1)
            fprintf(out, "{\"input_ids\": [%d, %d, 3]}%s", i % 250, n, end);
        else if (kind == 2)
            fprintf(out, "{\"prompt\": \"%*d\", \"completion\": \"%d\"}%s", n, i, n, end);
        else
            fprintf(out, "{\"text\": \"%*d\"}%s", n, i, end);
    }
    CHECK(fclose(out) == 0);
}

static void check_load(az_comm *comm, az_comm *self)
{
    az_dataset one, all;
    char message[200];
    az_err err = az_data_load(&one, files, FILES, &tokenizer, &stub_options, self);
    snprintf(message, sizeof message, "%s", az_err_message());
    az_err_clear();
    int before = tokenizer.n_encoded;
    CHECK(az_data_load(&all, files, FILES, &tokenizer, &stub_options, comm) == err);
    CHECK(strcmp(az_err_message(), message) == 0);
    CHECK((err == AZ_OK) == (message[0] == '\0'));
    /* Each line is tokenized on one rank only. */
    int64_t encoded = tokenizer.n_encoded - before;
    az_comm_sum_i64(comm, &encoded, 1);
    CHECK(err != AZ_OK || encoded == before);
    az_err_clear();
    CHECK(one.n == all.n && one.n_tokens == all.n_tokens && one.n_targets == all.n_targets);
    CHECK(one.n_cut == all.n_cut && one.n_dropped_empty == all.n_dropped_empty);
    CHECK(one.longest == all.longest && (err != AZ_OK || one.n_cut > 0));
    if (err == AZ_OK && one.n == all.n && one.n_tokens == all.n_tokens) {
        const size_t n = (size_t)one.n, tokens = (size_t)one.n_tokens;
        CHECK(memcmp(one.start, all.start, (n + 1) * sizeof *one.start) == 0);
        CHECK(memcmp(one.ids, all.ids, tokens * sizeof *one.ids) == 0);
        CHECK(memcmp(one.labels, all.labels, tokens * sizeof *one.labels) == 0);
        CHECK(memcmp(one.targets, all.targets, n * sizeof *one.targets) == 0);
    }
    az_data_fini(&one);
    az_data_fini(&all);
    tokenizer.n_encoded = 0;
    az_comm_barrier(comm);
}

/* Files of these numbers of lines, with an error at the given line of each (0: none). */
static void run(az_comm *comm, az_comm *self, uint32_t seed, const int *lines, const int *bad)
{
    if (az_comm_rank(comm) == 0)
        for (int f = 0; f < FILES; f++)
            write_file(f, seed + (uint32_t)f, lines[f], bad[f]);
    az_comm_barrier(comm);
    check_load(comm, self);
}

/* A fault of one rank is everyone's failure, wherever it comes. (Every single allocation is the
 * unit test's matter: ranks beyond the cores wait for each other slowly.) */
static void check_faults(az_comm *comm)
{
    const int victim = az_comm_size(comm) - 1, rank = az_comm_rank(comm);
    for (long n = 0;; n += 4) {
        az_dataset set;
        size_t blocks = az_mem_get_total().blocks;
        az_mem_set_fault(rank == victim ? n : -1);
        az_err err = az_data_load(&set, files, FILES, &tokenizer, &stub_options, comm);
        az_mem_set_fault(-1);
        CHECK(err == AZ_OK || err == AZ_EENV);
        CHECK(err == AZ_OK || strstr(az_err_message(), "out of memory") != NULL);
        az_err_clear();
        az_data_fini(&set);
        CHECK(az_mem_get_total().blocks == blocks);
        int64_t same[2] = {err, -err};
        az_comm_max_i64(comm, same, 2);
        CHECK(same[0] == -same[1]);
        if (same[0] == AZ_OK)
            break;
    }
}

int main(void)
{
    az_comm *comm, *self;
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK || az_comm_create_self(&self) != AZ_OK)
        return 99;
    if (az_comm_rank(comm) == 0) {
        const char *base = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%.40s/adze-data-XXXXXX", base != NULL ? base : "/tmp");
        CHECK(mkdtemp(dir) != NULL);
    }
    az_comm_bcast(comm, dir, sizeof dir, 0);
    for (int f = 0; f < FILES; f++) {
        snprintf(names[f], sizeof names[f], "%s/%d.jsonl", dir, f);
        files[f] = names[f];
    }
    const int none[FILES] = {0};
    for (uint32_t seed = 0; seed < 4; seed++)
        run(comm, self, 10 * seed, (const int[]){40, 1, 7 + 30 * (int)seed}, none);
    run(comm, self, 1, (const int[]){1, 1, 40}, none);
    for (int line = 1; line <= 40; line += 9)
        run(comm, self, 3, (const int[]){40, 20, 40}, (const int[]){line, 7, 2});
    for (int line = 1; line <= 20; line += 5)
        run(comm, self, 4, (const int[]){40, 20, 40}, (const int[]){0, line, 5});
    run(comm, self, 5, (const int[]){1, 0, 1}, none); /* an empty file */
    run(comm, self, 5, (const int[]){1, 2, 1}, (const int[]){0, 0, 1});
    if (az_comm_rank(comm) == 0) {
        write_file(0, 6, 6, 0);
        write_file(1, 7, 1, 0);
        write_file(2, 8, 6, 0);
    }
    az_comm_barrier(comm);
    check_faults(comm);
    files[1] = "/nowhere/none.jsonl";
    check_load(comm, self);
    az_comm_barrier(comm);
    if (az_comm_rank(comm) == 0) {
        for (int f = 0; f < FILES; f++)
            unlink(names[f]);
        rmdir(dir);
    }
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(self);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
