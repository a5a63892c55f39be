/* lora: start values, layers of the flat buffer, adapters read and written. */
#include <config.h>

#include <math.h>

#include "store/json.h"
#include "tests/unit/lora_util.h"

#define QV "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\", \"v_proj\"], \"r\": 4"

static void create(az_lora *lora, az_peft_config *config, const char *json)
{
    read_config(config, json);
    if (az_lora_create(lora, config, linears, N_LINEARS, "q_proj, v_proj") != AZ_OK)
        fail_msg("%s: %s", json, az_err_message());
}

static float *make_flat(const az_lora *lora)
{
    float *flat = az_alloc((size_t)lora->n_elements, sizeof *flat, "test");
    assert_non_null(flat);
    for (int64_t i = 0; i < lora->n_elements; i++)
        flat[i] = (float)i * 0.25f - 7;
    return flat;
}

/* ---- start values */

/* Mean and deviation of v[n] are those of the law within 4 sigma, and so is the fourth moment. */
static void expect_law(const float *v, int64_t n, double deviation, double fourth, double most)
{
    double m1 = 0, m2 = 0, m4 = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)v[i] / deviation;
        m1 += x / (double)n;
        m2 += x * x / (double)n;
        m4 += x * x * x * x / (double)n;
        largest = fmax(largest, fabs((double)v[i]));
    }
    assert_true(fabs(m1) <= 4 / sqrt((double)n));
    assert_true(fabs(m2 - 1) <= 4 * sqrt((fourth - 1) / (double)n));
    assert_true(fabs(m4 - fourth) <= 0.1 * fourth);
    assert_true(largest <= most && largest >= 0.9 * fmin(most, 3 * deviation));
}

static void test_fill(void **state)
{
    (void)state;
    static az_linear wide = {.path = "model.layers.0.self_attn.q_proj", .in = 400, .out = 300};
    static const char *const inits[] = {"true", "\"gaussian\"", "false"};
    for (int k = 0; k < 3; k++) {
        char json[200];
        az_peft_config config;
        az_lora lora;
        snprintf(json, sizeof json,
                 "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"r\": 50, "
                 "\"init_lora_weights\": %s}",
                 inits[k]);
        read_config(&config, json);
        assert_int_equal(az_lora_create(&lora, &config, &wide, 1, "q_proj"), AZ_OK);
        float *flat = make_flat(&lora), *again = make_flat(&lora);
        const az_pair *p = &lora.pairs[0];
        az_lora_fill(flat, &lora, &config, 1, 0, lora.n_elements);
        az_lora_fill(again, &lora, &config, 1, 0, 777); /* in parts, not of whole words */
        az_lora_fill(again + 777, &lora, &config, 1, 777, 30000);
        az_lora_fill(again + 30777, &lora, &config, 1, 30777, lora.n_elements - 30777);
        assert_memory_equal(flat, again, (size_t)lora.n_elements * sizeof *flat);
        az_lora_fill(again, &lora, &config, 2, 0, lora.n_elements);
        assert_memory_not_equal(flat, again, 50 * 400 * sizeof *flat);
        const double a = 1 / sqrt(400.0), b = 1 / sqrt(50.0);
        if (k == 1)
            expect_law(flat + p->a_off, 50 * 400, 1 / 50.0, 3, 1);
        else
            expect_law(flat + p->a_off, 50 * 400, a / sqrt(3), 1.8, a);
        if (k == 2)
            expect_law(flat + p->b_off, 50 * 300, b / sqrt(3), 1.8, b);
        for (int64_t i = 0; k < 2 && i < 50 * 300; i++)
            assert_true(flat[p->b_off + i] == 0);
        az_free(flat);
        az_free(again);
        az_lora_fini(&lora);
        az_peft_config_fini(&config);
    }
}

