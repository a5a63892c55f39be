/* inspect for people: what it is, then one line a tensor, then sums. */
#include <config.h>

#include <math.h>
#include <stdio.h>

#include "cmd/inspect.h"
#include "store/json.h"

az_err az_inspect_add_clean(az_str *out, const char *s)
{
    for (const unsigned char *c = (const unsigned char *)s; *c != '\0'; c++)
        if (*c < 0x20 || *c == 0x7f)
            return az_json_quote(out, s, strlen(s));
    return az_str_add(out, "%s", s);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static az_err add_tensors(az_str *out, const az_inspection *found)
{
    az_err err = AZ_OK;
    const az_tensor_set *set = &found->set;
    az_str shape = {0};
    int w_type = 5, w_shape = 5, w_bytes = 5, w_offset = 6, w_file = 0;
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const az_tensor *t = &set->tensors[i];
        shape.len = 0;
        AZ_TRY(az_store_add_shape(&shape, t));
        w_type = max_int(w_type, (int)strlen(t->dtype_name));
        w_shape = max_int(w_shape, (int)shape.len);
        w_bytes = max_int(w_bytes, snprintf(NULL, 0, "%lld", (long long)t->bytes));
        w_offset = max_int(w_offset, snprintf(NULL, 0, "%lld", (long long)t->offset));
    }
    if (set->n_files > 1)
        w_file = max_int(4, snprintf(NULL, 0, "%d", set->n_files));
    if (set->n_tensors == 0)
        goto out;
    AZ_TRY(az_str_add(out, "\n%-*s  %-*s  %*s  %*s  ", w_type, "dtype", w_shape, "shape", w_bytes,
                      "bytes", w_offset, "offset"));
    AZ_TRY(az_str_add(out, "%s%sname\n", w_file > 0 ? "file" : "", w_file > 0 ? "  " : ""));
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const az_tensor *t = found->order[i];
        shape.len = 0;
        AZ_TRY(az_store_add_shape(&shape, t));
        AZ_TRY(az_str_add(out, "%-*s  %-*s  %*lld  %*lld  ", w_type, t->dtype_name, w_shape,
                          shape.s, w_bytes, (long long)t->bytes, w_offset, (long long)t->offset));
        if (w_file > 0)
            AZ_TRY(az_str_add(out, "%*d  ", w_file, t->file + 1));
        AZ_TRY(az_inspect_add_clean(out, t->name));
        AZ_TRY(az_str_add(out, "%s\n", t->alias ? "  (tied: bytes of another tensor)" : ""));
    }
out:
    az_str_fini(&shape);
    return err;
}

static az_err add_totals(az_str *out, const az_inspection *found)
{
    az_err err = AZ_OK;
    const az_dtype_total *x = found->totals;
    int w_type = 0, w_n = 0, w_elements = 0;
    for (int i = 0; i < found->n_totals; i++) {
        w_type = max_int(w_type, (int)strlen(x[i].dtype_name));
        w_n = max_int(w_n, (int)strlen(az_format_count(x[i].n_tensors)));
        w_elements = max_int(w_elements, (int)strlen(az_format_count(x[i].elements)));
    }
    for (int i = 0; i < found->n_totals; i++)
        AZ_TRY(az_str_add(out, "%s%-*s  %*s tensor%s  %*s elements  %s\n",
                          i == 0 ? "\ntotal  " : "       ", w_type, x[i].dtype_name, w_n,
                          az_format_count(x[i].n_tensors), x[i].n_tensors == 1 ? " " : "s",
                          w_elements, az_format_count(x[i].elements),
                          az_format_bytes((double)x[i].bytes)));
out:
    return err;
}

static az_err add_config(az_str *out, const az_config *c)
{
    az_err err;
    AZ_TRY(az_str_add(out, "model      %s, %s parameters, head %s, biases %s\n", c->model_type,
                      az_format_count(az_config_count(c)), c->tied ? "tied" : "of its own",
                      c->attention_bias && c->mlp_bias ? "everywhere"
                      : c->attention_bias              ? "in attention"
                      : c->mlp_bias                    ? "in the MLP"
                                                       : "none"));
    AZ_TRY(az_str_add(out,
                      "sizes      %lld layers, hidden %lld, %d heads, %d key/value heads, head_dim "
                      "%lld, MLP %lld, vocabulary %lld\n",
                      (long long)c->L, (long long)c->D, c->H, c->G, (long long)c->K,
                      (long long)c->F, (long long)c->V));
    AZ_TRY(az_str_add(out, "positions  %lld, rope %s, theta %g", (long long)c->max_position,
                      az_config_rope_name(c), c->rope_theta));
    if (c->rope != AZ_ROPE_DEFAULT)
        AZ_TRY(az_str_add(out, ", factor %g", c->rope_factor));
    if (c->rope == AZ_ROPE_LLAMA3)
        AZ_TRY(az_str_add(out, " from %g", c->rope_original_max_position));
    AZ_TRY(az_str_add(out, "\nids        eos"));
    for (int i = 0; i < c->n_eos; i++)
        AZ_TRY(az_str_add(out, " %d", (int)c->eos[i]));
    AZ_TRY(az_str_add(out, c->n_eos == 0 ? " none" : ""));
    AZ_TRY(c->bos >= 0 ? az_str_add(out, ", bos %d\n", (int)c->bos)
                       : az_str_add(out, ", bos none\n"));
out:
    return err;
}

