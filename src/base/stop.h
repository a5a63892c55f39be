/* Stop: whether this process was asked to end early, by a signal or by the end of its time. Local;
 * ranks agree through az_comm_poll (comm/comm.h). */
#ifndef AZ_BASE_STOP_H
#define AZ_BASE_STOP_H

#include "base/err.h"

/* Why: bits, so that reasons of several ranks can be put together. */
enum { AZ_STOP_USR1 = 1, AZ_STOP_TERM = 2, AZ_STOP_TIME = 4 };

/* From now on SIGUSR1 and SIGTERM are noted instead of ending the process. */
void az_stop_install(void);
/* Note AZ_STOP_TIME when az_now() reaches this; INFINITY: never. */
void az_stop_set_time(double when);
/* Reasons so far, 0 for none. */
unsigned az_stop_get(void);
/* "SIGUSR1", "SIGTERM", "the end of the allocation": the first of the reasons. */
const char *az_stop_name(unsigned reasons);
/* AZ_OK, or AZ_ESTOP after az_fail if this process was asked to stop: for work that one rank does
 * alone. */
az_err az_stop_check(void);

#endif
