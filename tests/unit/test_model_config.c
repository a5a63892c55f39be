/* config.json: spellings that mean the same, defaults, every refusal by its message; generation
 * ids; counts. */
#include <config.h>

#include "store_util.h"

#include "model/config.h"

static char dir[512];

static az_err read_texts(az_config *config, const char *text, const char *opt_generation)
{
    char path[600];
    snprintf(dir, sizeof dir, "%s", fresh_dir("model"));
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_text(path, text);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if (opt_generation != NULL)
        put_text(path, opt_generation);
    return az_config_read(config, dir);
}

#define LLAMA(body) "{\"model_type\":\"llama\"" body "}"
#define SIZES                                                                                  \
    ",\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":256,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2"
#define LLAMA3_LAW                                                 \
    "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4.0," \
    "\"original_max_position_embeddings\":8192"

static void test_values(void **state)
{
    (void)state;
    az_config c;
    assert_int_equal(
        read_texts(&c,
                   LLAMA(SIZES ",\"head_dim\":32,\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,"
                               "\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3_LAW "},"
                               "\"tie_word_embeddings\":true,\"attention_bias\":true,"
                               "\"mlp_bias\":true,\"max_position_embeddings\":131072,"
                               "\"bos_token_id\":7,\"eos_token_id\":[9,8,9],\"unknown\":[1],"
                               "\"pretraining_tp\":2,\"hidden_act\":\"silu\","
                               "\"architectures\":[\"LlamaForCausalLM\"]"),
                   NULL),
        AZ_OK);
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.D, 64);
    assert_int_equal(c.F, 96);
    assert_int_equal(c.V, 256);
    assert_int_equal(c.L, 2);
    assert_int_equal(c.H, 4);
    assert_int_equal(c.G, 2);
    assert_int_equal(c.K, 32);
    assert_int_equal(c.max_position, 131072);
    assert_true(c.norm_eps == 1e-5 && c.rope_theta == 500000.0 && c.rope == AZ_ROPE_LLAMA3);
    assert_true(c.rope_factor == 8 && c.rope_low_freq_factor == 1 && c.rope_high_freq_factor == 4);
    assert_true(c.rope_original_max_position == 8192);
    assert_true(c.tied && c.attention_bias && c.mlp_bias);
    assert_int_equal(c.bos, 7);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 9);
    assert_int_equal(c.eos[1], 8);
}

static void test_defaults(void **state)
{
    (void)state;
    az_config c;
    assert_int_equal(read_texts(&c, LLAMA(), NULL), AZ_OK);
    assert_true(c.D == 4096 && c.F == 11008 && c.V == 32000 && c.L == 32);
    assert_true(c.H == 32 && c.G == 32 && c.K == 128 && c.max_position == 2048);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000 && c.rope == AZ_ROPE_DEFAULT);
    assert_true(!c.tied && !c.attention_bias && !c.mlp_bias);
    assert_true(c.bos == 1 && c.n_eos == 1 && c.eos[0] == 2);
    assert_true(az_config_count(&c) == 6738415616); /* Llama-2-7b */
    assert_string_equal(az_config_default_targets(&c), "q_proj, v_proj");
    c.F = 14336, c.V = 128256, c.G = 8; /* Llama-3.1-8B */
    assert_true(az_config_count(&c) == 8030261248);
}

/* Pairs of spellings that must give the same struct, to the byte. */
static const char *const pairs[][2] = {
    {LLAMA(SIZES ",\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3_LAW
                 "},\"torch_dtype\":\"bfloat16\""),
     LLAMA(SIZES
           ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0," LLAMA3_LAW
           "},\"dtype\":\"bfloat16\"")},
    {LLAMA(SIZES ",\"rope_theta\":20000.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}"),
     LLAMA(SIZES ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,"
                 "\"rope_theta\":20000.0},\"rope_theta\":5,\"rope_scaling\":{\"type\":\"yarn\"}")},
    {LLAMA(SIZES ",\"rope_theta\":20000,\"rope_scaling\":null"),
     LLAMA(SIZES ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":20000}")},
    {LLAMA(SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_theta\":20000"),
     LLAMA(SIZES ",\"rope_parameters\":{},\"rope_scaling\":{},\"rope_theta\":20000.0")},
    {LLAMA(SIZES), LLAMA(SIZES ",\"head_dim\":16")},
    {LLAMA(SIZES), LLAMA(SIZES ",\"head_dim\":null,\"partial_rotary_factor\":1.0")},
    {LLAMA(",\"num_key_value_heads\":null"), LLAMA(",\"num_key_value_heads\":32")},
    {LLAMA(",\"eos_token_id\":5"), LLAMA(",\"eos_token_id\":[5]")},
    {LLAMA(SIZES), LLAMA(SIZES ",\"quantization_config\":null,\"attention_dropout\":0.0")},
    {LLAMA(SIZES ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                 "\"high_freq_factor\":4},\"original_max_position_embeddings\":8192"),
     LLAMA(SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3_LAW "}")},
};

