/* What the tests of files share: a directory of their own, files made from text, messages looked
 * at, and every allocation made to fail in turn. */
#ifndef AZ_TESTS_STORE_UTIL_H
#define AZ_TESTS_STORE_UTIL_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"

static char tmp_dir[256];

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline int make_tmp_dir(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "%.200s/adze-test-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(tmp_dir) == NULL;
}

static inline int remove_tmp_dir(void **state)
{
    (void)state;
    return nftw(tmp_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of a name in the directory, in one of eight static buffers. */
static inline const char *tmp_path(const char *name)
{
    static char paths[8][512];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", tmp_dir, name);
    return paths[turn];
}

/* An empty directory of this name. */
static inline const char *fresh_dir(const char *name)
{
    const char *path = tmp_path(name);
    if (az_dir_exists(path))
        assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(az_dir_create(path), AZ_OK);
    return path;
}

static inline void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

/* A safetensors file with this header and data bytes 0, 1, 2, ... */
static inline void put_safetensors(const char *path, const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);
    unsigned char *all = malloc(8 + n + data_bytes);
    assert_non_null(all);
    memcpy(all, &n, 8);
    memcpy(all + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        all[8 + n + i] = (unsigned char)i;
    put_file(path, all, 8 + n + data_bytes);
    free(all);
}

/* The call failed with this code and said this. The message is forgotten. */
static inline void expect_failure(az_err err, az_err code, const char *part)
{
    if (err != code || strstr(az_err_message(), part) == NULL)
        fail_msg("code %d, message \"%s\"; expected %d, \"...%s...\"", err, az_err_message(), code,
                 part);
    az_err_clear();
}

/* Make the n-th allocation of call fail for n = 0, 1, ... until it succeeds: always AZ_EENV,
 * nothing left behind. call cleans up after a success. */
static inline void try_all_allocations(az_err (*call)(void *), void *context)
{
    size_t blocks = az_mem_get_total().blocks;
    for (long n = 0;; n++) {
        az_mem_set_fault(n);
        az_err err = call(context);
        az_mem_set_fault(-1);
        assert_int_equal(az_mem_get_total().blocks, blocks);
        if (err == AZ_OK) {
            assert_true(n > 0);
            return;
        }
        if (err != AZ_EENV || strstr(az_err_message(), "out of memory") == NULL)
            fail_msg("allocation %ld: code %d, message \"%s\"", n, err, az_err_message());
        az_err_clear();
    }
}

#endif
