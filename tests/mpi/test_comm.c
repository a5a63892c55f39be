/* comm: collectives with small whole numbers, whole and in pieces; agreement; memory of a node. */
#include <config.h>

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/shared.h"
#include "tests/mpi/check.h"

enum { N = 1237 };

static void test_bcast(az_comm *comm)
{
    int64_t v[N];
    for (int root = 0; root < az_comm_size(comm); root++) {
        for (int i = 0; i < N; i++)
            v[i] = az_comm_rank(comm) == root ? i * 3 + root : -1;
        az_comm_bcast(comm, v, sizeof v, root);
        for (int i = 0; i < N; i++)
            CHECK(v[i] == i * 3 + root);
    }
}

static void test_allgather(az_comm *comm)
{
    int n = az_comm_size(comm), rank = az_comm_rank(comm);
    int32_t *v = az_alloc((size_t)n * N, sizeof *v, "test"), mine[N];
    for (int i = 0; i < N; i++)
        mine[i] = rank * N + i;
    az_comm_allgather(comm, mine, sizeof mine, v);
    for (int i = 0; i < n * N; i++)
        CHECK(v[i] == i);
    memset(v, 0xff, (size_t)n * sizeof mine);
    memcpy(v + rank * N, mine, sizeof mine);
    az_comm_allgather(comm, v + rank * N, sizeof mine, v);
    for (int i = 0; i < n * N; i++)
        CHECK(v[i] == i);
    /* Unequal parts: rank r gives r bytes, so rank 0 gives none. */
    size_t counts[64], offsets[64], end = 0;
    unsigned char bytes[64], all[64 * 64];
    for (int r = 0; r < n; r++) {
        counts[r] = (size_t)r;
        offsets[r] = end;
        end += (size_t)r;
    }
    memset(bytes, rank + 1, sizeof bytes);
    az_comm_allgatherv(comm, bytes, all, counts, offsets);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < counts[r]; i++)
            CHECK(all[offsets[r] + i] == r + 1);
    az_free(v);
}

static void test_sums(az_comm *comm)
{
    int n = az_comm_size(comm), rank = az_comm_rank(comm);
    double d[2] = {rank, -rank};
    az_comm_max_f64(comm, d, 2);
    CHECK(d[0] == n - 1 && d[1] == 0);
    int64_t m[2] = {rank, 1};
    az_comm_sum_i64(comm, m, 2);
    CHECK(m[0] == n * (n - 1) / 2 && m[1] == n);
    m[0] = rank;
    az_comm_max_i64(comm, m, 1);
    CHECK(m[0] == n - 1);
    d[0] = 1;
    az_comm_sum_f64(comm, d, 1);
    CHECK(d[0] == n);
}

/* The lowest failing rank speaks for all. */
static void test_agree(az_comm *comm)
{
    int n = az_comm_size(comm), rank = az_comm_rank(comm);
    CHECK(az_comm_agree(comm, AZ_OK) == AZ_OK);
    for (int bad = 0; bad < n; bad++) {
        az_err err = rank >= bad ? az_fail(AZ_EINPUT + (rank != bad), "rank %d failed", rank) : 0;
        char expected[40];
        snprintf(expected, sizeof expected, "rank %d failed", bad);
        CHECK(az_comm_agree(comm, err) == AZ_EINPUT);
        CHECK(strcmp(az_err_message(), expected) == 0);
        az_err_clear();
    }
}

static sigjmp_buf refused;

static void note_refusal(int signal_number)
{
    siglongjmp(refused, signal_number);
}

/* Whether a write is refused by the kernel. */
static bool refuses(const volatile char *p)
{
    struct sigaction action = {.sa_handler = note_refusal}, before;
    sigaction(SIGSEGV, &action, &before);
    const bool written = sigsetjmp(refused, 1) == 0;
    if (written)
        *(volatile char *)p = 1;
    sigaction(SIGSEGV, &before, NULL);
    return !written;
}

