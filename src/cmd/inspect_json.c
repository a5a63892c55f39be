/* inspect for programs: one JSON object. */
#include <config.h>

#include "cmd/inspect.h"
#include "store/json.h"

static const char *bool_text(bool b)
{
    return b ? "true" : "false";
}

static az_err add_tensors(az_str *out, const az_inspection *found)
{
    az_err err;
    AZ_TRY(az_str_add(out, ",\n  \"tensors\": ["));
    for (int64_t i = 0; i < found->set.n_tensors; i++) {
        const az_tensor *t = found->order[i];
        AZ_TRY(az_str_add(out, "%s\n    {\"name\": ", i > 0 ? "," : ""));
        AZ_TRY(az_json_add_text(out, t->name));
        AZ_TRY(az_str_add(out, ", \"dtype\": \"%s\", \"shape\": ", t->dtype_name));
        AZ_TRY(az_store_add_shape(out, t));
        AZ_TRY(az_str_add(out, ", \"bytes\": %lld, \"offset\": %lld, \"file\": %d, \"tied\": %s}",
                          (long long)t->bytes, (long long)t->offset, t->file, bool_text(t->alias)));
    }
    AZ_TRY(az_str_add(out, "%s]", found->set.n_tensors > 0 ? "\n  " : ""));
out:
    return err;
}

static az_err add_totals(az_str *out, const az_inspection *found)
{
    az_err err;
    AZ_TRY(az_str_add(out, ",\n  \"totals\": ["));
    for (int i = 0; i < found->n_totals; i++) {
        const az_dtype_total *x = &found->totals[i];
        AZ_TRY(az_str_add(out,
                          "%s\n    {\"dtype\": \"%s\", \"tensors\": %lld, \"elements\": %lld, "
                          "\"bytes\": %lld}",
                          i > 0 ? "," : "", x->dtype_name, (long long)x->n_tensors,
                          (long long)x->elements, (long long)x->bytes));
    }
    AZ_TRY(az_str_add(out, "%s]", found->n_totals > 0 ? "\n  " : ""));
out:
    return err;
}

static az_err add_config(az_str *out, const az_config *c)
{
    az_err err;
    AZ_TRY(az_str_add(out,
                      ",\n  \"model\": {\"model_type\": \"%s\", \"parameters\": %lld, "
                      "\"hidden_size\": %lld, \"intermediate_size\": %lld, \"vocab_size\": %lld, "
                      "\"num_hidden_layers\": %lld, \"num_attention_heads\": %d, "
                      "\"num_key_value_heads\": %d, \"head_dim\": %lld, ",
                      c->model_type, (long long)az_config_count(c), (long long)c->D,
                      (long long)c->F, (long long)c->V, (long long)c->L, c->H, c->G,
                      (long long)c->K));
    AZ_TRY(az_str_add(
        out, "\"max_position_embeddings\": %lld, \"rms_norm_eps\": ", (long long)c->max_position));
    AZ_TRY(az_json_add_real(out, c->norm_eps));
    AZ_TRY(az_str_add(out, ", \"rope_type\": \"%s\", \"rope_theta\": ", az_config_rope_name(c)));
    AZ_TRY(az_json_add_real(out, c->rope_theta));
    AZ_TRY(az_str_add(out,
                      ", \"tie_word_embeddings\": %s, \"attention_bias\": %s, \"mlp_bias\": %s, "
                      "\"eos_token_id\": [",
                      bool_text(c->tied), bool_text(c->attention_bias), bool_text(c->mlp_bias)));
    for (int i = 0; i < c->n_eos; i++)
        AZ_TRY(az_str_add(out, "%s%d", i > 0 ? ", " : "", (int)c->eos[i]));
    AZ_TRY(c->bos >= 0 ? az_str_add(out, "], \"bos_token_id\": %d}", (int)c->bos)
                       : az_str_add(out, "], \"bos_token_id\": null}"));
out:
    return err;
}

static az_err add_names(az_str *out, const az_list *list, const char *opt_regex)
{
    az_err err;
    if (list->n == 0)
        return az_json_add_text(out, opt_regex);
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < list->n; i++) {
        AZ_TRY(az_str_add(out, "%s", i > 0 ? ", " : ""));
        AZ_TRY(az_json_add_text(out, list->items[i]));
    }
    AZ_TRY(az_str_add(out, "]"));
out:
    return err;
}

static az_err add_peft(az_str *out, const az_peft_config *c)
{
    az_err err;
    AZ_TRY(az_str_add(out, ",\n  \"adapter\": {\"r\": %lld, \"lora_alpha\": ", (long long)c->r));
    AZ_TRY(az_json_add_real(out, c->lora_alpha));
    AZ_TRY(az_str_add(out, ", \"lora_dropout\": "));
    AZ_TRY(az_json_add_real(out, c->lora_dropout));
    AZ_TRY(az_str_add(out, ", \"use_rslora\": %s, \"target_modules\": ", bool_text(c->use_rslora)));
    AZ_TRY(add_names(out, &c->target_modules, c->target_regex));
    AZ_TRY(az_str_add(out, ", \"exclude_modules\": "));
    AZ_TRY(add_names(out, &c->exclude_modules, c->exclude_regex));
    AZ_TRY(az_str_add(out, ", \"base_model_name_or_path\": "));
    AZ_TRY(az_json_add_text(out, c->base_model_name_or_path));
    AZ_TRY(az_str_add(out, "}"));
out:
    return err;
}

az_err az_inspect_add_json(az_str *out, const az_inspection *found)
{
    az_err err;
    const az_tensor_set *set = &found->set;
    AZ_TRY(az_str_add(out, "{\n  \"path\": "));
    AZ_TRY(az_json_add_text(out, found->path));
    AZ_TRY(az_str_add(out, ",\n  \"kind\": \"%s\",\n  \"files\": [", found->kind));
    for (int i = 0; i < set->n_files; i++) {
        AZ_TRY(az_str_add(out, "%s", i > 0 ? ", " : ""));
        AZ_TRY(az_json_add_text(out, set->files[i]));
    }
    AZ_TRY(az_str_add(out, "],\n  \"metadata\": %s,\n  \"unusable\": ",
                      set->metadata != NULL ? set->metadata : "null"));
    AZ_TRY(az_json_add_text(out, found->note.s));
    if (found->has_config)
        AZ_TRY(add_config(out, &found->config));
    if (found->has_peft)
        AZ_TRY(add_peft(out, &found->peft));
    if (found->h5 != NULL)
        AZ_TRY(az_inspect_add_h5_json(out, found));
    AZ_TRY(add_tensors(out, found));
    AZ_TRY(add_totals(out, found));
    AZ_TRY(az_str_add(out, "\n}\n"));
out:
    return err;
}
