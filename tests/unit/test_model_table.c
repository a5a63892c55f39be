/* The tensors and linears of a model, and its rotary angles. */
#include <config.h>

#include <math.h>

#include "store_util.h"

#include "model/config.h"
#include "tol.h"

static const az_config small = {
    .model_type = "llama",
    .D = 8,
    .F = 12,
    .V = 20,
    .L = 2,
    .H = 2,
    .G = 1,
    .K = 6,
    .max_position = 64,
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .n_eos = 1,
};

/* A file that holds the model of config, with some tensors changed. skip: left out. */
static void put_model(const az_config *config, const char *opt_skip, const char *opt_extra,
                      const char *opt_dtype_of, const char *opt_shape_of)
{
    az_str text = {0};
    long at = 0;
    /* names and sizes taken from the code under test would be no test: they are written out */
    static const char *const parts[][2] = {
        {"input_layernorm", "8"},     {"self_attn.q_proj", "12,8"},
        {"self_attn.k_proj", "6,8"},  {"self_attn.v_proj", "6,8"},
        {"self_attn.o_proj", "8,12"}, {"post_attention_layernorm", "8"},
        {"mlp.gate_proj", "12,8"},    {"mlp.up_proj", "12,8"},
        {"mlp.down_proj", "8,12"},
    };
    assert_int_equal(az_str_add(&text, "{"), AZ_OK);
    for (int i = 0; i < 3 + 2 * 9 * 2; i++) {
        char name[200], shape[40];
        int l = (i - 3) / 18, k = (i - 3) % 18;
        if (i == 0)
            strcpy(name, "model.embed_tokens.weight"), strcpy(shape, "20,8");
        else if (i == 1)
            strcpy(name, "model.norm.weight"), strcpy(shape, "8");
        else if (i == 2)
            strcpy(name, "lm_head.weight"), strcpy(shape, "20,8");
        else if (k < 9)
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, parts[k][0]),
                strcpy(shape, parts[k][1]);
        else
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", l, parts[k - 9][0]),
                snprintf(shape, sizeof shape, "%d", atoi(parts[k - 9][1]));
        bool bias = i >= 3 && k >= 9, attention = strstr(name, "self_attn") != NULL;
        if (bias && (strstr(name, "layernorm") != NULL ||
                     !(attention ? config->attention_bias : config->mlp_bias)))
            continue;
        if ((i == 2 && config->tied) || (opt_skip != NULL && strcmp(opt_skip, name) == 0))
            continue;
        if (opt_shape_of != NULL && strcmp(opt_shape_of, name) == 0)
            strcpy(shape, "3,3");
        const char *comma = strchr(shape, ',');
        bool f64 = opt_dtype_of != NULL && strcmp(opt_dtype_of, name) == 0;
        long n = atol(shape) * (comma != NULL ? atol(comma + 1) : 1) * (f64 ? 8 : 2);
        assert_int_equal(
            az_str_add(&text,
                       "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%ld,%ld]},", name,
                       f64 ? "F64" : "BF16", shape, at, at + n),
            AZ_OK);
        at += n;
    }
    if (opt_extra != NULL) {
        assert_int_equal(
            az_str_add(&text,
                       "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%ld,%ld]},",
                       opt_extra, at, at + 4),
            AZ_OK);
        at += 4;
    }
    text.s[text.len - 1] = '}';
    put_safetensors(tmp_path("m.safetensors"), text.s, (size_t)at);
    az_str_fini(&text);
}

static az_err create(const az_config *config)
{
    az_tensor_set set;
    az_table table;
    az_err err = az_store_open_file(&set, tmp_path("m.safetensors"));
    if (err == AZ_OK)
        err = az_table_create(&table, config, &set);
    if (err == AZ_OK)
        az_table_fini(&table);
    az_store_close(&set);
    return err;
}

