/* shard: units brought together on any number of ranks, in both scopes, are the tensors of the
 * files, byte for byte; pieces of a table are its rows in order, as few as a layer's size allows;
 * each rank holds its share and no more; tied and untied heads; several files and types. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/shared.h"
#include "shard/shard.h"
#include "tests/mpi/check.h"

static az_comm *comm;

/* The bytes of rows [row0, row0 + v.rows) of a named tensor are those of the view. */
static void check_view(const az_tensor_set *set, const char *name, az_view v, int64_t row0)
{
    const az_tensor *t = az_store_find(set, name);
    int fd = -1, file = -1;
    CHECK(t != NULL && v.data != NULL);
    if (t == NULL || v.data == NULL)
        return;
    const int64_t width = v.cols * (int64_t)az_dtype_bytes(v.dtype), bytes = v.rows * width;
    char *expected = az_alloc((size_t)bytes, 1, "test");
    CHECK((int)v.dtype == t->dtype && (row0 + v.rows) * width <= t->bytes);
    CHECK(az_store_read(expected, set, t, row0 * width, bytes, &fd, &file) == AZ_OK);
    CHECK(memcmp(expected, v.data, (size_t)bytes) == 0);
    close(fd);
    az_free(expected);
}

static void check_layer(const az_tensor_set *set, const az_config *config, const az_layer *layer,
                        int l)
{
    static const char *const linears[AZ_N_LINEARS] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    char name[200];
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        const bool bias = i <= AZ_O ? config->attention_bias : config->mlp_bias;
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, linears[i]);
        check_view(set, name, layer->weight[i], 0);
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", l, linears[i]);
        CHECK((layer->bias[i].data != NULL) == bias);
        if (bias)
            check_view(set, name, layer->bias[i], 0);
    }
    snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
    check_view(set, name, layer->norm1, 0);
    snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
    check_view(set, name, layer->norm2, 0);
}

/* Pieces of a table: its rows in order. */
static void check_table(az_shard *shard, const az_tensor_set *set, az_unit_kind kind,
                        const char *name, int64_t rows, int64_t most)
{
    int64_t next = 0, row0;
    for (int i = 0; i < az_shard_count(shard, kind); i++) {
        az_shard_gather(shard, kind, i);
        az_view v = az_shard_get_piece(shard, &row0);
        CHECK(row0 == next && v.rows <= most);
        check_view(set, name, v, row0);
        next += v.rows;
        az_shard_release(shard);
    }
    CHECK(next == rows);
}

/* No process may write into the copy that the node's ranks share: what the kernel says of the
 * pages.
 */
static void check_protected(const void *p)
{
    char line[400], rights[8] = "";
    unsigned long from, to;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && (unsigned long)p >= from &&
            (unsigned long)p < to)
            break;
    CHECK(strcmp(rights, "r--s") == 0);
    if (f != NULL)
        fclose(f);
}

