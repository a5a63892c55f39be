/* adapter_config.json written in PEFT's form: keys sorted, indent of 2, the keys that every PEFT
 * from 0.14 on knows, so that none warns. Patterns keep their order: the first match wins, so
 * sorting them, as PEFT does, could change what the file means. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "store/json.h"
#include "store/peft.h"

/* An integer has no point if as_int, else ".0". */
static az_err add_number(az_str *out, double v, bool as_int)
{
    if (!isfinite(v))
        return az_fail(AZ_EINPUT, "adapter config: a number is not finite");
    if (v == floor(v) && fabs(v) < 1e15)
        return az_str_add(out, as_int ? "%.0f" : "%.1f", v);
    return az_str_add_real(out, v);
}

/* A list, else the text, else null. */
static az_err add_names(az_str *out, const az_list *list, const char *opt_text)
{
    az_err err;
    if (list->n == 0)
        return az_json_add_text(out, opt_text);
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < list->n; i++) {
        AZ_TRY(az_str_add(out, "%s\n    ", i > 0 ? "," : ""));
        AZ_TRY(az_json_add_text(out, list->items[i]));
    }
    AZ_TRY(az_str_add(out, "\n  ]"));
out:
    return err;
}

static az_err add_layers(az_str *out, const az_peft_config *c)
{
    az_err err;
    if (c->layers_to_transform == NULL)
        return az_str_add(out, "null");
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < c->n_layers_to_transform; i++)
        AZ_TRY(az_str_add(out, "%s\n    %lld", i > 0 ? "," : "",
                          (long long)c->layers_to_transform[i]));
    AZ_TRY(az_str_add(out, "\n  ]"));
out:
    return err;
}

static az_err add_pattern(az_str *out, const az_pattern *pattern)
{
    az_err err;
    AZ_TRY(az_str_add(out, "{"));
    for (int i = 0; i < pattern->n; i++) {
        AZ_TRY(az_str_add(out, "%s\n    ", i > 0 ? "," : ""));
        AZ_TRY(az_json_add_text(out, pattern->keys[i]));
        AZ_TRY(az_str_add(out, ": "));
        AZ_TRY(add_number(out, pattern->values[i], true));
    }
    AZ_TRY(az_str_add(out, pattern->n > 0 ? "\n  }" : "}"));
out:
    return err;
}

static az_err add_init(az_str *out, const az_peft_config *c)
{
    const char *s = c->init_lora_weights != NULL ? c->init_lora_weights : "true";
    if (strcmp(s, "true") == 0 || strcmp(s, "false") == 0)
        return az_str_add(out, "%s", s);
    return az_json_add_text(out, s);
}

az_err az_peft_add_config(az_str *out, const az_peft_config *c)
{
    az_err err;
    AZ_TRY(az_str_add(out, "{\n  \"alpha_pattern\": "));
    AZ_TRY(add_pattern(out, &c->alpha_pattern));
    AZ_TRY(az_str_add(out, ",\n  \"auto_mapping\": null,\n  \"base_model_name_or_path\": "));
    AZ_TRY(az_json_add_text(out, c->base_model_name_or_path));
    AZ_TRY(az_str_add(out, ",\n  \"bias\": \"none\",\n  \"exclude_modules\": "));
    AZ_TRY(add_names(out, &c->exclude_modules, c->exclude_regex));
    AZ_TRY(az_str_add(out, ",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true"
                           ",\n  \"init_lora_weights\": "));
    AZ_TRY(add_init(out, c));
    AZ_TRY(az_str_add(out, ",\n  \"layer_replication\": null,\n  \"layers_pattern\": "));
    AZ_TRY(add_names(out, &c->layers_pattern, NULL));
    AZ_TRY(az_str_add(out, ",\n  \"layers_to_transform\": "));
    AZ_TRY(add_layers(out, c));
    AZ_TRY(az_str_add(out, ",\n  \"loftq_config\": {},\n  \"lora_alpha\": "));
    AZ_TRY(add_number(out, c->lora_alpha, true));
    AZ_TRY(az_str_add(out, ",\n  \"lora_bias\": false,\n  \"lora_dropout\": "));
    AZ_TRY(add_number(out, c->lora_dropout, false));
    AZ_TRY(az_str_add(out,
                      ",\n  \"megatron_config\": null,\n  \"megatron_core\": \"megatron.core\""
                      ",\n  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\""
                      ",\n  \"r\": %lld,\n  \"rank_pattern\": ",
                      (long long)c->r));
    AZ_TRY(add_pattern(out, &c->rank_pattern));
    AZ_TRY(az_str_add(out, ",\n  \"revision\": null,\n  \"target_modules\": "));
    AZ_TRY(add_names(out, &c->target_modules, c->target_regex));
    AZ_TRY(az_str_add(out,
                      ",\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false"
                      ",\n  \"use_rslora\": %s\n}\n",
                      c->use_rslora ? "true" : "false"));
out:
    return err;
}
