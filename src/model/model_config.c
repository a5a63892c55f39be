/* config.json in one normal form. Absent keys have the defaults of transformers' LlamaConfig.
 *
 * Two spellings occur: transformers 4 writes rope_theta and rope_scaling, 5 one rope_parameters
 * with both. What would change the arithmetic and is not done here is refused.
 *
 * Contents: single values; what is not supported; rotary angles; special ids; the file. */
#include <config.h>

#include <stdio.h>
#include <strings.h>

#include "model/config.h"

/* Bounds that keep every product of sizes below 2^63; no published model comes near them. */
#define MAX_WIDTH ((int64_t)1 << 20)
#define MAX_FFN ((int64_t)1 << 22)
#define MAX_VOCAB ((int64_t)1 << 24)
#define MAX_LAYERS 10000
#define MAX_HEADS 8192
#define MAX_HEAD_DIM 8192
#define MAX_POSITIONS ((int64_t)1 << 30)

typedef struct {
    az_config *config;
    az_faults *faults;
    const az_json_doc *doc;
    const az_json *root;
} reader;

/* ---- single values: a fault is noted and the default stands */
static az_err take(const reader *r, az_err err)
{
    return az_faults_take(r->faults, err, az_json_where(r->doc));
}

static az_err get_int(int64_t *out, const reader *r, const char *key, int64_t lo, int64_t hi,
                      int64_t fallback)
{
    return take(r, az_json_get_int(out, r->doc, r->root, key, lo, hi, fallback));
}

static az_err get_real(double *out, const reader *r, const az_json *object, const char *key,
                       double lo, double hi, double fallback)
{
    return take(r, az_json_get_real(out, r->doc, object, key, lo, hi, fallback));
}

static bool is_set(const az_json *object, const char *key)
{
    return az_json_get_type(az_json_member(object, key)) != AZ_JSON_NULL;
}

static az_err read_sizes(const reader *r)
{
    az_err err;
    az_config *c = r->config;
    int64_t heads, groups, k, before = r->faults->n;
    AZ_TRY(get_int(&c->D, r, "hidden_size", 1, MAX_WIDTH, 4096));
    AZ_TRY(get_int(&c->F, r, "intermediate_size", 1, MAX_FFN, 11008));
    AZ_TRY(get_int(&c->V, r, "vocab_size", 1, MAX_VOCAB, 32000));
    AZ_TRY(get_int(&c->L, r, "num_hidden_layers", 1, MAX_LAYERS, 32));
    AZ_TRY(get_int(&heads, r, "num_attention_heads", 1, MAX_HEADS, 32));
    AZ_TRY(get_int(&groups, r, "num_key_value_heads", 1, MAX_HEADS, heads));
    AZ_TRY(get_int(&k, r, "head_dim", 2, MAX_HEAD_DIM, 0));
    AZ_TRY(get_int(&c->max_position, r, "max_position_embeddings", 1, MAX_POSITIONS, 2048));
    AZ_TRY(get_real(&c->norm_eps, r, r->root, "rms_norm_eps", 0, 1, 1e-6));
    if (r->faults->n > before) /* what follows would be judged by defaults */
        goto out;
    if (heads % groups != 0)
        AZ_TRY(az_faults_add(r->faults,
                             "num_attention_heads %lld is not a multiple of num_key_value_heads "
                             "%lld",
                             (long long)heads, (long long)groups));
    if (k == 0) {
        if (c->D % heads != 0)
            AZ_TRY(az_faults_add(r->faults,
                                 "hidden_size %lld is not a multiple of num_attention_heads %lld, "
                                 "and there is no head_dim",
                                 (long long)c->D, (long long)heads));
        k = c->D / heads;
    }
    if (k % 2 != 0)
        AZ_TRY(az_faults_add(r->faults, "head_dim %lld is odd, rotary embedding needs an even one",
                             (long long)k));
    c->H = (int)heads;
    c->G = (int)groups;
    c->K = k;
out:
    return err;
}

