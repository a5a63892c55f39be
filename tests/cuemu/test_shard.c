/* shard on GPUs: units as queued work sees them, long after they were released, are the tensors of
 * the files, byte for byte: cut over a node's GPUs, over all, or over the hosts; with programs
 * there and back again and again, some of which end early; as many fetches as were counted, memory
 * as planned, and the fingerprint of the files. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/timetable.h"
#include "shard/shard.h"
#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"

static az_comm *comm;
static az_dev *dev;

enum { MAX_UNITS = 40, LONGEST = AZ_SHARD_PROGRAM * MAX_UNITS };

/* What is looked at together. */
typedef struct {
    az_config config;
    az_tensor_set set;
    az_table table;
    az_shard *shard;
    char *files, *copies; /* the bytes of a unit from the files; those of a walk's units, pinned */
    size_t off[LONGEST + 1]; /* in copies: of each position */
} model;

/* ---- 1. what is expected */

static void add_view(char *to, size_t *io_n, const model *m, const char *name, int64_t row0,
                     int64_t rows)
{
    int fd = -1, file = -1;
    const az_tensor *t = az_store_find(&m->set, name);
    CHECK(t != NULL);
    const int64_t width = t->bytes / t->shape[0];
    const int64_t bytes = (rows > 0 ? rows : t->shape[0]) * width;
    CHECK(az_store_read(to + *io_n, &m->set, t, row0 * width, bytes, &fd, &file) == AZ_OK);
    close(fd);
    *io_n += (size_t)bytes;
}

static const char *const linears[AZ_N_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

/* The tensors of a unit as the files have them, one behind the other. */
static size_t read_unit(char *to, const model *m, int u)
{
    char name[200];
    size_t n = 0;
    const az_unit_list *list = az_shard_get_units(m->shard);
    const az_unit_kind kind = list->units[u].kind;
    const int i = u - list->first[kind];
    const int64_t rows = az_shard_get_head_rows(m->shard), row0 = i * rows;
    if (kind == AZ_UNIT_NORM)
        add_view(to, &n, m, "model.norm.weight", 0, 0);
    else if (kind != AZ_UNIT_LAYER)
        add_view(to, &n, m, kind == AZ_UNIT_EMBED ? "model.embed_tokens.weight" : "lm_head.weight",
                 row0, az_min_i64(rows, m->config.V - row0));
    for (int k = 0; k < AZ_N_LINEARS && kind == AZ_UNIT_LAYER; k++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, linears[k]);
        add_view(to, &n, m, name, 0, 0);
    }
    for (int k = 0; k < 2 && kind == AZ_UNIT_LAYER; k++) {
        snprintf(name, sizeof name, "model.layers.%d.%s_layernorm.weight", i,
                 k == 0 ? "input" : "post_attention");
        add_view(to, &n, m, name, 0, 0);
    }
    return n;
}

/* ---- 2. a walk */

static void copy_view(char *to, size_t *io_n, az_view v)
{
    const size_t bytes = (size_t)(v.rows * v.cols) * az_dtype_bytes(v.dtype);
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, to + *io_n, v.data, bytes);
    *io_n += bytes;
}

/* Gather a unit, queue reads of it, release it. Returns its bytes. */
static size_t use_unit(const model *m, char *to, int u)
{
    size_t n = 0;
    const az_unit_list *list = az_shard_get_units(m->shard);
    const az_unit_kind kind = list->units[u].kind;
    az_shard_gather(m->shard, kind, u - list->first[kind]);
    if (kind == AZ_UNIT_LAYER) {
        az_layer layer;
        az_shard_get_layer(m->shard, &layer);
        for (int k = 0; k < AZ_N_LINEARS; k++)
            copy_view(to, &n, layer.weight[k]);
        copy_view(to, &n, layer.norm1);
        copy_view(to, &n, layer.norm2);
    } else {
        copy_view(to, &n, az_shard_get_piece(m->shard, NULL));
    }
    az_shard_release(m->shard);
    return n;
}

static void compare(model *m, const int *program, int n)
{
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    for (int at = 0; at < n; at++) {
        const size_t bytes = read_unit(m->files, m, program[at]);
        CHECK(bytes == m->off[at + 1] - m->off[at]);
        CHECK(memcmp(m->files, m->copies + m->off[at], bytes) == 0);
    }
}

static int add_kind(const az_unit_list *list, int *program, int n, az_unit_kind kind, bool back)
{
    for (int i = 0; i < list->count[kind]; i++)
        program[n + i] = list->first[kind] + (back ? list->count[kind] - 1 - i : i);
    return n + list->count[kind];
}

