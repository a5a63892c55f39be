/* h5 on several ranks: sets cut anywhere, ranks that hold nothing, both types, writes in tiny
 * pieces; read back on other cuts, bit for bit. The file is the same, byte for byte, as that of one
 * rank without MPI. What is wrong is the same on all ranks [12, 52]. */
#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/check.h"
#include "tests/unit/h5_util.h"

static az_comm *comm;
static int rank, size;
static char dir[300], path[400];

/* Cut number `cut`: where this rank's range begins, and its length. The first ones are made by
 * hand: all to one rank, even, at every border of a row; in some the ranks lie in reverse order. */
static int64_t cut_range(int cut, int64_t *out_n)
{
    int64_t ends[64] = {0};
    unsigned seed = (unsigned)cut * 7919u + 17u;
    for (int r = 0; r < size; r++) {
        if (cut < 3)
            ends[r] = cut == 0 ? 0 : cut == 1 ? H5_ELEMENTS : H5_ELEMENTS * (r + 1) / size;
        else
            ends[r] = (int64_t)((seed = seed * 1664525u + 1013904223u) >> 8) % (H5_ELEMENTS + 1);
    }
    ends[size - 1] = H5_ELEMENTS;
    for (int i = 0; i < size; i++) /* in order */
        for (int k = i + 1; k < size; k++)
            if (ends[k] < ends[i]) {
                const int64_t t = ends[i];
                ends[i] = ends[k];
                ends[k] = t;
            }
    const int place = cut > 3 && cut % 2 == 0 ? size - 1 - rank : rank;
    const int64_t first = place > 0 ? ends[place - 1] : 0;
    *out_n = ends[place] - first;
    return first;
}

static void write_cut(az_dtype dtype, int cut)
{
    az_h5_times times;
    int64_t n, first = cut_range(cut, &n);
    if (h5_write(path, dtype, first, n, comm, &times) != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        n_failed++;
        az_err_clear();
    }
    int64_t bytes = 0;
    CHECK(az_file_size(&bytes, path) == AZ_OK && bytes == times.bytes);
}

static void read_cut(az_dtype dtype, int cut)
{
    az_h5_reader *r = NULL;
    float got[H5_ELEMENTS + 1];
    int64_t n, first = cut_range(cut, &n);
    CHECK(az_h5_open(&r, path, comm) == AZ_OK);
    if (r == NULL)
        return;
    CHECK(h5_same_rest(r));
    for (int s = 0; s < H5_GROUPS; s++) {
        for (int i = 0; i <= H5_ELEMENTS; i++)
            got[i] = 12345.0f;
        CHECK(az_h5_read_arrays(r, h5_groups[s], h5_arrays, H5_ARRAYS, got, first, n) == AZ_OK);
        CHECK(h5_same(got, s, dtype, first, n));
        CHECK(got[n] == 12345.0f);
    }
    CHECK(az_h5_verify(r) == AZ_OK);
    az_h5_close(r);
}

/* The file that one process makes. */
static void read_alone(char **out, size_t *out_bytes, az_dtype dtype)
{
    char name[420];
    az_comm *self = NULL;
    az_h5_times times;
    snprintf(name, sizeof name, "%s.alone-%d", path, rank);
    CHECK(az_comm_create_self(&self) == AZ_OK);
    CHECK(h5_write(name, dtype, 0, H5_ELEMENTS, self, &times) == AZ_OK);
    CHECK(az_file_read(out, out_bytes, name) == AZ_OK);
    az_comm_fini(self);
    unlink(name);
}

static void check_type(az_dtype dtype)
{
    char *alone = NULL, *now = NULL;
    size_t bytes = 0, n = 0;
    read_alone(&alone, &bytes, dtype);
    for (int cut = 0; cut < 12; cut++) {
        static const char *const limits[] = {"4", "8", "20", "1000"};
        setenv("ADZE_H5_LIMIT", limits[cut % 4], 1);
        write_cut(dtype, cut);
        CHECK(az_file_read(&now, &n, path) == AZ_OK && n == bytes && memcmp(now, alone, n) == 0);
        az_free(now);
        now = NULL;
        read_cut(dtype, cut + 5);
    }
    unsetenv("ADZE_H5_LIMIT");
    az_free(alone);
}

/* The same code and message on all ranks. */
static void check_refusal(az_err err, az_err code, const char *part)
{
    int64_t codes[2] = {err, -err};
    az_comm_max_i64(comm, codes, 2);
    CHECK(err == code && codes[0] == -codes[1]);
    CHECK(strstr(az_err_message(), part) != NULL);
    if (n_failed > 0)
        fprintf(stderr, "rank %d: code %d, %s\n", rank, err, az_err_message());
    az_err_clear();
}