static void test_spellings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        az_config a, b;
        if (read_texts(&a, pairs[i][0], NULL) != AZ_OK ||
            read_texts(&b, pairs[i][1], NULL) != AZ_OK)
            fail_msg("pair %zu: %s", i, az_err_message());
        if (memcmp(&a, &b, sizeof a) != 0)
            fail_msg("pair %zu differs", i);
    }
}

static const struct {
    const char *config, *message;
} refused[] = {
    {"{\"model_type\":\"qwen2\",\"hidden_size\":-1}",
     "config.json: model_type: found \"qwen2\", supported: llama"},
    {"{}", "model_type is missing, supported: llama"},
    {"{\"model_type\":3}", "model_type: found 3, expected a string"},
    {"[]", "found an array, expected an object"},
    {"{", "not valid JSON"},
    {LLAMA(",\"hidden_size\":0"), "hidden_size: found 0, expected an integer from 1 to 1048576"},
    {LLAMA(",\"hidden_size\":1e3"), "hidden_size: found 1000.0, expected an integer"},
    {LLAMA(",\"intermediate_size\":99999999"), "intermediate_size: found 99999999, expected"},
    {LLAMA(",\"vocab_size\":\"big\""), "vocab_size: found \"big\", expected an integer"},
    {LLAMA(",\"num_hidden_layers\":0"), "num_hidden_layers: found 0"},
    {LLAMA(",\"num_attention_heads\":0"), "num_attention_heads: found 0"},
    {LLAMA(",\"num_key_value_heads\":0"), "num_key_value_heads: found 0"},
    {LLAMA(",\"num_key_value_heads\":5"),
     "num_attention_heads 32 is not a multiple of num_key_value_heads 5"},
    {LLAMA(",\"hidden_size\":100"), "hidden_size 100 is not a multiple of num_attention_heads 32"},
    {LLAMA(",\"head_dim\":0"), "head_dim: found 0"},
    {LLAMA(",\"head_dim\":9"), "head_dim 9 is odd"},
    {LLAMA(",\"rms_norm_eps\":-1"), "rms_norm_eps: found -1, expected a number from 0 to 1"},
    {LLAMA(",\"max_position_embeddings\":0"), "max_position_embeddings: found 0"},
    {LLAMA(",\"tie_word_embeddings\":1"), "tie_word_embeddings: found 1, expected true or false"},
    {LLAMA(",\"attention_bias\":\"no\""), "attention_bias: found \"no\", expected true or false"},
    {LLAMA(",\"mlp_bias\":0"), "mlp_bias: found 0, expected true or false"},
    {LLAMA(",\"hidden_act\":\"gelu\""), "hidden_act: found \"gelu\", supported: silu"},
    {LLAMA(",\"attention_dropout\":0.1"), "attention_dropout: found 0.1, supported: 0"},
    {LLAMA(",\"architectures\":[\"LlamaForSequenceClassification\"]"),
     "architectures: found \"LlamaForSequenceClassification\", supported: LlamaForCausalLM"},
    {LLAMA(",\"quantization_config\":{\"quant_method\":\"gptq\"}"),
     "quantization_config: quantized weights (gptq) are not supported"},
    {LLAMA(",\"sliding_window\":2047"), "sliding_window: found 2047, supported: null"},
    {LLAMA(",\"sliding_window\":-1"), "sliding_window: found -1, expected an integer from 0"},
    {LLAMA(",\"use_sliding_window\":1"), "use_sliding_window: found 1, expected true or false"},
    {LLAMA(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor: found 0.5, supported: 1"},
    {LLAMA(",\"rope_parameters\":{\"partial_rotary_factor\":0.25}"),
     "partial_rotary_factor: found 0.25, supported: 1"},
    {LLAMA(",\"rope_theta\":0"), "rope_theta: found 0"},
    {LLAMA(",\"rope_scaling\":3"), "rope_scaling: found an integer, expected an object"},
    {LLAMA(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"),
     "rope_scaling: rope_type: found \"dynamic\", supported: default, linear, llama3"},
    {LLAMA(",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2}"),
     "rope_parameters: rope_type: found \"yarn\", supported: default, linear, llama3"},
    {LLAMA(",\"rope_parameters\":{\"rope_type\":7}"), "rope_type: found 7, expected a string"},
    {LLAMA(",\"rope_parameters\":{\"full_attention\":{}}"),
     "rope_parameters: found an object under \"full_attention\""},
    {LLAMA(",\"rope_scaling\":{\"type\":\"linear\"}"),
     "rope_scaling: factor is missing, rope_type linear needs it"},
    {LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}"), "factor: found 0"},
    {LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}"),
     "rope_scaling: high_freq_factor is missing, rope_type llama3 needs it"},
    {LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_"
           "freq_factor\":4,\"original_max_position_embeddings\":8}"),
     "low_freq_factor 4 is not below high_freq_factor 4"},
    {LLAMA(",\"eos_token_id\":\"</s>\""), "eos_token_id: found a string out of place"},
    {LLAMA(",\"eos_token_id\":[1,-1]"), "eos_token_id: found an integer out of place"},
    {LLAMA(",\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"),
     "eos_token_id: more than 16 ids"},
    {LLAMA(",\"bos_token_id\":-2"), "bos_token_id: found -2"},
};

static void test_refused(void **state)
{
    (void)state;
    az_config c;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_failure(read_texts(&c, refused[i].config, NULL), AZ_EINPUT, refused[i].message);
    /* all at once */
    az_err err =
        read_texts(&c, LLAMA(",\"hidden_act\":\"relu\",\"rope_theta\":-1,\"mlp_bias\":2"), NULL);
    assert_int_equal(err, AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "config.json: 3 faults:\n  mlp_bias: found 2"));
    assert_non_null(strstr(az_err_message(), "\n  rope_theta: found -1"));
    assert_non_null(strstr(az_err_message(), "\n  hidden_act: found"));
    az_err_clear();
    expect_failure(az_config_read(&c, tmp_path("none")), AZ_EINPUT,
                   "none/config.json: cannot open");
    assert_int_equal(az_mem_get_total().blocks, 0);
}

