/* A PEFT directory written: in a directory of its own within dir, checked there, and only then in
 * its place, so that what was there before stays until the new adapter is whole. */
#include <config.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "store/peft.h"

/* The files of a directory, in the order in which they take their place. */
enum { MODEL, CONFIG, N_FILES };
static const char *const files[] = {"adapter_model.safetensors", "adapter_config.json"};

az_err az_peft_check_place(const char *dir, int64_t bytes)
{
    az_err err = AZ_OK;
    char *path = NULL;
    if (az_file_exists(dir))
        return az_fail(AZ_EINPUT, "%s: this is a file, and the adapter needs a directory here",
                       dir);
    for (int i = 0; i < N_FILES; i++) {
        AZ_TRY((path = az_path_join(dir, files[i])) != NULL ? AZ_OK : AZ_EENV);
        if (az_dir_exists(path)) {
            err = az_fail(AZ_EINPUT, "%s: this is a directory, and the adapter needs a file here",
                          path);
            goto out;
        }
        az_free(path);
        path = NULL;
    }
    AZ_TRY((path = az_strdup(dir, "text")) != NULL ? AZ_OK : AZ_EENV);
    while (!az_dir_exists(path) && strchr(path, '/') != NULL) { /* it is made with its parents */
        char *above = az_path_dir(path);
        AZ_TRY(above != NULL ? AZ_OK : AZ_EENV);
        az_free(path);
        path = above;
    }
    err = az_dir_check_room(az_dir_exists(path) ? path : ".", bytes);
out:
    az_free(path);
    return err;
}

/* ---- the two files */

/* n values as dtype. */
static az_err convert(void *out, const az_peft_tensor *t, int64_t n, az_dtype dtype)
{
    az_bf16 *rounded = out;
    for (int64_t i = 0; i < n; i++) {
        float x = t->values[i];
        if (isfinite(x) && dtype == AZ_BF16) {
            rounded[i] = az_f32_to_bf16(x);
            x = az_bf16_to_f32(rounded[i]);
        }
        if (!isfinite(x))
            return az_fail(AZ_EINPUT, "%s holds numbers that are %s", t->name,
                           isfinite(t->values[i]) ? "too large for bf16" : "not finite");
    }
    return AZ_OK;
}

static az_err write_tensors(const char *path, const az_peft_tensor *tensors, int n, az_dtype dtype)
{
    az_err err;
    az_tensor_out *out = NULL;
    az_bf16 *rounded = NULL;
    int64_t total = 0, at = 0;
    AZ_ASSERT(dtype == AZ_F32 || dtype == AZ_BF16);
    for (int k = 0; k < n; k++)
        total += tensors[k].rows * tensors[k].cols;
    AZ_TRY(AZ_NEW(out, (size_t)n, "adapter file"));
    if (dtype == AZ_BF16)
        AZ_TRY(AZ_NEW(rounded, (size_t)total, "adapter file"));
    for (int k = 0; k < n; k++) {
        const az_peft_tensor *t = &tensors[k];
        out[k] = (az_tensor_out){.name = t->name,
                                 .dtype = dtype,
                                 .n_dims = 2,
                                 .shape = {t->rows, t->cols},
                                 .data = t->values};
        if (dtype == AZ_BF16)
            out[k].data = rounded + at;
        AZ_TRY(convert(rounded != NULL ? rounded + at : NULL, t, t->rows * t->cols, dtype));
        at += t->rows * t->cols;
    }
    AZ_TRY(az_store_write(path, out, n)); /* compares what it reads back */
out:
    az_free(rounded);
    az_free(out);
    return err;
}

static az_err write_config(const char *path, const char *text)
{
    az_err err;
    char *again = NULL;
    size_t bytes = 0;
    AZ_TRY(az_file_write_atomic(path, text, strlen(text)));
    AZ_TRY(az_file_read(&again, &bytes, path));
    if (bytes != strlen(text) || memcmp(again, text, bytes) != 0)
        err = az_fail(AZ_EENV, "%s: reads back different from what was written", path);
out:
    az_free(again);
    return err;
}

/* ---- in their place */

/* Paths of the files in their own directory and in their place: made before anything is written, so
 * that nothing is left half done for want of memory. */
typedef struct {
    char *dir, *from[N_FILES], *to[N_FILES];
} places;

static az_err make_places(places *p, const char *dir)
{
    az_err err;
    az_str own = {0};
    AZ_TRY(az_str_add(&own, "%s/tmp-%ld", dir, (long)getpid()));
    for (int i = 0; i < N_FILES; i++) {
        AZ_TRY((p->from[i] = az_path_join(own.s, files[i])) != NULL ? AZ_OK : AZ_EENV);
        AZ_TRY((p->to[i] = az_path_join(dir, files[i])) != NULL ? AZ_OK : AZ_EENV);
    }
    p->dir = own.s;
    own.s = NULL;
out:
    az_str_fini(&own);
    return err;
}

/* Between the first and the last of these there is no config, so a job that ends here leaves
 * nothing that could be misread. */
static az_err move_files(const places *p)
{
    az_err err = AZ_OK;
    unlink(p->to[CONFIG]);
    for (int i = 0; i < N_FILES; i++)
        AZ_TRY(az_file_rename(p->from[i], p->to[i]));
out:
    return err;
}

static void close_places(places *p)
{
    for (int i = 0; i < N_FILES; i++) {
        if (p->dir != NULL)
            unlink(p->from[i]);
        az_free(p->from[i]);
        az_free(p->to[i]);
    }
    if (p->dir != NULL)
        rmdir(p->dir);
    az_free(p->dir);
}

az_err az_peft_write(const char *dir, const char *config_text, const az_peft_tensor *tensors, int n,
                     az_dtype dtype, az_peft_check *opt_check, void *context)
{
    az_err err;
    places p = {0};
    const bool there = az_dir_exists(dir);
    AZ_TRY(make_places(&p, dir));
    AZ_TRY(az_dir_create(p.dir));
    AZ_TRY(write_tensors(p.from[MODEL], tensors, n, dtype));
    AZ_TRY(write_config(p.from[CONFIG], config_text));
    if (opt_check != NULL)
        AZ_TRY(opt_check(p.dir, context));
    AZ_TRY(move_files(&p));
out:
    close_places(&p);
    if (err != AZ_OK && !there)
        rmdir(dir); /* if it is empty */
    return err;
}