static az_err add_names(az_str *out, const char *title, const az_list *list, const char *opt_regex)
{
    az_err err = AZ_OK;
    if (list->n == 0 && opt_regex == NULL)
        return AZ_OK;
    AZ_TRY(az_str_add(out, "%-9s  ", title));
    if (opt_regex != NULL)
        AZ_TRY(az_inspect_add_clean(out, opt_regex));
    for (int i = 0; i < list->n; i++) {
        AZ_TRY(az_str_add(out, "%s", i > 0 ? ", " : ""));
        AZ_TRY(az_inspect_add_clean(out, list->items[i]));
    }
    AZ_TRY(az_str_add(out, "\n"));
out:
    return err;
}

static az_err add_pattern(az_str *out, const char *title, const az_pattern *pattern)
{
    az_err err = AZ_OK;
    for (int i = 0; i < pattern->n; i++) {
        AZ_TRY(az_str_add(out, "%-9s  ", i == 0 ? title : ""));
        AZ_TRY(az_inspect_add_clean(out, pattern->keys[i]));
        AZ_TRY(az_str_add(out, ": %g\n", pattern->values[i]));
    }
out:
    return err;
}

/* with_base: a file of adze says more of it elsewhere. */
static az_err add_peft(az_str *out, const az_peft_config *c, bool with_base)
{
    az_err err;
    double scale = c->lora_alpha / (c->use_rslora ? sqrt((double)c->r) : (double)c->r);
    AZ_TRY(az_str_add(out, "adapter    LoRA%s, r %lld, alpha %g (scale %g), dropout %g\n",
                      c->use_rslora ? " with rank-stabilised scale" : "", (long long)c->r,
                      c->lora_alpha, scale, c->lora_dropout));
    if (c->target_modules.n == 0 && c->target_regex == NULL)
        AZ_TRY(az_str_add(out, "targets    the family's default\n"));
    AZ_TRY(add_names(out, "targets", &c->target_modules, c->target_regex));
    AZ_TRY(add_names(out, "excluded", &c->exclude_modules, c->exclude_regex));
    if (c->layers_to_transform != NULL) {
        AZ_TRY(az_str_add(out, "layers    "));
        for (int i = 0; i < c->n_layers_to_transform; i++)
            AZ_TRY(az_str_add(out, " %lld", (long long)c->layers_to_transform[i]));
        AZ_TRY(az_str_add(out, "\n"));
    }
    AZ_TRY(add_pattern(out, "ranks", &c->rank_pattern));
    AZ_TRY(add_pattern(out, "alphas", &c->alpha_pattern));
    if (with_base && c->base_model_name_or_path != NULL) {
        AZ_TRY(az_str_add(out, "base       "));
        AZ_TRY(az_inspect_add_clean(out, c->base_model_name_or_path));
        AZ_TRY(az_str_add(out, "\n"));
    }
out:
    return err;
}

az_err az_inspect_add_text(az_str *out, const az_inspection *found)
{
    az_err err;
    const az_tensor_set *set = &found->set;
    int64_t bytes = 0, n = 0;
    for (int i = 0; i < found->n_totals; i++) {
        bytes += found->totals[i].bytes;
        n += found->totals[i].n_tensors;
    }
    AZ_TRY(az_inspect_add_clean(out, found->path));
    AZ_TRY(az_str_add(out, ": %s, %s tensor%s, %s\n", found->kind, az_format_count(n),
                      n == 1 ? "" : "s", az_format_bytes((double)bytes)));
    if (found->has_config)
        AZ_TRY(add_config(out, &found->config));
    if (found->has_peft)
        AZ_TRY(add_peft(out, &found->peft, found->h5 == NULL));
    if (found->h5 != NULL)
        AZ_TRY(az_inspect_add_h5_text(out, found));
    if (set->metadata != NULL)
        AZ_TRY(az_str_add(out, "metadata   %s\n", set->metadata));
    if (found->note.s != NULL)
        AZ_TRY(az_str_add(out, "unusable   %s\n", found->note.s));
    for (int i = 0; set->n_files > 1 && i < set->n_files; i++) {
        AZ_TRY(az_str_add(out, "file %-4d  ", i + 1));
        AZ_TRY(az_inspect_add_clean(out, set->files[i]));
        AZ_TRY(az_str_add(out, "\n"));
    }
    AZ_TRY(add_tensors(out, found));
    AZ_TRY(add_totals(out, found));
out:
    return err;
}
