/* adze export: the adapter of a checkpoint or of adapter.h5 as a PEFT directory. The config is the
 * text that the file keeps, byte by byte; the numbers are the file's, checked by their CRC. */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "cmd/cmd.h"
#include "store/h5.h"
#include "store/peft.h"

#define GROUP "/adapter/"

typedef struct {
    const char *file, *dir;
    int dtype; /* az_dtype, or -1: the file's */
} request;

static az_err parse_arguments(request *q, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dtype") == 0) {
            const char *s = i + 1 < argc ? argv[++i] : "nothing";
            if (strcmp(s, "f32") != 0 && strcmp(s, "bf16") != 0)
                return az_fail(AZ_EINPUT, "export: --dtype: found %.80s, allowed are f32 and bf16",
                               s);
            q->dtype = s[0] == 'f' ? AZ_F32 : AZ_BF16;
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return az_fail(AZ_EINPUT, "export: unknown option %.80s, there is --dtype", argv[i]);
        } else if (q->file == NULL) {
            q->file = argv[i];
        } else if (q->dir == NULL) {
            q->dir = argv[i];
        } else {
            return az_fail(AZ_EINPUT,
                           "export: one FILE and one DIR were expected, found %.200s too", argv[i]);
        }
    }
    if (q->dir == NULL || q->dir[0] == '\0')
        return az_fail(AZ_EINPUT, "export: %s",
                       q->file == NULL
                           ? "a checkpoint or adapter.h5, and the directory to make, were expected"
                           : "the directory to make was expected after the file");
    if (az_dir_exists(q->file))
        return az_fail(AZ_EINPUT,
                       "%s: is a directory; export reads checkpoint-NNNNNN.h5 or "
                       "adapter.h5",
                       q->file);
    return AZ_OK;
}

/* What az_peft_write leaves behind where it is killed: "tmp-1234". */
static bool is_leftover(const char *name)
{
    return strncmp(name, "tmp-", 4) == 0 && name[4] != '\0' &&
           name[4 + strspn(name + 4, "0123456789")] == '\0';
}

/* A directory of something else is no place: its files would lie among an adapter's. */
static az_err check_dir(const char *path)
{
    az_err err = AZ_OK;
    const struct dirent *entry;
    bool adapter = false, others = false;
    AZ_TRY(az_peft_check_place(path, 0));
    if (!az_dir_exists(path))
        return AZ_OK;
    DIR *dir = opendir(path);
    if (dir == NULL)
        return az_fail(AZ_EINPUT, "%s: cannot list the directory: %s", path, strerror(errno));
    while ((entry = readdir(dir)) != NULL) {
        const char *s = entry->d_name;
        if (strcmp(s, ".") == 0 || strcmp(s, "..") == 0 || is_leftover(s))
            continue;
        if (strcmp(s, "adapter_config.json") == 0 || strcmp(s, "adapter_model.safetensors") == 0)
            adapter = true;
        else
            others = true;
    }
    closedir(dir);
    if (others && !adapter)
        err = az_fail(AZ_EINPUT,
                      "%s: holds other files and no adapter; export writes into a new "
                      "or empty directory, or replaces an adapter",
                      path);
out:
    return err;
}

static bool is_tensor(const az_h5_dataset *d)
{
    return d->kind == AZ_H5_DATA_ARRAY && strncmp(d->path, GROUP, sizeof GROUP - 1) == 0;
}

/* The adapter's tensors one behind the other, in the order of the file's names. */
typedef struct {
    az_h5_array *arrays;
    az_peft_tensor *tensors;
    float *values;
    int n;
    int64_t elements;
    az_dtype dtype; /* as stored */
} content;

static az_err list_tensors(content *c, const az_h5_reader *h5, const char *file)
{
    az_err err;
    const az_h5_dataset *d;
    size_t most = 0;
    for (int i = 0; (d = az_h5_get_dataset(h5, i)) != NULL; i++)
        most += is_tensor(d);
    if (most == 0)
        return az_fail(AZ_EINPUT, "%s: /adapter holds no tensors", file);
    AZ_TRY(AZ_NEW(c->arrays, most, "adapter file"));
    AZ_TRY(AZ_NEW(c->tensors, most, "adapter file"));
    for (int i = 0; (d = az_h5_get_dataset(h5, i)) != NULL; i++) {
        if (!is_tensor(d))
            continue;
        c->arrays[c->n++] =
            (az_h5_array){d->path + sizeof GROUP - 1, d->rows, d->cols, c->elements};
        c->elements += d->rows * d->cols;
        c->dtype = d->dtype;
    }
out:
    return err;
}

static az_err read_content(content *c, az_h5_reader *h5, const char *file)
{
    az_err err;
    AZ_TRY(list_tensors(c, h5, file));
    AZ_TRY(AZ_NEW(c->values, (size_t)c->elements, "adapter file"));
    AZ_TRY(az_h5_read_arrays(h5, "/adapter", c->arrays, c->n, c->values, 0, c->elements));
    for (int k = 0; k < c->n; k++)
        c->tensors[k] = (az_peft_tensor){c->arrays[k].name, c->arrays[k].rows, c->arrays[k].cols,
                                         c->values + c->arrays[k].off};
out:
    return err;
}

/* The text must be one that adze itself would take. */
static az_err read_text(const char **out_text, const az_h5_reader *h5, const char *file)
{
    az_peft_config config = {0};
    const az_err err = az_peft_read_h5_config(&config, h5, file);
    *out_text = az_h5_get_text(h5, "/adapter_config");
    az_peft_config_fini(&config);
    return err;
}

static void say_done(const request *q, const content *c, const az_h5_reader *h5, az_dtype dtype)
{
    const az_h5_attr *step = az_h5_find_attr(h5, "/trainer", "step");
    const double bytes = (double)c->elements * (double)az_dtype_bytes(dtype);
    az_say("%s: %d tensors, %s, %s, from %s%s%s", q->dir, c->n, az_dtype_name(dtype),
           az_format_bytes(bytes), q->file,
           step != NULL && step->type == AZ_H5_INT ? " after step " : "",
           step != NULL && step->type == AZ_H5_INT ? az_format_count(step->i) : "");
}

az_err az_cmd_export(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    request q = {.dtype = -1};
    content c = {0};
    az_comm *self = NULL;
    az_h5_reader *h5 = NULL;
    const char *text;
    (void)opt_comm;
    AZ_TRY(parse_arguments(&q, argc, argv));
    AZ_TRY(check_dir(q.dir));
    AZ_TRY(az_comm_create_self(&self));
    AZ_TRY(az_h5_open(&h5, q.file, self));
    AZ_TRY(read_text(&text, h5, q.file));
    AZ_TRY(read_content(&c, h5, q.file));
    const az_dtype dtype = q.dtype >= 0 ? (az_dtype)q.dtype : c.dtype;
    AZ_TRY(az_peft_check_place(q.dir, c.elements * (int64_t)az_dtype_bytes(dtype)));
    AZ_TRY(az_peft_write(q.dir, text, c.tensors, c.n, dtype, NULL, NULL));
    say_done(&q, &c, h5, dtype);
out:
    az_free(c.values);
    az_free(c.tensors);
    az_free(c.arrays);
    az_h5_close(h5);
    az_comm_fini(self);
    return err;
}
