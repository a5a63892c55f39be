/* PEFT adapter directories: adapter_config.json and adapter_model.safetensors. Facts of the format:
 * PEFT 0.17 to 0.21. Local. */
#ifndef AZ_STORE_PEFT_H
#define AZ_STORE_PEFT_H

#include "base/base.h"
#include "store/safetensors.h"

/* Strings owned by the struct. */
typedef struct {
    char **items;
    int n;
} az_list;
az_err az_list_add(az_list *list, const char *s);
void az_list_fini(az_list *list);

/* Keys with numbers, in file order: rank_pattern, alpha_pattern. */
typedef struct {
    char **keys;
    double *values;
    int n;
} az_pattern;
az_err az_pattern_add(az_pattern *pattern, const char *key, double value);
void az_pattern_fini(az_pattern *pattern);

/* What PEFT's LoraConfig says of a plain LoRA adapter. Names as in PEFT. */
typedef struct {
    int64_t r;
    double lora_alpha;
    double lora_dropout;
    bool use_rslora;
    /* One of two: a list (equality or suffix), or one string (Python re.fullmatch, or
     * "all-linear"). */
    az_list target_modules;
    char *target_regex;
    az_list exclude_modules;
    char *exclude_regex;
    int64_t *layers_to_transform; /* NULL: all */
    int n_layers_to_transform;
    az_list layers_pattern;
    az_pattern rank_pattern, alpha_pattern;
    char *init_lora_weights; /* "true", "false", "gaussian" */
    char *base_model_name_or_path;
} az_peft_config;

/* Defaults of PEFT: r 8, lora_alpha 8. */
az_err az_peft_config_init(az_peft_config *config);
void az_peft_config_fini(az_peft_config *config);
/* Read DIR/adapter_config.json. Keys that change the arithmetic in a way adze does not have
 * (use_dora, lora_bias, modules_to_save, ...) are refused by name when they are set; unknown
 * harmless ones are ignored. */
az_err az_peft_read_config(az_peft_config *config, const char *dir);
/* Write DIR/adapter_config.json as PEFT does (sorted keys, indent 2, inference_mode true, task_type
 * CAUSAL_LM). */
az_err az_peft_write_config(const char *dir, const az_peft_config *config);
/* Open DIR/adapter_model.safetensors; a directory that has only adapter_model.bin is refused with
 * the way out. */
az_err az_peft_open_tensors(az_tensor_set *set, const char *dir);
/* "base_model.model.<module>.lora_A.weight" (which = 'A' or 'B'). Free with az_free. */
char *az_peft_key(const char *module, char which);

#endif
