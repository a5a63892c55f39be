/* Errors: the one message of this process. */
#include <config.h>

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[AZ_ERR_MAX];

/* The end of a message of n bytes, if they were too many. */
static void mark_cut(size_t n)
{
    if (n >= sizeof message)
        memcpy(message + sizeof message - 4, "...", 4);
}

/* Names from files and command lines must not steer the terminal. */
static void mask_controls(void)
{
    for (unsigned char *c = (unsigned char *)message; *c != '\0'; c++)
        if ((*c < 0x20 && *c != '\n') || *c == 0x7f)
            *c = '?';
}

az_err az_fail(az_err code, const char *fmt, ...)
{
    if (message[0] == '\0') {
        va_list args;
        va_start(args, fmt);
        mark_cut((size_t)vsnprintf(message, sizeof message, fmt, args));
        va_end(args);
        mask_controls();
    }
    return code;
}

az_err az_err_place(az_err err, const char *where)
{
    const size_t n = strlen(where) + 2, len = strlen(message);
    if (err != AZ_EINPUT || n >= sizeof message)
        return err;
    const size_t kept = len < sizeof message - n ? len : sizeof message - n - 1;
    memmove(message + n, message, kept);
    memcpy(message, where, n - 2);
    memcpy(message + n - 2, ": ", 2);
    message[n + kept] = '\0';
    mask_controls();
    mark_cut(n + len);
    return err;
}

const char *az_err_message(void)
{
    return message;
}

void az_err_clear(void)
{
    message[0] = '\0';
}

void az_bug(const char *file, int line, const char *what)
{
    fprintf(stderr, "adze: bug at %s:%d: %s does not hold; please report it\n", file, line, what);
    abort();
}
