/* Stop: signals and the end of the time. */
#include <config.h>

#include "base/stop.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"

static volatile sig_atomic_t usr1, term;
static double end = INFINITY;

static void note(int signal_number)
{
    if (signal_number == SIGUSR1)
        usr1 = 1;
    else
        term = 1;
}

void az_stop_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    action.sa_flags = SA_RESTART; /* a system call that is interrupted goes on */
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void az_stop_set_time(double when)
{
    end = when;
}

unsigned az_stop_get(void)
{
    unsigned reasons = 0;
    if (usr1)
        reasons |= AZ_STOP_USR1;
    if (term)
        reasons |= AZ_STOP_TERM;
    if (end < INFINITY && az_now() >= end)
        reasons |= AZ_STOP_TIME;
    return reasons;
}

const char *az_stop_name(unsigned reasons)
{
    return (reasons & AZ_STOP_USR1) != 0   ? "SIGUSR1"
           : (reasons & AZ_STOP_TERM) != 0 ? "SIGTERM"
                                           : "the end of the allocation";
}

az_err az_stop_check(void)
{
    const unsigned reasons = az_stop_get();
    return reasons == 0 ? AZ_OK : az_fail(AZ_ESTOP, "stopped by %s", az_stop_name(reasons));
}