static void check_model(const char *dir, int pieces, az_scope scope, bool poison)
{
    az_config c;
    az_tensor_set set = {0};
    az_table table = {0};
    az_shard *shard = NULL;
    CHECK(az_config_read(&c, dir) == AZ_OK && az_store_open_model(&set, dir) == AZ_OK);
    CHECK(az_table_create(&table, &c, &set) == AZ_OK);
    CHECK(az_shard_create(&shard, &c, &table, &set, comm, scope, poison) == AZ_OK);
    if (shard == NULL) {
        fprintf(stderr, "%s: %s\n", dir, az_err_message());
        return;
    }
    CHECK(az_shard_count(shard, AZ_UNIT_LAYER) == c.L && az_shard_count(shard, AZ_UNIT_NORM) == 1);
    CHECK(az_shard_count(shard, AZ_UNIT_EMBED) == pieces &&
          az_shard_count(shard, AZ_UNIT_HEAD) == pieces);
    const uint64_t hash = az_shard_hash(shard);
    for (int again = 0; again < 2; again++) {
        check_table(shard, &set, AZ_UNIT_EMBED, "model.embed_tokens.weight", c.V,
                    az_ceil_div(c.V, pieces));
        for (int l = 0; l < c.L; l++) {
            az_layer layer;
            az_shard_gather(shard, AZ_UNIT_LAYER, l);
            az_shard_get_layer(shard, &layer);
            check_layer(&set, &c, &layer, l);
            az_shard_release(shard);
        }
        az_shard_gather(shard, AZ_UNIT_NORM, 0);
        check_view(&set, "model.norm.weight", az_shard_get_piece(shard, NULL), 0);
        az_shard_release(shard);
        check_table(shard, &set, AZ_UNIT_HEAD,
                    c.tied ? "model.embed_tokens.weight" : "lm_head.weight", c.V,
                    az_shard_get_head_rows(shard));
    }
    CHECK(hash == az_shard_hash(shard));
    CHECK(az_shard_get_scope(shard) == scope);
    /* A rank's share: an even part of every unit, rounded up to 64 bytes; or a node's: all. */
    const az_shard_stats s = az_shard_get_stats(shard);
    const bool world = scope == AZ_SCOPE_WORLD;
    const size_t n = world ? (size_t)az_comm_size(comm) : 1;
    const size_t units = (size_t)(c.L + 1 + 2 * pieces);
    CHECK(s.slice_bytes <= s.base_bytes / n + 64 * units);
    CHECK(poison || n > 1 ? s.slot_bytes < s.base_bytes : s.slot_bytes == 0);
    CHECK(world || s.gathered_bytes == 0);
    if (!world && !poison) {
        az_shard_gather(shard, AZ_UNIT_NORM, 0);
        check_protected(az_shard_get_piece(shard, NULL).data);
        az_shard_release(shard);
    }
    az_shard_destroy(shard);
    az_table_fini(&table);
    az_store_close(&set);
}

static void check_scopes(const char *dir, int pieces)
{
    for (int poison = 0; poison < 2; poison++) {
        check_model(dir, pieces, AZ_SCOPE_WORLD, poison);
        check_model(dir, pieces, AZ_SCOPE_NODE, poison);
    }
}

static size_t count_bytes(const char *wanted)
{
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (strcmp(label, wanted) == 0)
            return bytes;
    return 0;
}

/* Memory that one rank cannot open is had by none, and not counted. */
static void check_refused(void)
{
    az_shared *shared = NULL;
    struct rlimit files, none;
    const bool last = az_comm_rank(comm) == az_comm_size(comm) - 1;
    if (az_comm_node_size(comm) == 1 || getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    none = files;
    none.rlim_cur = 0;
    az_comm_barrier(comm);
    CHECK(!last || setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(az_shared_create(&shared, 1 << 20, "adze-test", "test", 0, comm) == AZ_EENV &&
          shared == NULL);
    CHECK(!last || setrlimit(RLIMIT_NOFILE, &files) == 0);
    CHECK(strstr(az_err_message(), "cannot open the memory of its node's first rank") != NULL);
    az_err_clear();
    CHECK(count_bytes("test") == 0);
}

int main(void)
{
    static const char *const names[] = {"gqa", "tied", "headdim", "bf16", "layers"};
    const char *src = getenv("srcdir"), *base = getenv("TMPDIR");
    char dir[400], command[600];
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    check_refused();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(dir, sizeof dir, "%s/tests/golden/llama-%s/model", src != NULL ? src : ".",
                 names[i]);
        check_scopes(dir, 1);
    }
    /* A layer of 496 elements and tables of 301 rows of 8: five pieces of 61 rows, the last of 57.
     */
    for (int tied = 0; tied < 2; tied++) {
        snprintf(dir, sizeof dir, "%s/adze-shard-%d-XXXXXX", base != NULL ? base : "/tmp", tied);
        if (az_comm_rank(comm) == 0) {
            CHECK(mkdtemp(dir) != NULL);
            snprintf(command, sizeof command,
                     "env -u LD_PRELOAD tests/tools/random_model %s 8 12 2 2 1 4 301 bf16 %d 3",
                     dir, tied);
            CHECK(system(command) == 0);
        }
        az_comm_bcast(comm, dir, sizeof dir, 0);
        check_scopes(dir, 5);
        az_comm_barrier(comm);
        snprintf(command, sizeof command, "rm -r %s", dir);
        CHECK(az_comm_rank(comm) != 0 || system(command) == 0);
    }
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
