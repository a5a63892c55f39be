/* Log: lines of the speaking rank, and the clock. */
#include <config.h>

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static bool speaker = true;

void az_log_set_speaker(bool speaks)
{
    speaker = speaks;
}

bool az_log_is_speaker(void)
{
    return speaker;
}

int az_log_flush(void)
{
    static int first;
    if ((fflush(stdout) != 0 || ferror(stdout)) && first == 0)
        first = errno != 0 ? errno : EIO;
    return first;
}

void az_say(const char *fmt, ...)
{
    if (!speaker)
        return;
    va_list args;
    va_start(args, fmt);
    errno = 0; /* MPI may have switched off buffering, so that this writes */
    vfprintf(stdout, fmt, args);
    va_end(args);
    fputc('\n', stdout);
    az_log_flush();
}

void az_warn(const char *fmt, ...)
{
    if (!speaker)
        return;
    az_log_flush();
    /* In one write: launchers put what comes from stdout between the pieces of a line. */
    char text[4096];
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    if ((size_t)vsnprintf(text, sizeof text, fmt, args) < sizeof text) {
        fprintf(stderr, "adze: warning: %s\n", text);
    } else {
        fputs("adze: warning: ", stderr);
        vfprintf(stderr, fmt, again);
        fputc('\n', stderr);
    }
    va_end(again);
    va_end(args);
}

double az_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
