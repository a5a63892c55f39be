/* lora/file: the flat buffer from and to a PEFT directory.
 *
 * The config that is written names the modules in PEFT's own terms: where a string selected them
 * ("all-linear", a regular expression) short names replace it if they select the same modules,
 * whole paths if they do not. PEFT does the first itself; the second would make it look at modules
 * that are no linears. */
#include <config.h>

#include "lora/lora_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* PEFT shortens longer lists of targets to common ends of names, and may then take a path given
 * whole for an end, to which layers_to_transform applies. */
#define MAX_KEPT_TARGETS 19

/* ---- reading */

static int compare_arrays(const void *a, const void *b)
{
    const int64_t x = ((const az_h5_array *)a)->off, y = ((const az_h5_array *)b)->off;
    return x < y ? -1 : x > y;
}

az_err az_lora_list_arrays(az_h5_array **out_arrays, const az_lora *lora)
{
    az_err err;
    az_h5_array *arrays = NULL;
    AZ_TRY(AZ_NEW(arrays, 2 * (size_t)lora->n_pairs, "adapter file"));
    for (int k = 0; k < lora->n_pairs; k++) {
        const az_pair *p = &lora->pairs[k];
        const az_linear *x = &lora->linears[p->linear];
        az_h5_array *a = arrays + 2 * k;
        a[0] = (az_h5_array){az_peft_key(x->path, 'A'), p->R, x->in, p->a_off};
        a[1] = (az_h5_array){az_peft_key(x->path, 'B'), x->out, p->R, p->b_off};
        AZ_TRY(a[0].name != NULL && a[1].name != NULL ? AZ_OK : AZ_EENV);
    }
    qsort(arrays, 2 * (size_t)lora->n_pairs, sizeof *arrays, compare_arrays);
    *out_arrays = arrays;
    arrays = NULL;
out:
    az_lora_free_arrays(arrays, lora);
    return err;
}

void az_lora_free_arrays(az_h5_array *opt_arrays, const az_lora *lora)
{
    for (int k = 0; opt_arrays != NULL && k < 2 * lora->n_pairs; k++)
        az_free((void *)(uintptr_t)opt_arrays[k].name);
    az_free(opt_arrays);
}

static az_err check_array(az_faults *faults, const az_h5_array *a, const az_tensor *t)
{
    if (t == NULL)
        return az_faults_add(faults, "%s is missing: expected shape [%" PRId64 ", %" PRId64 "]",
                             a->name, a->rows, a->cols);
    if (t->dtype < 0)
        return az_faults_add(faults, "%s has type %s, expected F32, F16 or BF16", a->name,
                             t->dtype_name);
    if (t->n_dims == 2 && t->shape[0] == a->rows && t->shape[1] == a->cols)
        return AZ_OK;
    az_err err;
    az_str shape = {0};
    AZ_TRY(az_store_add_shape(&shape, t));
    AZ_TRY(az_faults_add(faults, "%s has shape %s, expected [%" PRId64 ", %" PRId64 "]", a->name,
                         shape.s, a->rows, a->cols));
out:
    az_str_fini(&shape);
    return err;
}

static az_err check_tensors(const az_tensor_set *set, const az_h5_array *arrays, int n)
{
    az_err err;
    az_faults faults = {0};
    bool *used = NULL;
    AZ_TRY(AZ_NEW(used, (size_t)set->n_tensors, "adapter file"));
    for (int k = 0; k < n; k++) {
        const az_tensor *t = az_store_find(set, arrays[k].name);
        if (t != NULL)
            used[t - set->tensors] = true;
        AZ_TRY(check_array(&faults, &arrays[k], t));
    }
    for (int64_t i = 0; i < set->n_tensors; i++)
        if (!used[i])
            AZ_TRY(az_faults_add(&faults, "%s is unexpected: its module is not adapted",
                                 set->tensors[i].name));
    AZ_TRY(az_faults_report(&faults, set->files[0]));
out:
    az_free(used);
    az_faults_fini(&faults);
    return err;
}

