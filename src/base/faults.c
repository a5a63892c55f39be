/* Faults: a list of messages that becomes one. */
#include <config.h>

#include "base/faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LINE 1024

static az_err add_line(az_faults *faults, char *line)
{
    faults->n++;
    if (faults->n > AZ_FAULTS_MAX)
        return AZ_OK;
    for (unsigned char *c = (unsigned char *)line; *c != '\0'; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
    return az_str_add(&faults->text, "%s%s", faults->n > 1 ? "\n  " : "", line);
}

az_err az_faults_add(az_faults *faults, const char *fmt, ...)
{
    char line[LINE];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n >= (int)sizeof line)
        memcpy(line + sizeof line - 4, "...", 4);
    return add_line(faults, line);
}

az_err az_faults_take(az_faults *faults, az_err err, const char *where)
{
    if (err != AZ_EINPUT)
        return err;
    const char *message = az_err_message();
    size_t n = strlen(where);
    if (strncmp(message, where, n) == 0 && strncmp(message + n, ": ", 2) == 0)
        message += n + 2;
    char line[LINE];
    snprintf(line, sizeof line, "%s", message);
    az_err_clear();
    return add_line(faults, line);
}

az_err az_faults_report(const az_faults *faults, const char *where)
{
    if (faults->n == 0)
        return AZ_OK;
    if (faults->n == 1)
        return az_fail(AZ_EINPUT, "%s: %s", where, faults->text.s);
    char more[48] = "";
    if (faults->n > AZ_FAULTS_MAX)
        snprintf(more, sizeof more, "\n  and %lld more", (long long)(faults->n - AZ_FAULTS_MAX));
    return az_fail(AZ_EINPUT, "%s: %lld faults:\n  %s%s", where, (long long)faults->n,
                   faults->text.s, more);
}

void az_faults_fini(az_faults *faults)
{
    az_str_fini(&faults->text);
    faults->n = 0;
}