static az_err read_switches(const reader *r)
{
    az_err err;
    az_config *c = r->config;
    AZ_TRY(take(r, az_json_get_bool(&c->tied, r->doc, r->root, "tie_word_embeddings", false)));
    AZ_TRY(take(r, az_json_get_bool(&c->attention_bias, r->doc, r->root, "attention_bias", false)));
    AZ_TRY(take(r, az_json_get_bool(&c->mlp_bias, r->doc, r->root, "mlp_bias", false)));
out:
    return err;
}

/* transformers 5 writes "dtype", 4 "torch_dtype". The headers of the files say what is stored; this
 * is for those who have no files. */
static void read_stored(const reader *r)
{
    static const struct {
        const char *name;
        az_dtype dtype;
    } types[] = {{"float32", AZ_F32}, {"float16", AZ_F16}, {"bfloat16", AZ_BF16}};
    const az_json *v = az_json_member(r->root, is_set(r->root, "dtype") ? "dtype" : "torch_dtype");
    r->config->stored = AZ_BF16;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return;
    r->config->stored = -1;
    for (int i = 0; i < 3 && az_json_get_type(v) == AZ_JSON_STRING; i++)
        if (strcmp(az_json_string(v, NULL), types[i].name) == 0)
            r->config->stored = (int)types[i].dtype;
}

/* ---- what is not supported */
static az_err check_architecture(const reader *r)
{
    const az_json *list = az_json_member(r->root, "architectures");
    if (az_json_get_type(list) != AZ_JSON_ARRAY || az_json_count(list) == 0)
        return AZ_OK;
    const az_json *v = az_json_at(list, 0);
    const char *name = az_json_get_type(v) == AZ_JSON_STRING ? az_json_string(v, NULL) : "?";
    if (strcasecmp(name, "LlamaForCausalLM") == 0) /* the first files wrote LLaMAForCausalLM */
        return AZ_OK;
    return az_faults_add(r->faults, "architectures: found \"%.60s\", supported: LlamaForCausalLM",
                         name);
}

static az_err check_unsupported(const reader *r)
{
    az_err err;
    const char *act;
    double dropout;
    int64_t window;
    bool windows;
    AZ_TRY(check_architecture(r));
    AZ_TRY(get_int(&window, r, "sliding_window", 0, INT64_MAX, 0));
    AZ_TRY(take(r, az_json_get_bool(&windows, r->doc, r->root, "use_sliding_window", true)));
    if (windows && window > 0 && window < r->config->max_position)
        AZ_TRY(
            az_faults_add(r->faults,
                          "sliding_window: found %lld, supported: null, full attention (which is "
                          "what transformers computes for model_type llama whatever this says: "
                          "take the key out for that)",
                          (long long)window));
    AZ_TRY(take(r, az_json_get_string(&act, r->doc, r->root, "hidden_act", "silu")));
    if (strcmp(act, "silu") != 0)
        AZ_TRY(az_faults_add(r->faults, "hidden_act: found \"%.60s\", supported: silu", act));
    if (is_set(r->root, "quantization_config")) {
        const az_json *q = az_json_member(r->root, "quantization_config");
        const az_json *m = az_json_member(q, "quant_method");
        AZ_TRY(az_faults_add(r->faults,
                             "quantization_config: quantized weights (%.60s) are not supported; "
                             "use the F32, F16 or BF16 model",
                             az_json_get_type(m) == AZ_JSON_STRING ? az_json_string(m, NULL)
                                                                   : "no quant_method"));
    }
    AZ_TRY(get_real(&dropout, r, r->root, "attention_dropout", 0, 1, 0));
    if (dropout != 0)
        AZ_TRY(az_faults_add(r->faults,
                             "attention_dropout: found %g, supported: 0 (dropout of attention "
                             "weights is not done)",
                             dropout));
out:
    return err;
}

