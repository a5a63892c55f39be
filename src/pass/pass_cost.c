/* pass: floating-point operations, counted from the sizes. */
#include <config.h>

#include "model/block.h"
#include "pass/pass.h"

/* Elements of a layer's linear, in x out. */
static void get_size(int64_t *in, int64_t *out, const az_config *c, int kind)
{
    const int64_t HK = c->H * c->K, GK = c->G * c->K;
    *in = kind == AZ_O ? HK : kind == AZ_DOWN ? c->F : c->D;
    *out = kind == AZ_Q                       ? HK
           : kind == AZ_K || kind == AZ_V     ? GK
           : kind == AZ_GATE || kind == AZ_UP ? c->F
                                              : c->D;
}

az_flops az_flops_of_layer(const az_config *config, const int64_t *R, double keys, bool lowest)
{
    const double attention = (double)config->H * (double)config->K * keys;
    /* Below the lowest adapted linear, and for its own input, nothing is formed. */
    int end = lowest ? AZ_N_INPUTS : -1;
    for (int kind = AZ_N_LINEARS - 1; kind >= 0; kind--)
        if (R[kind] > 0 && az_config_get_input(kind) < end)
            end = az_config_get_input(kind);
    az_flops f = {.forward = 4 * attention};
    if (end < 1)
        f.backward += 10 * attention;
    for (int kind = 0; kind < AZ_N_LINEARS; kind++) {
        int64_t in, out;
        get_size(&in, &out, config, kind);
        const double W = (double)in * (double)out, r = (double)R[kind];
        const double own = 2 * W + 2 * r * (double)(in + out);
        f.forward += own;
        f.recompute[AZ_LEVEL_RECOMPUTE] += kind == AZ_DOWN ? 2 * r * (double)in : own;
        f.backward += 2 * r * (double)(in + 2 * out);
        if (end < az_config_get_input(kind))
            f.backward += 2 * W + 2 * r * (double)in;
    }
    f.recompute[AZ_LEVEL_RECOMPUTE] += 4 * attention;
    return f;
}

az_flops az_flops_of_head(const az_config *config, int n_head)
{
    const double product = 2 * (double)config->D * (double)config->V;
    az_flops f = {.forward = product, .backward = product};
    for (int i = 0; n_head > 1 && i <= AZ_LEVEL_KEEP; i++)
        f.recompute[i] = product;
    return f;
}
