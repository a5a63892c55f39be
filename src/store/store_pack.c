/* A set as bytes, so that one rank parses headers for all. Numbers are written as the machine has
 * them: the ranks of a job are of one kind. */
#include <config.h>

#include "store/store_priv.h"

#define MAGIC 0x31746573617a6461 /* "adzaset1" */

static az_err put_i64(az_str *out, int64_t v)
{
    return az_str_add_bytes(out, &v, sizeof v);
}

static az_err put_text(az_str *out, const char *opt_s)
{
    az_err err;
    int64_t n = opt_s != NULL ? (int64_t)strlen(opt_s) : -1;
    AZ_TRY(put_i64(out, n));
    if (n > 0)
        AZ_TRY(az_str_add_bytes(out, opt_s, (size_t)n));
out:
    return err;
}

az_err az_store_pack(az_str *out, const az_tensor_set *set)
{
    az_err err;
    AZ_TRY(put_i64(out, MAGIC));
    AZ_TRY(put_i64(out, set->n_files));
    AZ_TRY(put_i64(out, set->n_tensors));
    AZ_TRY(put_text(out, set->metadata));
    for (int i = 0; i < set->n_files; i++)
        AZ_TRY(put_text(out, set->files[i]));
    for (int64_t i = 0; i < set->n_tensors; i++) {
        az_tensor t = set->tensors[i];
        AZ_TRY(put_text(out, t.name));
        t.name = NULL;
        AZ_TRY(az_str_add_bytes(out, &t, sizeof t));
    }
out:
    return err;
}

typedef struct {
    const char *p;
    size_t left;
} source;

static az_err get_bytes(void *dst, source *src, size_t n)
{
    if (n > src->left)
        return az_fail(AZ_EINPUT, "a packed table of tensors is damaged");
    memcpy(dst, src->p, n);
    src->p += n;
    src->left -= n;
    return AZ_OK;
}

static az_err get_text(char **out_s, source *src)
{
    az_err err;
    int64_t n = 0;
    *out_s = NULL;
    AZ_TRY(get_bytes(&n, src, sizeof n));
    if (n < 0)
        goto out;
    if ((uint64_t)n > src->left) {
        err = az_fail(AZ_EINPUT, "a packed table of tensors is damaged");
        goto out;
    }
    AZ_TRY(AZ_NEW(*out_s, (size_t)n + 1, "tensor names"));
    AZ_TRY(get_bytes(*out_s, src, (size_t)n));
out:
    return err;
}

az_err az_store_unpack(az_tensor_set *set, const void *bytes, size_t n)
{
    az_err err;
    source src = {bytes, n};
    int64_t head[3];
    *set = (az_tensor_set){0};
    AZ_TRY(get_bytes(head, &src, sizeof head));
    if (head[0] != MAGIC || head[1] < 0 || head[1] > (int64_t)n || head[2] < 0 ||
        head[2] > (int64_t)n) {
        err = az_fail(AZ_EINPUT, "a packed table of tensors is damaged");
        goto out;
    }
    AZ_TRY(get_text(&set->metadata, &src));
    AZ_TRY(AZ_NEW(set->files, (size_t)head[1], "tensor names"));
    for (; set->n_files < head[1]; set->n_files++)
        AZ_TRY(get_text(&set->files[set->n_files], &src));
    AZ_TRY(AZ_NEW(set->tensors, (size_t)head[2], "tensor names"));
    for (; set->n_tensors < head[2]; set->n_tensors++) {
        az_tensor *t = &set->tensors[set->n_tensors];
        char *name;
        AZ_TRY(get_text(&name, &src));
        err = get_bytes(t, &src, sizeof *t);
        if (err != AZ_OK || name == NULL) {
            az_free(name);
            err = az_fail(AZ_EINPUT, "a packed table of tensors is damaged");
            goto out;
        }
        t->name = name;
    }
out:
    if (err != AZ_OK)
        az_store_close(set);
    return err;
}