/* Mappings of this process whose name begins so, and those among them that can be written. */
static void count_mappings(int *out_all, int *out_writable, const char *name)
{
    char line[500], rights[8];
    FILE *f = fopen("/proc/self/maps", "r");
    *out_all = *out_writable = 0;
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strstr(line, name) != NULL && sscanf(line, "%*s %7s", rights) == 1) {
            *out_all += 1;
            *out_writable += strchr(rights, 'w') != NULL;
        }
    if (f != NULL)
        fclose(f);
}

/* Memory of a node: each rank writes its part, all see all, through either mapping; afterwards
 * nobody can write. */
static void test_shared(az_comm *comm, size_t part)
{
    const int n = az_comm_node_size(comm), mine = az_comm_node_rank(comm);
    az_shared *s;
    int all, writable;
    CHECK(az_shared_create(&s, part * (size_t)n, "adze-some", "test", AZ_SHARED_READONLY, comm) ==
          AZ_OK);
    if (s == NULL)
        return;
    char *p = az_shared_get(s);
    const char *view = az_shared_get_readonly(s);
    CHECK(view != NULL && view != p && refuses(view));
    for (size_t i = 0; i < part; i++)
        CHECK(p[(size_t)mine * part + i] == 0);
    memset(p + (size_t)mine * part, mine + 1, part);
    CHECK(az_shared_protect(s) == AZ_OK);
    for (int r = 0; r < n; r++) {
        char *expected = az_alloc(part, 1, "test");
        memset(expected, r + 1, part);
        CHECK(memcmp(p + (size_t)r * part, expected, part) == 0);
        CHECK(memcmp(view + (size_t)r * part, expected, part) == 0);
        az_free(expected);
    }
    CHECK(refuses(p) && refuses(view));
    count_mappings(&all, &writable, "memfd:adze-some");
    CHECK(all == 2 && writable == 0);
    CHECK(strstr(az_shared_describe_pages(s), "pages") != NULL);
    az_comm_barrier(comm);
    az_shared_destroy(s);
    count_mappings(&all, &writable, "memfd:adze-some");
    CHECK(all == 0);
    CHECK(az_shared_create(&s, 0, "adze-none", "test", 0, comm) == AZ_OK);
    CHECK(s != NULL && az_shared_get_readonly(s) == NULL && !refuses(az_shared_get(s)));
    az_shared_destroy(s);
}

static void test_tables(void)
{
    CHECK(az_shared_measure_tables((size_t)1 << 30, 4096) == 2 << 20);
    CHECK(az_shared_measure_tables(((size_t)1 << 30) + 1, 2 << 20) == 513 * 8);
    const size_t small = az_shared_guess_page(4096), large = az_shared_guess_page((size_t)1 << 28);
    CHECK(small >= 4096 && large >= small && (small & (small - 1)) == 0);
}

/* No memory on one rank is a failure on all, and nothing is left. */
static void test_init_fails(az_comm *keep)
{
    int last = az_comm_size(keep) - 1;
    /* The communicator and its scratch, nodes; the watchdog, its buffers, its memory if that is not
     * shared. Of the last rank. */
    int n_allocations = az_comm_node_size(keep) > 1 ? 8 : 9;
    az_comm_bcast(keep, &n_allocations, sizeof n_allocations, last);
    size_t blocks = az_mem_get_total().blocks;
    for (int n = 0; n < n_allocations; n++) {
        az_comm *comm;
        if (az_comm_rank(keep) == last)
            az_mem_set_fault(n);
        CHECK(az_comm_init(&comm, NULL, NULL) == AZ_EENV && comm == NULL);
        CHECK(strncmp(az_err_message(), "out of memory: ", 15) == 0);
        CHECK(az_mem_get_total().blocks == blocks);
        az_mem_set_fault(-1);
        az_err_clear();
    }
}

