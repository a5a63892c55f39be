/* optim: the learning rate as a function of the step. */
#include <config.h>

#include <math.h>

#include "optim/optim.h"

double az_lr_get(const az_lr *lr, int64_t step)
{
    if (step < lr->warmup)
        return lr->peak * (double)step / (double)lr->warmup;
    if (lr->kind == AZ_LR_CONSTANT)
        return lr->peak;
    double span = (double)az_max_i64(lr->total - lr->warmup, 1);
    double done = fmin((double)(step - lr->warmup) / span, 1);
    double factor = lr->kind == AZ_LR_LINEAR ? 1 - done : 0.5 * (1 + cos(M_PI * done));
    return lr->floor + (lr->peak - lr->floor) * factor;
}
