/* adze inspect: what it prints for a file, a model and an adapter, usable or not. */
#include <config.h>

#include "store_util.h"

#include "cmd/cmd.h"
#include "store/json.h"

static char *printed;

/* Run the command with its standard output in a file, then in `printed`. */
static az_err inspect(const char *a, const char *opt_b, const char *opt_c)
{
    char *argv[] = {(char[]){"inspect"}, (char *)(uintptr_t)a, (char *)(uintptr_t)opt_b,
                    (char *)(uintptr_t)opt_c, NULL};
    int argc = 1 + (a != NULL) + (opt_b != NULL) + (opt_c != NULL);
    const char *path = tmp_path("output");
    size_t bytes;
    fflush(stdout);
    int saved = dup(1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(dup2(fileno(f), 1), 1);
    az_err err = az_cmd_inspect(NULL, argc, argv);
    fflush(stdout);
    assert_int_equal(dup2(saved, 1), 1);
    close(saved);
    fclose(f);
    az_free(printed);
    assert_int_equal(az_file_read(&printed, &bytes, path), AZ_OK);
    return err;
}

static void expect_line(const char *line)
{
    if (strstr(printed, line) == NULL)
        fail_msg("\"%s\" is not in:\n%s", line, printed);
}

static void test_file(void **state)
{
    (void)state;
    const char *path = tmp_path("x.safetensors");
    put_safetensors(path,
                    "{\"__metadata__\":{\"format\":\"pt\",\"t\":\"l.10\"},"
                    "\"l.10\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                    "\"l.9\\u001b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[6,10]}}",
                    10);
    assert_int_equal(inspect(path, NULL, NULL), AZ_OK);
    expect_line("x.safetensors: safetensors, 2 tensors, 10 B\n");
    expect_line("metadata   {\"format\": \"pt\", \"t\": \"l.10\"}\n");
    expect_line("\ndtype    shape   bytes  offset  name\n"
                "F32      []          4     180  \"l.9\\u001B\"\n"
                "F8_E4M3  [2, 3]      6     174  l.10\n"
                "F8_E4M3  [2, 3]      6     174  t  (tied: bytes of another tensor)\n");
    expect_line("\ntotal  F8_E4M3  1 tensor   6 elements  6 B\n"
                "       F32      1 tensor   1 elements  4 B\n");
    put_safetensors(path, "{}", 0);
    assert_int_equal(inspect(path, NULL, NULL), AZ_OK);
    expect_line("x.safetensors: safetensors, 0 tensors, 0 B\n");
}

#define T(name, at) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" at "}"

static void test_model(void **state)
{
    (void)state;
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s", fresh_dir("model"));
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    put_safetensors(path, "{" T("l.10.w", "[0,8]") "," T("l.2.w", "[8,16]") "}", 16);
    snprintf(path, sizeof path, "%s/b.safetensors", dir);
    put_safetensors(path, "{" T("z", "[0,8]") "}", 8);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    put_text(path, "{\"weight_map\":{\"l.10.w\":\"a.safetensors\",\"l.2.w\":\"a.safetensors\","
                   "\"z\":\"b.safetensors\"}}");
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_text(path, "{\"model_type\":\"gptj\"}");
    assert_int_equal(inspect(dir, NULL, NULL), AZ_OK);
    expect_line("model: model, 3 tensors, 24 B\n");
    expect_line("config.json: model_type: found \"gptj\", supported: llama\n");
    expect_line("file 2     ");
    const char *two = strstr(printed, "l.2.w"), *ten = strstr(printed, "l.10.w");
    assert_true(two != NULL && ten != NULL && two < ten); /* natural order */

    put_text(path, "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_attention_heads\":2,"
                   "\"vocab_size\":10,\"num_hidden_layers\":1,\"intermediate_size\":4,"
                   "\"eos_token_id\":[3,4],\"bos_token_id\":null}");
    assert_int_equal(inspect("--json", dir, NULL), AZ_OK);
    az_json_doc *doc;
    assert_int_equal(az_json_parse(&doc, printed, strlen(printed), "output"), AZ_OK);
    const az_json *root = az_json_root(doc), *model = az_json_member(root, "model");
    assert_int_equal(az_json_int(az_json_member(model, "hidden_size")), 8);
    assert_int_equal(az_json_int(az_json_member(model, "parameters")), 160 + 16 + 256 + 96 + 8);
    assert_int_equal(az_json_count(az_json_member(root, "tensors")), 3);
    assert_non_null(strstr(az_json_string(az_json_member(root, "unusable"), NULL),
                           "missing tensor model.norm.weight"));
    az_json_close(doc);
    assert_int_equal(inspect(dir, NULL, NULL), AZ_OK);
    expect_line("model      llama, 536 parameters, head of its own, biases none\n");
    expect_line("ids        eos 3 4, bos none\n");
    expect_line("unexpected tensor l.10.w");
}

static void test_adapter(void **state)
{
    (void)state;
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s", fresh_dir("adapter"));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    put_safetensors(path, "{" T("z", "[0,8]") "}", 8);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    put_text(path, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"use_rslora\":true,"
                   "\"target_modules\":[\"q_proj\",\"v\\u0007\"],\"rank_pattern\":{\"a\":2},"
                   "\"layers_to_transform\":[1,2],\"base_model_name_or_path\":\"b\"}");
    assert_int_equal(inspect(dir, NULL, NULL), AZ_OK);
    expect_line("adapter    LoRA with rank-stabilised scale, r 4, alpha 8 (scale 4), dropout 0\n");
    expect_line("targets    q_proj, \"v\\u0007\"\nlayers     1 2\nranks      a: 2\nbase       b\n");
    assert_int_equal(inspect(dir, "--json", NULL), AZ_OK);
    az_json_doc *doc;
    assert_int_equal(az_json_parse(&doc, printed, strlen(printed), "output"), AZ_OK);
    const az_json *adapter = az_json_member(az_json_root(doc), "adapter");
    assert_int_equal(az_json_int(az_json_member(adapter, "r")), 4);
    assert_int_equal(az_json_count(az_json_member(adapter, "target_modules")), 2);
    az_json_close(doc);
    put_text(path, "{\"peft_type\":\"LORA\",\"use_dora\":true}");
    assert_int_equal(inspect(dir, NULL, NULL), AZ_OK);
    expect_line("unusable   ");
    expect_line("use_dora is set: DoRA is not supported\n");
}

