/* A Hugging Face model directory: model.safetensors alone, or an index and the files it names.
 *
 * The index, {"metadata": {...}, "weight_map": {tensor: file}}, must agree with the files in both
 * directions. Its total_size is not used: published ones are often wrong. */
#include <config.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/json.h"
#include "store/store_priv.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

typedef struct {
    az_tensor_set *set;
    az_faults *faults;
    const char *dir;
    const az_json *map;
    const char **names; /* [n_files] of the index, borrowed from its document */
    bool *damaged;      /* [n_files] no complaint about single tensors then */
} model;

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Neither file is there: say what is instead. */
static az_err fail_no_model(const char *dir)
{
    static const char *const kinds[] = {"adapter_model.safetensors", ".safetensors", ".bin", ".pth",
                                        ".gguf"};
    static const char *const hints[] = {
        "this is a PEFT adapter, its base model is another directory",
        "a sharded model needs its " INDEX,
        "these are pickled PyTorch weights; convert them once with transformers: "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)",
        "this is the original format of the model's makers; get or convert the Hugging Face one",
        "GGUF is not read; get the Hugging Face directory of the model",
    };
    enum { N = sizeof kinds / sizeof kinds[0] };
    char found[256] = "";
    int best = N;
    bool broken = false;
    DIR *d = opendir(dir);
    if (d == NULL)
        return az_fail(AZ_EINPUT, "%s: cannot list this directory", dir);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        broken |= strcmp(e->d_name, SINGLE) == 0;
        for (int k = 0; k < N; k++)
            if (ends_with(e->d_name, kinds[k])) {
                /* of one kind the first by name, so that the message does not change */
                if (k < best || (k == best && strcmp(e->d_name, found) < 0))
                    snprintf(found, sizeof found, "%s", e->d_name);
                best = k < best ? k : best;
                break;
            }
    }
    closedir(d);
    if (broken) /* links into a cache are lost when a model is copied without it */
        return az_fail(AZ_EINPUT, "%s/" SINGLE ": a directory, or a link that leads to no file",
                       dir);
    if (best == N)
        return az_fail(AZ_EINPUT, "%s: no model here: neither " SINGLE " nor " INDEX " was found",
                       dir);
    return az_fail(AZ_EINPUT, "%s: neither " SINGLE " nor " INDEX " was found, only %s: %s", dir,
                   found, hints[best]);
}

/* A plain name in the same directory; anything else could lead out of it. */
static bool is_plain_name(const char *s)
{
    return s[0] != '\0' && strchr(s, '/') == NULL && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static int find_file(const model *m, const char *name)
{
    for (int i = 0; i < m->set->n_files; i++)
        if (strcmp(m->names[i], name) == 0)
            return i;
    return -1;
}

/* Collect the files of the index in the order of their names, so that messages and numbers do not
 * depend on the order of its entries. */
static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static az_err list_files(model *m)
{
    az_err err = AZ_OK;
    void *cursor = NULL;
    const char *tensor;
    const az_json *v;
    size_t n = 0;
    char *path = NULL;
    AZ_TRY(AZ_NEW(m->names, az_json_count(m->map), "tensor names"));
    AZ_TRY(AZ_NEW(m->damaged, az_json_count(m->map), "tensor names"));
    while (az_json_next(m->map, &cursor, &tensor, &v)) {
        const char *name = az_json_get_type(v) == AZ_JSON_STRING ? az_json_string(v, NULL) : NULL;
        if (name == NULL)
            AZ_TRY(az_faults_add(m->faults,
                                 INDEX ": weight_map: '%.200s' is %s, expected a file name", tensor,
                                 az_json_type_name(v)));
        else if (!is_plain_name(name))
            AZ_TRY(az_faults_add(m->faults,
                                 INDEX ": weight_map: '%.200s' is in '%.200s', expected the name "
                                       "of a file in the same directory",
                                 tensor, name));
        else
            m->names[n++] = name;
    }
    if (n > 1)
        qsort(m->names, n, sizeof *m->names, compare_text);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(m->names[kept - 1], m->names[i]) != 0)
            m->names[kept++] = m->names[i];
    for (size_t i = 0; i < kept; i++) {
        int file;
        path = az_path_join(m->dir, m->names[i]);
        AZ_TRY(path != NULL ? AZ_OK : AZ_EENV);
        AZ_TRY(az_store_add_path(m->set, &file, path));
        az_free(path);
        path = NULL;
    }
out:
    az_free(path);
    return err;
}

