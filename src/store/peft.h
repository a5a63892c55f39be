/* PEFT adapter directories: adapter_config.json and adapter_model.safetensors. Facts of the format:
 * PEFT 0.17 to 0.21. Local. */
#ifndef AZ_STORE_PEFT_H
#define AZ_STORE_PEFT_H

#include "base/base.h"
#include "store/h5.h"
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
/* The same of the text of such a file; where: what messages call it. */
az_err az_peft_parse_config(az_peft_config *config, const char *text, const char *where);
/* The same of /adapter_config in a checkpoint or adapter.h5 that is open; path: its name. */
az_err az_peft_read_h5_config(az_peft_config *config, const az_h5_reader *file, const char *path);
/* Append the text of adapter_config.json as PEFT writes it (sorted keys, indent 2, inference_mode
 * true, task_type CAUSAL_LM). */
az_err az_peft_add_config(az_str *out, const az_peft_config *config);
/* Open DIR/adapter_model.safetensors; a directory that has only adapter_model.bin is refused with
 * the way out. */
az_err az_peft_open_tensors(az_tensor_set *set, const char *dir);
/* "base_model.model.<module>.lora_A.weight" (which = 'A' or 'B'). Free with az_free. */
char *az_peft_key(const char *module, char which);

/* What is written: values [rows, cols]. */
typedef struct {
    const char *name;
    int64_t rows, cols;
    const float *values;
} az_peft_tensor;
/* What else the new files must pass before they take their place in dir. */
typedef az_err az_peft_check(const char *dir, void *context);
/* Write DIR/adapter_config.json (these bytes) and DIR/adapter_model.safetensors (as dtype: AZ_F32,
 * or rounded to AZ_BF16); DIR is made if it is not there. Both are written beside, read back and
 * compared, and only then take their place: after a failure DIR is as it was, and no other file of
 * it is touched. Numbers that are not finite, as dtype, are refused. */
az_err az_peft_write(const char *dir, const char *config_text, const az_peft_tensor *tensors, int n,
                     az_dtype dtype, az_peft_check *opt_check, void *context);
/* Whether az_peft_write will find a place for bytes bytes in dir, as far as can be known. */
az_err az_peft_check_place(const char *dir, int64_t bytes);

#endif
