/* shard: units brought together on any number of ranks and nodes are the tensors of the files, byte
 * for byte, whatever is resident, with a program or without one, or with one that ends early;
 * pieces of a table are its rows in order, as few as a layer's size allows; each node holds what
 * was planned, and nobody can write there; tied and untied heads; several files and types. */
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

/* What is looked at together. */
typedef struct {
    az_config config;
    az_tensor_set set;
    az_table table;
    az_shard *shard;
    size_t unaligned; /* bytes of tensors that do not lie at multiples of their elements' size */
} model;

/* Gather unit i of a kind, compare it with the files, release it. Returns the rows of a piece. */
static int64_t check_unit(model *m, az_unit_kind kind, int i)
{
    int64_t row0, rows = 0;
    az_shard_gather(m->shard, kind, i);
    if (kind == AZ_UNIT_LAYER) {
        az_layer layer;
        az_shard_get_layer(m->shard, &layer);
        check_layer(&m->set, &m->config, &layer, i);
    } else {
        const char *name = kind == AZ_UNIT_NORM                      ? "model.norm.weight"
                           : kind == AZ_UNIT_EMBED || m->config.tied ? "model.embed_tokens.weight"
                                                                     : "lm_head.weight";
        const az_view v = az_shard_get_piece(m->shard, &row0);
        CHECK(kind == AZ_UNIT_NORM || row0 == i * az_shard_get_head_rows(m->shard));
        check_view(&m->set, name, v, row0);
        rows = v.rows;
    }
    az_shard_release(m->shard);
    return rows;
}

/* Without a program: pieces of a table are its rows in order. */
static void check_table(model *m, az_unit_kind kind)
{
    int64_t rows = 0;
    for (int i = 0; i < az_shard_count(m->shard, kind); i++)
        rows += check_unit(m, kind, i);
    CHECK(rows == m->config.V);
}

static int add_kind(model *m, int *program, int n, az_unit_kind kind, bool back)
{
    const az_unit_list *list = az_shard_get_units(m->shard);
    for (int i = 0; i < list->count[kind]; i++)
        program[n + i] = list->first[kind] + (back ? list->count[kind] - 1 - i : i);
    return n + list->count[kind];
}

/* Forward, the head twice, and back. */
static int fill_program(model *m, int *program)
{
    int n = 0;
    n = add_kind(m, program, n, AZ_UNIT_EMBED, false);
    n = add_kind(m, program, n, AZ_UNIT_LAYER, false);
    n = add_kind(m, program, n, AZ_UNIT_NORM, false);
    n = add_kind(m, program, n, AZ_UNIT_HEAD, false);
    n = add_kind(m, program, n, AZ_UNIT_HEAD, false);
    return add_kind(m, program, n, AZ_UNIT_LAYER, true);
}

/* Ended after n_walked units. */
static void check_program(model *m, int n_walked)
{
    int program[100];
    const int n = fill_program(m, program);
    const az_unit_list *list = az_shard_get_units(m->shard);
    az_shard_begin(m->shard, program, n);
    for (int at = 0; at < n && at < n_walked; at++) {
        const az_unit_kind kind = list->units[program[at]].kind;
        check_unit(m, kind, program[at] - list->first[kind]);
    }
    az_shard_end(m->shard);
}

/* A program that is walked again and again fetches what was counted beforehand, which is the mean
 * where walks take turns. */