/* ---- rotary angles */
static az_err read_law(const reader *r, const char *from, const az_json *rope, const char *type)
{
    az_err err = AZ_OK;
    az_config *c = r->config;
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    double *const values[] = {&c->rope_factor, &c->rope_low_freq_factor, &c->rope_high_freq_factor,
                              &c->rope_original_max_position};
    int n;
    if (strcmp(type, "default") == 0) {
        c->rope = AZ_ROPE_DEFAULT;
        n = 0;
    } else if (strcmp(type, "linear") == 0) {
        c->rope = AZ_ROPE_LINEAR;
        n = 1;
    } else if (strcmp(type, "llama3") == 0) {
        c->rope = AZ_ROPE_LLAMA3;
        n = 4;
    } else {
        return az_faults_add(r->faults,
                             "%s: rope_type: found \"%.60s\", supported: default, linear, llama3",
                             from, type);
    }
    int64_t before = r->faults->n;
    for (int i = 0; i < n; i++) {
        /* a few files have the original length beside the dictionary: it wins there */
        const az_json *object = i == 3 && is_set(r->root, keys[3]) ? r->root : rope;
        if (is_set(object, keys[i]))
            AZ_TRY(get_real(values[i], r, object, keys[i], 1e-6, (double)MAX_POSITIONS, 1));
        else
            AZ_TRY(az_faults_add(r->faults, "%s: %s is missing, rope_type %s needs it", from,
                                 keys[i], type));
    }
    if (n == 4 && r->faults->n == before && c->rope_low_freq_factor >= c->rope_high_freq_factor)
        AZ_TRY(az_faults_add(r->faults, "%s: low_freq_factor %g is not below high_freq_factor %g",
                             from, c->rope_low_freq_factor, c->rope_high_freq_factor));
out:
    return err;
}

static az_err read_rope(const reader *r)
{
    az_err err;
    az_config *c = r->config;
    const char *type = "default", *from = "rope_parameters";
    const az_json *rope = az_json_member(r->root, from);
    double partial;
    if (az_json_get_type(rope) == AZ_JSON_NULL || az_json_count(rope) == 0) {
        from = "rope_scaling";
        rope = az_json_member(r->root, from);
    }
    if (az_json_get_type(rope) != AZ_JSON_NULL && az_json_get_type(rope) != AZ_JSON_OBJECT)
        return az_faults_add(r->faults, "%s: found %s, expected an object", from,
                             az_json_type_name(rope));
    void *cursor = NULL;
    const char *key;
    const az_json *v;
    while (rope != NULL && az_json_count(rope) > 0 && az_json_next(rope, &cursor, &key, &v))
        if (az_json_get_type(v) == AZ_JSON_OBJECT)
            return az_faults_add(r->faults,
                                 "%s: found an object under \"%.60s\" (angles per kind of layer), "
                                 "supported: one set of values",
                                 from, key);
    const az_json *theta_in = is_set(rope, "rope_theta") ? rope : r->root;
    AZ_TRY(get_real(&c->rope_theta, r, theta_in, "rope_theta", 1, 1e15, 10000));
    const az_json *partial_in = is_set(rope, "partial_rotary_factor") ? rope : r->root;
    AZ_TRY(get_real(&partial, r, partial_in, "partial_rotary_factor", 0, 1, 1));
    if (partial != 1)
        AZ_TRY(az_faults_add(r->faults, "partial_rotary_factor: found %g, supported: 1", partial));
    if (az_json_get_type(rope) == AZ_JSON_OBJECT) {
        key = is_set(rope, "rope_type") ? "rope_type" : "type";
        AZ_TRY(take(r, az_json_get_string(&type, r->doc, rope, key, "default")));
    }
    AZ_TRY(read_law(r, from, rope, type));
out:
    return err;
}

/* ---- special ids */
static az_err add_eos(const reader *r, const az_json *v)
{
    az_config *c = r->config;
    if (az_json_get_type(v) != AZ_JSON_INT || az_json_int(v) < 0 || az_json_int(v) >= MAX_VOCAB)
        return az_faults_add(r->faults,
                             "eos_token_id: found %s out of place, expected an id or a list of ids "
                             "from 0 to %lld",
                             az_json_type_name(v), (long long)MAX_VOCAB - 1);
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == az_json_int(v))
            return AZ_OK;
    if (c->n_eos == AZ_MAX_EOS)
        return az_faults_add(r->faults, "eos_token_id: more than %d ids", AZ_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)az_json_int(v);
    return AZ_OK;
}

