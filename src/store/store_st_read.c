/* One safetensors file: header read, every check of the format made, tensors added to a set.
 *
 *   8 bytes   N, little-endian
 *   N bytes   a JSON object: name -> {dtype, shape, data_offsets}; "__metadata__" -> strings
 *   the rest  the tensors' bytes, without holes, overlaps or anything after them
 *
 * Contents: types of elements; one tensor's entry; where the tensors lie; metadata; the file. */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/json.h"
#include "store/store_priv.h"

/* Largest header that the reference reader takes. */
#define MAX_HEADER 100000000

typedef struct {
    az_tensor_set *set;
    az_faults *faults;
    const char *path, *prefix;
    int file;
    int64_t first;       /* of this file's tensors in the set */
    int64_t data_offset; /* of the tensors' bytes in the file */
    int64_t data_bytes;  /* that the file has from there on */
    bool has_bad_range;  /* some entry has no usable offsets: holes cannot be judged */
} reader;

/* ---- types of elements */
static const struct {
    const char *name;
    int bits, dtype;
} dtypes[] = {
    {"BOOL", 8, -1},    {"F4", 4, -1},          {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},
    {"U8", 8, -1},      {"I8", 8, -1},          {"F8_E5M2", 8, -1},     {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1}, {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"I16", 16, -1},
    {"U16", 16, -1},    {"F16", 16, AZ_F16},    {"BF16", 16, AZ_BF16},  {"I32", 32, -1},
    {"U32", 32, -1},    {"F32", 32, AZ_F32},    {"C64", 64, -1},        {"F64", 64, -1},
    {"I64", 64, -1},    {"U64", 64, -1},
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* ---- one tensor's entry */
static az_err read_dtype(reader *r, az_tensor *t, int *out_bits, const az_json *entry)
{
    const az_json *v = az_json_member(entry, "dtype");
    *out_bits = 0;
    if (az_json_get_type(v) != AZ_JSON_STRING)
        return az_faults_add(r->faults, "%stensor '%.200s': dtype is %s, expected a string",
                             r->prefix, t->name, v == NULL ? "missing" : az_json_type_name(v));
    const char *name = az_json_string(v, NULL);
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            snprintf(t->dtype_name, sizeof t->dtype_name, "%s", name);
            t->dtype = dtypes[i].dtype;
            *out_bits = dtypes[i].bits;
            return AZ_OK;
        }
    return az_faults_add(r->faults,
                         "%stensor '%.200s': dtype '%.40s' is none of the format (F32, F16, BF16, "
                         "F64, I8 to I64, U8 to U64, BOOL, C64, F8_*, F6_*, F4)",
                         r->prefix, t->name, name);
}

/* *out_count: elements, or -1 if the shape is faulty. */
static az_err read_shape(reader *r, az_tensor *t, int64_t *out_count, const az_json *entry)
{
    const az_json *v = az_json_member(entry, "shape");
    int64_t count = 1;
    *out_count = -1;
    if (az_json_get_type(v) != AZ_JSON_ARRAY)
        return az_faults_add(r->faults, "%stensor '%.200s': shape is %s, expected an array",
                             r->prefix, t->name, v == NULL ? "missing" : az_json_type_name(v));
    size_t n = az_json_count(v);
    if (n > AZ_TENSOR_DIMS)
        return az_faults_add(r->faults, "%stensor '%.200s': %zu dimensions, at most %d are read",
                             r->prefix, t->name, n, AZ_TENSOR_DIMS);
    bool overflow = false;
    for (size_t i = 0; i < n; i++) {
        const az_json *d = az_json_at(v, i);
        if (az_json_get_type(d) != AZ_JSON_INT || az_json_int(d) < 0)
            return az_faults_add(r->faults,
                                 "%stensor '%.200s': shape[%zu] is not an integer of 0 or more",
                                 r->prefix, t->name, i);
        t->shape[i] = az_json_int(d);
        overflow |= __builtin_mul_overflow(count, t->shape[i], &count);
    }
    t->n_dims = (int)n;
    if (overflow)
        return az_faults_add(r->faults, "%stensor '%.200s': the product of its shape overflows",
                             r->prefix, t->name);
    *out_count = count;
    return AZ_OK;
}

