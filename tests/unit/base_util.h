/* What the tests of base share: standard output or error into a string, a temporary directory. */
#ifndef AZ_TESTS_BASE_UTIL_H
#define AZ_TESTS_BASE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"

typedef struct {
    FILE *file;
    int fd, saved;
} capture;

static inline capture capture_begin(int fd)
{
    capture c = {tmpfile(), fd, dup(fd)};
    fflush(NULL);
    assert_non_null(c.file);
    assert_true(c.saved >= 0 && dup2(fileno(c.file), fd) >= 0);
    return c;
}

/* What was written since, in text[size]. */
static inline void capture_end(capture *c, char *text, size_t size)
{
    fflush(NULL);
    assert_true(dup2(c->saved, c->fd) >= 0);
    close(c->saved);
    rewind(c->file);
    text[fread(text, 1, size - 1, c->file)] = '\0';
    fclose(c->file);
}

static inline int clear_error(void **state)
{
    (void)state;
    az_err_clear();
    return 0;
}

#endif
