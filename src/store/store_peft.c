/* Parts of a PEFT adapter directory: lists, patterns, the configuration's life, names of tensors.
 */
#include <config.h>

#include "store/peft.h"

#define TENSORS "adapter_model.safetensors"
#define PICKLED "adapter_model.bin"

az_err az_list_add(az_list *list, const char *s)
{
    az_err err;
    AZ_TRY(AZ_GROW(list->items, (size_t)list->n + 1, "adapter config"));
    list->items[list->n] = az_strdup(s, "adapter config");
    AZ_TRY(list->items[list->n] != NULL ? AZ_OK : AZ_EENV);
    list->n++;
out:
    return err;
}

void az_list_fini(az_list *list)
{
    for (int i = 0; i < list->n; i++)
        az_free(list->items[i]);
    az_free(list->items);
    *list = (az_list){0};
}

az_err az_pattern_add(az_pattern *pattern, const char *key, double value)
{
    az_err err;
    const size_t n = (size_t)pattern->n + 1;
    AZ_TRY(AZ_GROW(pattern->keys, n, "adapter config"));
    AZ_TRY(AZ_GROW(pattern->values, n, "adapter config"));
    pattern->keys[pattern->n] = az_strdup(key, "adapter config");
    AZ_TRY(pattern->keys[pattern->n] != NULL ? AZ_OK : AZ_EENV);
    pattern->values[pattern->n++] = value;
out:
    return err;
}

void az_pattern_fini(az_pattern *pattern)
{
    for (int i = 0; i < pattern->n; i++)
        az_free(pattern->keys[i]);
    az_free(pattern->keys);
    az_free(pattern->values);
    *pattern = (az_pattern){0};
}

az_err az_peft_config_init(az_peft_config *config)
{
    *config = (az_peft_config){.r = 8, .lora_alpha = 8};
    config->init_lora_weights = az_strdup("true", "adapter config");
    return config->init_lora_weights != NULL ? AZ_OK : AZ_EENV;
}

void az_peft_config_fini(az_peft_config *config)
{
    az_list_fini(&config->target_modules);
    az_list_fini(&config->exclude_modules);
    az_list_fini(&config->layers_pattern);
    az_pattern_fini(&config->rank_pattern);
    az_pattern_fini(&config->alpha_pattern);
    az_free(config->target_regex);
    az_free(config->exclude_regex);
    az_free(config->layers_to_transform);
    az_free(config->init_lora_weights);
    az_free(config->base_model_name_or_path);
    *config = (az_peft_config){0};
}

az_err az_peft_open_tensors(az_tensor_set *set, const char *dir)
{
    az_err err;
    char *path = az_path_join(dir, TENSORS), *pickled = az_path_join(dir, PICKLED);
    *set = (az_tensor_set){0};
    AZ_TRY(path != NULL && pickled != NULL ? AZ_OK : AZ_EENV);
    if (!az_file_exists(path) && az_file_exists(pickled))
        err = az_fail(AZ_EINPUT,
                      "%s: only " PICKLED " was found, a pickled PyTorch file; save the adapter "
                      "again with a current PEFT, which writes " TENSORS,
                      dir);
    else
        err = az_store_open_file(set, path);
out:
    az_free(path);
    az_free(pickled);
    return err;
}

char *az_peft_key(const char *module, char which)
{
    az_str s = {0};
    if (az_str_add(&s, "base_model.model.%s.lora_%c.weight", module, which) != AZ_OK)
        az_str_fini(&s);
    return s.s;
}