static void test_refused(void **state)
{
    (void)state;
    expect_failure(inspect(NULL, NULL, NULL), AZ_EINPUT, "inspect: a safetensors file, a model");
    expect_failure(inspect("a", "b", NULL), AZ_EINPUT,
                   "one file or directory at a time, found a and b");
    expect_failure(inspect("--yaml", "b", NULL), AZ_EINPUT, "unknown option --yaml");
    expect_failure(inspect(tmp_path("none"), NULL, NULL), AZ_EINPUT, "none: cannot open");
    expect_failure(inspect(fresh_dir("empty"), NULL, NULL), AZ_EINPUT, "empty: no model here");
    assert_string_equal(printed, "");
}

static az_err inspect_again(void *context)
{
    char *argv[] = {(char[]){"inspect"}, context, (char[]){"--json"}, NULL};
    fflush(stdout);
    int saved = dup(1), null = -1;
    FILE *f = fopen("/dev/null", "w");
    assert_non_null(f);
    null = fileno(f);
    assert_int_equal(dup2(null, 1), 1);
    az_err err = az_cmd_inspect(NULL, 3, argv);
    if (err == AZ_OK)
        err = az_cmd_inspect(NULL, 2, argv);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    fclose(f);
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    char path[300];
    az_free(printed);
    printed = NULL;
    snprintf(path, sizeof path, "%s/model", tmp_dir);
    try_all_allocations(inspect_again, path);
    snprintf(path, sizeof path, "%s/adapter", tmp_dir);
    try_all_allocations(inspect_again, path);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),        cmocka_unit_test(test_model),
        cmocka_unit_test(test_adapter),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
