/* adze export, inspect and verify on files of adze: what they say of files that are whole but of no
 * use, of adapters that do not fit into bf16, and when memory is short. Whole and damaged files:
 * tests/runs/export.sh. */
#include <config.h>

#include <math.h>

#include "store_util.h"

#include "cmd/cmd.h"
#include "store/h5.h"
#include "store/peft.h"

#define NAME(which) "base_model.model.model.layers.0.self_attn.v_proj.lora_" which ".weight"
#define CONFIG "{\"peft_type\": \"LORA\", \"target_modules\": [\"v_proj\"], \"r\": 2}"

/* A file with one pair. */
typedef struct {
    const char *config; /* NULL: none */
    float value;        /* of all elements but the first, which is 1 */
    int n;              /* tensors */
    const char *print;  /* NULL: no fingerprint */
} content;
static const content usual = {CONFIG, 0.3f, 2, "0000000000000001"};

static az_err put(const char *path, const content *c)
{
    az_err err;
    az_comm *self = NULL;
    az_h5_writer *w = NULL;
    az_h5_times times;
    const az_h5_array arrays[] = {{NAME("A"), 2, 4, 0}, {NAME("B"), 3, 2, 8}};
    float values[14];
    for (int i = 0; i < 14; i++)
        values[i] = i == 0 ? 1 : c->value;
    const az_h5_attr print = {"fingerprint", AZ_H5_STRING, .s = c->print},
                     step = {"step", AZ_H5_INT, .i = 1200};
    AZ_TRY(az_comm_create_self(&self));
    AZ_TRY(az_h5_create(&w, path, "adapter", 4096, &(az_h5_options){0}, self));
    AZ_TRY(az_h5_put_arrays(w, c->n > 0 ? "/adapter" : "/optimizer/exp_avg", arrays, 2, AZ_F32,
                            values, 0, 14));
    if (c->config != NULL)
        AZ_TRY(az_h5_put_text(w, "/adapter_config", c->config));
    AZ_TRY(az_h5_put_text(w, "/deck", "train:\n  batch_size: 8\n"));
    AZ_TRY(az_h5_put_attrs(w, "/trainer", &step, 1));
    AZ_TRY(az_h5_put_attrs(w, "/base", &print, c->print != NULL));
    AZ_TRY(az_h5_finish(w, &times));
out:
    az_h5_destroy(w);
    az_comm_fini(self);
    return err;
}

static const char *file_of(content c)
{
    const char *path = tmp_path("file.h5");
    if (put(path, &c) != AZ_OK)
        fail_msg("%s", az_err_message());
    return path;
}

/* A command without what it prints. */
static az_err run(const char *name, const char *a, const char *opt_b, const char *opt_c)
{
    char *argv[] = {(char *)(uintptr_t)name, (char *)(uintptr_t)a, (char *)(uintptr_t)opt_b,
                    (char *)(uintptr_t)opt_c, NULL};
    fflush(stdout);
    int saved = dup(1);
    FILE *f = fopen("/dev/null", "w");
    assert_non_null(f);
    assert_int_equal(dup2(fileno(f), 1), 1);
    az_err err = az_cmd_find(name)->run(NULL, 2 + (opt_b != NULL) + (opt_c != NULL), argv);
    fflush(stdout);
    assert_int_equal(dup2(saved, 1), 1);
    close(saved);
    fclose(f);
    return err;
}