/* Forward, the head twice, and back. */
static int fill_program(const model *m, int *program)
{
    const az_unit_list *list = az_shard_get_units(m->shard);
    int n = add_kind(list, program, 0, AZ_UNIT_EMBED, false);
    n = add_kind(list, program, n, AZ_UNIT_LAYER, false);
    n = add_kind(list, program, n, AZ_UNIT_NORM, false);
    n = add_kind(list, program, n, AZ_UNIT_HEAD, false);
    n = add_kind(list, program, n, AZ_UNIT_HEAD, false);
    return add_kind(list, program, n, AZ_UNIT_LAYER, true);
}

/* Ended after n_walked units. */
static void walk(model *m, int n_walked)
{
    int program[LONGEST];
    const int n = fill_program(m, program);
    n_walked = n_walked < n ? n_walked : n;
    memset(m->copies, 0, m->off[n]);
    az_shard_begin(m->shard, program, n);
    for (int at = 0; at < n_walked; at++)
        m->off[at + 1] = m->off[at] + use_unit(m, m->copies + m->off[at], program[at]);
    az_shard_end(m->shard);
    compare(m, program, n_walked);
}

/* Without a program. */
static void use_all(model *m)
{
    const int n = az_shard_get_units(m->shard)->n_units;
    int program[MAX_UNITS];
    for (int u = 0; u < n; u++) {
        program[u] = u;
        m->off[u + 1] = m->off[u] + use_unit(m, m->copies + m->off[u], u);
    }
    compare(m, program, n);
}

/* ---- 3. what was counted beforehand */

