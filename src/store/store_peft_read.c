/* adapter_config.json read: LoraConfig of PEFT, defaults as there (r and lora_alpha are 8 where
 * they are absent). What changes the arithmetic in a way that adze does not have is refused when it
 * is set; the rest is passed over, as PEFT does with keys it does not know.
 *
 * Contents: single values; texts and lists; patterns; what is refused; the file. */
#include <config.h>

#include <stdio.h>
#include <strings.h>

#include "store/json.h"
#include "store/peft.h"

#define MAX_RANK 65536

typedef struct {
    az_peft_config *config;
    az_faults *faults;
    const az_json_doc *doc;
    const az_json *root;
} reader;

/* ---- single values */
static az_err take(const reader *r, az_err err)
{
    return az_faults_take(r->faults, err, az_json_where(r->doc));
}

static az_err read_numbers(const reader *r)
{
    az_err err;
    az_peft_config *c = r->config;
    AZ_TRY(take(r, az_json_get_int(&c->r, r->doc, r->root, "r", 1, MAX_RANK, 8)));
    AZ_TRY(take(r, az_json_get_real(&c->lora_alpha, r->doc, r->root, "lora_alpha", -1e9, 1e9, 8)));
    AZ_TRY(take(r, az_json_get_real(&c->lora_dropout, r->doc, r->root, "lora_dropout", 0, 1, 0)));
    AZ_TRY(take(r, az_json_get_bool(&c->use_rslora, r->doc, r->root, "use_rslora", false)));
    if (c->lora_dropout == 1)
        AZ_TRY(az_faults_add(r->faults, "lora_dropout: found 1, expected less than 1"));
out:
    return err;
}

/* ---- texts and lists */
static az_err set_text(char **io_text, const char *s)
{
    char *copy = az_strdup(s, "adapter config");
    if (copy == NULL)
        return AZ_EENV;
    az_free(*io_text);
    *io_text = copy;
    return AZ_OK;
}

/* null, one string, or a list of strings. opt_text NULL: one string is a list of one. */
static az_err read_names(const reader *r, const char *key, az_list *list, char **opt_text)
{
    az_err err = AZ_OK;
    const az_json *v = az_json_member(r->root, key);
    az_json_type type = az_json_get_type(v);
    if (type == AZ_JSON_NULL)
        return AZ_OK;
    if (type == AZ_JSON_STRING && az_json_string(v, NULL)[0] != '\0')
        return opt_text != NULL ? set_text(opt_text, az_json_string(v, NULL))
                                : az_list_add(list, az_json_string(v, NULL));
    if (type != AZ_JSON_ARRAY)
        return az_faults_add(r->faults, "%s: found %s, expected names or a list of names", key,
                             type == AZ_JSON_STRING ? "an empty string" : az_json_type_name(v));
    for (size_t i = 0; i < az_json_count(v); i++) {
        const az_json *item = az_json_at(v, i);
        if (az_json_get_type(item) != AZ_JSON_STRING || az_json_string(item, NULL)[0] == '\0')
            AZ_TRY(az_faults_add(r->faults, "%s[%zu]: expected a name", key, i));
        else
            AZ_TRY(az_list_add(list, az_json_string(item, NULL)));
    }
out:
    return err;
}

static az_err read_layers(const reader *r)
{
    az_err err;
    az_peft_config *c = r->config;
    static const char key[] = "layers_to_transform";
    const az_json *v = az_json_member(r->root, key);
    bool one = az_json_get_type(v) == AZ_JSON_INT;
    size_t n = one ? 1 : az_json_count(v);
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (!one && az_json_get_type(v) != AZ_JSON_ARRAY)
        return az_faults_add(r->faults, "%s: found %s, expected a layer or a list of layers", key,
                             az_json_type_name(v));
    if (n == 0)
        return AZ_OK;
    AZ_TRY(AZ_NEW(c->layers_to_transform, n, "adapter config"));
    for (size_t i = 0; i < n; i++) {
        const az_json *item = one ? v : az_json_at(v, i);
        if (az_json_get_type(item) == AZ_JSON_INT && az_json_int(item) >= 0)
            c->layers_to_transform[c->n_layers_to_transform++] = az_json_int(item);
        else
            AZ_TRY(az_faults_add(r->faults, "%s: expected layer numbers of 0 or more", key));
    }
out:
    return err;
}