/* A module starts the same whatever else is adapted. */
static void test_fill_alone(void **state)
{
    (void)state;
    az_peft_config config[2];
    az_lora lora[2];
    float *flat[2];
    create(&lora[0], &config[0], QV "}");
    create(&lora[1], &config[1],
           "{\"peft_type\": \"LORA\", \"target_modules\": \"all-linear\", \"r\": 4}");
    for (int k = 0; k < 2; k++) {
        flat[k] = make_flat(&lora[k]);
        az_lora_fill(flat[k], &lora[k], &config[k], 9, 0, lora[k].n_elements);
    }
    for (int i = 0; i < lora[0].n_pairs; i++) {
        const az_pair *p = &lora[0].pairs[i], *q = &lora[1].pairs[lora[1].pair_of[p->linear]];
        assert_memory_equal(flat[0] + p->a_off, flat[1] + q->a_off,
                            (size_t)(p->R * linears[p->linear].in) * sizeof **flat);
        if (i > 0)
            assert_memory_not_equal(flat[0] + p->a_off, flat[0] + lora[0].pairs[0].a_off,
                                    4 * HIDDEN * sizeof **flat);
    }
    for (int k = 0; k < 2; k++) {
        az_free(flat[k]);
        az_lora_fini(&lora[k]);
        az_peft_config_fini(&config[k]);
    }
}

/* ---- layers */

static void test_layers(void **state)
{
    (void)state;
    az_peft_config config;
    az_lora lora;
    int64_t off, end = 0;
    create(&lora, &config, QV ", \"layers_to_transform\": [3, 4, 9]}");
    assert_int_equal(az_lora_get_lowest_layer(&lora), 3);
    for (int l = 0; l < LAYERS; l++) {
        int64_t n = az_lora_get_layer(&lora, l, &off);
        bool adapted = l == 3 || l == 4 || l == 9;
        assert_int_equal(n, adapted ? 4 * (HIDDEN + HIDDEN) + 4 * (HIDDEN + KV) : 0);
        assert_int_equal(off, adapted ? end : 0);
        end += n;
    }
    assert_int_equal(end, lora.n_elements);
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
    assert_int_equal(az_lora_get_lowest_layer(&(az_lora){0}), -1);
}

/* ---- files */

/* An adapter with one pair, r = 4, on the first layer's v_proj, in this type. */
static void put_adapter(const char *dir, az_dtype type, const void *A, const void *B)
{
    char path[600];
    az_tensor_out tensors[] = {{.dtype = type, .n_dims = 2, .shape = {4, HIDDEN}, .data = A},
                               {.dtype = type, .n_dims = 2, .shape = {KV, 4}, .data = B}};
    tensors[0].name = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight";
    tensors[1].name = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight";
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    assert_int_equal(az_store_write(path, tensors, 2), AZ_OK);
}

#define ONE "{\"peft_type\": \"LORA\", \"target_modules\": [\"0.self_attn.v_proj\"], \"r\": 4}"

static void test_types(void **state)
{
    (void)state;
    enum { N_A = 4 * HIDDEN, N = N_A + 4 * KV };
    az_peft_config config;
    az_lora lora;
    float f32[N], flat[N];
    az_bf16 bf16[N];
    az_f16 f16[N];
    for (int i = 0; i < N; i++) {
        f32[i] = (float)(i - 13) * 0.125f;
        bf16[i] = az_f32_to_bf16(f32[i]);
        f16[i] = az_f32_to_f16(f32[i]);
    }
    create(&lora, &config, ONE);
    assert_int_equal(lora.n_elements, N);
    const void *const data[] = {f32, f16, bf16};
    for (int t = 0; t < 3; t++) {
        const char *dir = put_config("adapter", ONE);
        const size_t width = az_dtype_bytes((az_dtype)t);
        put_adapter(dir, (az_dtype)t, data[t], (const char *)data[t] + N_A * width);
        memset(flat, 0, sizeof flat);
        assert_int_equal(az_lora_read(flat, &lora, dir), AZ_OK);
        assert_memory_equal(flat, f32, sizeof f32);
    }
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
}