static void check_traffic(model *m, int n_slots)
{
    int program[LONGEST];
    size_t cut[MAX_UNITS];
    az_spread_traffic counted;
    const az_unit_list *list = az_shard_get_units(m->shard);
    const az_topology *t = az_comm_get_topology(comm);
    for (int u = 0; u < list->n_units; u++)
        cut[u] = az_shard_is_resident(m->shard, u) ? 0 : list->units[u].bytes;
    const int n = fill_program(m, program);
    CHECK(az_spread_count(&counted, cut, list->n_units, program, n, n_slots) == AZ_OK);
    const az_shard_stats before = az_shard_get_stats(m->shard);
    walk(m, n);
    const az_shard_stats after = az_shard_get_stats(m->shard);
    const int64_t more = after.fetches - before.fetches - counted.fetches;
    CHECK(more >= -1 && more <= 1);
    CHECK(after.gathers - before.gathers == n);
    /* The host's slots may hold what the GPU's do not. */
    const int64_t missing = az_shard_get_scope(m->shard) == AZ_SCOPE_NODE
                                ? 0
                                : counted.bytes - counted.bytes / t->n_nodes;
    const int64_t received = after.received_bytes - before.received_bytes;
    const int64_t few = 64 * t->n_lanes * t->n_nodes * counted.fetches;
    CHECK(more != 0 || received <= missing + few);
    CHECK(more != 0 || after.host.n_slots > 0 || received >= missing - few);
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

static void check_memory(const model *m, const az_shard_options *o, bool nccl)
{
    const az_topology *t = az_comm_get_topology(comm);
    const az_shard_stats s = az_shard_get_stats(m->shard);
    const az_unit_list *list = az_shard_get_units(m->shard);
    const az_gpu_cut cut = az_shard_find_cut(o->scope, nccl, t);
    bool resident[MAX_UNITS];
    for (int u = 0; u < list->n_units; u++)
        resident[u] = az_shard_is_resident(m->shard, u);
    const az_shard_gpu_sizes sizes =
        az_shard_measure_gpus(list, resident, o->n_slots, o->poison, cut, t);
    const int n_slots = sizes.gpu.n_slots;
    CHECK(count_bytes("GPU base slices") == sizes.gpu.held);
    CHECK(count_bytes("GPU gathered unit") == sizes.gpu.slots + sizes.gpu.own);
    const bool first = az_comm_node_rank(comm) == 0;
    CHECK(count_bytes("base slices") >= (first ? sizes.host.held : 0));
    CHECK(count_bytes("gathered unit") >= (first ? sizes.host.slots : 0));
    CHECK((count_bytes("base slices") > 0) == (first && sizes.host.held > 0));
    az_spread_sizes spread = {0};
    if (sizes.host.n_slots > 0)
        az_spread_measure(&spread, list->n_units, s.n_units - s.n_resident, o->n_slots,
                          sizes.host.slot_each, AZ_SHARD_PROGRAM * list->n_units, t);
    CHECK(count_bytes("base index") + spread.own_bytes +
              az_timetable_measure(list->n_units, n_slots, AZ_SHARD_PROGRAM * list->n_units) ==
          sizes.host.own);
    const int over = cut == AZ_CUT_NODE ? t->n_lanes : t->n_lanes * t->n_nodes;
    CHECK((n_slots == 0) == (o->share == 1 || over == 1));
    CHECK((az_shard_get_scope(m->shard) == AZ_SCOPE_NODE) == (n_slots == 0 || cut == AZ_CUT_NODE));
}

static void check_model(const char *dir, const az_shard_options *o, bool nccl)
{
    model m = {0};
    uint64_t print;
    CHECK(az_config_read(&m.config, dir) == AZ_OK && az_store_open_model(&m.set, dir) == AZ_OK);
    CHECK(az_table_create(&m.table, &m.config, &m.set) == AZ_OK);
    CHECK(az_shard_create(&m.shard, &m.config, &m.table, &m.set, comm, o) == AZ_OK);
    CHECK(az_shard_fingerprint_files(&print, &m.config, &m.table, &m.set) == AZ_OK);
    if (m.shard == NULL) {
        fprintf(stderr, "%s: %s\n", dir, az_err_message());
        exit(1);
    }
    const az_unit_list *list = az_shard_get_units(m.shard);
    CHECK(list->n_units <= MAX_UNITS && print == az_shard_get_fingerprint(m.shard));
    CHECK(az_dev_alloc_host((void **)&m.copies, dev, AZ_SHARD_PROGRAM * list->bytes, "test") ==
          AZ_OK);
    m.files = az_alloc(list->bytes, 1, "test");
    const uint64_t hash = az_shard_hash(m.shard);
    check_memory(&m, o, nccl);
    use_all(&m);
    for (int again = 0; again < 3; again++)
        walk(&m, LONGEST);
    check_traffic(&m, o->n_slots);
    for (int stop = 0; stop < 4; stop++)
        walk(&m, 3 * stop);
    walk(&m, LONGEST);
    CHECK(hash == az_shard_hash(m.shard));
    az_free(m.files);
    az_dev_free_host(dev, m.copies);
    az_shard_destroy(m.shard);
    az_table_fini(&m.table);
    az_store_close(&m.set);
}

static void check_refused(const char *dir, az_fabric *fabric)
{
    model m = {0};
    const az_shard_options o = {.load = AZ_LOAD_MAP, .opt_dev = dev, .opt_fabric = fabric};
    CHECK(az_config_read(&m.config, dir) == AZ_OK && az_store_open_model(&m.set, dir) == AZ_OK);
    CHECK(az_table_create(&m.table, &m.config, &m.set) == AZ_OK);
    CHECK(az_shard_create(&m.shard, &m.config, &m.table, &m.set, comm, &o) == AZ_EINPUT);
    CHECK(strstr(az_err_message(), "model.load: map: files are used in place by the host alone") !=
          NULL);
    az_err_clear();
    az_table_fini(&m.table);
    az_store_close(&m.set);
}

static void check_ways(const char *dir, az_internode internode)
{
    static const az_shard_options options[] = {
        {.share = 1, .n_slots = 2, .scope = AZ_SCOPE_WORLD},
        {.share = 1, .n_slots = 2, .scope = AZ_SCOPE_NODE, .load = AZ_LOAD_NODE, .poison = true},
        {.n_slots = 2, .scope = AZ_SCOPE_NODE},
        {.n_slots = 1, .scope = AZ_SCOPE_WORLD, .load = AZ_LOAD_NODE},
        {.n_slots = 3, .share = 0.5, .scope = AZ_SCOPE_WORLD},
        {.n_slots = 2, .scope = AZ_SCOPE_WORLD, .poison = true},
        {.n_slots = 1, .share = 0.5, .scope = AZ_SCOPE_NODE, .load = AZ_LOAD_NODE}};
    az_fabric *fabric = NULL;
    if (az_comm_size(comm) > 1)
        CHECK(az_fabric_create(&fabric, dev, &(az_fabric_options){.internode = internode}, comm) ==
              AZ_OK);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        az_shard_options o = options[i];
        o.opt_dev = dev;
        o.opt_fabric = fabric;
        check_model(dir, &o, internode == AZ_INTERNODE_NCCL);
    }
    check_refused(dir, fabric);
    az_fabric_destroy(fabric);
}

/* A layer of 496 elements and tables of 301 rows of 8: five pieces of 61 rows, the last of 57. */
int main(void)
{
    const char *base = getenv("TMPDIR");
    char dir[400], command[600];
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    dev = open_gpu(az_comm_node_rank(comm));
    snprintf(dir, sizeof dir, "%s/adze-shard-XXXXXX", base != NULL ? base : "/tmp");
    if (az_comm_rank(comm) == 0) {
        CHECK(mkdtemp(dir) != NULL);
        snprintf(command, sizeof command,
                 "env -u LD_PRELOAD tests/tools/random_model %s 8 12 5 2 1 4 301 bf16 0 3", dir);
        CHECK(system(command) == 0);
    }
    az_comm_bcast(comm, dir, sizeof dir, 0);
    check_ways(dir, AZ_INTERNODE_MPI);
    if (az_comm_get_topology(comm)->n_nodes > 1)
        check_ways(dir, AZ_INTERNODE_NCCL);
    az_comm_barrier(comm);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(az_comm_rank(comm) != 0 || system(command) == 0);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_dev_close(dev);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
