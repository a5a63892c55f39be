/* flip FILE STRIDE FIRST [LIST]: bytes FIRST, FIRST + STRIDE, ... of one of adze's HDF5 files are
 * changed in turn. Either opening and verifying it, as `adze verify` does, fails with a message
 * that names the place (the dataset, where the byte is one of its own), or every dataset, text,
 * table and attribute that a reader can get is what it was: then the byte is not used, and its
 * offset goes into LIST. Says how many of which there were; exit 1 if there was anything else. */
#include <config.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/h5.h"

static az_comm *comm;
static const char *path;
static char *data;
static size_t bytes;
static long n_bad;

static void stop(const char *what)
{
    fprintf(stderr, "flip: %s: %s\n", what, az_err_message());
    exit(99);
}

/* ---- all that a reader can get, as one text of bytes */

/* Groups that may have attributes. */
static const char *const groups[] = {"/",
                                     "/adapter",
                                     "/trainer",
                                     "/base",
                                     "/optimizer",
                                     "/optimizer/exp_avg",
                                     "/optimizer/exp_avg_sq"};

static void add(az_str *out, const void *what, size_t n)
{
    if (az_str_add_bytes(out, what, n) != AZ_OK)
        stop("memory");
}

static void add_text(az_str *out, const char *text)
{
    add(out, text, strlen(text) + 1);
}

static void add_attr(az_str *out, const az_h5_attr *a)
{
    const int type = (int)a->type;
    add_text(out, a->name);
    add(out, &type, sizeof type);
    add(out, &a->i, sizeof a->i);
    add(out, &a->r, sizeof a->r);
    add_text(out, a->type == AZ_H5_STRING ? a->s : "");
}

/* False if an array cannot be read. */
static bool add_dataset(az_str *out, az_h5_reader *r, const az_h5_dataset *d)
{
    const int kind = (int)d->kind, dtype = (int)d->dtype;
    bool good = true;
    add_text(out, d->path);
    add(out, &kind, sizeof kind);
    add(out, &dtype, sizeof dtype);
    add(out, &d->rows, sizeof d->rows);
    add(out, &d->cols, sizeof d->cols);
    if (d->kind == AZ_H5_DATA_TEXT) {
        add_text(out, az_h5_get_text(r, d->path));
    } else if (d->kind == AZ_H5_DATA_TABLE) {
        add(out, az_h5_get_table(r, d->path), (size_t)d->bytes);
    } else {
        const size_t n = (size_t)(d->rows * d->cols);
        float *values = az_alloc(n, sizeof *values, "test");
        if (values == NULL)
            stop("memory");
        good = az_h5_read_array(r, d, values) == AZ_OK;
        add(out, values, n * sizeof *values);
        az_free(values);
    }
    return good;
}

static bool get_content(az_str *out, az_h5_reader *r)
{
    const az_h5_dataset *d;
    const az_h5_attr *a;
    add_text(out, az_h5_get_kind(r));
    for (int i = 0; (d = az_h5_get_dataset(r, i)) != NULL; i++)
        if (!add_dataset(out, r, d))
            return false;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int i = 0; (a = az_h5_get_attr(r, groups[g], i)) != NULL; i++)
            add_attr(out, a);
    return true;
}

/* ---- one byte */

static struct {
    az_str content;
    int *owner; /* [bytes] index of the dataset whose byte it is, -1: none */
    char **paths;
} good;

static void learn(void)
{
    az_h5_reader *r = NULL;
    const az_h5_dataset *d;
    int n = 0;
    if (az_h5_open(&r, path, comm) != AZ_OK || az_h5_verify(r) != AZ_OK ||
        !get_content(&good.content, r) || AZ_NEW(good.owner, bytes, "test") != AZ_OK)
        stop("the file as it is");
    memset(good.owner, -1, bytes * sizeof *good.owner);
    for (; (d = az_h5_get_dataset(r, n)) != NULL; n++) {
        if (AZ_GROW(good.paths, (size_t)n + 1, "test") != AZ_OK ||
            (good.paths[n] = az_strdup(d->path, "test")) == NULL)
            stop("memory");
        for (int64_t i = 0; i < d->bytes; i++)
            good.owner[d->offset + i] = n;
    }
    az_h5_close(r);
}

/* Whether the message names where the damage is. */
static bool is_named(const char *message, size_t at)
{
    if (strncmp(message, path, strlen(path)) != 0)
        return false;
    if (good.owner[at] >= 0) {
        char quoted[400];
        snprintf(quoted, sizeof quoted, "dataset '%.300s': damaged", good.paths[good.owner[at]]);
        const char *found = strstr(message, quoted);
        return found != NULL && strstr(found + 1, "dataset '") == NULL;
    }
    return strstr(message, "'/") != NULL || strstr(message, "structure") != NULL ||
           strstr(message, "not an HDF5 file") != NULL || strstr(message, "superblock") != NULL ||
           strstr(message, "truncated") != NULL;
}

/* Whether the file, with this byte changed, is refused; what is wrong is said and counted. */
static bool look(size_t at)
{
    az_str content = {0};
    az_h5_reader *r = NULL;
    az_err_clear();
    az_err err = az_h5_open(&r, path, comm);
    if (err == AZ_OK)
        err = az_h5_verify(r);
    const bool right = err == AZ_OK ? get_content(&content, r) && content.len == good.content.len &&
                                          memcmp(content.s, good.content.s, content.len) == 0
                                    : err == AZ_EINPUT && is_named(az_err_message(), at);
    if (!right) {
        n_bad++;
        fprintf(stderr, "byte %zu of %zu%s%s: %s\n", at, bytes, good.owner[at] < 0 ? "" : ", of ",
                good.owner[at] < 0 ? "" : good.paths[good.owner[at]],
                err == AZ_OK ? "what is read is not what was written" : az_err_message());
    }
    az_str_fini(&content);
    az_h5_close(r);
    return err != AZ_OK;
}

int main(int argc, char **argv)
{
    long of_data = 0, of_structure = 0, unused = 0;
    if (argc < 4)
        return 99;
    path = argv[1];
    const size_t stride = (size_t)atol(argv[2]);
    FILE *list = argc > 4 ? fopen(argv[4], "w") : NULL;
    int fd = open(path, O_RDWR);
    if (stride == 0 || fd < 0 || az_comm_create_self(&comm) != AZ_OK ||
        az_file_read(&data, &bytes, path) != AZ_OK)
        stop("cannot begin");
    learn();
    for (size_t at = (size_t)atol(argv[3]); at < bytes && n_bad < 20; at += stride) {
        const char c = (char)~data[at];
        if (pwrite(fd, &c, 1, (off_t)at) != 1)
            stop("cannot write");
        const bool refused = look(at);
        if (pwrite(fd, data + at, 1, (off_t)at) != 1)
            stop("cannot write");
        *(!refused ? &unused : good.owner[at] >= 0 ? &of_data : &of_structure) += 1;
        if (!refused && list != NULL)
            fprintf(list, "%zu\n", at);
    }
    if (list != NULL && fclose(list) != 0)
        stop("cannot write the list");
    printf("%zu bytes: %ld named with their dataset, %ld named otherwise, %ld not used\n", bytes,
           of_data, of_structure, unused);
    return n_bad > 0;
}
