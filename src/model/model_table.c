/* The tensors and linears that a model of the Llama family consists of, and their places in its
 * files. */
#include <config.h>

#include <stdio.h>

#include "model/config.h"

static const char *const linear_names[AZ_N_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

static void size_linear(int64_t *out_rows, int64_t *out_cols, const az_config *c, int kind)
{
    int64_t q = c->H * c->K, kv = c->G * c->K;
    const int64_t rows[AZ_N_LINEARS] = {q, kv, kv, c->D, c->F, c->F, c->D};
    const int64_t cols[AZ_N_LINEARS] = {c->D, c->D, c->D, q, c->D, c->D, c->F};
    *out_rows = rows[kind];
    *out_cols = cols[kind];
}

static bool has_bias(const az_config *c, int kind)
{
    return kind <= AZ_O ? c->attention_bias : c->mlp_bias;
}

/* Embedding, final norm, head; per layer two norms, linears with their biases. */
static int64_t count_weights(const az_config *c)
{
    int64_t per_layer = 2;
    for (int k = 0; k < AZ_N_LINEARS; k++)
        per_layer += 1 + has_bias(c, k);
    return 2 + !c->tied + c->L * per_layer;
}

static az_weight *add_weight(az_table *table, az_role role, int layer, int kind, int64_t rows,
                             int64_t cols)
{
    az_weight *w = &table->weights[table->n_weights++];
    *w = (az_weight){.role = role, .layer = layer, .kind = kind, .rows = rows, .cols = cols};
    return w;
}

static void add_linear(az_table *table, const az_config *c, int layer, int kind)
{
    int64_t rows, cols;
    size_linear(&rows, &cols, c, kind);
    az_weight *w = add_weight(table, AZ_ROLE_WEIGHT, layer, kind, rows, cols);
    snprintf(w->name, sizeof w->name, "model.layers.%d.%s.weight", layer, linear_names[kind]);
    if (!has_bias(c, kind))
        return;
    w = add_weight(table, AZ_ROLE_BIAS, layer, kind, 1, rows);
    snprintf(w->name, sizeof w->name, "model.layers.%d.%s.bias", layer, linear_names[kind]);
}

static void list_weights(az_table *table, const az_config *c)
{
    strcpy(add_weight(table, AZ_ROLE_EMBED, -1, 0, c->V, c->D)->name, "model.embed_tokens.weight");
    for (int l = 0; l < c->L; l++) {
        az_weight *w = add_weight(table, AZ_ROLE_NORM1, l, 0, 1, c->D);
        snprintf(w->name, sizeof w->name, "model.layers.%d.input_layernorm.weight", l);
        for (int k = AZ_Q; k <= AZ_O; k++)
            add_linear(table, c, l, k);
        w = add_weight(table, AZ_ROLE_NORM2, l, 0, 1, c->D);
        snprintf(w->name, sizeof w->name, "model.layers.%d.post_attention_layernorm.weight", l);
        for (int k = AZ_GATE; k <= AZ_DOWN; k++)
            add_linear(table, c, l, k);
    }
    strcpy(add_weight(table, AZ_ROLE_NORM, -1, 0, 1, c->D)->name, "model.norm.weight");
    if (!c->tied)
        strcpy(add_weight(table, AZ_ROLE_HEAD, -1, 0, c->V, c->D)->name, "lm_head.weight");
}

static bool is_vector(const az_weight *w)
{
    return w->role != AZ_ROLE_EMBED && w->role != AZ_ROLE_WEIGHT && w->role != AZ_ROLE_HEAD;
}

static az_err check_weight(az_faults *faults, const az_weight *w, const az_tensor *t)
{
    az_err err = AZ_OK;
    az_str got = {0};
    bool fits = is_vector(w) ? t->n_dims == 1 && t->shape[0] == w->cols
                             : t->n_dims == 2 && t->shape[0] == w->rows && t->shape[1] == w->cols;
    if (!fits) {
        AZ_TRY(az_store_add_shape(&got, t));
        if (is_vector(w))
            AZ_TRY(az_faults_add(faults, "%s: shape %s, config.json asks for [%lld]", w->name,
                                 got.s, (long long)w->cols));
        else
            AZ_TRY(az_faults_add(faults, "%s: shape %s, config.json asks for [%lld, %lld]", w->name,
                                 got.s, (long long)w->rows, (long long)w->cols));
    }
    if (t->dtype < 0)
        AZ_TRY(az_faults_add(faults, "%s: stored as %s, supported: F32, F16, BF16", w->name,
                             t->dtype_name));
out:
    az_str_fini(&got);
    return err;
}

/* Left by old programs, or doubled: passed over. */
static bool is_leftover(const az_config *c, const char *name)
{
    static const char tail[] = "rotary_emb.inv_freq";
    size_t n = strlen(name), m = sizeof tail - 1;
    if (strncmp(name, "model.", 6) == 0 && n > m && strcmp(name + n - m, tail) == 0 &&
        name[n - m - 1] == '.')
        return true;
    return c->tied && strcmp(name, "lm_head.weight") == 0;
}

static az_err find_weights(az_table *table, az_faults *faults, const az_config *c,
                           const az_tensor_set *set)
{
    az_err err;
    bool *used = NULL;
    AZ_TRY(AZ_NEW(used, (size_t)set->n_tensors, "tensor names"));
    for (int i = 0; i < table->n_weights; i++) {
        az_weight *w = &table->weights[i];
        const az_tensor *t = az_store_find(set, w->name);
        if (t == NULL) {
            AZ_TRY(az_faults_add(faults, "missing tensor %s%s", w->name,
                                 w->role == AZ_ROLE_HEAD
                                     ? " (config.json says that tie_word_embeddings is false)"
                                     : ""));
            continue;
        }
        w->index = (int)(t - set->tensors);
        used[w->index] = true;
        AZ_TRY(check_weight(faults, w, t));
    }
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const az_tensor *t = &set->tensors[i];
        if (!used[i] && !t->alias && !is_leftover(c, t->name))
            AZ_TRY(az_faults_add(faults, "unexpected tensor %.200s", t->name));
    }
out:
    az_free(used);
    return err;
}