/* A byte of a part that one rank reads. */
static void check_damage(void)
{
    az_h5_reader *r = NULL;
    float got[H5_ELEMENTS];
    int64_t n, first = cut_range(2, &n);
    write_cut(AZ_F32, 2);
    CHECK(az_h5_open(&r, path, comm) == AZ_OK);
    const char *name = "/optimizer/exp_avg/one";
    if (rank == 0) {
        int fd = open(path, O_RDWR);
        CHECK(pwrite(fd, "x", 1, (off_t)az_h5_find(r, name)->offset + 2) == 1);
        CHECK(close(fd) == 0);
    }
    az_comm_barrier(comm);
    CHECK(az_h5_read_arrays(r, h5_groups[0], h5_arrays, H5_ARRAYS, got, first, n) == AZ_OK);
    check_refusal(az_h5_read_arrays(r, h5_groups[1], h5_arrays, H5_ARRAYS, got, first, n),
                  AZ_EINPUT, "dataset '/optimizer/exp_avg/one': damaged");
    check_refusal(az_h5_verify(r), AZ_EINPUT, "dataset '/optimizer/exp_avg/one': damaged");
    /* another adapter: fewer arrays, another shape, another name */
    az_h5_array other[H5_ARRAYS];
    memcpy(other, h5_arrays, sizeof other);
    other[0].rows = 7, other[0].cols = 3;
    other[3].name = "new";
    check_refusal(az_h5_read_arrays(r, h5_groups[0], other, H5_ARRAYS - 1, got, first, n),
                  AZ_EINPUT, "4 faults");
    az_h5_close(r);
}

static void check_hints(void)
{
    static const char *const good[] = {"romio_ds_write=disable", "cb_nodes=1"},
                             *const bad[] = {"cb_nodes"}, *const empty[] = {"=1"};
    az_h5_writer *w = NULL;
    az_h5_times times;
    float own[H5_ELEMENTS];
    int64_t n, first = cut_range(2, &n);
    az_h5_options o = {.hints = bad, .n_hints = 1};
    check_refusal(az_h5_create(&w, path, "adapter", 0, &o, comm), AZ_EINPUT,
                  "MPI-IO hint 'cb_nodes': \"name=value\" was expected");
    o.hints = empty;
    check_refusal(az_h5_create(&w, path, "adapter", 0, &o, comm), AZ_EINPUT, "MPI-IO hint '=1'");
    o = (az_h5_options){.hints = good, .n_hints = 2, .striping_factor = 4, .striping_unit = 65536};
    CHECK(az_h5_create(&w, path, "adapter", 100, &o, comm) == AZ_OK);
    for (int64_t i = 0; i < n; i++)
        own[i] = h5_value(0, first + i);
    CHECK(az_h5_put_arrays(w, "/adapter", h5_arrays, H5_ARRAYS, AZ_F32, own, first, n) == AZ_OK);
    CHECK(az_h5_finish(w, &times) == AZ_OK);
    az_h5_destroy(w);
    CHECK(az_file_exists(path));
    /* one that is given up leaves nothing behind, and what was there stays */
    CHECK(az_h5_create(&w, path, "adapter", 100, &o, comm) == AZ_OK);
    CHECK(az_h5_put_arrays(w, "/adapter", h5_arrays, H5_ARRAYS, AZ_F32, own, first, n) == AZ_OK);
    az_h5_destroy(w);
    az_comm_barrier(comm);
    az_h5_reader *r = NULL;
    CHECK(az_h5_open(&r, path, comm) == AZ_OK && strcmp(az_h5_get_kind(r), "adapter") == 0);
    az_h5_close(r);
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    rank = az_comm_rank(comm);
    size = az_comm_size(comm);
    snprintf(dir, sizeof dir, "%.200s/adze-h5-XXXXXX", base != NULL ? base : "/tmp");
    if (rank == 0)
        CHECK(mkdtemp(dir) != NULL);
    az_comm_bcast(comm, dir, sizeof dir, 0);
    snprintf(path, sizeof path, "%s/a.h5", dir);
    check_type(AZ_F32);
    check_type(AZ_BF16);
    check_damage();
    check_hints();
    az_comm_barrier(comm);
    if (rank == 0) {
        unlink(path);
        CHECK(rmdir(dir) == 0); /* nothing else is left */
    }
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