/* Sets offset and bytes; bytes = -1 if they are faulty. */
static az_err read_range(reader *r, az_tensor *t, const az_json *entry)
{
    const az_json *v = az_json_member(entry, "data_offsets");
    bool fits = az_json_get_type(v) == AZ_JSON_ARRAY && az_json_count(v) == 2;
    int64_t at[2] = {0, 0};
    for (size_t i = 0; fits && i < 2; i++) {
        const az_json *a = az_json_at(v, i);
        fits = az_json_get_type(a) == AZ_JSON_INT && az_json_int(a) >= 0;
        at[i] = fits ? az_json_int(a) : 0;
    }
    t->bytes = -1;
    if (!fits)
        return az_faults_add(r->faults,
                             "%stensor '%.200s': data_offsets %s, expected two integers of 0 or "
                             "more, [begin, end]",
                             r->prefix, t->name, v == NULL ? "is missing" : "is something else");
    if (at[1] < at[0])
        return az_faults_add(r->faults,
                             "%stensor '%.200s': data_offsets [%lld, %lld] ends before it begins",
                             r->prefix, t->name, (long long)at[0], (long long)at[1]);
    t->offset = at[0];
    t->bytes = at[1] - at[0];
    return AZ_OK;
}

static az_err read_entry(reader *r, az_tensor *t, const az_json *entry)
{
    az_err err;
    int bits;
    int64_t count, total_bits;
    if (az_json_get_type(entry) != AZ_JSON_OBJECT) {
        r->has_bad_range = true;
        t->bytes = -1;
        return az_faults_add(r->faults, "%stensor '%.200s': its entry is %s, expected an object",
                             r->prefix, t->name, az_json_type_name(entry));
    }
    AZ_TRY(read_dtype(r, t, &bits, entry));
    AZ_TRY(read_shape(r, t, &count, entry));
    AZ_TRY(read_range(r, t, entry));
    if (t->bytes < 0)
        r->has_bad_range = true;
    if (bits == 0 || count < 0)
        goto out;
    if (__builtin_mul_overflow(count, (int64_t)bits, &total_bits))
        err = az_faults_add(r->faults, "%stensor '%.200s': the size of its shape overflows",
                            r->prefix, t->name);
    else if (total_bits % 8 != 0)
        err = az_faults_add(r->faults,
                            "%stensor '%.200s': %lld elements of %d bits do not fill whole bytes",
                            r->prefix, t->name, (long long)count, bits);
    else if (t->bytes >= 0 && total_bits / 8 != t->bytes)
        err = az_faults_add(r->faults,
                            "%stensor '%.200s': its shape and dtype %s need %lld bytes, its "
                            "data_offsets have %lld",
                            r->prefix, t->name, t->dtype_name, (long long)(total_bits / 8),
                            (long long)t->bytes);
out:
    return err;
}

/* ---- where the tensors lie */
typedef struct {
    int64_t begin, end;
    const az_tensor *t;
} range;

static int compare_ranges(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->t->name, y->t->name);
}

static az_err check_length(reader *r, int64_t end)
{
    unsigned long long says = (unsigned long long)r->data_offset + (unsigned long long)end;
    long long has = (long long)(r->data_offset + r->data_bytes);
    if (end > r->data_bytes)
        return az_faults_add(r->faults,
                             "%struncated: the header says %llu bytes, the file has %lld "
                             "(download it again)",
                             r->prefix, says, has);
    if (end < r->data_bytes && !r->has_bad_range)
        return az_faults_add(r->faults,
                             "%s%lld bytes after the last tensor: the header says %llu bytes, the "
                             "file has %lld",
                             r->prefix, (long long)(r->data_bytes - end), says, has);
    return AZ_OK;
}

static az_err check_ranges(reader *r)
{
    az_err err;
    az_tensor_set *set = r->set;
    range *ranges = NULL;
    size_t n = 0;
    AZ_TRY(AZ_NEW(ranges, (size_t)(set->n_tensors - r->first), "tensor names"));
    for (int64_t i = r->first; i < set->n_tensors; i++) {
        const az_tensor *t = &set->tensors[i];
        if (t->bytes >= 0)
            ranges[n++] = (range){t->offset, t->offset + t->bytes, t};
    }
    if (n > 1)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    int64_t end = 0;
    const az_tensor *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const range *x = &ranges[i];
        if (x->begin < end)
            AZ_TRY(az_faults_add(
                r->faults,
                "%stensor '%.200s' overlaps '%.200s': it begins at %lld, the other "
                "ends at %lld",
                r->prefix, x->t->name, last->name, (long long)x->begin, (long long)end));
        else if (x->begin > end && !r->has_bad_range)
            AZ_TRY(az_faults_add(r->faults,
                                 "%shole of %lld bytes before tensor '%.200s': it begins at %lld, "
                                 "expected %lld",
                                 r->prefix, (long long)(x->begin - end), x->t->name,
                                 (long long)x->begin, (long long)end));
        if (x->end > end || last == NULL) {
            end = az_max_i64(end, x->end);
            last = x->t;
        }
    }
    AZ_TRY(check_length(r, end));
    for (int64_t i = r->first; i < set->n_tensors; i++)
        if (set->tensors[i].bytes >= 0 &&
            __builtin_add_overflow(set->tensors[i].offset, r->data_offset, &set->tensors[i].offset))
            set->tensors[i].bytes = -1; /* far beyond the file: found truncated above */
