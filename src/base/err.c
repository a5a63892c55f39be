/* Errors: the one message of this process. */
#include <config.h>

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[AZ_ERR_MAX];

az_err az_fail(az_err code, const char *fmt, ...)
{
    if (message[0] == '\0') {
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(message, sizeof message, fmt, args);
        va_end(args);
        if (n >= (int)sizeof message)
            memcpy(message + sizeof message - 4, "...", 4);
    }
    return code;
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
