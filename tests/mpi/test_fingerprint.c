/* The fingerprint of a base: taken while loading it is the same on every rank and number of ranks
 * as from the files alone; it does not see how tensors are spread over files and ordered in them;
 * any byte, name, type or figure of the config that has a part in the numbers changes it. */
#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/shard.h"
#include "tests/mpi/check.h"

static az_comm *comm;
static char dir[400], other[420];

/* How a model is written anew. */
typedef struct {
    int n_files;
    bool reverse;          /* the order of tensors within a file */
    const char *dtype;     /* instead of BF16 */
    bool swap;             /* the names of two tensors of one shape */
    const char *from, *to; /* in config.json */
} variant;

static const char *name_of(const az_tensor_set *set, int64_t i, const variant *v)
{
    static const char *const pair[2] = {"model.layers.0.mlp.gate_proj.weight",
                                        "model.layers.0.mlp.up_proj.weight"};
    for (int k = 0; k < 2 && v->swap; k++)
        if (strcmp(set->tensors[i].name, pair[k]) == 0)
            return pair[1 - k];
    return set->tensors[i].name;
}

/* Tensors file, file + n_files, ... of the set in one file. */
static void write_file(const az_tensor_set *set, const variant *v, int file, const char *path)
{
    az_str header = {0}, data = {0}, all = {0}, shape = {0};
    const int64_t n = set->n_tensors;
    int fd = -1, open_file = -1;
    CHECK(az_str_add(&header, "{") == AZ_OK);
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = v->reverse ? n - 1 - k : k;
        const az_tensor *t = &set->tensors[i];
        if (i % v->n_files != file)
            continue;
        char *bytes = az_alloc((size_t)t->bytes, 1, "test");
        CHECK(az_store_read(bytes, set, t, 0, t->bytes, &fd, &open_file) == AZ_OK);
        CHECK(az_store_add_shape(&shape, t) == AZ_OK);
        CHECK(az_str_add(&header,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                         header.len > 1 ? "," : "", name_of(set, i, v),
                         v->dtype != NULL ? v->dtype : t->dtype_name, shape.s, data.len,
                         data.len + (size_t)t->bytes) == AZ_OK);
        CHECK(az_str_add_bytes(&data, bytes, (size_t)t->bytes) == AZ_OK);
        az_free(bytes);
        az_str_fini(&shape);
    }
    CHECK(az_str_add(&header, "}") == AZ_OK);
    while (header.len % 8 != 0)
        CHECK(az_str_add(&header, " ") == AZ_OK);
    const uint64_t len = header.len; /* little-endian, as are all machines of these tests */
    CHECK(az_str_add_bytes(&all, &len, 8) == AZ_OK &&
          az_str_add_bytes(&all, header.s, header.len) == AZ_OK &&
          az_str_add_bytes(&all, data.s, data.len) == AZ_OK);
    CHECK(az_file_write_atomic(path, all.s, all.len) == AZ_OK);
    close(fd);
    az_str_fini(&header);
    az_str_fini(&data);
    az_str_fini(&all);
}

static void write_index(const az_tensor_set *set, const variant *v, const char *path)
{
    az_str text = {0};
    CHECK(az_str_add(&text, "{\"weight_map\":{") == AZ_OK);
    for (int64_t i = 0; i < set->n_tensors; i++)
        CHECK(az_str_add(&text, "%s\"%s\":\"part-%d.safetensors\"", i > 0 ? "," : "",
                         name_of(set, i, v), (int)(i % v->n_files)) == AZ_OK);
    CHECK(az_str_add(&text, "}}") == AZ_OK);
    CHECK(az_file_write_atomic(path, text.s, text.len) == AZ_OK);
    az_str_fini(&text);
}