out:
    az_free(ranges);
    return err;
}

/* ---- metadata */
static int compare_names(const void *key, const void *t)
{
    return strcmp(key, ((const az_tensor *)t)->name);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const az_tensor *)a)->name, ((const az_tensor *)b)->name);
}

/* torch's writer keeps one of several tied tensors and notes "dropped name": "kept name" in the
 * metadata: give the bytes their second name back. */
static az_err add_alias(reader *r, int64_t n, const char *name, const char *kept)
{
    az_tensor *first = r->set->tensors + r->first;
    const az_tensor *t = bsearch(kept, first, (size_t)n, sizeof *first, compare_names);
    if (t == NULL || bsearch(name, first, (size_t)n, sizeof *first, compare_names) != NULL)
        return AZ_OK;
    az_tensor alias = *t;
    alias.alias = true;
    alias.name = az_strdup(name, "tensor names");
    if (alias.name == NULL)
        return AZ_EENV;
    r->set->tensors[r->set->n_tensors++] = alias;
    return AZ_OK;
}

static az_err read_metadata(reader *r, const az_json *metadata)
{
    az_err err = AZ_OK;
    az_str text = {0};
    void *cursor = NULL;
    const char *key;
    const az_json *v;
    int64_t n = r->set->n_tensors - r->first;
    if (metadata == NULL)
        return AZ_OK;
    if (az_json_get_type(metadata) != AZ_JSON_OBJECT)
        return az_faults_add(r->faults, "%s__metadata__ is %s, expected an object of strings",
                             r->prefix, az_json_type_name(metadata));
    if (n > 1)
        qsort(r->set->tensors + r->first, (size_t)n, sizeof *r->set->tensors, compare_tensors);
    AZ_TRY(az_str_add(&text, "{"));
    while (az_json_next(metadata, &cursor, &key, &v)) {
        if (az_json_get_type(v) != AZ_JSON_STRING) {
            AZ_TRY(az_faults_add(r->faults, "%s__metadata__: '%.100s' is %s, expected a string",
                                 r->prefix, key, az_json_type_name(v)));
            continue;
        }
        if (text.len > 1)
            AZ_TRY(az_str_add(&text, ", "));
        AZ_TRY(az_json_quote(&text, key, strlen(key)));
        AZ_TRY(az_str_add(&text, ": "));
        AZ_TRY(az_json_quote(&text, az_json_string(v, NULL), strlen(az_json_string(v, NULL))));
        if (n > 0 && strcmp(key, "format") != 0)
            AZ_TRY(add_alias(r, n, key, az_json_string(v, NULL)));
    }
    AZ_TRY(az_str_add(&text, "}"));
    if (r->file == 0) {
        r->set->metadata = text.s;
        text = (az_str){0};
    }
out:
    az_str_fini(&text);
    return err;
}