static bool is_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static az_err read_tensors(float *flat, const az_tensor_set *set, const az_h5_array *arrays, int n)
{
    az_err err = AZ_OK;
    int fd = -1, file = -1;
    char *bytes = NULL;
    int64_t most = 0;
    for (int k = 0; k < n; k++)
        most = az_max_i64(most, az_store_find(set, arrays[k].name)->bytes);
    AZ_TRY(AZ_NEW(bytes, (size_t)most, "adapter file"));
    for (int k = 0; k < n; k++) {
        const az_tensor *t = az_store_find(set, arrays[k].name);
        AZ_TRY(az_store_read(bytes, set, t, 0, t->bytes, &fd, &file));
        const int64_t size = arrays[k].rows * arrays[k].cols;
        az_widen(flat + arrays[k].off, bytes, (az_dtype)t->dtype, (size_t)size);
        if (!is_finite(flat + arrays[k].off, size)) {
            err = az_fail(AZ_EINPUT, "%s: %s holds numbers that are not finite", set->files[0],
                          arrays[k].name);
            goto out;
        }
    }
out:
    if (fd >= 0)
        close(fd);
    az_free(bytes);
    return err;
}

az_err az_lora_read(float *flat, const az_lora *lora, const char *dir)
{
    az_err err;
    az_tensor_set set = {0};
    az_h5_array *arrays = NULL;
    AZ_TRY(az_peft_open_tensors(&set, dir));
    AZ_TRY(az_lora_list_arrays(&arrays, lora));
    AZ_TRY(check_tensors(&set, arrays, 2 * lora->n_pairs));
    AZ_TRY(read_tensors(flat, &set, arrays, 2 * lora->n_pairs));
out:
    az_lora_free_arrays(arrays, lora);
    az_store_close(&set);
    return err;
}

/* ---- the config that is written */

