/* Counts above 2^31, really moved: one rank's part of an exchange between two nodes is larger than
 * that. It takes 7 GB of memory, and is skipped where there is less. */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "comm/comm.h"
#include "tests/mpi/check.h"

/* 8-byte words: the large part, and what the other node gives. */
#define LARGE (INT64_C(1) << 28)
enum { MORE = 1000003, SMALL = 12345, SPARE_GB = 3 };

static bool is_small(az_comm *comm, int64_t bytes)
{
    const char *source;
    int64_t lacks = az_limits_get_memory(&source) < bytes + ((int64_t)SPARE_GB << 30);
    az_comm_max_i64(comm, &lacks, 1);
    return lacks != 0;
}

static int64_t word(int64_t i, int node)
{
    return i * 2654435761 + node;
}

/* The words of [begin, end) are those of node. */
static int64_t count_wrong(const int64_t *words, int64_t begin, int64_t n, int node, int factor)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += words[begin + i] != factor * word(i, node);
    return wrong;
}

/* Node `from` gives much, the other one little. */
static void gather(int64_t *words, az_comm *comm, int from)
{
    const int node = az_comm_node(comm);
    const int64_t n[2] = {from == 0 ? LARGE + MORE : SMALL, from == 0 ? SMALL : LARGE + MORE};
    const int64_t begin[2] = {0, n[0]};
    const size_t counts[2] = {(size_t)n[0] * 8, (size_t)n[1] * 8};
    const size_t offsets[2] = {0, counts[0]};
    for (int64_t i = 0; i < n[0] + n[1]; i++)
        words[i] = -1;
    for (int64_t i = 0; i < n[node]; i++)
        words[begin[node] + i] = word(i, node);
    az_comm_lane_allgatherv(comm, words + begin[node], words, counts, offsets);
    for (int other = 0; other < 2; other++)
        CHECK(count_wrong(words, begin[other], n[other], other, 1) == 0);
}

/* Both nodes give the same words; node 0 gets the sums of nearly all. */
static void reduce(int64_t *words, int64_t *sums, az_comm *comm)
{
    const int64_t counts[2] = {LARGE + MORE, SMALL};
    const int node = az_comm_node(comm);
    for (int64_t i = 0; i < counts[0]; i++)
        words[i] = word(i, 0);
    for (int64_t i = 0; i < counts[1]; i++)
        words[counts[0] + i] = word(i, 1);
    az_comm_lane_reduce_scatter_i64(comm, words, sums, counts);
    CHECK(count_wrong(sums, 0, counts[node], node, 2) == 0);
}

int main(int argc, char **argv)
{
    az_comm *comm = NULL;
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK)
        return 99;
    const az_topology *t = az_comm_get_topology(comm);
    const int64_t n = LARGE + MORE + SMALL;
    int code = 99;
    int64_t *words = NULL, *sums = NULL;
    if (t->n_nodes != 2 || t->n_lanes != 1) {
        fprintf(stderr, "two ranks on two nodes were expected\n");
        goto out;
    }
    if (is_small(comm, 3 * 8 * n)) {
        if (az_comm_rank(comm) == 0)
            printf("less than %" PRId64 " bytes of memory are free here\n",
                   3 * 8 * n + ((int64_t)SPARE_GB << 30));
        code = 77;
        goto out;
    }
    if (AZ_NEW(words, n, "words") != AZ_OK ||
        (az_comm_node(comm) == 0 && AZ_NEW(sums, LARGE + MORE, "sums") != AZ_OK) ||
        (az_comm_node(comm) == 1 && AZ_NEW(sums, SMALL, "sums") != AZ_OK))
        goto out;
    gather(words, comm, 0);
    gather(words, comm, 1);
    reduce(words, sums, comm);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    code = failed != 0;
out:
    az_free(words);
    az_free(sums);
    az_comm_fini(comm);
    return code;
}
