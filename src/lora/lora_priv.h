/* lora, inside: which modules a config selects. */
#ifndef AZ_LORA_PRIV_H
#define AZ_LORA_PRIV_H

#include "lora/lora.h"

/* What a config says of one linear. */
typedef struct {
    bool adapted;
    double r, alpha;
} az_choice;

/* choices[n] for the linears. Entries of the config that match nothing are faults. opt_default: the
 * family's targets for a config without. Local. */
az_err az_lora_match(az_choice *choices, const az_peft_config *config, const az_linear *linears,
                     int n, const char *opt_default);
/* The last segment of a module's path. */
const char *az_lora_short_name(const char *path);

#endif