static az_err read_targets(const reader *r)
{
    az_err err;
    az_peft_config *c = r->config;
    AZ_TRY(read_names(r, "target_modules", &c->target_modules, &c->target_regex));
    AZ_TRY(read_names(r, "exclude_modules", &c->exclude_modules, &c->exclude_regex));
    AZ_TRY(read_names(r, "layers_pattern", &c->layers_pattern, NULL));
    AZ_TRY(read_layers(r));
    /* as PEFT says them */
    if (c->layers_to_transform != NULL && c->target_regex != NULL)
        AZ_TRY(az_faults_add(r->faults, "layers_to_transform needs target_modules as a list"));
    if (c->layers_pattern.n > 0 && c->layers_to_transform == NULL)
        AZ_TRY(az_faults_add(r->faults, "layers_pattern needs layers_to_transform"));
out:
    return err;
}

/* ---- patterns */
static az_err read_pattern(const reader *r, const char *name, az_pattern *pattern, bool ranks)
{
    az_err err = AZ_OK;
    const az_json *v = az_json_member(r->root, name), *item;
    void *cursor = NULL;
    const char *key;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_OBJECT)
        return az_faults_add(r->faults, "%s: found %s, expected an object", name,
                             az_json_type_name(v));
    while (az_json_next(v, &cursor, &key, &item)) {
        az_json_type type = az_json_get_type(item);
        bool fits = type == AZ_JSON_INT || (type == AZ_JSON_REAL && !ranks);
        double value = fits ? az_json_real(item) : 0;
        if (!fits || (ranks && (value < 1 || value > MAX_RANK)))
            AZ_TRY(az_faults_add(r->faults, "%s: '%.100s': expected %s", name, key,
                                 ranks ? "a rank from 1 to 65536" : "a number"));
        else
            AZ_TRY(az_pattern_add(pattern, key, value));
    }
out:
    return err;
}

/* ---- what is refused */
static bool is_truthy(const az_json *v)
{
    switch (az_json_get_type(v)) {
    case AZ_JSON_NULL:
        return false;
    case AZ_JSON_BOOL:
        return az_json_bool(v);
    case AZ_JSON_INT:
    case AZ_JSON_REAL:
        return az_json_real(v) != 0;
    case AZ_JSON_STRING:
        return az_json_string(v, NULL)[0] != '\0';
    case AZ_JSON_ARRAY:
    case AZ_JSON_OBJECT:
        return az_json_count(v) > 0;
    }
    return true;
}

static const struct {
    const char *key, *what;
} refused[] = {
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"lora_bias", "a bias in the LoRA pair"},
    {"modules_to_save", "modules that are trained whole"},
    {"trainable_token_indices", "trained rows of the embedding"},
    {"target_parameters", "LoRA on single parameters"},
    {"layer_replication", "repeated layers"},
    {"alora_invocation_tokens", "activated LoRA"},
    {"arrow_config", "Arrow routing"},
    {"kasa_config", "KaSA"},
    {"velora_config", "VeLoRA"},
    {"monteclora_config", "MonteCLoRA"},
    {"megatron_config", "Megatron layers"},
};

/* Known and of no consequence for the values that the adapter gives. */
static const char *const harmless[] = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strcmp(key, refused[i].key) == 0)
            return true;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strcmp(key, harmless[i]) == 0)
            return true;
    return false;
}

static az_err check_refused(const reader *r)
{
    az_err err;
    const char *bias;
    void *cursor = NULL;
    const char *key;
    const az_json *v;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (is_truthy(az_json_member(r->root, refused[i].key)))
            AZ_TRY(az_faults_add(r->faults, "%s is set: %s is not supported", refused[i].key,
                                 refused[i].what));
    AZ_TRY(take(r, az_json_get_string(&bias, r->doc, r->root, "bias", "none")));
    if (strcmp(bias, "none") != 0)
        AZ_TRY(az_faults_add(r->faults, "bias: found \"%.40s\", supported: none", bias));
    while (az_json_next(r->root, &cursor, &key, &v))
        if (!is_known(key) && is_truthy(v))
            az_warn("%s: key %.80s is not known and is ignored", az_json_where(r->doc), key);
out:
    return err;
}

