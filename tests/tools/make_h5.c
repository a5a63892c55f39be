/* make_h5 checkpoint|adapter PEFT_DIR OUT.h5 [f32|bf16 [BASE FINGERPRINT]]: one of adze's own files
 * from a PEFT directory, for tests of the commands that read such files. Moments are made up.
 * Started on several ranks, each writes its part. */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "store/h5.h"
#include "store/peft.h"

typedef struct {
    az_comm *comm;
    az_tensor_set set;
    az_h5_array *arrays;
    float *values;
    int64_t n, first, own;
} adapter;

static az_err read_adapter(adapter *a, const char *dir)
{
    az_err err;
    char *bytes = NULL;
    int fd = -1, file = -1;
    AZ_TRY(az_peft_open_tensors(&a->set, dir));
    AZ_TRY(AZ_NEW(a->arrays, (size_t)a->set.n_tensors, "adapter"));
    for (int64_t i = 0; i < a->set.n_tensors; i++) {
        const az_tensor *t = &a->set.tensors[i];
        const int64_t n = t->shape[0] * t->shape[1];
        a->arrays[i] = (az_h5_array){t->name, t->shape[0], t->shape[1], a->n};
        AZ_TRY(AZ_GROW(bytes, (size_t)t->bytes, "adapter"));
        AZ_TRY(AZ_GROW(a->values, (size_t)(a->n + n), "adapter"));
        AZ_TRY(az_store_read(bytes, &a->set, t, 0, t->bytes, &fd, &file));
        az_widen(a->values + a->n, bytes, (az_dtype)t->dtype, (size_t)n);
        a->n += n;
    }
    const int rank = az_comm_rank(a->comm), size = az_comm_size(a->comm);
    a->first = a->n * rank / size;
    a->own = a->n * (rank + 1) / size - a->first;
out:
    if (fd >= 0)
        close(fd);
    az_free(bytes);
    return err;
}

static az_err put_set(az_h5_writer *w, const adapter *a, const char *group, az_dtype dtype,
                      const float *values)
{
    return az_h5_put_arrays(w, group, a->arrays, (int)a->set.n_tensors, dtype, values + a->first,
                            a->first, a->own);
}

static az_err put_state(az_h5_writer *w, adapter *a)
{
    az_err err;
    const int size = az_comm_size(a->comm);
    int64_t shards[2 * 64];
    float *moments = NULL;
    AZ_TRY(AZ_NEW(moments, (size_t)a->n, "moments"));
    for (int64_t i = 0; i < a->n; i++)
        moments[i] = a->values[i] / 4;
    AZ_TRY(put_set(w, a, "/optimizer/exp_avg", AZ_F32, moments));
    for (int64_t i = 0; i < a->n; i++)
        moments[i] *= moments[i];
    AZ_TRY(put_set(w, a, "/optimizer/exp_avg_sq", AZ_F32, moments));
    for (int i = 0; i < size && i < 64; i++) {
        shards[2 * i] = a->n * i / size;
        shards[2 * i + 1] = a->n * (i + 1) / size - shards[2 * i];
    }
    AZ_TRY(az_h5_put_table(w, "/shards", shards, size, 2));
out:
    az_free(moments);
    return err;
}

static const char deck[] = "model:\n  path: \"/models/tiny\"\n\ntrain:\n  batch_size: 8\n"
                           "  max_steps: null\n  learning_rate: 0.001\n";

static az_err put_rest(az_h5_writer *w, const char *dir, const char *base, const char *print)
{
    az_err err;
    size_t bytes;
    char *text = NULL, *path = az_path_join(dir, "adapter_config.json");
    const az_h5_attr trainer[] = {{"step", AZ_H5_INT, .i = 120},
                                  {"epoch", AZ_H5_REAL, .r = 1.5},
                                  {"loss", AZ_H5_REAL, .r = 0.25}};
    const az_h5_attr from[] = {{"path", AZ_H5_STRING, .s = base},
                               {"fingerprint", AZ_H5_STRING, .s = print}};
    AZ_TRY(path != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_file_read(&text, &bytes, path));
    AZ_TRY(az_h5_put_text(w, "/adapter_config", text));
    AZ_TRY(az_h5_put_text(w, "/deck", deck));
    AZ_TRY(az_h5_put_attrs(w, "/trainer", trainer, 3));
    AZ_TRY(az_h5_put_attrs(w, "/base", from, 2));
out:
    az_free(text);
    az_free(path);
    return err;
}

int main(int argc, char **argv)
{
    az_err err;
    adapter a = {0};
    az_h5_writer *w = NULL;
    az_h5_times times;
    if (argc < 4 || argc > 7) {
        fprintf(stderr, "usage: %s checkpoint|adapter PEFT_DIR OUT.h5 [f32|bf16 [BASE PRINT]]\n",
                argv[0]);
        return 2;
    }
    const az_dtype dtype = argc > 4 && strcmp(argv[4], "bf16") == 0 ? AZ_BF16 : AZ_F32;
    AZ_TRY(az_comm_init(&a.comm, &argc, &argv));
    AZ_TRY(read_adapter(&a, argv[2]));
    AZ_TRY(az_h5_create(&w, argv[3], argv[1], 12 * a.n, &(az_h5_options){0}, a.comm));
    AZ_TRY(put_set(w, &a, "/adapter", dtype, a.values));
    if (argv[1][0] == 'c')
        AZ_TRY(put_state(w, &a));
    AZ_TRY(put_rest(w, argv[2], argc > 6 ? argv[5] : "/models/tiny",
                    argc > 6 ? argv[6] : "0123456789abcdef"));
    AZ_TRY(az_h5_finish(w, &times));
out:
    if (err != AZ_OK)
        fprintf(stderr, "%s\n", az_err_message());
    az_h5_destroy(w);
    az_store_close(&a.set);
    az_free(a.arrays);
    az_free(a.values);
    az_comm_fini(a.comm);
    return err;
}