static void write_config(const variant *v)
{
    char path[600], *text = NULL;
    size_t bytes;
    az_str out = {0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK(az_file_read(&text, &bytes, path) == AZ_OK);
    const char *at = v->from != NULL ? strstr(text, v->from) : text;
    CHECK(at != NULL);
    if (at != NULL)
        CHECK(az_str_add(&out, "%.*s%s%s", (int)(at - text), text, v->to != NULL ? v->to : "",
                         at + (v->from != NULL ? strlen(v->from) : 0)) == AZ_OK);
    snprintf(path, sizeof path, "%s/config.json", other);
    CHECK(az_file_write_atomic(path, out.s, out.len) == AZ_OK);
    az_str_fini(&out);
    az_free(text);
}

/* The model of dir, as v says, in other. On rank 0; Collective. */
static void write_variant(const variant *v)
{
    char path[600];
    az_tensor_set set = {0};
    if (az_comm_rank(comm) == 0) {
        CHECK(az_store_open_model(&set, dir) == AZ_OK);
        snprintf(path, sizeof path, "rm -rf %s", other);
        CHECK(system(path) == 0 && az_dir_create(other) == AZ_OK);
        for (int f = 0; f < v->n_files; f++) {
            snprintf(path, sizeof path, "%s/part-%d.safetensors", other, f);
            if (v->n_files == 1)
                snprintf(path, sizeof path, "%s/model.safetensors", other);
            write_file(&set, v, f, path);
        }
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", other);
        if (v->n_files > 1)
            write_index(&set, v, path);
        write_config(v);
        az_store_close(&set);
    }
    az_comm_barrier(comm);
}

/* By loading, in a way and with a part of it resident. */
static uint64_t loaded_in(az_load_way way, double share, const az_config *c, const az_table *table,
                          const az_tensor_set *set)
{
    const az_shard_options options = {.share = share, .n_slots = 1, .load = way};
    az_shard *shard = NULL;
    uint64_t loaded = 0;
    CHECK(az_shard_create(&shard, c, table, set, comm, &options) == AZ_OK);
    if (shard != NULL)
        loaded = az_shard_get_fingerprint(shard);
    az_shard_destroy(shard);
    return loaded;
}

/* By loading, and from the files. Collective. */
static uint64_t fingerprint(const char *model)
{
    az_config c;
    az_tensor_set set = {0};
    az_table table = {0};
    uint64_t loaded, read = 1, first;
    CHECK(az_config_read(&c, model) == AZ_OK && az_store_open_model(&set, model) == AZ_OK);
    CHECK(az_table_create(&table, &c, &set) == AZ_OK);
    loaded = loaded_in(AZ_LOAD_JOB, 0, &c, &table, &set);
    CHECK(loaded == loaded_in(AZ_LOAD_JOB, 1, &c, &table, &set));
    CHECK(loaded == loaded_in(AZ_LOAD_NODE, 0.5, &c, &table, &set));
    CHECK(az_shard_fingerprint_files(&read, &c, &table, &set) == AZ_OK);
    CHECK(loaded == read);
    first = loaded;
    az_comm_bcast(comm, &first, sizeof first, 0);
    CHECK(loaded == first);
    az_comm_barrier(comm); /* all have read before the files change */
    az_table_fini(&table);
    az_store_close(&set);
    return first;
}

static void flip(const char *path, int64_t at)
{
    unsigned char c;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 0x10;
    CHECK(pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

/* Bytes here and there, by loading: each changes it. */
static void flip_some(uint64_t f)
{
    char path[600];
    int64_t size = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK(az_file_size(&size, path) == AZ_OK);
    for (int k = 0; k < 12; k++) {
        const int64_t back = k == 0   ? 1
                             : k == 1 ? 4816
                                      : 1 + k * 811; /* from the end of the file */
        for (int twice = 0; twice < 2; twice++) {
            if (az_comm_rank(comm) == 0)
                flip(path, size - back);
            az_comm_barrier(comm);
            CHECK((fingerprint(dir) != f) == (twice == 0));
        }
    }
}

/* Every byte of every tensor, from the files. On one rank. */
static void flip_all(uint64_t f)
{
    az_config c;
    az_tensor_set set = {0};
    az_table table = {0};
    int64_t missed = 0;
    CHECK(az_config_read(&c, dir) == AZ_OK && az_store_open_model(&set, dir) == AZ_OK);
    CHECK(az_table_create(&table, &c, &set) == AZ_OK);
    for (int64_t i = 0; i < set.n_tensors; i++)
        for (int64_t b = 0; b < set.tensors[i].bytes; b++) {
            uint64_t changed = f;
            flip(set.files[0], set.tensors[i].offset + b);
            CHECK(az_shard_fingerprint_files(&changed, &c, &table, &set) == AZ_OK);
            flip(set.files[0], set.tensors[i].offset + b);
            missed += changed == f;
        }
    CHECK(missed == 0);
    CHECK(fingerprint(dir) == f);
    az_table_fini(&table);
    az_store_close(&set);
}

/* Make a model. Collective. */
static void make(const char *where, const char *arguments)
{
    char command[900];
    snprintf(command, sizeof command,
             "rm -rf %s && env -u LD_PRELOAD tests/tools/random_model %s %s", where, where,
             arguments);
    CHECK(az_comm_rank(comm) != 0 || system(command) == 0);
    az_comm_barrier(comm);
}

/* Nodes that see different models of the same shape are found, whoever reads. */
static void check_nodes(void)
{
    static const az_shard_options options[] = {{.n_slots = 1, .load = AZ_LOAD_JOB},
                                               {.share = 1, .n_slots = 1, .load = AZ_LOAD_JOB},
                                               {.share = 1, .n_slots = 1, .load = AZ_LOAD_NODE}};
    const int n_nodes = az_comm_get_topology(comm)->n_nodes;
    const char *model = az_comm_node(comm) == n_nodes - 1 ? other : dir;
    az_config c;
    az_tensor_set set = {0};
    az_table table = {0};
    CHECK(az_config_read(&c, model) == AZ_OK && az_store_open_model(&set, model) == AZ_OK);
    CHECK(az_table_create(&table, &c, &set) == AZ_OK);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        az_shard *shard = NULL;
        const az_err err = az_shard_create(&shard, &c, &table, &set, comm, &options[i]);
        CHECK(err == (n_nodes > 1 ? AZ_EENV : AZ_OK));
        CHECK(n_nodes == 1 || strstr(az_err_message(), "the nodes have read different") != NULL);
        az_err_clear();
        az_shard_destroy(shard);
    }
    az_table_fini(&table);
    az_store_close(&set);
    az_comm_barrier(comm);
}

int main(void)
{
    static const variant same[] = {
        {.n_files = 1},
        {.n_files = 1, .reverse = true},
        {.n_files = 3},
        {.n_files = 5, .reverse = true},
        {.n_files = 1, .from = "\"bos_token_id\": 1", .to = "\"bos_token_id\": 3"}};
    static const variant differs[] = {{.n_files = 1, .dtype = "F16"},
                                      {.n_files = 1, .swap = true},
                                      {.n_files = 1, .from = "10000.0", .to = "500000.0"},
                                      {.n_files = 1, .from = "1e-5", .to = "1e-6"}};
    const char *base = getenv("TMPDIR");
    char command[900];
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    snprintf(dir, sizeof dir, "%s/adze-print-XXXXXX", base != NULL ? base : "/tmp");
    if (az_comm_rank(comm) == 0)
        CHECK(mkdtemp(dir) != NULL);
    az_comm_bcast(comm, dir, sizeof dir, 0);
    snprintf(other, sizeof other, "%s-other", dir);
    /* Tables of 301 rows of 8 in pieces of 61 rows, 976 bytes: pieces and slices end within blocks.
     */
    make(dir, "8 12 2 2 1 4 301 bf16 0 3");
    make(other, "8 12 2 2 1 4 301 bf16 0 4");
    check_nodes();
    const uint64_t f = fingerprint(dir);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        write_variant(&same[i]);
        CHECK(fingerprint(other) == f);
    }
    for (size_t i = 0; i < sizeof differs / sizeof *differs; i++) {
        write_variant(&differs[i]);
        CHECK(fingerprint(other) != f);
    }
    flip_some(f);
    if (az_comm_size(comm) == 1)
        flip_all(f);
    make(dir, "8 12 2 2 1 4 301 bf16 0 4");
    CHECK(fingerprint(dir) != f);
    make(dir, "8 12 2 2 1 4 301 bf16 1 3");
    CHECK(fingerprint(dir) != f);
    /* Tensors of more than a chunk. */
    make(dir, "512 1536 1 4 2 128 1501 f32 0 5");
    fingerprint(dir);
    az_comm_barrier(comm);
    snprintf(command, sizeof command, "rm -r %s %s-other", dir, dir);
    CHECK(az_comm_rank(comm) != 0 || system(command) == 0);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
