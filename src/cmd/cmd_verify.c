/* adze verify: whether files and directories are whole. Of adze's own files every byte is read and
 * compared with its CRC; safetensors files have no checksums, so of them it is the format, and of
 * adapters that all numbers are finite. With --verify-base a model directory is read whole and its
 * fingerprint compared with the one that a checkpoint keeps.
 *
 * Contents: the base; files of adze; directories and safetensors files; the command. */
#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "model/config.h"
#include "shard/shard.h"
#include "store/h5.h"
#include "store/hdf5.h"
#include "store/peft.h"

#define GROUP "/adapter/"

/* The base that files are compared with. */
typedef struct {
    const char *dir; /* NULL: not asked for */
    bool known;      /* print is the fingerprint */
    uint64_t print;
} base;

static bool is_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* ---- the base */

static az_err read_base(base *b)
{
    az_err err;
    az_config config;
    az_tensor_set set = {0};
    az_table table = {0};
    AZ_TRY(az_config_read(&config, b->dir));
    AZ_TRY(az_store_open_model(&set, b->dir));
    AZ_TRY(az_table_create(&table, &config, &set));
    AZ_TRY(az_shard_fingerprint_files(&b->print, &config, &table, &set));
    b->known = true;
out:
    az_table_fini(&table);
    az_store_close(&set);
    return err;
}

static az_err check_base(base *b, const az_h5_reader *h5, const char *path)
{
    az_err err;
    char print[20];
    const az_h5_attr *kept = az_h5_find_attr(h5, "/base", "fingerprint"),
                     *from = az_h5_find_attr(h5, "/base", "path");
    if (kept == NULL || kept->type != AZ_H5_STRING)
        return az_fail(AZ_EINPUT, "%s: /base has no attribute fingerprint", path);
    if (!b->known)
        AZ_TRY(read_base(b));
    snprintf(print, sizeof print, "%016" PRIx64, b->print);
    if (strcmp(print, kept->s) != 0)
        err = az_fail(AZ_EINPUT, "%s: made with another base: fingerprint %s of %s, but %s has %s",
                      path, kept->s, from != NULL && from->type == AZ_H5_STRING ? from->s : "?",
                      b->dir, print);
    else
        err = AZ_OK;
out:
    return err;
}

/* ---- files of adze */

/* Whole numbers may still be of no use. */
static az_err check_adapter(az_h5_reader *h5, const char *path)
{
    az_err err = AZ_OK;
    const az_h5_dataset *d;
    az_faults faults = {0};
    float *values = NULL;
    for (int i = 0; (d = az_h5_get_dataset(h5, i)) != NULL; i++) {
        if (d->kind != AZ_H5_DATA_ARRAY || strncmp(d->path, GROUP, sizeof GROUP - 1) != 0)
            continue;
        AZ_TRY(AZ_GROW(values, (size_t)(d->rows * d->cols), "adapter file"));
        AZ_TRY(az_h5_read_array(h5, d, values));
        if (!is_finite(values, d->rows * d->cols))
            AZ_TRY(az_faults_add(&faults, "%s holds numbers that are not finite", d->path));
    }
    AZ_TRY(az_faults_report(&faults, path));
out:
    az_free(values);
    az_faults_fini(&faults);
    return err;
}

/* The config is of use, too. */
static az_err check_config(const az_h5_reader *h5, const char *path)
{
    az_peft_config config = {0};
    const az_err err = az_peft_read_h5_config(&config, h5, path);
    az_peft_config_fini(&config);
    return err;
}

static az_err verify_h5(const char *path, base *b)
{
    az_err err;
    az_comm *self = NULL;
    az_h5_reader *h5 = NULL;
    const az_h5_dataset *d;
    const double begin = az_now();
    int64_t bytes = 0;
    int n = 0;
    AZ_TRY(az_comm_create_self(&self));
    AZ_TRY(az_h5_open(&h5, path, self));
    for (; (d = az_h5_get_dataset(h5, n)) != NULL; n++)
        bytes += d->bytes;
    AZ_TRY(az_h5_verify(h5));
    const double seconds = az_now() - begin;
    AZ_TRY(check_adapter(h5, path));
    AZ_TRY(check_config(h5, path));
    if (b->dir != NULL)
        AZ_TRY(check_base(b, h5, path));
    az_say("%s: %s, whole: %d datasets, %s in %s%s%s", path, az_h5_get_kind(h5), n,
           az_format_bytes((double)bytes), az_format_seconds(seconds),
           b->dir != NULL ? "; its base is " : "", b->dir != NULL ? b->dir : "");
out:
    az_h5_close(h5);
    az_comm_fini(self);
    return err;
}

/* ---- directories and safetensors files */

static void say_set(const char *path, const char *kind, const az_tensor_set *set, const char *rest)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < set->n_tensors; i++)
        bytes += set->tensors[i].alias ? 0 : set->tensors[i].bytes;
    az_say("%s: %s, %lld tensors, %s: %s", path, kind, (long long)set->n_tensors,
           az_format_bytes((double)bytes), rest);
}

