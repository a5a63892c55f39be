/* adze inspect: what a safetensors file, a model directory, an adapter directory, a checkpoint or
 * adapter.h5 holds. Reads headers and configurations only. What adze cannot use is listed all the
 * same, with the reason. */
#include <config.h>

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cmd.h"
#include "cmd/inspect.h"
#include "store/hdf5.h"

static int64_t count_elements(const az_tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        n *= tensor->shape[i];
    return n;
}

/* Runs of digits are compared as numbers. */
static int compare_natural(const char *a, const char *b)
{
    const char *x = a, *y = b;
    while (*x != '\0' && *y != '\0') {
        if (isdigit((unsigned char)*x) && isdigit((unsigned char)*y)) {
            size_t nx, ny;
            x += strspn(x, "0");
            y += strspn(y, "0");
            nx = strspn(x, "0123456789");
            ny = strspn(y, "0123456789");
            int c = nx != ny ? (nx < ny ? -1 : 1) : strncmp(x, y, nx);
            if (c != 0)
                return c;
            x += nx;
            y += ny;
        } else if (*x != *y) {
            return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        } else {
            x++;
            y++;
        }
    }
    if (*x != *y)
        return *x == '\0' ? -1 : 1;
    return strcmp(a, b);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_natural((*(const az_tensor *const *)a)->name,
                           (*(const az_tensor *const *)b)->name);
}

static int compare_totals(const void *a, const void *b)
{
    const az_dtype_total *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->dtype_name, y->dtype_name);
}

static az_err sum_up(az_inspection *found)
{
    az_err err;
    size_t n = (size_t)found->set.n_tensors;
    AZ_TRY(AZ_NEW(found->order, n, "tensor names"));
    for (size_t i = 0; i < n; i++) {
        const az_tensor *t = &found->set.tensors[i];
        found->order[i] = t;
        if (t->alias)
            continue;
        int k = 0;
        while (k < found->n_totals && strcmp(found->totals[k].dtype_name, t->dtype_name) != 0)
            k++;
        AZ_ASSERT(k < AZ_MAX_TOTALS);
        az_dtype_total *total = &found->totals[k];
        if (k == found->n_totals)
            found->totals[found->n_totals++] = (az_dtype_total){.dtype_name = t->dtype_name};
        total->n_tensors++;
        total->elements += count_elements(t);
        total->bytes += t->bytes;
    }
    if (n > 1)
        qsort(found->order, n, sizeof *found->order, compare_tensors);
    if (found->n_totals > 1)
        qsort(found->totals, (size_t)found->n_totals, sizeof *found->totals, compare_totals);
out:
    return err;
}

az_err az_inspect_note(az_inspection *found, az_err err)
{
    if (err != AZ_EINPUT)
        return err;
    char message[AZ_ERR_MAX];
    snprintf(message, sizeof message, "%s", az_err_message());
    az_err_clear();
    return az_str_add(&found->note, "%s", message);
}

static az_err inspect_model(az_inspection *found)
{
    az_err err;
    az_table table = {0};
    found->kind = "model";
    AZ_TRY(az_store_open_model(&found->set, found->path));
    err = az_config_read(&found->config, found->path);
    found->has_config = err == AZ_OK;
    if (err == AZ_OK)
        err = az_table_create(&table, &found->config, &found->set);
    AZ_TRY(az_inspect_note(found, err));
out:
    az_table_fini(&table);
    return err;
}

static az_err inspect_adapter(az_inspection *found)
{
    az_err err;
    found->kind = "adapter";
    AZ_TRY(az_peft_open_tensors(&found->set, found->path));
    err = az_peft_read_config(&found->peft, found->path);
    found->has_peft = err == AZ_OK;
    AZ_TRY(az_inspect_note(found, err));
out:
    return err;
}

static az_err inspect_path(az_inspection *found)
{
    az_err err;
    char *adapter = az_path_join(found->path, "adapter_config.json");
    AZ_TRY(adapter != NULL ? AZ_OK : AZ_EENV);
    if (az_hdf5_is(found->path)) {
        AZ_TRY(az_inspect_open_h5(found));
    } else if (!az_dir_exists(found->path)) {
        found->kind = "safetensors";
        AZ_TRY(az_store_open_file(&found->set, found->path));
    } else if (az_file_exists(adapter)) {
        AZ_TRY(inspect_adapter(found));
    } else {
        AZ_TRY(inspect_model(found));
    }
    AZ_TRY(sum_up(found));
out:
    az_free(adapter);
    return err;
}

az_err az_cmd_inspect(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_inspection found = {0};
    az_str out = {0};
    bool json = false;
    (void)opt_comm;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            err = az_fail(AZ_EINPUT, "inspect: unknown option %.80s, there is --json", argv[i]);
            goto out;
        } else if (found.path != NULL) {
            err = az_fail(AZ_EINPUT,
                          "inspect: one file or directory at a time, found %.200s and "
                          "%.200s",
                          found.path, argv[i]);
            goto out;
        } else {
            found.path = argv[i];
        }
    }
    if (found.path == NULL) {
        err = az_fail(AZ_EINPUT, "inspect: a safetensors file, a model directory, an adapter "
                                 "directory, a checkpoint or adapter.h5 was expected");
        goto out;
    }
    AZ_TRY(inspect_path(&found));
    AZ_TRY(json ? az_inspect_add_json(&out, &found) : az_inspect_add_text(&out, &found));
    /* `adze inspect X | head` ends quietly, also where the parent ignores the signal */
    signal(SIGPIPE, SIG_DFL);
    fwrite(out.s, 1, out.len, stdout); /* main looks at the stream's state */
out:
    az_str_fini(&out);
    az_str_fini(&found.note);
    az_peft_config_fini(&found.peft);
    az_free(found.order);
    az_store_close(&found.set);
    az_h5_close(found.h5);
    az_comm_fini(found.self);
    return err;
}