static void test_read_faults(void **state)
{
    (void)state;
    az_peft_config config;
    az_lora lora;
    float flat[1024], data[64] = {0};
    const char *dir = put_config("adapter", ONE);
    put_adapter(dir, AZ_F32, data, data);
    create(&lora, &config,
           "{\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": "
           "[\"0.self_attn.v_proj\", \"1.self_attn.v_proj\"]}");
    expect_failure(
        az_lora_read(flat, &lora, dir), AZ_EINPUT,
        "adapter/adapter_model.safetensors: 4 faults:\n"
        "  base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight has shape [4, 8], "
        "expected [3, 8]\n"
        "  base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight has shape [4, 4], "
        "expected [4, 3]\n"
        "  base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight is missing: expected "
        "shape [3, 8]\n"
        "  base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight is missing: expected "
        "shape [4, 3]");
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
    create(&lora, &config, "{\"peft_type\": \"LORA\", \"target_modules\": [\"3.mlp.up_proj\"]}");
    expect_failure(az_lora_read(flat, &lora, dir), AZ_EINPUT,
                   "v_proj.lora_B.weight is unexpected: its module is not adapted");
    expect_failure(az_lora_read(flat, &lora, put_config("none", ONE)), AZ_EINPUT,
                   "none/adapter_model.safetensors: cannot open");
    dir = put_config("adapter", ONE);
    char path[600];
    snprintf(path, sizeof path, "%s/adapter_model.bin", dir);
    put_text(path, "x");
    expect_failure(az_lora_read(flat, &lora, dir), AZ_EINPUT, "only adapter_model.bin was found");
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    char header[400];
    snprintf(header, sizeof header,
             "{\"base_model.model.model.layers.3.mlp.up_proj.lora_A.weight\": {\"dtype\": \"I8\", "
             "\"shape\": [8, 8], \"data_offsets\": [0, 64]}, "
             "\"base_model.model.model.layers.3.mlp.up_proj.lora_B.weight\": {\"dtype\": \"F32\", "
             "\"shape\": [96], \"data_offsets\": [64, 448]}}");
    put_safetensors(path, header, 448);
    expect_failure(az_lora_read(flat, &lora, dir), AZ_EINPUT,
                   "up_proj.lora_A.weight has type I8, expected F32, F16 or BF16\n");
    expect_failure(az_lora_read(flat, &lora, dir), AZ_EINPUT,
                   "up_proj.lora_B.weight has shape [96], expected [12, 8]");
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
}

/* What is written of the targets. */
static void expect_written(const char *json, const char *targets, bool keeps_rest)
{
    az_peft_config config, written = {0};
    az_lora lora;
    az_str names = {0};
    const char *dir = tmp_path("written");
    create(&lora, &config, json);
    float *flat = make_flat(&lora);
    if (az_lora_write(flat, &lora, &config, AZ_F32, dir) != AZ_OK)
        fail_msg("%s: %s", json, az_err_message());
    assert_int_equal(az_peft_read_config(&written, dir), AZ_OK);
    for (int i = 0; i < written.target_modules.n && i < 4; i++)
        assert_int_equal(
            az_str_add(&names, "%s%s", i > 0 ? " " : "", written.target_modules.items[i]), AZ_OK);
    assert_string_equal(names.s, targets);
    assert_null(written.target_regex);
    if (keeps_rest) {
        assert_int_equal(written.exclude_modules.n, config.exclude_modules.n);
        assert_int_equal(written.exclude_regex != NULL, config.exclude_regex != NULL);
        assert_int_equal(written.n_layers_to_transform, config.n_layers_to_transform);
    } else {
        assert_int_equal(written.exclude_modules.n, 0);
        assert_null(written.exclude_regex);
        assert_int_equal(written.n_layers_to_transform, 0);
    }
    assert_int_equal(written.rank_pattern.n, config.rank_pattern.n);
    assert_int_equal(written.r, config.r);
    az_str_fini(&names);
    az_free(flat);
    az_lora_fini(&lora);
    az_peft_config_fini(&written);
    az_peft_config_fini(&config);
}

