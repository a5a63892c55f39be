/* inspect of adze's own HDF5 files: checkpoints and adapter.h5. The tensors become a set, so that
 * they are listed as those of other files are; the rest is told here.
 *
 * Contents: the file as a set; for people; for programs. */
#include <config.h>

#include <ctype.h>
#include <stdio.h>

#include "cmd/inspect.h"
#include "store/json.h"

static const char *const groups[] = {"trainer", "base"};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };
/* Ranks whose part is listed for people. */
enum { MAX_RANKS = 16 };

/* ---- the file as a set */

static az_err add_tensor(az_tensor_set *set, const az_h5_dataset *d)
{
    az_tensor *t = &set->tensors[set->n_tensors];
    *t = (az_tensor){.dtype = (int)d->dtype,
                     .n_dims = 2,
                     .shape = {d->rows, d->cols},
                     .offset = d->offset,
                     .bytes = d->bytes};
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", az_dtype_name(d->dtype));
    t->name = az_strdup(d->path, "tensor names");
    if (t->name == NULL)
        return AZ_EENV;
    set->n_tensors++;
    return AZ_OK;
}

static az_err list_tensors(az_tensor_set *set, const az_h5_reader *h5, const char *path)
{
    az_err err;
    const az_h5_dataset *d;
    size_t n = 0;
    for (int i = 0; (d = az_h5_get_dataset(h5, i)) != NULL; i++)
        n += d->kind == AZ_H5_DATA_ARRAY;
    AZ_TRY(AZ_NEW(set->tensors, n, "tensor names"));
    AZ_TRY(AZ_NEW(set->files, 1, "tensor names"));
    set->files[0] = az_strdup(path, "tensor names");
    AZ_TRY(set->files[0] != NULL ? AZ_OK : AZ_EENV);
    set->n_files = 1;
    for (int i = 0; (d = az_h5_get_dataset(h5, i)) != NULL; i++)
        if (d->kind == AZ_H5_DATA_ARRAY)
            AZ_TRY(add_tensor(set, d));
out:
    return err;
}

az_err az_inspect_open_h5(az_inspection *found)
{
    az_err err;
    AZ_TRY(az_comm_create_self(&found->self));
    AZ_TRY(az_h5_open(&found->h5, found->path, found->self));
    found->kind = strcmp(az_h5_get_kind(found->h5), "adapter") == 0 ? "adapter file" : "checkpoint";
    AZ_TRY(list_tensors(&found->set, found->h5, found->path));
    if (az_h5_get_text(found->h5, "/adapter_config") == NULL)
        goto out;
    err = az_peft_read_h5_config(&found->peft, found->h5, found->path);
    found->has_peft = err == AZ_OK;
    AZ_TRY(az_inspect_note(found, err));
out:
    return err;
}

/* ---- for people */

static az_err add_attr(az_str *out, const az_h5_attr *a)
{
    AZ_ASSERT(a->type == AZ_H5_INT || a->type == AZ_H5_REAL || a->type == AZ_H5_STRING);
    if (a->type == AZ_H5_STRING)
        return az_inspect_add_clean(out, a->s);
    return a->type == AZ_H5_INT ? az_str_add(out, "%lld", (long long)a->i)
                                : az_str_add_real(out, a->r);
}

static az_err add_attrs(az_str *out, const az_h5_reader *h5, const char *title)
{
    az_err err;
    az_str group = {0};
    const az_h5_attr *a;
    AZ_TRY(az_str_add(&group, "/%s", title));
    for (int i = 0; (a = az_h5_get_attr(h5, group.s, i)) != NULL; i++) {
        AZ_TRY(az_str_add(out, "%-9s  ", i == 0 ? title : ""));
        AZ_TRY(az_inspect_add_clean(out, a->name));
        AZ_TRY(az_str_add(out, ": "));
        AZ_TRY(add_attr(out, a));
        AZ_TRY(az_str_add(out, "\n"));
    }
out:
    az_str_fini(&group);
    return err;
}

/* The value of a key in the deck as understood, a section a block, a key a line; NULL if there is
 * none or it is null. */
static const char *find_key(size_t *out_n, const char *deck, const char *section, const char *key)
{
    const char *line;
    size_t n, at = 0, w = strlen(section), k = strlen(key);
    bool inside = false;
    while (az_str_next_line(&line, &n, deck, strlen(deck), &at)) {
        if (n > 0 && !isspace((unsigned char)line[0]))
            inside = n == w + 1 && strncmp(line, section, w) == 0 && line[w] == ':';
        if (!inside || n < k + 4 || strncmp(line + 2, key, k) != 0 || line[k + 2] != ':')
            continue;
        *out_n = n - k - 4;
        return *out_n == 4 && strncmp(line + k + 4, "null", 4) == 0 ? NULL : line + k + 4;
    }
    return NULL;
}

