/* watch: a thread that calls a function every so many seconds. */
#include <config.h>

#include "comm/watch_priv.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static struct timespec timespec_of(double seconds)
{
    return (struct timespec){.tv_sec = (time_t)seconds,
                             .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
}

/* Whether it is to end. The lock is not held during the call, so that a call which hangs is not
 * waited for but by az_beat_stop. */
static bool wait_until(az_beat *beat, double due)
{
    const struct timespec at = timespec_of(due);
    bool stop;
    pthread_mutex_lock(&beat->lock);
    while (!beat->stop && pthread_cond_timedwait(&beat->wake, &beat->lock, &at) == 0)
        ;
    stop = beat->stop;
    pthread_mutex_unlock(&beat->lock);
    return stop;
}

static void *run(void *context)
{
    az_beat *beat = context;
    for (;;) {
        if (wait_until(beat, az_now() + beat->period))
            return NULL;
        beat->call(beat->context);
    }
}

az_err az_beat_start(az_beat *beat, double period, void (*call)(void *context), void *context)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    *beat = (az_beat){.call = call, .context = context, .period = period};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&beat->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&beat->lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int e = pthread_create(&beat->thread, NULL, run, beat);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    beat->running = e == 0;
    if (e == 0)
        return AZ_OK;
    pthread_cond_destroy(&beat->wake);
    pthread_mutex_destroy(&beat->lock);
    return az_fail(AZ_EENV, "cannot start the watchdog's thread: %s", strerror(e));
}

void az_beat_stop(az_beat *beat)
{
    if (!beat->running)
        return;
    pthread_mutex_lock(&beat->lock);
    beat->stop = true;
    pthread_cond_signal(&beat->wake);
    pthread_mutex_unlock(&beat->lock);
    pthread_join(beat->thread, NULL);
    pthread_cond_destroy(&beat->wake);
    pthread_mutex_destroy(&beat->lock);
    beat->running = false;
}
