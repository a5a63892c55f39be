/* A call of the system that fails on one rank while a checkpoint is written: open, write, sync,
 * rename and the others, each of them at each moment. All ranks get the same code and a message
 * that names the file and the reason; nobody hangs; the temporary file is gone; an earlier file
 * under the final name is as it was; and the end of the program is a quiet one. */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/check.h"
#include "tests/tools/order.h"
#include "tests/unit/h5_util.h"

static az_comm *comm;
static int rank;
static char dir[300], path[400], tmp[410];
static char *before; /* what path holds */
static size_t before_bytes;

static az_err write_file(void)
{
    const int size = az_comm_size(comm);
    const int64_t first = H5_ELEMENTS * rank / size, end = H5_ELEMENTS * (rank + 1) / size;
    az_h5_times times;
    return h5_write(path, AZ_F32, first, end - first, comm, &times);
}

static bool is_unchanged(void)
{
    char *now = NULL;
    size_t bytes = 0;
    const bool same = az_file_read(&now, &bytes, path) == AZ_OK && bytes == before_bytes &&
                      memcmp(now, before, bytes) == 0;
    az_free(now);
    return same;
}

/* Whether the message names the file and the reason; MPI-IO keeps the latter from other ranks. */
static bool is_said(int error)
{
    const char *said = az_err_message();
    return strncmp(said, dir, strlen(dir)) == 0 &&
           (strstr(said, strerror(error)) != NULL ||
            strstr(said, "open failed on a remote node") != NULL);
}

/* Call number n fails on rank `on`. Whether there were so many. */
static bool fail_one(const char *call, const char *suffix, int on, long n, int error)
{
    const size_t blocks = az_mem_get_total().blocks;
    const int failed_before = n_failed;
    az_err_clear();
    if (rank == on)
        order_set_fault(call, suffix, n, error);
    az_err err = write_file();
    int64_t reached = rank == on && order_get_count() > n;
    order_set_fault(NULL, NULL, 0, 0);
    int64_t codes[3] = {err, -err, reached};
    az_comm_max_i64(comm, codes, 3);
    CHECK(codes[0] == -codes[1]);
    CHECK(az_mem_get_total().blocks == blocks);
    CHECK(err == AZ_OK || err == AZ_EENV);
    CHECK(err == AZ_OK || is_said(error));
    CHECK(codes[2] != 0 || err == AZ_OK);
    CHECK(rank != 0 || err == AZ_OK || strcmp(call, "unlink") == 0 || access(tmp, F_OK) != 0);
    CHECK(rank != 0 || is_unchanged());
    if (n_failed > failed_before || getenv("VERBOSE") != NULL)
        fprintf(stderr, "rank %d: %s number %ld on rank %d: code %d, %s\n", rank, call, n, on, err,
                az_err_message());
    az_comm_barrier(comm);
    return codes[2] != 0;
}

/* Every call of this name in turn, on the first rank and on the last. There are some on each that
 * makes such calls. */
static void try_call(const char *call, const char *suffix, int error, bool on_last)
{
    const int last = az_comm_size(comm) - 1;
    for (int on = 0; on <= last; on += last > 0 ? last : 1) {
        long n = 0;
        while (n_failed < 5 && fail_one(call, suffix, on, n, error))
            n++;
        CHECK(n > 0 || (on > 0 && !on_last));
        if (rank == 0)
            printf("%s on rank %d: %ld moments\n", call, on, n);
    }
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    rank = az_comm_rank(comm);
    snprintf(dir, sizeof dir, "%.200s/adze-h5-XXXXXX", base != NULL ? base : "/tmp");
    if (rank == 0)
        CHECK(mkdtemp(dir) != NULL);
    az_comm_bcast(comm, dir, sizeof dir, 0);
    snprintf(path, sizeof path, "%s/checkpoint-000001.h5", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    CHECK(write_file() == AZ_OK);
    CHECK(az_file_read(&before, &before_bytes, path) == AZ_OK);
    try_call("write", ".tmp", ENOSPC, true);
    try_call("fallocate", ".tmp", EDQUOT, false);
    try_call("ftruncate", ".tmp", EIO, false);
    try_call("fsync", ".tmp", EIO, true);
    try_call("open", ".tmp", EMFILE, true);
    try_call("pread", ".tmp", EIO, false);
    try_call("rename", ".h5", EROFS, false);
    try_call("unlink", ".tmp", EACCES, false);
    h5_options = &(az_h5_options){.striping_unit = 65536}; /* the file is made by MPI-IO */
    try_call("open", ".tmp", EMFILE, true);
    try_call("ftruncate", ".tmp", EIO, false);
    CHECK(write_file() == AZ_OK);
    az_free(before);
    if (rank == 0) {
        unlink(path);
        CHECK(rmdir(dir) == 0);
    }
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
