/* optim: how long steps take, by the clock of what does them.
 *
 * On the CPU that is the host's clock. A GPU's step begins when the passes before it have ended,
 * not when the host asks for it, and ends when its update has; so events in the compute queue tell,
 * as they do for passes (pass_time.c), and no time is counted for both. They are read a step or
 * two later, without a wait. */
#include <config.h>

#include "optim/optim_priv.h"

az_err az_optim_create_times(az_optim *o)
{
    az_err err = AZ_OK;
    if (!o->kern->numeric.gpu)
        return AZ_OK;
    for (int t = 0; t < 2; t++) {
        AZ_TRY(az_dev_create_event(&o->begun[t], o->kern->dev));
        AZ_TRY(az_dev_create_event(&o->ended[t], o->kern->dev));
    }
out:
    return err;
}

void az_optim_destroy_times(az_optim *o)
{
    for (int t = 0; t < 2 && o->kern->numeric.gpu; t++) {
        az_dev_destroy_event(o->kern->dev, o->begun[t]);
        az_dev_destroy_event(o->kern->dev, o->ended[t]);
    }
}

static void collect(az_optim *o, int turn)
{
    az_dev *dev = o->kern->dev;
    if (!o->timed[turn] || !az_dev_is_done(dev, o->ended[turn]))
        return;
    o->seconds += az_dev_get_seconds(dev, o->begun[turn], o->ended[turn]);
    o->timed[turn] = false;
}

void az_optim_begin_time(az_optim *o)
{
    if (!o->kern->numeric.gpu) {
        o->seconds -= az_now();
        return;
    }
    o->time_turn = !o->time_turn;
    collect(o, o->time_turn);
    az_dev_record(o->kern->dev, o->begun[o->time_turn], AZ_QUEUE_COMPUTE);
}

void az_optim_end_time(az_optim *o)
{
    if (!o->kern->numeric.gpu) {
        o->seconds += az_now();
        return;
    }
    az_dev_record(o->kern->dev, o->ended[o->time_turn], AZ_QUEUE_COMPUTE);
    o->timed[o->time_turn] = true;
}

double az_optim_get_seconds(az_optim *o)
{
    for (int t = 0; t < 2 && o->kern->numeric.gpu; t++)
        collect(o, t);
    return o->seconds;
}