static void test_write(void **state)
{
    (void)state;
    expect_written("{\"peft_type\": \"LORA\", \"target_modules\": [\"v_proj\", \"q_proj\"]}",
                   "q_proj v_proj", true);
    expect_written("{\"peft_type\": \"LORA\"}", "q_proj v_proj", true);
    expect_written("{\"peft_type\": \"LORA\", \"layers_to_transform\": [3]}", "q_proj v_proj",
                   true);
    expect_written("{\"peft_type\": \"LORA\", \"target_modules\": \"all-linear\"}",
                   "down_proj gate_proj k_proj o_proj", true);
    expect_written("{\"peft_type\": \"LORA\", \"target_modules\": \".*[kv]_proj\", \"r\": 3, "
                   "\"exclude_modules\": \".*10.*\", \"rank_pattern\": {\".*k_proj\": 2}}",
                   "k_proj v_proj", true);
    expect_written("{\"peft_type\": \"LORA\", \"target_modules\": \".*\\\\.[12]\\\\..*[kv]_proj\", "
                   "\"exclude_modules\": [\"2.self_attn.k_proj\"]}",
                   "model.layers.1.self_attn.k_proj model.layers.1.self_attn.v_proj "
                   "model.layers.2.self_attn.v_proj",
                   false);
}

static void test_write_bf16(void **state)
{
    (void)state;
    az_peft_config config;
    az_lora lora;
    az_tensor_set set;
    const char *dir = tmp_path("rounded");
    create(&lora, &config, QV "}");
    float *flat = make_flat(&lora), *again = make_flat(&lora);
    flat[1] = 0x1.010002p+0f, flat[2] = 0x1.01p+0f; /* above a tie, a tie */
    assert_int_equal(az_lora_write(flat, &lora, &config, AZ_BF16, dir), AZ_OK);
    assert_int_equal(az_peft_open_tensors(&set, dir), AZ_OK);
    for (int64_t i = 0; i < set.n_tensors; i++)
        assert_int_equal(set.tensors[i].dtype, AZ_BF16);
    az_store_close(&set);
    assert_int_equal(az_lora_read(again, &lora, dir), AZ_OK);
    assert_true(again[1] == 0x1.02p+0f && again[2] == 1);
    for (int64_t i = 0; i < lora.n_elements; i++)
        assert_true(again[i] == az_bf16_to_f32(az_f32_to_bf16(flat[i])));
    flat[0] = 3.4e38f; /* what was there stays */
    expect_failure(az_lora_write(flat, &lora, &config, AZ_BF16, dir), AZ_EINPUT,
                   "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight holds numbers "
                   "that are too large for bf16");
    assert_int_equal(az_lora_read(flat, &lora, dir), AZ_OK);
    assert_memory_equal(flat, again, (size_t)lora.n_elements * sizeof *flat);
    az_free(flat);
    az_free(again);
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
}

static az_err write_once(void *context)
{
    az_lora *lora = context;
    az_peft_config config = {0};
    az_err err;
    float flat[1024] = {0};
    AZ_TRY(az_peft_config_init(&config));
    config.target_regex = az_strdup(".*0.self_attn.v_proj", "test");
    AZ_TRY(config.target_regex != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_lora_write(flat, lora, &config, AZ_BF16, tmp_path("faulty")));
out:
    az_peft_config_fini(&config);
    return err;
}

static void test_memory(void **state)
{
    (void)state;
    az_peft_config config;
    az_lora lora;
    create(&lora, &config,
           "{\"peft_type\": \"LORA\", \"target_modules\": "
           "[\"0.self_attn.v_proj\", \"10.self_attn.v_proj\"]}");
    try_all_allocations(write_once, &lora);
    az_lora_fini(&lora);
    az_peft_config_fini(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),        cmocka_unit_test(test_fill_alone),
        cmocka_unit_test(test_layers),      cmocka_unit_test(test_types),
        cmocka_unit_test(test_read_faults), cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_bf16),  cmocka_unit_test(test_memory),
    };
    make_linears();
    int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