/* Replaces what was there if the document says anything. */
static az_err read_eos(const reader *r)
{
    az_err err = AZ_OK;
    const az_json *v = az_json_member(r->root, "eos_token_id");
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    r->config->n_eos = 0;
    memset(r->config->eos, 0, sizeof r->config->eos);
    if (az_json_get_type(v) != AZ_JSON_ARRAY)
        return add_eos(r, v);
    for (size_t i = 0; i < az_json_count(v); i++)
        AZ_TRY(add_eos(r, az_json_at(v, i)));
out:
    return err;
}

static az_err read_ids(const reader *r)
{
    az_err err;
    int64_t bos;
    bool null_bos = az_json_member(r->root, "bos_token_id") != NULL;
    AZ_TRY(get_int(&bos, r, "bos_token_id", -1, MAX_VOCAB - 1, null_bos ? -1 : 1));
    r->config->bos = (int32_t)bos;
    if (az_json_member(r->root, "eos_token_id") == NULL) { /* absent is not null here */
        r->config->eos[0] = 2;
        r->config->n_eos = 1;
    }
    AZ_TRY(read_eos(r));
out:
    return err;
}

/* The ids at which generation stops are generation_config.json's, where there is one. */
static az_err read_generation(az_config *config, az_faults *faults, const char *path)
{
    az_err err;
    az_json_doc *doc = NULL;
    az_faults own = {0};
    AZ_TRY(az_faults_take(faults, az_json_load(&doc, path), ""));
    if (doc == NULL)
        goto out;
    reader r = {config, &own, doc, az_json_root(doc)};
    AZ_TRY(read_eos(&r));
    if (own.n > 0)
        AZ_TRY(az_faults_add(faults, "generation_config.json: %s", own.text.s));
out:
    az_faults_fini(&own);
    az_json_close(doc);
    return err;
}

/* ---- the file */
static az_err read_document(const reader *r)
{
    az_err err;
    const char *type;
    if (az_json_get_type(r->root) != AZ_JSON_OBJECT)
        return az_faults_add(r->faults, "found %s, expected an object", az_json_type_name(r->root));
    AZ_TRY(take(r, az_json_get_string(&type, r->doc, r->root, "model_type", NULL)));
    if (r->faults->n > 0)
        goto out;
    if (type == NULL || strcmp(type, "llama") != 0) {
        /* the other keys of another family would only be misread */
        err = type == NULL
                  ? az_faults_add(r->faults, "model_type is missing, supported: llama")
                  : az_faults_add(r->faults, "model_type: found \"%.60s\", supported: llama", type);
        goto out;
    }
    strcpy(r->config->model_type, "llama");
    AZ_TRY(read_sizes(r));
    AZ_TRY(read_switches(r));
    read_stored(r);
    AZ_TRY(read_rope(r));
    AZ_TRY(check_unsupported(r));
    AZ_TRY(read_ids(r));
out:
    return err;
}

az_err az_config_read(az_config *config, const char *dir)
{
    az_err err;
    az_faults faults = {0};
    az_json_doc *doc = NULL;
    char *path = az_path_join(dir, "config.json");
    char *generation = az_path_join(dir, "generation_config.json");
    memset(config, 0, sizeof *config);
    AZ_TRY(path != NULL && generation != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_json_load(&doc, path));
    reader r = {config, &faults, doc, az_json_root(doc)};
    AZ_TRY(read_document(&r));
    if (az_file_exists(generation))
        AZ_TRY(read_generation(config, &faults, generation));
    AZ_TRY(az_faults_report(&faults, path));
out:
    az_json_close(doc);
    az_faults_fini(&faults);
    az_free(path);
    az_free(generation);
    return err;
}