static az_err read_files(model *m)
{
    az_err err = AZ_OK;
    az_str prefix = {0};
    for (int i = 0; i < m->set->n_files; i++) {
        int64_t before = m->faults->n;
        if (!az_file_exists(m->set->files[i])) {
            AZ_TRY(az_faults_add(m->faults, "%.200s: missing, " INDEX " names it", m->names[i]));
        } else {
            az_str_fini(&prefix);
            AZ_TRY(az_str_add(&prefix, "%s: ", m->names[i]));
            AZ_TRY(az_store_add_file(m->set, i, prefix.s, m->faults));
        }
        m->damaged[i] = m->faults->n > before;
    }
out:
    az_str_fini(&prefix);
    return err;
}

/* Both directions, and no tensor twice. The set is sorted by name, then file. */
static az_err compare_index(model *m)
{
    az_err err = AZ_OK;
    void *cursor = NULL;
    const char *name;
    const az_json *v;
    const az_tensor_set *set = m->set;
    while (az_json_next(m->map, &cursor, &name, &v)) {
        const char *where = az_json_get_type(v) == AZ_JSON_STRING ? az_json_string(v, NULL) : NULL;
        int file = where != NULL && is_plain_name(where) ? find_file(m, where) : -1;
        if (file < 0 || m->damaged[file])
            continue;
        const az_tensor *t = az_store_find(set, name), *end = set->tensors + set->n_tensors;
        bool held = false;
        while (t != NULL && t > set->tensors && strcmp(t[-1].name, name) == 0)
            t--;
        for (; t != NULL && t < end && strcmp(t->name, name) == 0; t++)
            held |= t->file == file;
        if (!held)
            AZ_TRY(az_faults_add(m->faults, INDEX ": '%.200s' is not in %.200s as it says", name,
                                 where));
    }
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const az_tensor *t = &set->tensors[i];
        if (i > 0 && strcmp(t[-1].name, t->name) == 0)
            AZ_TRY(az_faults_add(m->faults, "tensor '%.200s' is in two files, %.200s and %.200s",
                                 t->name, m->names[t[-1].file], m->names[t->file]));
        else if (!t->alias && az_json_member(m->map, t->name) == NULL)
            AZ_TRY(az_faults_add(m->faults, "%.200s: tensor '%.200s' is not in " INDEX,
                                 m->names[t->file], t->name));
    }
out:
    return err;
}

static az_err open_sharded(az_tensor_set *set, const char *dir, const char *index)
{
    az_err err;
    az_json_doc *doc = NULL;
    az_faults faults = {0};
    model m = {.set = set, .faults = &faults, .dir = dir};
    AZ_TRY(az_json_load(&doc, index));
    m.map = az_json_member(az_json_root(doc), "weight_map");
    if (az_json_get_type(m.map) != AZ_JSON_OBJECT || az_json_count(m.map) == 0) {
        err = az_fail(AZ_EINPUT,
                      "%s: weight_map is %s, expected an object of tensor names and files", index,
                      m.map == NULL                               ? "missing"
                      : az_json_get_type(m.map) == AZ_JSON_OBJECT ? "empty"
                                                                  : az_json_type_name(m.map));
        goto out;
    }
    AZ_TRY(list_files(&m));
    AZ_TRY(read_files(&m));
    az_store_sort(set);
    AZ_TRY(compare_index(&m));
    AZ_TRY(az_faults_report(&faults, dir));
out:
    az_faults_fini(&faults);
    az_free(m.names);
    az_free(m.damaged);
    az_json_close(doc);
    return err;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = az_path_join(dir, name);
    const bool there = path != NULL && az_file_exists(path);
    az_free(path);
    return there;
}

bool az_store_has_model(const char *dir)
{
    return has_file(dir, SINGLE) || has_file(dir, INDEX);
}

az_err az_store_open_model(az_tensor_set *set, const char *dir)
{
    az_err err;
    char *single = NULL, *index = NULL;
    *set = (az_tensor_set){0};
    if (!az_dir_exists(dir)) {
        err = az_fail(AZ_EINPUT, "%s: %s, a Hugging Face model directory was expected", dir,
                      az_file_exists(dir) ? "is a file" : "no such directory");
        goto out;
    }
    single = az_path_join(dir, SINGLE);
    index = az_path_join(dir, INDEX);
    AZ_TRY(single != NULL && index != NULL ? AZ_OK : AZ_EENV);
    if (az_file_exists(single))
        err = az_store_open_file(set, single);
    else if (az_file_exists(index))
        err = open_sharded(set, dir, index);
    else
        err = fail_no_model(dir);
out:
    az_free(single);
    az_free(index);
    if (err != AZ_OK)
        az_store_close(set);
    return err;
}