static void test_order(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
    };
    az_tensor_set set;
    az_table table;
    put_model(&small, NULL, NULL, NULL, NULL);
    assert_int_equal(az_store_open_file(&set, tmp_path("m.safetensors")), AZ_OK);
    assert_int_equal(az_table_create(&table, &small, &set), AZ_OK);
    assert_int_equal(table.n_weights, 21);
    for (int i = 0; i < 11; i++)
        assert_string_equal(table.weights[i].name, names[i]);
    assert_string_equal(table.weights[19].name, "model.norm.weight");
    assert_string_equal(table.weights[20].name, "lm_head.weight");
    int64_t n = 0;
    for (int i = 0; i < table.n_weights; i++) {
        assert_string_equal(set.tensors[table.weights[i].index].name, table.weights[i].name);
        n += table.weights[i].rows * table.weights[i].cols;
    }
    assert_true(n == az_config_count(&small));
    const az_weight *w = &table.weights[5];
    assert_true(w->role == AZ_ROLE_WEIGHT && w->layer == 0 && w->kind == AZ_O && w->rows == 8 &&
                w->cols == 12);
    az_table_fini(&table);
    az_store_close(&set);

    az_config biased = small;
    biased.attention_bias = biased.mlp_bias = biased.tied = true;
    put_model(&biased, NULL, NULL, NULL, NULL);
    assert_int_equal(az_store_open_file(&set, tmp_path("m.safetensors")), AZ_OK);
    assert_int_equal(az_table_create(&table, &biased, &set), AZ_OK);
    assert_int_equal(table.n_weights, 20 + 14);
    assert_string_equal(table.weights[3].name, "model.layers.0.self_attn.q_proj.bias");
    assert_true(table.weights[3].role == AZ_ROLE_BIAS && table.weights[3].rows == 1 &&
                table.weights[3].cols == 12);
    n = 0;
    for (int i = 0; i < table.n_weights; i++)
        n += table.weights[i].rows * table.weights[i].cols;
    assert_true(n == az_config_count(&biased));
    az_table_fini(&table);
    az_store_close(&set);
}

static void test_faults(void **state)
{
    (void)state;
    az_config biased = small, tied = small, deep = small;
    biased.attention_bias = true;
    tied.tied = true;
    deep.L = 50;
    put_model(&small, "model.layers.1.mlp.up_proj.weight", NULL, NULL, NULL);
    expect_failure(create(&small), AZ_EINPUT, "missing tensor model.layers.1.mlp.up_proj.weight");
    put_model(&small, "lm_head.weight", NULL, NULL, NULL);
    expect_failure(create(&small), AZ_EINPUT,
                   "missing tensor lm_head.weight (config.json says that tie_word_embeddings is");
    assert_int_equal(create(&tied), AZ_OK);
    put_model(&small, NULL, "model.layers.0.self_attn.q_norm.weight", NULL, NULL);
    expect_failure(create(&small), AZ_EINPUT,
                   "unexpected tensor model.layers.0.self_attn.q_norm.weight");
    put_model(&biased, NULL, NULL, NULL, NULL);
    assert_int_equal(create(&biased), AZ_OK);
    assert_int_equal(create(&small), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), ": 8 faults:"));
    assert_non_null(
        strstr(az_err_message(), "unexpected tensor model.layers.1.self_attn.o_proj.bias"));
    az_err_clear();
    put_model(&small, NULL, NULL, "model.norm.weight", "lm_head.weight");
    assert_int_equal(create(&small), AZ_EINPUT);
    assert_non_null(
        strstr(az_err_message(), "model.norm.weight: stored as F64, supported: F32, F16, BF16"));
    assert_non_null(
        strstr(az_err_message(), "lm_head.weight: shape [3, 3], config.json asks for [20, 8]"));
    az_err_clear();
    put_model(&small, NULL, NULL, NULL, "model.norm.weight");
    expect_failure(create(&small), AZ_EINPUT,
                   "model.norm.weight: shape [3, 3], config.json asks for [8]");
    put_model(&small, NULL, NULL, NULL, NULL);
    expect_failure(create(&deep), AZ_EINPUT, "432 faults:");
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_leftovers(void **state)
{
    (void)state;
    az_config tied = small;
    tied.tied = true;
    put_model(&small, NULL, "model.layers.1.self_attn.rotary_emb.inv_freq", NULL, NULL);
    assert_int_equal(create(&small), AZ_OK);
    assert_int_equal(create(&tied), AZ_OK); /* its lm_head.weight is passed over */
    put_model(&small, NULL, "xrotary_emb.inv_freq", NULL, NULL);
    expect_failure(create(&small), AZ_EINPUT, "unexpected tensor xrotary_emb.inv_freq");
}

static void test_linears(void **state)
{
    (void)state;
    az_linear *x;
    int n;
    assert_int_equal(az_config_list_linears(&x, &n, &small), AZ_OK);
    assert_int_equal(n, 14);
    assert_string_equal(x[0].path, "model.layers.0.self_attn.q_proj");
    assert_string_equal(x[13].path, "model.layers.1.mlp.down_proj");
    assert_true(x[13].in == 12 && x[13].out == 8 && x[13].layer == 1 && x[13].kind == AZ_DOWN);
    assert_true(x[1].in == 8 && x[1].out == 6 && x[3].in == 12 && x[3].out == 8);
    az_free(x);
}

