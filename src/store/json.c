/* JSON documents, read through jansson. */
#include <config.h>

#include "store/json.h"

#include <jansson.h>
#include <math.h>

#include "store/store_priv.h"

struct az_json_doc {
    json_t *root;
    char *where;
};

static json_t *val(const az_json *v)
{
    return (json_t *)(uintptr_t)v;
}

/* A copy of the text in which integers beyond 64 bits are written as reals ("e0" appended):
 * tokenizer_config.json files say "no limit" by model_max_length = 1e30 written out. */
static az_err widen_integers(az_str *out, const char *text, size_t bytes)
{
    az_err err = AZ_OK;
    bool in_string = false;
    for (size_t i = 0; i < bytes;) {
        size_t n = 0;
        while (!in_string && i + n < bytes && text[i + n] >= '0' && text[i + n] <= '9')
            n++;
        char after = i + n < bytes ? text[i + n] : '\0';
        bool digits = n > 0;
        if (!digits && in_string && text[i] == '\\' && i + 1 < bytes)
            n = 2;
        else if (!digits)
            n = 1;
        if (!digits && text[i] == '"')
            in_string = !in_string;
        AZ_TRY(az_str_add_bytes(out, text + i, n));
        /* Digits behind a point or an exponent belong to a real. */
        char before = i > 0 ? text[i - 1] : '\0';
        if (digits && n >= 19 && after != '.' && after != 'e' && after != 'E' && before != '.' &&
            before != 'e' && before != 'E' && before != '+')
            AZ_TRY(az_str_add(out, "e0"));
        i += n;
    }
out:
    return err;
}

az_err az_json_parse(az_json_doc **out_doc, const char *text, size_t bytes, const char *where)
{
    az_err err;
    az_json_doc *doc = NULL;
    json_error_t e;
    az_str wide = {0};
    *out_doc = NULL;
    AZ_TRY(AZ_NEW(doc, 1, "JSON"));
    doc->where = az_strdup(where, "JSON");
    if (doc->where == NULL) {
        err = AZ_EENV;
        goto out;
    }
    doc->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (doc->root == NULL && json_error_code(&e) == json_error_numeric_overflow) {
        AZ_TRY(widen_integers(&wide, text, bytes));
        doc->root = json_loadb(wide.s, wide.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    }
    if (doc->root == NULL) {
        if (json_error_code(&e) == json_error_out_of_memory)
            err = az_fail(AZ_EENV, "%s: out of memory", where);
        else if (e.line == 1) /* the only line, or a line of a file of lines */
            err = az_fail(AZ_EINPUT, "%s: not valid JSON: column %d: %s", where, e.column, e.text);
        else
            err = az_fail(AZ_EINPUT, "%s: not valid JSON: line %d, column %d: %s", where, e.line,
                          e.column, e.text);
        goto out;
    }
    *out_doc = doc;
    doc = NULL;
out:
    az_str_fini(&wide);
    az_json_close(doc);
    return err;
}

az_err az_json_load(az_json_doc **out_doc, const char *path)
{
    az_err err;
    char *text = NULL;
    size_t bytes = 0;
    *out_doc = NULL;
    AZ_TRY(az_file_read(&text, &bytes, path));
    const char *kind = az_store_guess_kind(text, bytes);
    if (kind != NULL)
        err = az_fail(AZ_EINPUT, "%s: this is %s", path, kind);
    else
        err = az_json_parse(out_doc, text, bytes, path);
out:
    az_free(text);
    return err;
}

void az_json_close(az_json_doc *opt_doc)
{
    if (opt_doc == NULL)
        return;
    json_decref(opt_doc->root);
    az_free(opt_doc->where);
    az_free(opt_doc);
}

const az_json *az_json_root(const az_json_doc *doc)
{
    return (const az_json *)doc->root;
}

const char *az_json_where(const az_json_doc *doc)
{
    return doc->where;
}

az_json_type az_json_get_type(const az_json *opt_v)
{
    if (opt_v == NULL)
        return AZ_JSON_NULL;
    switch (json_typeof(val(opt_v))) {
    case JSON_TRUE:
    case JSON_FALSE:
        return AZ_JSON_BOOL;
    case JSON_INTEGER:
        return AZ_JSON_INT;
    case JSON_REAL:
        return AZ_JSON_REAL;
    case JSON_STRING:
        return AZ_JSON_STRING;
    case JSON_ARRAY:
        return AZ_JSON_ARRAY;
    case JSON_OBJECT:
        return AZ_JSON_OBJECT;
    case JSON_NULL:
        break;
    }
    return AZ_JSON_NULL;
}

const char *az_json_type_name(const az_json *opt_v)
{
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
    return names[az_json_get_type(opt_v)];
}

size_t az_json_count(const az_json *opt_v)
{
    az_json_type t = az_json_get_type(opt_v);
    if (t == AZ_JSON_ARRAY)
        return json_array_size(val(opt_v));
    return t == AZ_JSON_OBJECT ? json_object_size(val(opt_v)) : 0;
}

const az_json *az_json_at(const az_json *array, size_t i)
{
    return (const az_json *)json_array_get(val(array), i);
}

const az_json *az_json_member(const az_json *opt_v, const char *key)
{
    if (az_json_get_type(opt_v) != AZ_JSON_OBJECT)
        return NULL;
    return (const az_json *)json_object_get(val(opt_v), key);
}

const az_json *az_json_given(const az_json *opt_v, const char *key)
{
    const az_json *v = az_json_member(opt_v, key);
    return az_json_get_type(v) == AZ_JSON_NULL ? NULL : v;
}

bool az_json_next(const az_json *object, void **cursor, const char **out_key, const az_json **out_v)
{
    *cursor = *cursor == NULL ? json_object_iter(val(object))
                              : json_object_iter_next(val(object), *cursor);
    if (*cursor == NULL)
        return false;
    *out_key = json_object_iter_key(*cursor);
    *out_v = (const az_json *)json_object_iter_value(*cursor);
    return true;
}

bool az_json_bool(const az_json *v)
{
    return json_is_true(val(v));
}

int64_t az_json_int(const az_json *v)
{
    return json_integer_value(val(v));
}

double az_json_real(const az_json *v)
{
    return json_number_value(val(v));
}

const char *az_json_string(const az_json *v, size_t *opt_bytes)
{
    if (opt_bytes != NULL)
        *opt_bytes = json_string_length(val(v));
    return json_string_value(val(v));
}

static az_err fail_type(const az_json_doc *doc, const char *key, const az_json *v,
                        const char *expected)
{
    char *text = json_dumps(val(v), JSON_ENCODE_ANY | JSON_COMPACT);
    az_err err = az_fail(AZ_EINPUT, "%s: %s: found %.80s, expected %s", doc->where, key,
                         text != NULL ? text : az_json_type_name(v), expected);
    free(text);
    return err;
}

az_err az_json_get_bool(bool *out, const az_json_doc *doc, const az_json *object, const char *key,
                        bool fallback)
{
    const az_json *v = az_json_member(object, key);
    *out = fallback;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_BOOL)
        return fail_type(doc, key, v, "true or false");
    *out = az_json_bool(v);
    return AZ_OK;
}