static void check_traffic(model *m, int n_slots)
{
    int program[100];
    size_t cut[100];
    az_spread_traffic counted;
    const az_unit_list *list = az_shard_get_units(m->shard);
    for (int u = 0; u < list->n_units; u++)
        cut[u] = az_shard_is_resident(m->shard, u) ? 0 : list->units[u].bytes;
    const int n = fill_program(m, program);
    CHECK(az_spread_count(&counted, cut, list->n_units, program, n, n_slots) == AZ_OK);
    const az_shard_stats before = az_shard_get_stats(m->shard);
    check_program(m, 100);
    const az_shard_stats after = az_shard_get_stats(m->shard);
    const int64_t more = after.fetches - before.fetches - counted.fetches;
    CHECK(more >= -1 && more <= 1);
    CHECK(after.gathers - before.gathers == n);
    /* All but this node's part, which is cut at blocks. */
    const int n_nodes = az_comm_get_topology(comm)->n_nodes;
    const int64_t missing = counted.bytes - counted.bytes / n_nodes;
    const int64_t received = after.received_bytes - before.received_bytes;
    const int64_t few = 64 * counted.fetches * az_comm_get_topology(comm)->n_lanes;
    CHECK(more != 0 || (received <= missing + few && received >= missing - few));
}

/* No process may write into what a node holds: what the kernel says of its pages. Only slots, which
 * the transport fills, have a mapping that can be written, and another that cannot. */
static void check_protected(const az_shard_stats *stats)
{
    char line[400], rights[8];
    int base = 0, slots = 0, files = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strstr(line, "memfd:adze-base") != NULL) {
            CHECK(sscanf(line, "%*s %7s", rights) == 1 && strcmp(rights, "r--s") == 0);
            base++;
        }
        if (strstr(line, ".safetensors") != NULL) {
            CHECK(sscanf(line, "%*s %7s", rights) == 1 && strcmp(rights, "r--s") == 0);
            files++;
        }
        slots += strstr(line, "memfd:adze-slots") != NULL && strstr(line, " r--s ") != NULL;
    }
    CHECK(base == (stats->sizes.held > 0) && (files > 0) == stats->mapped);
    CHECK(slots == (stats->sizes.n_slots > 0));
    if (f != NULL)
        fclose(f);
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

/* What is held where, and that it is as planned. */
static void check_memory(model *m, const az_shard_options *o, int pieces)
{
    const az_topology *t = az_comm_get_topology(comm);
    const az_shard_stats s = az_shard_get_stats(m->shard);
    const az_unit_list *list = az_shard_get_units(m->shard);
    bool resident[100];
    CHECK(s.n_units == list->n_units && list->n_units <= 100);
    CHECK(list->n_units == m->config.L + 1 + (m->config.tied ? 1 : 2) * pieces);
    for (int u = 0; u < list->n_units; u++)
        resident[u] = az_shard_is_resident(m->shard, u);
    const az_shard_sizes planned = az_shard_measure(list, resident, o->n_slots, false, t);
    CHECK((o->load == AZ_LOAD_MAP || planned.held == s.sizes.held) &&
          planned.slots == s.sizes.slots && planned.n_slots == s.sizes.n_slots &&
          planned.slot_each == s.sizes.slot_each);
    az_spread_sizes spread;
    az_spread_measure(&spread, s.n_units, s.n_units - s.n_resident, o->n_slots, planned.slot_each,
                      AZ_SHARD_PROGRAM * s.n_units, t);
    CHECK(count_bytes("base index") + spread.own_bytes == planned.own);
    const bool whole = t->n_nodes == 1 || o->share == 1;
    CHECK((s.n_resident == s.n_units) == whole && (s.sizes.n_slots == 0) == whole);
    CHECK(az_shard_get_scope(m->shard) == (whole ? AZ_SCOPE_NODE : AZ_SCOPE_WORLD));
    CHECK(!whole || o->load == AZ_LOAD_MAP || s.sizes.held == s.base_bytes);
    CHECK(o->load != AZ_LOAD_MAP || (s.mapped && s.sizes.held == m->unaligned));
    const size_t shared = az_comm_node_rank(comm) == 0 ? s.sizes.held : 0;
    CHECK(count_bytes("base slices") >= shared && (shared > 0 || count_bytes("base slices") == 0));
    /* An even part of every unit, rounded up to 64 bytes on each rank. */
    if (t->n_nodes > 1 && o->share == 0)
        CHECK(s.sizes.held <=
              s.base_bytes / (size_t)t->n_nodes + 64 * (size_t)(t->n_lanes * list->n_units));
    check_protected(&s);
}