static az_err verify_model(const char *path)
{
    az_err err;
    az_config config;
    az_tensor_set set = {0};
    az_table table = {0};
    AZ_TRY(az_store_open_model(&set, path));
    AZ_TRY(az_config_read(&config, path));
    AZ_TRY(az_table_create(&table, &config, &set));
    say_set(path, "model", &set, "well-formed, all tensors that config.json asks for");
out:
    az_table_fini(&table);
    az_store_close(&set);
    return err;
}

static az_err check_tensors(const az_tensor_set *set)
{
    az_err err = AZ_OK;
    az_faults faults = {0};
    char *bytes = NULL;
    float *values = NULL;
    int fd = -1, file = -1;
    for (int64_t i = 0; i < set->n_tensors; i++) {
        const az_tensor *t = &set->tensors[i];
        if (t->dtype < 0) {
            AZ_TRY(az_faults_add(&faults, "%s has type %s, expected F32, F16 or BF16", t->name,
                                 t->dtype_name));
            continue;
        }
        const int64_t n = t->bytes / (int64_t)az_dtype_bytes((az_dtype)t->dtype);
        AZ_TRY(AZ_GROW(bytes, (size_t)t->bytes, "adapter file"));
        AZ_TRY(AZ_GROW(values, (size_t)n, "adapter file"));
        AZ_TRY(az_store_read(bytes, set, t, 0, t->bytes, &fd, &file));
        az_widen(values, bytes, (az_dtype)t->dtype, (size_t)n);
        if (!is_finite(values, n))
            AZ_TRY(az_faults_add(&faults, "%s holds numbers that are not finite", t->name));
    }
    AZ_TRY(az_faults_report(&faults, set->files[0]));
out:
    if (fd >= 0)
        close(fd);
    az_free(values);
    az_free(bytes);
    az_faults_fini(&faults);
    return err;
}

static az_err verify_adapter(const char *path)
{
    az_err err;
    az_tensor_set set = {0};
    az_peft_config config = {0};
    AZ_TRY(az_peft_read_config(&config, path));
    AZ_TRY(az_peft_open_tensors(&set, path));
    AZ_TRY(check_tensors(&set));
    say_set(path, "adapter", &set, "well-formed, all numbers finite");
out:
    az_store_close(&set);
    az_peft_config_fini(&config);
    return err;
}

static az_err verify_safetensors(const char *path)
{
    az_err err;
    az_tensor_set set = {0};
    AZ_TRY(az_store_open_file(&set, path));
    say_set(path, "safetensors", &set, "well-formed");
out:
    az_store_close(&set);
    return err;
}

static az_err verify_path(const char *path, base *b)
{
    az_err err;
    char *adapter = az_path_join(path, "adapter_config.json");
    AZ_TRY(adapter != NULL ? AZ_OK : AZ_EENV);
    if (az_hdf5_is(path))
        err = verify_h5(path, b);
    else if (b->dir != NULL)
        err = az_fail(AZ_EINPUT,
                      "%s: --verify-base needs checkpoints or adapter.h5, which keep the "
                      "fingerprint of their base",
                      path);
    else if (!az_dir_exists(path))
        err = verify_safetensors(path);
    else
        err = az_file_exists(adapter) ? verify_adapter(path) : verify_model(path);
out:
    az_free(adapter);
    return err;
}

/* ---- the command */

/* The paths are moved to the front of argv + 1. */
static az_err parse_arguments(base *b, int *out_n, int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verify-base") == 0) {
            if (i + 1 >= argc || b->dir != NULL)
                return az_fail(AZ_EINPUT,
                               "verify: --verify-base: one model directory was expected");
            b->dir = argv[++i];
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return az_fail(AZ_EINPUT, "verify: unknown option %.80s, there is --verify-base",
                           argv[i]);
        } else {
            argv[++n] = argv[i];
        }
    }
    *out_n = n;
    return n > 0 ? AZ_OK
                 : az_fail(AZ_EINPUT, "verify: files or directories to look at were expected");
}

az_err az_cmd_verify(az_comm *opt_comm, int argc, char **argv)
{
    az_err err, worst = AZ_OK;
    base b = {0};
    int n = 0, bad = 0;
    (void)opt_comm;
    AZ_TRY(parse_arguments(&b, &n, argc, argv));
    for (int i = 1; i <= n; i++) {
        err = verify_path(argv[i], &b);
        if (n == 1 || err == AZ_OK)
            continue;
        worst = err > worst ? err : worst;
        bad++;
        fprintf(stderr, "adze: error: %s\n", az_err_message());
        az_err_clear();
    }
    if (bad > 0)
        err = az_fail(worst, "verify: %d of %d are not whole", bad, n);
out:
    return err;
}
