/* PEFT adapter directories: adapter_config.json read and written, every refusal by its message. */
#include <config.h>

#include "store_util.h"

#include "store/peft.h"

static char dir[512], path[600];

static az_err read_text(az_peft_config *c, const char *text)
{
    snprintf(dir, sizeof dir, "%s", fresh_dir("adapter"));
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    put_text(path, text);
    return az_peft_read_config(c, dir);
}

#define LORA(body) "{\"peft_type\":\"LORA\"" body "}"

static void test_defaults(void **state)
{
    (void)state;
    az_peft_config c;
    assert_int_equal(read_text(&c, LORA()), AZ_OK);
    assert_true(c.r == 8 && c.lora_alpha == 8 && c.lora_dropout == 0 && !c.use_rslora);
    assert_true(c.target_modules.n == 0 && c.target_regex == NULL && c.layers_to_transform == NULL);
    assert_string_equal(c.init_lora_weights, "true");
    assert_null(c.base_model_name_or_path);
    az_peft_config_fini(&c);
}

/* Written by PEFT 0.21.2, with values changed. */
static const char full[] =
    "{\"alora_invocation_tokens\":null,\"alpha_pattern\":{\"v_proj\":22.627416997969522,\"q\":3},"
    "\"arrow_config\":null,\"auto_mapping\":null,\"base_model_name_or_path\":\"a/\\u00e9\","
    "\"bias\":\"none\",\"corda_config\":null,\"ensure_weight_tying\":false,\"eva_config\":null,"
    "\"exclude_modules\":[\"k_proj\"],\"fan_in_fan_out\":false,\"inference_mode\":true,"
    "\"init_lora_weights\":\"gaussian\",\"kasa_config\":null,\"layer_replication\":null,"
    "\"layers_pattern\":\"layers\",\"layers_to_transform\":[0,3],\"loftq_config\":{},"
    "\"lora_alpha\":22.627416997969522,\"lora_bias\":false,\"lora_dropout\":0.05,"
    "\"lora_ga_config\":null,\"megatron_config\":null,\"megatron_core\":\"megatron.core\","
    "\"modules_to_save\":null,\"monteclora_config\":null,\"peft_type\":\"LORA\","
    "\"peft_version\":\"0.21.2\",\"qalora_group_size\":16,\"r\":64,"
    "\"rank_pattern\":{\"z.q_proj\":4,\"^a\":16},\"revision\":null,"
    "\"target_modules\":[\"q_proj\",\"v_proj\"],\"target_parameters\":null,"
    "\"task_type\":\"CAUSAL_LM\",\"trainable_token_indices\":null,\"use_bdlora\":null,"
    "\"use_dora\":false,\"use_qalora\":false,\"use_rslora\":true,\"velora_config\":null}";

static void check_full(const az_peft_config *c)
{
    assert_true(c->r == 64 && c->lora_alpha == 22.627416997969522 && c->lora_dropout == 0.05);
    assert_true(c->use_rslora && c->target_regex == NULL && c->exclude_regex == NULL);
    assert_int_equal(c->target_modules.n, 2);
    assert_string_equal(c->target_modules.items[0], "q_proj");
    assert_string_equal(c->target_modules.items[1], "v_proj");
    assert_int_equal(c->exclude_modules.n, 1);
    assert_string_equal(c->exclude_modules.items[0], "k_proj");
    assert_int_equal(c->layers_pattern.n, 1);
    assert_string_equal(c->layers_pattern.items[0], "layers");
    assert_true(c->n_layers_to_transform == 2 && c->layers_to_transform[1] == 3);
    assert_int_equal(c->rank_pattern.n, 2); /* order kept */
    assert_string_equal(c->rank_pattern.keys[0], "z.q_proj");
    assert_true(c->rank_pattern.values[0] == 4 && c->rank_pattern.values[1] == 16);
    assert_int_equal(c->alpha_pattern.n, 2);
    assert_true(c->alpha_pattern.values[0] == 22.627416997969522);
    assert_string_equal(c->init_lora_weights, "gaussian");
    assert_string_equal(c->base_model_name_or_path, "a/\xc3\xa9");
}