static void check_model(const char *dir, int pieces, const az_shard_options *o)
{
    model m = {0};
    CHECK(az_config_read(&m.config, dir) == AZ_OK && az_store_open_model(&m.set, dir) == AZ_OK);
    CHECK(az_table_create(&m.table, &m.config, &m.set) == AZ_OK);
    CHECK(az_shard_create(&m.shard, &m.config, &m.table, &m.set, comm, o) == AZ_OK);
    for (int i = 0; i < m.table.n_weights; i++) {
        const az_tensor *t = &m.set.tensors[m.table.weights[i].index];
        if (t->offset % (int64_t)az_dtype_bytes((az_dtype)t->dtype) != 0)
            m.unaligned += ((size_t)t->bytes + 63) / 64 * 64;
    }
    static uint64_t fingerprint; /* of the model before */
    static char before[400];
    if (m.shard != NULL) {
        CHECK(strcmp(before, dir) != 0 || fingerprint == az_shard_get_fingerprint(m.shard));
        fingerprint = az_shard_get_fingerprint(m.shard);
        snprintf(before, sizeof before, "%s", dir);
    }
    if (m.shard == NULL) {
        fprintf(stderr, "%s: %s\n", dir, az_err_message());
        return;
    }
    CHECK(az_shard_count(m.shard, AZ_UNIT_LAYER) == m.config.L &&
          az_shard_count(m.shard, AZ_UNIT_NORM) == 1);
    CHECK(az_shard_count(m.shard, AZ_UNIT_EMBED) == pieces &&
          az_shard_count(m.shard, AZ_UNIT_HEAD) == pieces);
    const uint64_t hash = az_shard_hash(m.shard);
    check_memory(&m, o, pieces);
    check_table(&m, AZ_UNIT_EMBED);
    check_table(&m, AZ_UNIT_HEAD);
    for (int l = 0; l < m.config.L; l++)
        check_unit(&m, AZ_UNIT_LAYER, l);
    check_unit(&m, AZ_UNIT_NORM, 0);
    for (int again = 0; again < 2; again++)
        check_program(&m, 100);
    check_traffic(&m, o->n_slots);
    for (int stop = 0; stop < 4; stop++)
        check_program(&m, stop);
    check_program(&m, 100);
    CHECK(hash == az_shard_hash(m.shard));
    const az_shard_stats s = az_shard_get_stats(m.shard);
    CHECK((s.received_bytes == 0) == (s.n_resident == s.n_units));
    az_shard_destroy(m.shard);
    az_table_fini(&m.table);
    az_store_close(&m.set);
}

static void check_scopes(const char *dir, int pieces)
{
    static const az_shard_options options[] = {
        {.share = 1, .n_slots = 2},
        {.share = 1, .n_slots = 2, .load = AZ_LOAD_NODE, .poison = true},
        {.n_slots = 2},
        {.n_slots = 1, .load = AZ_LOAD_NODE},
        {.n_slots = 1, .share = 0.5, .poison = true},
        {.n_slots = 4, .share = 0.5, .load = AZ_LOAD_NODE},
        {.n_slots = 64, .load = AZ_LOAD_JOB, .poison = true},
        {.share = 1, .n_slots = 2, .load = AZ_LOAD_MAP},
        {.share = 1, .n_slots = 2, .load = AZ_LOAD_MAP, .poison = true}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        check_model(dir, pieces, &options[i]);
}

/* Memory that one rank cannot open is had by none, and not counted. */
static void check_refused(void)
{
    az_shared *shared = NULL;
    struct rlimit files, none;
    const bool last = az_comm_rank(comm) == az_comm_size(comm) - 1;
    if (az_comm_get_topology(comm)->n_lanes == 1 || getrlimit(RLIMIT_NOFILE, &files) != 0)
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
