/* pass: where the time goes.
 *
 * On the CPU things are done when a call returns, and the host's clock tells. A GPU does them
 * later: events in its compute queue tell when, and are read when it has come past them: those of
 * the pass before at the latest when its result was waited for. */
#include <config.h>

#include "pass/pass_priv.h"

az_err az_pass_create_laps(az_pass *pass)
{
    az_err err;
    az_dev *dev = pass->m.kern->dev;
    AZ_TRY(az_dev_create_event(&pass->fetched, dev));
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < AZ_N_LAPS; i++)
            AZ_TRY(az_dev_create_event(&pass->laps[t][i], dev));
out:
    return err;
}

void az_pass_destroy_laps(az_pass *pass)
{
    az_dev *dev = pass->m.kern->dev;
    az_dev_destroy_event(dev, pass->fetched);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < AZ_N_LAPS; i++)
            az_dev_destroy_event(dev, pass->laps[t][i]);
}

static double *counter_of(az_pass *p, int lap)
{
    return lap == AZ_LAP_FORWARD ? &p->times.forward
           : lap == AZ_LAP_HEAD  ? &p->times.head
                                 : &p->times.backward;
}

/* Add the times of a pass that the GPU is done with. */
static void collect(az_pass *p, int turn)
{
    az_dev *dev = p->m.kern->dev;
    bool *lapped = p->lapped[turn];
    az_event **laps = p->laps[turn];
    double all = 0;
    int last = AZ_N_LAPS - 1;
    while (last > 0 && !lapped[last])
        last--;
    if (!lapped[AZ_LAP_BEGIN] || !az_dev_is_done(dev, laps[last]))
        return;
    for (int i = 1, before = AZ_LAP_BEGIN; i <= last; i++)
        if (lapped[i]) {
            const double s = az_dev_get_seconds(dev, laps[before], laps[i]);
            *counter_of(p, i) += s;
            all += s;
            before = i;
        }
    p->times.longest_unit = all > p->times.longest_unit ? all : p->times.longest_unit;
    for (int i = 0; i < AZ_N_LAPS; i++)
        lapped[i] = false;
}

static void record(az_pass *p, az_lap lap)
{
    az_dev_record(p->m.kern->dev, p->laps[p->turn][lap], AZ_QUEUE_COMPUTE);
    p->lapped[p->turn][lap] = true;
}

void az_pass_begin_laps(az_pass *pass)
{
    pass->now.mark = az_now();
    if (!pass->numeric.gpu)
        return;
    pass->turn = !pass->turn;
    collect(pass, pass->turn);
    record(pass, AZ_LAP_BEGIN);
}

/* Less what gathers in between took. */
void az_pass_end_lap(az_pass *pass, az_lap lap, bool recompute)
{
    const double now = az_now();
    const double gather =
        az_shard_get_stats(pass->m.shard).waited_s + az_params_get_waited(pass->m.params);
    if (pass->numeric.gpu)
        record(pass, lap);
    else
        *(recompute ? &pass->times.recompute : counter_of(pass, lap)) +=
            now - pass->now.mark - (gather - pass->times.gather);
    pass->times.gather = gather;
    pass->now.mark = now;
}

az_pass_times az_pass_get_times(az_pass *pass)
{
    if (pass->numeric.gpu)
        for (int t = 0; t < 2; t++)
            collect(pass, t);
    return pass->times;
}