static void test_export(void **state)
{
    (void)state;
    const char *dir = tmp_path("out"), *path = file_of(usual);
    az_tensor_set set;
    float v[8];
    int fd = -1, file = -1;
    assert_int_equal(run("export", path, dir, NULL), AZ_OK);
    assert_int_equal(az_peft_open_tensors(&set, dir), AZ_OK);
    assert_int_equal(set.n_tensors, 2);
    const az_tensor *t = az_store_find(&set, NAME("A"));
    assert_true(t != NULL && t->dtype == AZ_F32 && t->shape[0] == 2 && t->shape[1] == 4);
    assert_int_equal(az_store_read(v, &set, t, 0, sizeof v, &fd, &file), AZ_OK);
    assert_true(v[0] == 1 && v[1] == 0.3f && v[7] == 0.3f);
    close(fd);
    az_store_close(&set);
    /* what a killed export has left is no other file */
    dir = fresh_dir("leftover");
    fresh_dir("leftover/tmp-77");
    assert_int_equal(run("export", path, dir, NULL), AZ_OK);
    /* what does not fit changes nothing */
    content large = usual;
    large.value = 3.4e38f;
    path = file_of(large);
    expect_failure(run("export", "--dtype", "bf16", path), AZ_EINPUT,
                   "the directory to make was expected after the file");
    char *argv[] = {(char[]){"export"}, (char[]){"--dtype"}, (char[]){"bf16"},
                    (char *)(uintptr_t)path, (char *)(uintptr_t)tmp_path("large")};
    expect_failure(az_cmd_export(NULL, 5, argv), AZ_EINPUT,
                   NAME("A") " holds numbers that are too large for bf16");
    assert_false(az_dir_exists(tmp_path("large")));
}

static void test_useless(void **state)
{
    (void)state;
    content c = usual;
    c.config = NULL;
    expect_failure(run("export", file_of(c), tmp_path("x"), NULL), AZ_EINPUT,
                   "file.h5: there is no /adapter_config");
    expect_failure(run("verify", file_of(c), NULL, NULL), AZ_EINPUT, "there is no /adapter_config");
    assert_int_equal(run("inspect", file_of(c), NULL, NULL), AZ_OK);
    c.config = "{\"peft_type\": \"LORA\", \"use_dora\": true}";
    expect_failure(run("export", file_of(c), tmp_path("x"), NULL), AZ_EINPUT,
                   "file.h5: /adapter_config: use_dora is set");
    expect_failure(run("verify", file_of(c), NULL, NULL), AZ_EINPUT, "use_dora is set");
    c = usual;
    c.n = 0;
    expect_failure(run("export", file_of(c), tmp_path("x"), NULL), AZ_EINPUT,
                   "file.h5: /adapter holds no tensors");
    c = usual;
    c.value = INFINITY;
    expect_failure(run("export", file_of(c), tmp_path("x"), NULL), AZ_EINPUT,
                   NAME("A") " holds numbers that are not finite");
    expect_failure(
        run("verify", file_of(c), NULL, NULL), AZ_EINPUT,
        "file.h5: 2 faults:\n  /adapter/" NAME("A") " holds numbers that are not finite");
    assert_false(az_dir_exists(tmp_path("x")));
    put_text(tmp_path("text.h5"), "not what its name says");
    expect_failure(run("verify", tmp_path("text.h5"), NULL, NULL), AZ_EINPUT, "text.h5");
    expect_failure(run("inspect", tmp_path("text.h5"), NULL, NULL), AZ_EINPUT, "text.h5");
}

static void test_arguments(void **state)
{
    (void)state;
    expect_failure(run("export", "a", "b", "c"), AZ_EINPUT,
                   "export: one FILE and one DIR were expected, found c too");
    expect_failure(run("export", "--fp8", "b", NULL), AZ_EINPUT,
                   "export: unknown option --fp8, there is --dtype");
    expect_failure(run("verify", "a", "--verify-base", NULL), AZ_EINPUT,
                   "verify: --verify-base: one model directory was expected");
    expect_failure(run("verify", "--verify-base", "b", fresh_dir("d")), AZ_EINPUT,
                   "d: --verify-base needs checkpoints or adapter.h5");
}

static az_err run_all(void *context)
{
    az_err err;
    AZ_TRY(run("export", context, tmp_path("faulty"), NULL));
    AZ_TRY(run("verify", context, NULL, NULL));
    AZ_TRY(run("inspect", context, NULL, NULL));
    AZ_TRY(run("inspect", context, "--json", NULL));
out:
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    char path[600];
    snprintf(path, sizeof path, "%s", file_of(usual));
    assert_int_equal(run_all(path), AZ_OK);
    try_all_allocations(run_all, path);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export),
        cmocka_unit_test(test_useless),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