az_err az_json_get_int(int64_t *out, const az_json_doc *doc, const az_json *object, const char *key,
                       int64_t lo, int64_t hi, int64_t fallback)
{
    const az_json *v = az_json_member(object, key);
    *out = fallback;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_INT || az_json_int(v) < lo || az_json_int(v) > hi) {
        char expected[80];
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)lo,
                 (long long)hi);
        return fail_type(doc, key, v, expected);
    }
    *out = az_json_int(v);
    return AZ_OK;
}

az_err az_json_get_real(double *out, const az_json_doc *doc, const az_json *object, const char *key,
                        double lo, double hi, double fallback)
{
    const az_json *v = az_json_member(object, key);
    *out = fallback;
    az_json_type t = az_json_get_type(v);
    if (t == AZ_JSON_NULL)
        return AZ_OK;
    if ((t != AZ_JSON_INT && t != AZ_JSON_REAL) ||
        !(az_json_real(v) >= lo && az_json_real(v) <= hi)) {
        char expected[80];
        snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
        return fail_type(doc, key, v, expected);
    }
    *out = az_json_real(v);
    return AZ_OK;
}

az_err az_json_get_string(const char **out, const az_json_doc *doc, const az_json *object,
                          const char *key, const char *fallback)
{
    const az_json *v = az_json_member(object, key);
    *out = fallback;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_STRING)
        return fail_type(doc, key, v, "a string");
    *out = az_json_string(v, NULL);
    return AZ_OK;
}

az_err az_json_quote(az_str *out, const char *s, size_t bytes)
{
    json_t *v = json_stringn(s, bytes);
    char *text = v != NULL ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    az_err err = text != NULL ? az_str_add(out, "%s", text)
                              : az_fail(AZ_EINPUT, "not valid UTF-8, which JSON needs: %.200s", s);
    free(text);
    json_decref(v);
    return err;
}

az_err az_json_add_text(az_str *out, const char *opt_s)
{
    return opt_s != NULL ? az_json_quote(out, opt_s, strlen(opt_s)) : az_str_add(out, "null");
}

az_err az_json_add_real(az_str *out, double v)
{
    return isfinite(v) ? az_str_add_real(out, v) : az_str_add(out, "null");
}