/* What a run was about; the rest is for --json. */
static az_err add_deck(az_str *out, const char *opt_deck)
{
    static const char *const keys[][2] = {{"data", "files"},
                                          {"train", "batch_size"},
                                          {"train", "learning_rate"},
                                          {"train", "num_train_epochs"},
                                          {"train", "max_steps"}};
    az_err err = AZ_OK;
    az_str value = {0};
    size_t n;
    if (opt_deck == NULL)
        return AZ_OK;
    AZ_TRY(az_str_add(out, "deck       whole with --json\n"));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *v = find_key(&n, opt_deck, keys[i][0], keys[i][1]);
        if (v == NULL)
            continue;
        value.len = 0;
        AZ_TRY(az_str_add_bytes(&value, v, n));
        AZ_TRY(az_str_add(out, "           %s.%s: ", keys[i][0], keys[i][1]));
        AZ_TRY(az_inspect_add_clean(out, value.s));
        AZ_TRY(az_str_add(out, "\n"));
    }
out:
    az_str_fini(&value);
    return err;
}

static az_err add_shards(az_str *out, const az_h5_reader *h5)
{
    az_err err = AZ_OK;
    const az_h5_dataset *d = az_h5_find(h5, "/shards");
    const int64_t *v = az_h5_get_table(h5, "/shards");
    if (d == NULL || v == NULL || d->cols != 2)
        return AZ_OK;
    for (int64_t i = 0; i < d->rows && i < MAX_RANKS; i++)
        AZ_TRY(az_str_add(out, "%-9s  rank %lld: %s elements from %s on\n", i == 0 ? "shards" : "",
                          (long long)i, az_format_count(v[2 * i + 1]), az_format_count(v[2 * i])));
    if (d->rows > MAX_RANKS)
        AZ_TRY(az_str_add(out, "           and %s more ranks, with --json\n",
                          az_format_count(d->rows - MAX_RANKS)));
out:
    return err;
}

az_err az_inspect_add_h5_text(az_str *out, const az_inspection *found)
{
    az_err err = AZ_OK;
    const az_h5_attr *version = az_h5_find_attr(found->h5, "/", "format_version");
    if (version != NULL && version->type == AZ_H5_INT)
        AZ_TRY(az_str_add(out, "format     version %lld\n", (long long)version->i));
    for (int i = 0; i < N_GROUPS; i++)
        AZ_TRY(add_attrs(out, found->h5, groups[i]));
    AZ_TRY(add_deck(out, az_h5_get_text(found->h5, "/deck")));
    AZ_TRY(add_shards(out, found->h5));
out:
    return err;
}

/* ---- for programs */

static az_err add_json_attr(az_str *out, const az_h5_attr *a)
{
    if (a->type == AZ_H5_STRING)
        return az_json_add_text(out, a->s);
    return a->type == AZ_H5_INT ? az_str_add(out, "%lld", (long long)a->i)
                                : az_json_add_real(out, a->r);
}

static az_err add_json_attrs(az_str *out, const az_h5_reader *h5, const char *title)
{
    az_err err;
    az_str group = {0};
    const az_h5_attr *a;
    AZ_TRY(az_str_add(&group, "/%s", title));
    AZ_TRY(az_str_add(out, ",\n  \"%s\": {", title));
    for (int i = 0; (a = az_h5_get_attr(h5, group.s, i)) != NULL; i++) {
        AZ_TRY(az_str_add(out, "%s", i > 0 ? ", " : ""));
        AZ_TRY(az_json_add_text(out, a->name));
        AZ_TRY(az_str_add(out, ": "));
        AZ_TRY(add_json_attr(out, a));
    }
    AZ_TRY(az_str_add(out, "}"));
out:
    az_str_fini(&group);
    return err;
}

static az_err add_json_shards(az_str *out, const az_h5_reader *h5)
{
    az_err err;
    const az_h5_dataset *d = az_h5_find(h5, "/shards");
    const int64_t *v = az_h5_get_table(h5, "/shards");
    AZ_TRY(az_str_add(out, ",\n  \"shards\": ["));
    for (int64_t i = 0; d != NULL && v != NULL && d->cols == 2 && i < d->rows; i++)
        AZ_TRY(az_str_add(out, "%s[%lld, %lld]", i > 0 ? ", " : "", (long long)v[2 * i],
                          (long long)v[2 * i + 1]));
    AZ_TRY(az_str_add(out, "]"));
out:
    return err;
}

az_err az_inspect_add_h5_json(az_str *out, const az_inspection *found)
{
    az_err err = AZ_OK;
    const az_h5_attr *version = az_h5_find_attr(found->h5, "/", "format_version");
    if (version != NULL && version->type == AZ_H5_INT)
        AZ_TRY(az_str_add(out, ",\n  \"format_version\": %lld", (long long)version->i));
    for (int i = 0; i < N_GROUPS; i++)
        AZ_TRY(add_json_attrs(out, found->h5, groups[i]));
    AZ_TRY(add_json_shards(out, found->h5));
    AZ_TRY(az_str_add(out, ",\n  \"deck\": "));
    AZ_TRY(az_json_add_text(out, az_h5_get_text(found->h5, "/deck")));
out:
    return err;
}