/* DIR/adapter_config.json, and adapter_model.safetensors without tensors. */
static az_err write_config(const char *where, const az_peft_config *c)
{
    az_err err;
    az_str text = {0};
    AZ_TRY(az_peft_add_config(&text, c));
    AZ_TRY(az_peft_write(where, text.s, NULL, 0, AZ_F32, NULL, NULL));
out:
    az_str_fini(&text);
    return err;
}

static void test_round_trip(void **state)
{
    (void)state;
    az_peft_config c;
    assert_int_equal(read_text(&c, full), AZ_OK);
    check_full(&c);
    assert_int_equal(write_config(dir, &c), AZ_OK);
    az_peft_config_fini(&c);
    assert_int_equal(az_peft_read_config(&c, dir), AZ_OK);
    check_full(&c);
    az_peft_config_fini(&c);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_forms(void **state)
{
    (void)state;
    az_peft_config c;
    assert_int_equal(read_text(&c, LORA(",\"target_modules\":\"all-linear\",\"exclude_modules\":"
                                        "\".*k_proj\",\"lora_alpha\":16,\"init_lora_weights\":"
                                        "false,\"new_thing\":null,\"alpha_pattern\":null")),
                     AZ_OK);
    for (int i = 0; i < 2; i++) { /* read, then read from what was written */
        assert_string_equal(c.target_regex, "all-linear");
        assert_string_equal(c.exclude_regex, ".*k_proj");
        assert_string_equal(c.init_lora_weights, "false");
        assert_true(c.lora_alpha == 16);
        assert_int_equal(write_config(dir, &c), AZ_OK);
        az_peft_config_fini(&c);
        assert_int_equal(az_peft_read_config(&c, dir), AZ_OK);
    }
    az_peft_config_fini(&c);
    assert_int_equal(read_text(&c, LORA(",\"target_modules\":[\"q\"],\"layers_to_transform\":2,"
                                        "\"init_lora_weights\":\"orthogonal\"")),
                     AZ_OK);
    assert_true(c.n_layers_to_transform == 1 && c.layers_to_transform[0] == 2);
    assert_string_equal(c.init_lora_weights, "true");
    az_peft_config_fini(&c);
    assert_int_equal(read_text(&c, LORA(",\"layers_to_transform\":[],\"modules_to_save\":[]")),
                     AZ_OK);
    assert_null(c.layers_to_transform);
    az_peft_config_fini(&c);
}

static void test_written_text(void **state)
{
    (void)state;
    static const char expected[] =
        "{\n"
        "  \"alpha_pattern\": {},\n"
        "  \"auto_mapping\": null,\n"
        "  \"base_model_name_or_path\": null,\n"
        "  \"bias\": \"none\",\n"
        "  \"exclude_modules\": null,\n"
        "  \"fan_in_fan_out\": false,\n"
        "  \"inference_mode\": true,\n"
        "  \"init_lora_weights\": true,\n"
        "  \"layer_replication\": null,\n"
        "  \"layers_pattern\": null,\n"
        "  \"layers_to_transform\": [\n    1\n  ],\n"
        "  \"loftq_config\": {},\n"
        "  \"lora_alpha\": 8,\n"
        "  \"lora_bias\": false,\n"
        "  \"lora_dropout\": 0.0,\n"
        "  \"megatron_config\": null,\n"
        "  \"megatron_core\": \"megatron.core\",\n"
        "  \"modules_to_save\": null,\n"
        "  \"peft_type\": \"LORA\",\n"
        "  \"r\": 8,\n"
        "  \"rank_pattern\": {\n    \"b\": 4,\n    \"a\": 2\n  },\n"
        "  \"revision\": null,\n"
        "  \"target_modules\": [\n    \"q_proj\",\n    \"v_proj\"\n  ],\n"
        "  \"task_type\": \"CAUSAL_LM\",\n"
        "  \"use_dora\": false,\n"
        "  \"use_rslora\": false\n"
        "}\n";
    az_peft_config c;
    char *text;
    size_t bytes;
    assert_int_equal(az_peft_config_init(&c), AZ_OK);
    assert_int_equal(az_list_add(&c.target_modules, "q_proj"), AZ_OK);
    assert_int_equal(az_list_add(&c.target_modules, "v_proj"), AZ_OK);
    assert_int_equal(az_pattern_add(&c.rank_pattern, "b", 4), AZ_OK);
    assert_int_equal(az_pattern_add(&c.rank_pattern, "a", 2), AZ_OK);
    c.layers_to_transform = az_alloc(1, sizeof *c.layers_to_transform, "adapter config");
    c.layers_to_transform[c.n_layers_to_transform++] = 1;
    snprintf(dir, sizeof dir, "%s", tmp_path("new/deep"));
    assert_int_equal(write_config(dir, &c), AZ_OK);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    assert_int_equal(az_file_read(&text, &bytes, path), AZ_OK);
    assert_string_equal(text, expected);
    az_free(text);
    c.lora_alpha = 1.0 / 0.0;
    expect_failure(write_config(dir, &c), AZ_EINPUT, "a number is not finite");
    az_peft_config_fini(&c);
}

static const struct {
    const char *text, *message;
} refused[] = {
    {"[]", "found an array, expected an object"},
    {"{", "not valid JSON"},
    {"{}", "peft_type is missing, supported: LORA"},
    {"{\"peft_type\":\"IA3\"}", "peft_type: found \"IA3\", supported: LORA"},
    {LORA(",\"r\":0"), "r: found 0, expected an integer from 1 to 65536"},
    {LORA(",\"r\":2.5"), "r: found 2.5, expected an integer"},
    {LORA(",\"lora_alpha\":\"x\""), "lora_alpha: found \"x\", expected a number"},
    {LORA(",\"lora_dropout\":1"), "lora_dropout: found 1, expected less than 1"},
    {LORA(",\"lora_dropout\":-0.5"), "lora_dropout: found -0.5"},
    {LORA(",\"use_rslora\":1"), "use_rslora: found 1, expected true or false"},
    {LORA(",\"target_modules\":3"), "target_modules: found an integer, expected names"},
    {LORA(",\"target_modules\":\"\""), "target_modules: found an empty string"},
    {LORA(",\"target_modules\":[\"q\",4]"), "target_modules[1]: expected a name"},
    {LORA(",\"exclude_modules\":{}"), "exclude_modules: found an object"},
    {LORA(",\"layers_pattern\":\"h\""), "layers_pattern needs layers_to_transform"},
    {LORA(",\"layers_to_transform\":\"x\""), "layers_to_transform: found a string"},
    {LORA(",\"layers_to_transform\":[-1]"), "layers_to_transform: expected layer numbers"},
    {LORA(",\"layers_to_transform\":[1],\"target_modules\":\"q\""),
     "layers_to_transform needs target_modules as a list"},
    {LORA(",\"rank_pattern\":[]"), "rank_pattern: found an array, expected an object"},
    {LORA(",\"rank_pattern\":{\"q\":0}"), "rank_pattern: 'q': expected a rank from 1 to 65536"},
    {LORA(",\"rank_pattern\":{\"q\":1.5}"), "rank_pattern: 'q': expected a rank"},
    {LORA(",\"alpha_pattern\":{\"q\":\"1\"}"), "alpha_pattern: 'q': expected a number"},
    {LORA(",\"init_lora_weights\":3"), "init_lora_weights: found an integer"},
    {LORA(",\"init_lora_weights\":\"pissa_niter_4\""),
     "init_lora_weights: \"pissa_niter_4\" also changes the base model"},
    {LORA(",\"init_lora_weights\":\"olora\""), "\"olora\" also changes the base"},
    {LORA(",\"init_lora_weights\":\"loftq\""), "\"loftq\" also changes the base"},
    {LORA(",\"base_model_name_or_path\":1"), "base_model_name_or_path: found 1, expected a string"},
    {LORA(",\"bias\":\"all\""), "bias: found \"all\", supported: none"},
    {LORA(",\"use_dora\":true"), "use_dora is set: DoRA is not supported"},
    {LORA(",\"use_qalora\":true"), "use_qalora is set"},
    {LORA(",\"use_bdlora\":{\"nblocks\":2}"), "use_bdlora is set"},
    {LORA(",\"lora_bias\":true"), "lora_bias is set"},
    {LORA(",\"modules_to_save\":[\"lm_head\"]"),
     "modules_to_save is set: modules that are trained whole"},
    {LORA(",\"trainable_token_indices\":[1]"), "trainable_token_indices is set"},
    {LORA(",\"target_parameters\":[\"x\"]"), "target_parameters is set"},
    {LORA(",\"layer_replication\":[[0,1]]"), "layer_replication is set"},
    {LORA(",\"alora_invocation_tokens\":[1]"), "alora_invocation_tokens is set"},
    {LORA(",\"arrow_config\":{\"top_k\":1}"), "arrow_config is set"},
    {LORA(",\"kasa_config\":{\"a\":1}"), "kasa_config is set"},
    {LORA(",\"velora_config\":{\"a\":1}"), "velora_config is set"},
    {LORA(",\"monteclora_config\":{\"a\":1}"), "monteclora_config is set"},
    {LORA(",\"megatron_config\":{\"a\":1}"), "megatron_config is set"},
};

static void test_refused(void **state)
{
    (void)state;
    az_peft_config c;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_failure(read_text(&c, refused[i].text), AZ_EINPUT, refused[i].message);
    assert_int_equal(read_text(&c, LORA(",\"r\":0,\"use_dora\":1,\"bias\":\"all\"")), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "adapter_config.json: 3 faults:\n  r: found 0"));
    az_err_clear();
    expect_failure(az_peft_read_config(&c, tmp_path("none")), AZ_EINPUT,
                   "none/adapter_config.json: cannot open");
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_tensors(void **state)
{
    (void)state;
    az_tensor_set set;
    az_peft_config c;
    assert_int_equal(read_text(&c, LORA()), AZ_OK);
    az_peft_config_fini(&c);
    expect_failure(az_peft_open_tensors(&set, dir), AZ_EINPUT,
                   "adapter_model.safetensors: cannot open");
    snprintf(path, sizeof path, "%s/adapter_model.bin", dir);
    put_text(path, "x");
    expect_failure(az_peft_open_tensors(&set, dir), AZ_EINPUT, "only adapter_model.bin was found");
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    put_safetensors(path, "{}", 0);
    assert_int_equal(az_peft_open_tensors(&set, dir), AZ_OK);
    az_store_close(&set);
    char *key = az_peft_key("model.layers.0.self_attn.q_proj", 'B');
    assert_string_equal(key, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
    az_free(key);
}

static az_err read_and_write(void *context)
{
    az_peft_config c;
    az_err err = az_peft_read_config(&c, dir);
    if (err == AZ_EINPUT) {
        az_err_clear();
        return AZ_OK;
    }
    if (err == AZ_OK && context != NULL)
        err = write_config(context, &c);
    if (err == AZ_OK) {
        az_tensor_set set;
        char *key = az_peft_key("m", 'A');
        err = key != NULL ? az_peft_open_tensors(&set, dir) : AZ_EENV;
        if (err == AZ_OK)
            az_store_close(&set);
        az_free(key);
    }
    az_peft_config_fini(&c);
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    az_peft_config c;
    char to[300];
    snprintf(to, sizeof to, "%s/to", tmp_dir);
    assert_int_equal(read_text(&c, full), AZ_OK);
    az_peft_config_fini(&c);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    put_safetensors(path, "{}", 0);
    try_all_allocations(read_and_write, to);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        (void)read_text(&c, refused[i].text);
        az_err_clear();
        try_all_allocations(read_and_write, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_written_text),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