/* ---- the file */
const char *az_store_guess_kind(const char *head, size_t n)
{
    static const struct {
        const char *magic, *kind;
    } kinds[] = {
        {"version https://git-lfs",
         "a Git LFS pointer, not the file itself (fetch it: git lfs pull)"},
        {"PK\x03\x04", "a zip archive, as PyTorch's .bin and .pt files are"},
        {"GGUF", "a GGUF file"},
        {"\x89HDF\r\n", "an HDF5 file"},
        {"<!DOCTYPE", "a web page (a failed download)"},
        {"<html", "a web page (a failed download)"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t len = strlen(kinds[i].magic);
        if (n >= len && memcmp(head, kinds[i].magic, len) == 0)
            return kinds[i].kind;
    }
    return NULL;
}

/* The header's text at *out_text, or NULL if a fault was noted. */
static az_err read_header(reader *r, char **out_text, size_t *out_bytes, int fd, int64_t size)
{
    az_err err;
    unsigned char head[256];
    char *text = NULL;
    uint64_t n = 0;
    size_t got = (size_t)az_min_i64(size, sizeof head);
    *out_text = NULL;
    AZ_TRY(az_file_read_at(fd, head, got, 0, r->path));
    const char *kind = az_store_guess_kind((const char *)head, got);
    if (kind != NULL)
        return az_faults_add(r->faults, "%sthis is %s", r->prefix, kind);
    if (size < 8)
        return az_faults_add(r->faults,
                             "%stoo short: %lld bytes, a safetensors file begins with the 8-byte "
                             "length of its header",
                             r->prefix, (long long)size);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    if (n > MAX_HEADER)
        return az_faults_add(r->faults,
                             "%sheader length %llu is above the limit of %d bytes: not a "
                             "safetensors file, or a damaged one",
                             r->prefix, (unsigned long long)n, MAX_HEADER);
    if ((int64_t)n > size - 8)
        return az_faults_add(r->faults,
                             "%struncated: the header alone needs %llu bytes, the file has %lld "
                             "(download it again)",
                             r->prefix, (unsigned long long)n + 8, (long long)size);
    if (n < 2)
        return az_faults_add(r->faults, "%sheader length %llu: too short for a JSON object",
                             r->prefix, (unsigned long long)n);
    AZ_TRY(AZ_NEW(text, (size_t)n + 1, "tensor names"));
    AZ_TRY(az_file_read_at(fd, text, (size_t)n, 8, r->path));
    if (text[0] != '{') {
        err = az_faults_add(r->faults, "%sthe header begins with byte 0x%02x, expected '{'",
                            r->prefix, (unsigned char)text[0]);
        goto out;
    }
    r->data_offset = 8 + (int64_t)n;
    r->data_bytes = size - r->data_offset;
    *out_text = text;
    *out_bytes = (size_t)n;
    text = NULL;
out:
    az_free(text);
    return err;
}

static az_err read_tensors(reader *r, const az_json *root)
{
    az_err err = AZ_OK;
    void *cursor = NULL;
    const char *name;
    const az_json *entry, *metadata = az_json_member(root, "__metadata__");
    az_tensor_set *set = r->set;
    /* each string of the metadata may become an alias */
    size_t most = az_json_count(root) + az_json_count(metadata);
    AZ_TRY(AZ_GROW(set->tensors, (size_t)set->n_tensors + most, "tensor names"));
    while (az_json_next(root, &cursor, &name, &entry)) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        az_tensor *t = &set->tensors[set->n_tensors];
        *t = (az_tensor){.file = r->file, .dtype = -1};
        t->name = az_strdup(name, "tensor names");
        if (t->name == NULL)
            return AZ_EENV;
        set->n_tensors++;
        AZ_TRY(read_entry(r, t, entry));
    }
    AZ_TRY(check_ranges(r));
    AZ_TRY(read_metadata(r, metadata));
out:
    return err;
}

az_err az_store_add_file(az_tensor_set *set, int file, const char *prefix, az_faults *faults)
{
    az_err err;
    int fd = -1;
    char *text = NULL;
    size_t bytes = 0;
    int64_t size = 0;
    az_json_doc *doc = NULL;
    reader r = {.set = set,
                .faults = faults,
                .path = set->files[file],
                .prefix = prefix,
                .file = file,
                .first = set->n_tensors};
    az_str where = {0};
    int64_t before = faults->n;
    AZ_TRY(az_str_add(&where, "%sheader", prefix));
    err = az_file_size(&size, r.path);
    if (err == AZ_OK)
        err = az_file_open(&fd, r.path);
    if (err == AZ_OK)
        err = read_header(&r, &text, &bytes, fd, size);
    AZ_TRY(az_faults_take(faults, err, prefix[0] == '\0' ? r.path : ""));
    if (faults->n > before)
        goto out;
    err = az_json_parse(&doc, text, bytes, where.s);
    AZ_TRY(az_faults_take(faults, err, ""));
    if (doc != NULL)
        AZ_TRY(read_tensors(&r, az_json_root(doc)));
out:
    az_json_close(doc);
    az_str_fini(&where);
    az_free(text);
    if (fd >= 0)
        close(fd);
    return err;
}