/* How the adapter was initialised matters later only where the base was changed along with it. */
static az_err read_init(const reader *r)
{
    static const char *const mutating[] = {"pissa", "olora", "corda", "loftq", "mica", "lora_ga"};
    static const char *const plain[] = {"true", "false", "gaussian"};
    const az_json *v = az_json_member(r->root, "init_lora_weights");
    const char *s = "true";
    if (az_json_get_type(v) == AZ_JSON_BOOL)
        s = az_json_bool(v) ? "true" : "false";
    else if (az_json_get_type(v) == AZ_JSON_STRING)
        s = az_json_string(v, NULL);
    else if (az_json_get_type(v) != AZ_JSON_NULL)
        return az_faults_add(r->faults, "init_lora_weights: found %s, expected a boolean or a name",
                             az_json_type_name(v));
    for (size_t i = 0; i < sizeof mutating / sizeof mutating[0]; i++)
        if (strncasecmp(s, mutating[i], strlen(mutating[i])) == 0)
            return az_faults_add(r->faults,
                                 "init_lora_weights: \"%.40s\" also changes the base model, which "
                                 "is not supported; convert the adapter with PEFT "
                                 "(path_initial_model_for_weight_conversion)",
                                 s);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcasecmp(s, plain[i]) == 0)
            return set_text(&r->config->init_lora_weights, plain[i]);
    return set_text(&r->config->init_lora_weights, "true"); /* eva, orthogonal: values only */
}

/* ---- the file */
static az_err read_document(const reader *r)
{
    az_err err;
    const char *type, *base;
    if (az_json_get_type(r->root) != AZ_JSON_OBJECT)
        return az_faults_add(r->faults, "found %s, expected an object", az_json_type_name(r->root));
    AZ_TRY(take(r, az_json_get_string(&type, r->doc, r->root, "peft_type", NULL)));
    if (r->faults->n > 0)
        goto out;
    if (type == NULL || strcmp(type, "LORA") != 0) {
        err = type == NULL
                  ? az_faults_add(r->faults, "peft_type is missing, supported: LORA")
                  : az_faults_add(r->faults, "peft_type: found \"%.40s\", supported: LORA", type);
        goto out;
    }
    AZ_TRY(read_numbers(r));
    AZ_TRY(read_targets(r));
    AZ_TRY(read_pattern(r, "rank_pattern", &r->config->rank_pattern, true));
    AZ_TRY(read_pattern(r, "alpha_pattern", &r->config->alpha_pattern, false));
    AZ_TRY(read_init(r));
    AZ_TRY(take(r, az_json_get_string(&base, r->doc, r->root, "base_model_name_or_path", NULL)));
    if (base != NULL)
        AZ_TRY(set_text(&r->config->base_model_name_or_path, base));
    AZ_TRY(check_refused(r));
out:
    return err;
}

static az_err read_config(az_peft_config *config, const az_json_doc *doc)
{
    az_err err;
    az_faults faults = {0};
    const reader r = {config, &faults, doc, az_json_root(doc)};
    AZ_TRY(read_document(&r));
    AZ_TRY(az_faults_report(&faults, az_json_where(doc)));
out:
    az_faults_fini(&faults);
    return err;
}

az_err az_peft_read_config(az_peft_config *config, const char *dir)
{
    az_err err;
    az_json_doc *doc = NULL;
    char *path = az_path_join(dir, "adapter_config.json");
    AZ_TRY(az_peft_config_init(config));
    AZ_TRY(path != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_json_load(&doc, path));
    AZ_TRY(read_config(config, doc));
out:
    az_json_close(doc);
    az_free(path);
    if (err != AZ_OK)
        az_peft_config_fini(config);
    return err;
}

az_err az_peft_parse_config(az_peft_config *config, const char *text, const char *where)
{
    az_err err;
    az_json_doc *doc = NULL;
    AZ_TRY(az_peft_config_init(config));
    AZ_TRY(az_json_parse(&doc, text, strlen(text), where));
    AZ_TRY(read_config(config, doc));
out:
    az_json_close(doc);
    if (err != AZ_OK)
        az_peft_config_fini(config);
    return err;
}

az_err az_peft_read_h5_config(az_peft_config *config, const az_h5_reader *file, const char *path)
{
    az_err err;
    az_str where = {0};
    const char *text = az_h5_get_text(file, "/adapter_config");
    if (text == NULL)
        return az_fail(AZ_EINPUT, "%s: there is no /adapter_config", path);
    AZ_TRY(az_str_add(&where, "%s: /adapter_config", path));
    AZ_TRY(az_peft_parse_config(config, text, where.s));
out:
    az_str_fini(&where);
    return err;
}
