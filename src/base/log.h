/* Log: what a run says. Only the speaking rank prints, so nothing appears once per rank. Local. */
#ifndef AZ_BASE_LOG_H
#define AZ_BASE_LOG_H

#include <stdbool.h>

/* Whether this process prints; true until told otherwise. */
void az_log_set_speaker(bool speaks);
bool az_log_is_speaker(void);
/* A line on standard output, flushed; the newline is added. */
void az_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A line "adze: warning: ..." on standard error. */
void az_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Flush standard output. 0, or the errno of the first flush that failed. */
int az_log_flush(void);
/* Seconds on a monotonic clock. */
double az_now(void);

#endif