az_err az_table_create(az_table *table, const az_config *config, const az_tensor_set *set)
{
    az_err err;
    az_faults faults = {0};
    char *dir = NULL;
    *table = (az_table){0};
    AZ_TRY(AZ_NEW(table->weights, (size_t)count_weights(config), "table of tensors"));
    list_weights(table, config);
    AZ_ASSERT(table->n_weights == count_weights(config));
    AZ_TRY(find_weights(table, &faults, config, set));
    dir = az_path_dir(set->n_files > 0 ? set->files[0] : ".");
    AZ_TRY(dir != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_faults_report(&faults, dir));
out:
    az_faults_fini(&faults);
    az_free(dir);
    if (err != AZ_OK)
        az_table_fini(table);
    return err;
}

az_err az_config_imply(az_tensor_set *set, const az_config *config)
{
    az_err err;
    az_table table = {0};
    az_tensor_out *tensors = NULL;
    *set = (az_tensor_set){0};
    if (config->stored < 0)
        return az_fail(AZ_EINPUT, "config.json: dtype: supported: float32, float16, bfloat16");
    AZ_TRY(AZ_NEW(table.weights, (size_t)count_weights(config), "table of tensors"));
    list_weights(&table, config);
    AZ_TRY(AZ_NEW(tensors, (size_t)table.n_weights, "table of tensors"));
    for (int i = 0; i < table.n_weights; i++) {
        const az_weight *w = &table.weights[i];
        const bool vector = is_vector(w);
        tensors[i] = (az_tensor_out){.name = w->name,
                                     .dtype = (az_dtype)config->stored,
                                     .n_dims = vector ? 1 : 2,
                                     .shape = {vector ? w->cols : w->rows, vector ? 0 : w->cols}};
    }
    err = az_store_imply(set, tensors, table.n_weights);
out:
    az_free(tensors);
    az_table_fini(&table);
    return err;
}

void az_table_fini(az_table *table)
{
    az_free(table->weights);
    *table = (az_table){0};
}

int az_config_get_input(int kind)
{
    static const int inputs[AZ_N_LINEARS] = {
        [AZ_Q] = AZ_IN_QKV,        [AZ_K] = AZ_IN_QKV,      [AZ_V] = AZ_IN_QKV,    [AZ_O] = AZ_IN_O,
        [AZ_GATE] = AZ_IN_GATE_UP, [AZ_UP] = AZ_IN_GATE_UP, [AZ_DOWN] = AZ_IN_DOWN};
    return inputs[kind];
}

az_err az_config_list_linears(az_linear **out_linears, int *out_n, const az_config *config)
{
    az_err err;
    *out_n = 0;
    AZ_TRY(AZ_NEW(*out_linears, (size_t)config->L * AZ_N_LINEARS, "table of linears"));
    for (int l = 0; l < config->L; l++)
        for (int k = 0; k < AZ_N_LINEARS; k++) {
            az_linear *x = &(*out_linears)[(*out_n)++];
            snprintf(x->path, sizeof x->path, "model.layers.%d.%s", l, linear_names[k]);
            size_linear(&x->out, &x->in, config, k);
            x->layer = l;
            x->kind = k;
            x->input = az_config_get_input(k);
        }
out:
    return err;
}

const char *az_config_default_targets(const az_config *config)
{
    (void)config; /* one family so far, and PEFT has the same for its neighbours */
    return "q_proj, v_proj";
}

int64_t az_config_count(const az_config *c)
{
    int64_t layer = 2 * c->D;
    for (int k = 0; k < AZ_N_LINEARS; k++) {
        int64_t rows, cols;
        size_linear(&rows, &cols, c, k);
        layer += rows * cols + (has_bias(c, k) ? rows : 0);
    }
    return (c->tied ? 1 : 2) * c->V * c->D + c->L * layer + c->D;
}