/* Whether config selects the pairs of lora, with their r and alpha. */
static az_err check_same(bool *out_same, const az_peft_config *config, const az_lora *lora)
{
    az_err err;
    az_choice *choices = NULL;
    AZ_TRY(AZ_NEW(choices, (size_t)lora->n_linears, "LoRA matching"));
    err = az_lora_match(choices, config, lora->linears, lora->n_linears, NULL);
    *out_same = err == AZ_OK;
    if (err == AZ_EINPUT) {
        az_err_clear();
        err = AZ_OK;
    }
    for (int i = 0; i < lora->n_linears && *out_same; i++) {
        const az_pair *p = lora->pair_of[i] >= 0 ? &lora->pairs[lora->pair_of[i]] : NULL;
        *out_same = choices[i].adapted == (p != NULL);
        if (p != NULL && (choices[i].r != (double)p->R || choices[i].alpha != p->alpha))
            *out_same = false;
    }
out:
    az_free(choices);
    return err;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_names(az_list *list)
{
    if (list->n > 1)
        qsort(list->items, (size_t)list->n, sizeof *list->items, compare_names);
}

static az_err add_once(az_list *list, const char *name)
{
    for (int k = 0; k < list->n; k++)
        if (strcmp(list->items[k], name) == 0)
            return AZ_OK;
    return az_list_add(list, name);
}

static az_err list_targets(az_list *list, const az_lora *lora, bool whole)
{
    az_err err = AZ_OK;
    for (int k = 0; k < lora->n_pairs; k++) {
        const char *path = lora->linears[lora->pairs[k].linear].path;
        AZ_TRY(whole ? az_list_add(list, path) : add_once(list, az_lora_short_name(path)));
    }
    sort_names(list);
out:
    return err;
}

/* out: config as it is written, sharing all members but the targets with config. */
static az_err choose_config(az_peft_config *out, const az_peft_config *config, const az_lora *lora)
{
    az_err err = AZ_OK;
    const az_list *given = &config->target_modules;
    bool same = false;
    *out = *config;
    out->target_regex = NULL;
    out->target_modules = (az_list){0};
    if (config->target_regex == NULL && given->n > 0 &&
        (given->n <= MAX_KEPT_TARGETS || config->n_layers_to_transform == 0)) {
        for (int k = 0; k < given->n; k++)
            AZ_TRY(add_once(&out->target_modules, given->items[k]));
        sort_names(&out->target_modules);
        goto out;
    }
    AZ_TRY(list_targets(&out->target_modules, lora, false));
    AZ_TRY(check_same(&same, out, lora));
    if (same)
        goto out;
    az_list_fini(&out->target_modules);
    out->exclude_modules = (az_list){0};
    out->exclude_regex = NULL;
    out->layers_to_transform = NULL;
    out->n_layers_to_transform = 0;
    out->layers_pattern = (az_list){0};
    AZ_TRY(list_targets(&out->target_modules, lora, true));
out:
    return err;
}

az_err az_lora_add_config(az_str *out, const az_lora *lora, const az_peft_config *config)
{
    az_err err;
    az_peft_config written = {0};
    AZ_TRY(choose_config(&written, config, lora));
    AZ_TRY(az_peft_add_config(out, &written));
out:
    az_list_fini(&written.target_modules);
    return err;
}

/* ---- writing */

az_err az_lora_check_place(const az_lora *lora, const char *dir)
{
    return az_peft_check_place(dir, lora->n_elements * (int64_t)sizeof(float));
}

/* Of elements [off, off + count) those among [first, first + n), at values. */
static bool is_part_finite(const float *values, int64_t first, int64_t n, int64_t off,
                           int64_t count)
{
    const int64_t from = az_max_i64(off, first), to = az_min_i64(off + count, first + n);
    return from >= to || is_finite(values + (from - first), to - from);
}

az_err az_lora_check_finite(const float *values, const az_lora *lora, int64_t first, int64_t n,
                            const char *opt_path)
{
    for (int k = 0; k < lora->n_pairs; k++) {
        const az_pair *p = &lora->pairs[k];
        const az_linear *x = &lora->linears[p->linear];
        if (is_part_finite(values, first, n, p->a_off, p->R * x->in) &&
            is_part_finite(values, first, n, p->b_off, p->R * x->out))
            continue;
        if (opt_path != NULL)
            return az_fail(AZ_EINPUT, "%s: the adapter of %s holds numbers that are not finite",
                           opt_path, x->path);
        return az_fail(AZ_EINPUT,
                       "the adapter of %s holds numbers that are not finite; nothing is written "
                       "(a smaller train.learning_rate may help)",
                       x->path);
    }
    return AZ_OK;
}

typedef struct {
    const float *flat;
    const az_lora *lora;
    az_dtype dtype;
} written;

/* What a reader will make of the directory is what was to be written. */
static az_err check_written(const char *dir, void *context)
{
    az_err err;
    const written *w = context;
    const int64_t n = w->lora->n_elements;
    az_peft_config config = {0};
    float *again = NULL;
    bool same = false;
    AZ_TRY(az_peft_read_config(&config, dir));
    AZ_TRY(check_same(&same, &config, w->lora));
    if (same) {
        AZ_TRY(AZ_NEW(again, (size_t)n, "adapter file"));
        AZ_TRY(az_lora_read(again, w->lora, dir));
    }
    for (int64_t i = 0; i < n && same; i++) {
        const float x =
            w->dtype == AZ_BF16 ? az_bf16_to_f32(az_f32_to_bf16(w->flat[i])) : w->flat[i];
        same = memcmp(&again[i], &x, sizeof x) == 0;
    }
    if (!same)
        err = az_fail(AZ_EENV, "%s: the adapter read back differs from what was written", dir);
out:
    az_free(again);
    az_peft_config_fini(&config);
    return err;
}

az_err az_lora_write(const float *flat, const az_lora *lora, const az_peft_config *config,
                     az_dtype dtype, const char *dir)
{
    az_err err;
    az_str text = {0};
    az_h5_array *arrays = NULL;
    az_peft_tensor *tensors = NULL;
    const int n = 2 * lora->n_pairs;
    written w = {flat, lora, dtype};
    AZ_TRY(az_lora_check_finite(flat, lora, 0, lora->n_elements, NULL));
    AZ_TRY(az_lora_add_config(&text, lora, config));
    AZ_TRY(az_lora_list_arrays(&arrays, lora));
    AZ_TRY(AZ_NEW(tensors, (size_t)n, "adapter file"));
    for (int k = 0; k < n; k++)
        tensors[k] =
            (az_peft_tensor){arrays[k].name, arrays[k].rows, arrays[k].cols, flat + arrays[k].off};
    AZ_TRY(az_peft_write(dir, text.s, tensors, n, dtype, check_written, &w));
out:
    az_free(tensors);
    az_lora_free_arrays(arrays, lora);
    az_str_fini(&text);
    return err;
}

size_t az_lora_measure_write(const az_lora *lora)
{
    return (size_t)lora->n_elements * (sizeof(float) + sizeof(az_bf16));
}
