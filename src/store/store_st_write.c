/* Write a safetensors file as the reference library does: wide types first, then by name; header
 * padded with spaces to a multiple of 8 bytes. The file is written under a temporary name, read
 * back and compared with what was meant, and only then takes its name. */
#include <config.h>

#include <stdlib.h>
#include <unistd.h>

#include "store/json.h"
#include "store/store_priv.h"

#define PIECE ((int64_t)1 << 20)

static int compare_out(const void *a, const void *b)
{
    const az_tensor_out *x = *(const az_tensor_out *const *)a,
                        *y = *(const az_tensor_out *const *)b;
    size_t wx = az_dtype_bytes(x->dtype), wy = az_dtype_bytes(y->dtype);
    return wx != wy ? (wx < wy ? 1 : -1) : strcmp(x->name, y->name);
}

static int64_t count_bytes(const az_tensor_out *t)
{
    int64_t n = (int64_t)az_dtype_bytes(t->dtype);
    AZ_ASSERT(t->n_dims >= 0 && t->n_dims <= AZ_TENSOR_DIMS);
    for (int i = 0; i < t->n_dims; i++)
        AZ_ASSERT(t->shape[i] >= 0 && !__builtin_mul_overflow(n, t->shape[i], &n));
    return n;
}

/* The header with its length in front. */
static az_err make_header(az_str *out, const az_tensor_out *const *order, int64_t n)
{
    az_err err;
    int64_t at = 0;
    uint64_t length = 0;
    AZ_TRY(az_str_add_bytes(out, &length, 8));
    AZ_TRY(az_str_add(out, "{\"__metadata__\":{\"format\":\"pt\"}"));
    for (int64_t i = 0; i < n; i++) {
        const az_tensor_out *t = order[i];
        AZ_TRY(az_str_add(out, ","));
        AZ_TRY(az_json_quote(out, t->name, strlen(t->name)));
        AZ_TRY(az_str_add(out, ":{\"dtype\":\"%s\",\"shape\":[", az_dtype_name(t->dtype)));
        for (int d = 0; d < t->n_dims; d++)
            AZ_TRY(az_str_add(out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]));
        int64_t end = at + count_bytes(t);
        AZ_TRY(az_str_add(out, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end));
        at = end;
    }
    AZ_TRY(az_str_add(out, "}"));
    while (out->len % 8 != 0)
        AZ_TRY(az_str_add(out, " "));
    length = out->len - 8;
    memcpy(out->s, &length, 8);
out:
    return err;
}

static bool same_layout(const az_tensor *got, const az_tensor_out *t)
{
    if (got == NULL || got->dtype != (int)t->dtype || got->n_dims != t->n_dims)
        return false;
    for (int i = 0; i < t->n_dims; i++)
        if (got->shape[i] != t->shape[i])
            return false;
    return got->bytes == count_bytes(t);
}

static az_err check_file(const char *path, const az_tensor_out *tensors, int64_t n)
{
    az_err err;
    az_tensor_set set = {0};
    int fd = -1, file = -1;
    char *piece = NULL;
    AZ_TRY(AZ_NEW(piece, (size_t)PIECE, "read-back"));
    AZ_TRY(az_store_open_file(&set, path));
    for (int64_t i = 0; i < n; i++) {
        const az_tensor *got = az_store_find(&set, tensors[i].name);
        bool same = same_layout(got, &tensors[i]);
        for (int64_t at = 0; same && at < got->bytes; at += PIECE) {
            int64_t want = az_min_i64(PIECE, got->bytes - at);
            AZ_TRY(az_store_read(piece, &set, got, at, want, &fd, &file));
            same = memcmp(piece, (const char *)tensors[i].data + at, (size_t)want) == 0;
        }
        if (!same) {
            err = az_fail(AZ_EENV,
                          "%s: tensor '%.200s' reads back different from what was written: the "
                          "disk or the file system is faulty",
                          path, tensors[i].name);
            goto out;
        }
    }
out:
    if (fd >= 0)
        close(fd);
    az_free(piece);
    az_store_close(&set);
    return err;
}

az_err az_store_write(const char *path, const az_tensor_out *tensors, int64_t n)
{
    az_err err;
    const az_tensor_out **order = NULL;
    az_part *parts = NULL;
    az_str header = {0}, tmp = {0};
    bool made = false;
    AZ_TRY(AZ_NEW(order, (size_t)n, "tensor names"));
    AZ_TRY(AZ_NEW(parts, (size_t)n + 1, "tensor names"));
    for (int64_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    if (n > 1)
        qsort(order, (size_t)n, sizeof *order, compare_out);
    AZ_TRY(make_header(&header, order, n));
    parts[0] = (az_part){header.s, header.len};
    for (int64_t i = 0; i < n; i++)
        parts[i + 1] = (az_part){order[i]->data, (size_t)count_bytes(order[i])};
    AZ_TRY(az_str_add(&tmp, "%s.tmp-%ld", path, (long)getpid()));
    AZ_TRY(az_file_write_parts(tmp.s, parts, n + 1));
    made = true;
    AZ_TRY(check_file(tmp.s, tensors, n));
    AZ_TRY(az_file_rename(tmp.s, path));
    made = false;
out:
    if (made)
        unlink(tmp.s);
    az_str_fini(&tmp);
    az_str_fini(&header);
    az_free(parts);
    az_free(order);
    return err;
}