/* Full attention, however it is said [36]. */
static void test_no_window(void **state)
{
    (void)state;
    static const char *const texts[] = {
        LLAMA(",\"sliding_window\":null"), LLAMA(",\"sliding_window\":0"),
        LLAMA(",\"sliding_window\":2048"),
        LLAMA(",\"sliding_window\":16,\"use_sliding_window\":false")};
    az_config c;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(read_texts(&c, texts[i], NULL), AZ_OK);
}

static void test_generation(void **state)
{
    (void)state;
    az_config c;
    const char *text = LLAMA(SIZES ",\"eos_token_id\":5,\"bos_token_id\":null");
    assert_int_equal(read_texts(&c, text, "{\"eos_token_id\":[1,3],\"bos_token_id\":9}"), AZ_OK);
    assert_true(c.n_eos == 2 && c.eos[0] == 1 && c.eos[1] == 3 && c.bos == -1);
    assert_int_equal(read_texts(&c, text, "{}"), AZ_OK);
    assert_true(c.n_eos == 1 && c.eos[0] == 5 && c.eos[1] == 0);
    assert_int_equal(read_texts(&c, LLAMA(",\"eos_token_id\":null"), NULL), AZ_OK);
    assert_int_equal(c.n_eos, 0);
    expect_failure(read_texts(&c, text, "{\"eos_token_id\":true}"), AZ_EINPUT,
                   "generation_config.json: eos_token_id: found a boolean");
    expect_failure(read_texts(&c, text, "{"), AZ_EINPUT, "generation_config.json: not valid JSON");
}

static az_err read_again(void *context)
{
    az_config c;
    (void)context;
    az_err err = az_config_read(&c, dir);
    if (err == AZ_EINPUT) {
        az_err_clear();
        err = AZ_OK;
    }
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    az_config c;
    assert_int_equal(read_texts(&c, LLAMA(SIZES), "{\"eos_token_id\":[1]}"), AZ_OK);
    try_all_allocations(read_again, NULL);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        (void)read_texts(&c, refused[i].config, "{\"eos_token_id\":true}");
        az_err_clear();
        try_all_allocations(read_again, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_spellings),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_window),   cmocka_unit_test(test_generation),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
