/* comm: collectives with small whole numbers, whole and in pieces; agreement. */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
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
    int64_t counts[64], send[N], recv[N], first = 0, left = N;
    for (int r = 0; r < n; r++) { /* the last rank owns nothing */
        counts[r] = r == n - 1 && n > 1 ? 0 : az_ceil_div(N, n > 1 ? n - 1 : 1);
        counts[r] = az_min_i64(counts[r], left);
        left -= counts[r];
    }
    for (int r = 0; r < rank; r++)
        first += counts[r];
    for (int i = 0; i < N; i++)
        send[i] = ((int64_t)1 << 40) * i + rank;
    az_comm_reduce_scatter_i64(comm, send, recv, counts);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(recv[i] == n * ((int64_t)1 << 40) * (first + i) + n * (n - 1) / 2);
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

/* No memory on one rank is a failure on all, and nothing is left. */
static void test_init_fails(const az_comm *keep)
{
    int last = az_comm_size(keep) - 1;
    /* The communicator and its scratch; the watchdog, its buffers, its memory if that is not
     * shared. */
    const int n_allocations = az_comm_node_size(keep) > 1 ? 6 : 7;
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

static void run(void)
{
    az_comm *comm;
    CHECK(az_comm_init(&comm, NULL, NULL) == AZ_OK);
    CHECK(az_comm_node_size(comm) <= az_comm_size(comm) &&
          az_comm_node_rank(comm) < az_comm_node_size(comm));
    test_bcast(comm);
    test_allgather(comm);
    test_sums(comm);
    test_agree(comm);
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
    }
    az_comm_fini(self);
    int64_t failed = n_failed;
    az_comm_sum_i64(keep, &failed, 1);
    az_comm_fini(keep);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
