/* Bytes of a small file of adze's changed, one after the other: either opening and verifying it
 * fails with a message that names a dataset, a group, or the structure of the file, or everything
 * that can be read is what was written, so that the byte is provably not used. The same with the
 * file cut at each length, and with whole stretches of it lost. HDF5 neither falls over what it
 * reads nor takes memory without end: the address space is bounded.
 *
 * With the argument "long" every bit of every byte, every length; else each third
 * byte, and a sample of the others. */
#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/mpi/check.h"
#include "tests/unit/h5_util.h"

#define SPACE ((rlim_t)2 << 30)

static az_comm *comm;
static char path[300];
static char *data;
static size_t bytes;
static int fd;
static long named, unused;

static bool all_same(az_h5_reader *r)
{
    float got[H5_ELEMENTS];
    int n = 0;
    while (az_h5_get_dataset(r, n) != NULL)
        n++;
    if (!h5_same_rest(r) || n != H5_DATASETS)
        return false;
    for (int s = 0; s < H5_GROUPS; s++)
        if (az_h5_read_arrays(r, h5_groups[s], h5_arrays, H5_ARRAYS, got, 0, H5_ELEMENTS) !=
                AZ_OK ||
            !h5_same(got, s, AZ_F32, 0, H5_ELEMENTS))
            return false;
    return true;
}

static bool names_place(const char *message)
{
    return strncmp(message, path, strlen(path)) == 0 &&
           (strstr(message, "'/") != NULL || strstr(message, "structure") != NULL ||
            strstr(message, "not an HDF5 file") != NULL || strstr(message, "superblock") != NULL ||
            strstr(message, "truncated") != NULL || strstr(message, "empty") != NULL);
}

/* Look at the file as it is now; what: for people. Whether it was refused. */
static bool look(const char *what, size_t at)
{
    az_h5_reader *r = NULL;
    az_err_clear();
    az_err err = az_h5_open(&r, path, comm);
    if (err == AZ_OK)
        err = az_h5_verify(r);
    const bool good =
        err == AZ_OK ? all_same(r) : err == AZ_EINPUT && names_place(az_err_message());
    if (!good) {
        fprintf(stderr, "%s at byte %zu: code %d, %s\n", what, at, err, az_err_message());
        n_failed++;
    }
    named += err != AZ_OK;
    unused += err == AZ_OK;
    az_h5_close(r);
    return err != AZ_OK;
}

/* n bytes at a place: those of change instead; put back afterwards. */
static void change(const char *what, size_t at, const char *change, size_t n)
{
    if (n > bytes - at)
        n = bytes - at;
    CHECK(pwrite(fd, change, n, (off_t)at) == (ssize_t)n);
    look(what, at);
    CHECK(pwrite(fd, data + at, n, (off_t)at) == (ssize_t)n);
}

static void flip_bytes(bool all)
{
    for (size_t i = 0; i < bytes && n_failed < 20; i += all ? 1 : 3)
        for (int bit = all ? 0 : 8; bit <= 8; bit++) {
            const char c = (char)(data[i] ^ (bit == 8 ? 0xff : 1 << bit));
            change("a changed byte", i, &c, 1);
        }
}

static void lose_stretches(size_t step)
{
    static const size_t lengths[] = {4, 16, 512, 4096};
    char zeros[4096] = {0}, ones[4096];
    memset(ones, 0xff, sizeof ones);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (size_t i = 0; i < bytes && n_failed < 20; i += step) {
            change("zeros", i, zeros, lengths[k]);
            change("ones", i, ones, lengths[k]);
        }
}

static void cut_lengths(size_t step)
{
    for (size_t n = 0; n < bytes && n_failed < 20; n += step) {
        CHECK(ftruncate(fd, (off_t)n) == 0);
        CHECK(look("the end", n));
        CHECK(pwrite(fd, data + n, bytes - n, (off_t)n) == (ssize_t)(bytes - n));
    }
}

int main(int argc, char **argv)
{
    const bool all = argc > 1 && strcmp(argv[1], "long") == 0;
    const char *base = getenv("TMPDIR");
    az_h5_times times;
    snprintf(path, sizeof path, "%.200s/adze-flip-%ld.h5", base != NULL ? base : "/tmp",
             (long)getpid());
    if (az_comm_create_self(&comm) != AZ_OK ||
        h5_write(path, AZ_F32, 0, H5_ELEMENTS, comm, &times) != AZ_OK ||
        az_file_read(&data, &bytes, path) != AZ_OK || (fd = open(path, O_RDWR)) < 0) {
        fprintf(stderr, "%s\n", az_err_message());
        return 99;
    }
#ifndef __SANITIZE_ADDRESS__
    setrlimit(RLIMIT_AS, &(struct rlimit){SPACE, SPACE});
#endif
    CHECK(!look("nothing", 0));
    flip_bytes(all);
    printf("%zu bytes, %ld changes: %ld are named, %ld are of no use\n", bytes, named + unused - 1,
           named, unused - 1);
    CHECK(named > (all ? 90000 : 3000) && unused < named);
    lose_stretches(all ? 7 : 61);
    cut_lengths(all ? 1 : 61);
    CHECK(!look("nothing", 0));
    close(fd);
    unlink(path);
    az_free(data);
    az_comm_fini(comm);
    return n_failed > 0 || az_mem_get_total().blocks != 0;
}