/* Nodes and lanes: what all ranks say fits together, and lanes join the right ranks. */
static void test_lanes(az_comm *comm)
{
    const az_topology *t = az_comm_get_topology(comm);
    const int node = az_comm_node(comm), lane = az_comm_lane(comm);
    int ranks = 0, least = t->n_ranks;
    for (int i = 0; i < t->n_nodes; i++) {
        ranks += t->node_ranks[i];
        least = t->node_ranks[i] < least ? t->node_ranks[i] : least;
    }
    CHECK(ranks == az_comm_size(comm) && t->n_ranks == ranks && t->n_lanes == least);
    const char *cliques = getenv("MPIR_CVAR_NUM_CLIQUES");
    CHECK(t->n_nodes == (cliques != NULL ? atoi(cliques) : 1));
    CHECK(t->node_ranks[node] == az_comm_node_size(comm));
    CHECK(lane == (az_comm_node_rank(comm) < least ? az_comm_node_rank(comm) : -1));
    CHECK(az_comm_position(comm) == (lane < 0 ? -1 : lane * t->n_nodes + node));
    /* Each rank marks its position: all are taken once. */
    int64_t taken[64] = {0};
    if (lane >= 0)
        taken[az_comm_position(comm)] = 1;
    az_comm_sum_i64(comm, taken, 64);
    for (int p = 0; p < 64; p++)
        CHECK(taken[p] == (p < az_comm_n_positions(comm)));
    /* Node i gives i + 1 bytes that tell lane and node. */
    size_t counts[64], offsets[64], end = 0;
    int64_t n[64], send[64 * 64], recv[64] = {0};
    unsigned char mine[64], all[64 * 64];
    for (int i = 0; i < t->n_nodes; i++) {
        counts[i] = (size_t)i + 1;
        n[i] = i + 1;
        offsets[i] = end;
        end += counts[i];
    }
    memset(mine, 16 * lane + node, sizeof mine);
    memset(all, 0xff, sizeof all);
    az_comm_lane_allgatherv(comm, mine, all, counts, offsets);
    for (int i = 0; lane >= 0 && i < t->n_nodes; i++)
        for (size_t b = 0; b < counts[i]; b++)
            CHECK(all[offsets[i] + b] == 16 * lane + i);
    for (size_t i = 0; i < end; i++)
        send[i] = (int64_t)i * 1000 + lane;
    az_comm_lane_reduce_scatter_i64(comm, send, recv, n);
    for (int i = 0; lane >= 0 && i < n[node]; i++)
        CHECK(recv[i] == t->n_nodes * ((int64_t)(offsets[node] + (size_t)i) * 1000 + lane));
    az_comm_node_barrier(comm);
}

static void test_part(void)
{
    CHECK(az_cut(10, 0, 4) == 0 && az_cut(10, 1, 4) == 2 && az_cut(10, 3, 4) == 7);
    CHECK(az_cut(SIZE_MAX, 3, 3) == SIZE_MAX && az_cut(SIZE_MAX, 1, 3) == SIZE_MAX / 3);
    CHECK(az_cut(3, 1, 64000) == 0 && az_cut(3, 64000, 64000) == 3);
}

static void run(void)
{
    az_comm *comm;
    CHECK(az_comm_init(&comm, NULL, NULL) == AZ_OK);
    CHECK(az_comm_node_size(comm) <= az_comm_size(comm) &&
          az_comm_node_rank(comm) < az_comm_node_size(comm));
    test_bcast(comm);
    test_allgather(comm);
    test_sums(comm);
    test_lanes(comm);
    test_part();
    test_agree(comm);
    test_shared(comm, 5000);
    test_shared(comm, (size_t)3 << 20);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    n_failed = (int)failed;
    az_comm_fini(comm);
}

int main(void)
{
    az_comm *self, *keep;
    CHECK(az_comm_init(&keep, NULL, NULL) == AZ_OK); /* starts MPI; the others do not */
    run();
    test_init_fails(keep);
    setenv("ADZE_COMM_LIMIT", "1000", 1);
    run();
    CHECK(az_comm_create_self(&self) == AZ_OK);
    if (self != NULL) {
        test_bcast(self);
        test_allgather(self);
        test_sums(self);
        test_shared(self, 5000);
    }
    test_tables();
    az_comm_fini(self);
    int64_t failed = n_failed;
    az_comm_sum_i64(keep, &failed, 1);
    az_comm_fini(keep);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
