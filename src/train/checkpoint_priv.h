/* train/checkpoint, inside: what writing and reading must name and reckon alike. Local. */
#ifndef AZ_TRAIN_CHECKPOINT_PRIV_H
#define AZ_TRAIN_CHECKPOINT_PRIV_H

#include "train/checkpoint.h"

#define AZ_EXP_AVG "/optimizer/exp_avg"
#define AZ_EXP_AVG_SQ "/optimizer/exp_avg_sq"

/* Hexadecimal, as text: attributes are for people. */
typedef struct {
    char s[20];
} az_hex;
az_hex az_checkpoint_hex(uint64_t v);
/* Which modules are adapted, with which ranks, scales and dropout: what a deck with lora.init_from
 * does not say. */
uint64_t az_checkpoint_hash_adapter(const az_lora *lora);
/* Which kind of CPU, static; "unknown" where the system does not say. */
const char *az_checkpoint_get_cpu(void);

#endif
