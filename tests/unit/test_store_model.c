/* A model directory: one file, an index with its files, and every way they can disagree. */
#include <config.h>

#include "store_util.h"

#include "store/safetensors.h"

#define INDEX "model.safetensors.index.json"
#define T(name) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static char dir[512];

static const char *in_dir(const char *name)
{
    static char paths[4][1024];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", dir, name);
    return paths[turn];
}

/* Two files with a and b, and an index of these entries. */
static void make_model(const char *index)
{
    snprintf(dir, sizeof dir, "%s", fresh_dir("model"));
    put_safetensors(in_dir("m1.safetensors"), "{" T("a") "}", 8);
    put_safetensors(in_dir("m2.safetensors"), "{" T("b") "}", 8);
    if (index != NULL)
        put_text(in_dir(INDEX), index);
}

#define BOTH "{\"weight_map\":{\"b\":\"m2.safetensors\",\"a\":\"m1.safetensors\"}}"

static void test_sharded(void **state)
{
    (void)state;
    az_tensor_set set;
    unsigned char x[8];
    int fd = -1, file = -1;
    make_model(BOTH);
    assert_int_equal(az_store_open_model(&set, dir), AZ_OK);
    assert_int_equal(set.n_files, 2);
    assert_int_equal(set.n_tensors, 2);
    assert_string_equal(set.files[0], in_dir("m1.safetensors"));
    assert_int_equal(az_store_find(&set, "a")->file, 0);
    assert_int_equal(az_store_find(&set, "b")->file, 1);
    for (int i = 0; i < 4; i++) { /* the open file changes each time */
        memset(x, 0xee, 8);
        assert_int_equal(
            az_store_read(x, &set, az_store_find(&set, i % 2 ? "a" : "b"), 1, 7, &fd, &file),
            AZ_OK);
        assert_int_equal(x[0], 1);
        assert_int_equal(file, i % 2 ? 0 : 1);
    }
    close(fd);
    az_store_close(&set);
}

static void test_single(void **state)
{
    (void)state;
    az_tensor_set set;
    make_model(NULL);
    put_safetensors(in_dir("model.safetensors"), "{" T("c") "}", 8);
    assert_int_equal(az_store_open_model(&set, dir), AZ_OK);
    assert_int_equal(set.n_tensors, 1);
    az_store_close(&set);
    put_text(in_dir("model.safetensors"), "version https://git-lfs.github.com/spec/v1\n");
    expect_failure(az_store_open_model(&set, dir), AZ_EINPUT,
                   "model.safetensors: this is a Git LFS pointer");
}

static const struct {
    const char *index, *message;
} bad_indices[] = {
    {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"b\":\"m3.safetensors\"}}",
     "m3.safetensors: missing, " INDEX " names it"},
    {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"b\":\"m1.safetensors\"}}",
     "'b' is not in m1.safetensors as it says"},
    {"{\"weight_map\":{\"a\":\"m2.safetensors\",\"b\":\"m2.safetensors\"}}",
     "'a' is not in m2.safetensors as it says"},
    {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"b\":\"m2.safetensors\",\"c\":\"m2.safetensors\"}"
     "}",
     "'c' is not in m2.safetensors as it says"},
    {"{\"weight_map\":{\"c\":\"m2.safetensors\",\"a\":\"m1.safetensors\"}}",
     "m2.safetensors: tensor 'b' is not in " INDEX},
    {"{\"weight_map\":{\"a\":\"../m1.safetensors\",\"b\":\"m2.safetensors\"}}",
     "'a' is in '../m1.safetensors', expected the name of a file in the same directory"},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\",\"b\":\"m2.safetensors\"}}",
     "'a' is in '/etc/passwd'"},
    {"{\"weight_map\":{\"a\":\"..\",\"b\":\"m2.safetensors\"}}", "'a' is in '..'"},
    {"{\"weight_map\":{\"a\":\"\",\"b\":\"m2.safetensors\"}}", "'a' is in ''"},
    {"{\"weight_map\":{\"a\":7,\"b\":\"m2.safetensors\"}}",
     "'a' is an integer, expected a file name"},
    {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"a\":\"m1.safetensors\"}}",
     "duplicate object key"},
    {"{\"weight_map\":[]}", "weight_map is an array"},
    {"{\"weight_map\":{}}", "weight_map is empty"},
    {"{}", "weight_map is missing"},
    {"[", "not valid JSON"},
};

static void test_bad_index(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_indices / sizeof bad_indices[0]; i++) {
        az_tensor_set set;
        make_model(bad_indices[i].index);
        expect_failure(az_store_open_model(&set, dir), AZ_EINPUT, bad_indices[i].message);
        assert_int_equal(az_mem_get_total().blocks, 0);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    az_tensor_set set;
    make_model(BOTH);
    put_safetensors(in_dir("m2.safetensors"),
                    "{" T("a") ","
                               "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                    16);
    expect_failure(az_store_open_model(&set, dir), AZ_EINPUT,
                   "tensor 'a' is in two files, m1.safetensors and m2.safetensors");
    /* faults of several files in one message, and no complaints that only follow from them */
    put_safetensors(in_dir("m1.safetensors"), "{" T("a") "}", 3);
    put_text(in_dir("m2.safetensors"), "PK\3\4");
    assert_int_equal(az_store_open_model(&set, dir), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "model: 2 faults:\n  m1.safetensors: truncated: "));
    assert_non_null(strstr(az_err_message(), "\n  m2.safetensors: this is a zip archive"));
    az_err_clear();
}

static void test_no_model(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"config.json", "no model here: neither model.safetensors nor " INDEX},
        {"model.gguf", "only model.gguf: GGUF is not read"},
        {"consolidated.00.pth", "only consolidated.00.pth: this is the original format"},
        {"pytorch_model.bin", "only pytorch_model.bin: these are pickled PyTorch weights"},
        {"a.safetensors", "only a.safetensors: a sharded model needs its " INDEX},
        {"adapter_model.safetensors", "only adapter_model.safetensors: this is a PEFT adapter"},
    };
    az_tensor_set set;
    snprintf(dir, sizeof dir, "%s", fresh_dir("model"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text(in_dir(cases[i][0]), ""); /* the earlier ones stay: the best hint is given */
        expect_failure(az_store_open_model(&set, dir), AZ_EINPUT, cases[i][1]);
    }
    expect_failure(az_store_open_model(&set, in_dir("none")), AZ_EINPUT, "none: no such directory");
    expect_failure(az_store_open_model(&set, in_dir("config.json")), AZ_EINPUT,
                   "is a file, a Hugging Face");
}

static az_err open_and_close(void *context)
{
    az_tensor_set set;
    (void)context;
    az_err err = az_store_open_model(&set, dir);
    az_store_close(&set);
    if (err == AZ_EINPUT) {
        az_err_clear();
        err = AZ_OK;
    }
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    make_model(BOTH);
    try_all_allocations(open_and_close, NULL);
    for (size_t i = 0; i < sizeof bad_indices / sizeof bad_indices[0]; i++) {
        make_model(bad_indices[i].index);
        try_all_allocations(open_and_close, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded),   cmocka_unit_test(test_single),
        cmocka_unit_test(test_bad_index), cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_no_model),  cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