static az_err create_again(void *context)
{
    az_linear *x = NULL;
    int n;
    az_err err = create(context);
    if (err == AZ_EINPUT) {
        az_err_clear();
        err = AZ_OK;
    }
    if (err == AZ_OK)
        err = az_config_list_linears(&x, &n, context);
    az_free(x);
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    az_config c = small;
    put_model(&small, NULL, NULL, NULL, NULL);
    try_all_allocations(create_again, &c);
    put_model(&small, "model.norm.weight", "x", NULL, NULL);
    try_all_allocations(create_again, &c);
}

/* Frequencies of an independent program in double. */
static const struct {
    int law, j;
    double f;
} frequencies[] = {
    /* default */ {0, 0, 1.0000000000000000e+00},
    {0, 1, 1.0000000000000001e-01},
    {0, 2, 1.0000000000000000e-02},
    {0, 3, 1.0000000000000000e-03},
    /* linear */ {1, 0, 2.5000000000000000e-01},
    {1, 1, 2.5000000000000001e-02},
    {1, 2, 2.5000000000000001e-03},
    {1, 3, 2.5000000000000001e-04},
    /* llama3 */ {2, 0, 1.0000000000000000e+00},
    {2, 1, 6.6360123769608848e-01},
    {2, 16, 5.2484616099295468e-04},
    {2, 17, 1.7850781276799641e-04},
    {2, 24, 6.6478698711812354e-06},
    {2, 31, 3.7673226901739640e-07},
    /* short */ {3, 0, 6.3661977236758138e-01},
    {3, 1, 7.9056941504209485e-02},
    {3, 4, 2.5000000000000001e-03},
    {3, 5, 7.9056941504209485e-04},
    {3, 6, 2.5000000000000001e-04},
    {3, 7, 7.9056941504209485e-05},
};

static void test_rope(void **state)
{
    (void)state;
    enum { P = 90 };
    static const az_config laws[] = {
        {.K = 8, .rope_theta = 10000, .rope = AZ_ROPE_DEFAULT},
        {.K = 8, .rope_theta = 10000, .rope = AZ_ROPE_LINEAR, .rope_factor = 4},
        {.K = 64,
         .rope_theta = 500000,
         .rope = AZ_ROPE_LLAMA3,
         .rope_factor = 8,
         .rope_low_freq_factor = 1,
         .rope_high_freq_factor = 4,
         .rope_original_max_position = 8192},
        {.K = 16,
         .rope_theta = 10000,
         .rope = AZ_ROPE_LLAMA3,
         .rope_factor = 4,
         .rope_low_freq_factor = 1,
         .rope_high_freq_factor = 4,
         .rope_original_max_position = 16},
    };
    static float table[P * 64];
    for (size_t i = 0; i < sizeof frequencies / sizeof frequencies[0]; i++) {
        const az_config *c = &laws[frequencies[i].law];
        int64_t j = frequencies[i].j, K = c->K;
        az_config_fill_rope(table, c, P);
        for (int p = 0; p < P; p++) {
            double angle = p * frequencies[i].f, tol = TOL_ROPE * (1 + angle);
            double e_cos = fabs(table[p * K + j] - cos(angle));
            double e_sin = fabs(table[p * K + K / 2 + j] - sin(angle));
            double tol_sin = angle < 1 ? TOL_ROPE * angle : tol;
            if (!(e_cos <= tol && e_sin <= tol_sin))
                fail_msg("law %d, frequency %d, position %d: off by %g and %g", frequencies[i].law,
                         (int)j, p, e_cos, e_sin);
        }
    }
}

/* Without files: what config.json implies is what the table asks for. */
static void test_implied(void **state)
{
    (void)state;
    az_config config = small;
    az_tensor_set set;
    az_table table;
    static const az_dtype types[] = {AZ_F32, AZ_F16, AZ_BF16};
    for (int i = 0; i < 3; i++) {
        int64_t n = 0;
        config.tied = i == 1;
        config.attention_bias = i == 2;
        config.stored = (int)types[i];
        assert_int_equal(az_config_imply(&set, &config), AZ_OK);
        assert_int_equal(az_table_create(&table, &config, &set), AZ_OK);
        assert_int_equal(set.n_tensors, table.n_weights);
        for (int64_t t = 0; t < set.n_tensors; t++)
            n += set.tensors[t].bytes;
        assert_int_equal(n, az_config_count(&config) * (int64_t)az_dtype_bytes(types[i]));
        assert_int_equal(az_store_find(&set, "model.norm.weight")->dtype, types[i]);
        az_table_fini(&table);
        az_store_close(&set);
    }
    config.stored = -1;
    assert_int_equal(az_config_imply(&set, &config), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "supported: float32, float16, bfloat16"));
    az_err_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),     cmocka_unit_test(test_faults),
        cmocka_unit_test(test_leftovers), cmocka_unit_test(test_linears),
        cmocka_unit_test(test_rope),      cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_implied),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
