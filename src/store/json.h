/* JSON documents, read through jansson. Local.
 *
 * A value remembers nothing of its document: keep the document open while its values are used.
 * Accessors that fail name the document and the member, what was found and what was expected.
 * Duplicate keys and invalid UTF-8 are refused when a document is read. An integer beyond 64 bits
 * is read as a real. */
#ifndef AZ_STORE_JSON_H
#define AZ_STORE_JSON_H

#include "base/base.h"

typedef struct az_json az_json; /* a value; borrowed from its document */
typedef struct az_json_doc az_json_doc;

/* where: what messages call the document, e.g. its path or "FILE:LINE". Copied. */
az_err az_json_parse(az_json_doc **out_doc, const char *text, size_t bytes, const char *where);
az_err az_json_load(az_json_doc **out_doc, const char *path);
void az_json_close(az_json_doc *opt_doc);
const az_json *az_json_root(const az_json_doc *doc);
const char *az_json_where(const az_json_doc *doc);

typedef enum {
    AZ_JSON_NULL,
    AZ_JSON_BOOL,
    AZ_JSON_INT,
    AZ_JSON_REAL,
    AZ_JSON_STRING,
    AZ_JSON_ARRAY,
    AZ_JSON_OBJECT
} az_json_type;
/* AZ_JSON_NULL for NULL. */
az_json_type az_json_get_type(const az_json *opt_v);
const char *az_json_type_name(const az_json *opt_v);
/* Elements of an array, members of an object, else 0. */
size_t az_json_count(const az_json *opt_v);
const az_json *az_json_at(const az_json *array, size_t i);
/* A member, or NULL if v is no object or has none of this name. */
const az_json *az_json_member(const az_json *opt_v, const char *key);
/* Likewise, but a member that is null counts as absent. */
const az_json *az_json_given(const az_json *opt_v, const char *key);
/* Members in file order: start with *cursor = NULL, false after the last. */
bool az_json_next(const az_json *object, void **cursor, const char **out_key,
                  const az_json **out_v);
/* Values of known type (check it first). A string holds no NUL; bytes may be NULL. */
bool az_json_bool(const az_json *v);
int64_t az_json_int(const az_json *v);
double az_json_real(const az_json *v); /* also of an integer */
const char *az_json_string(const az_json *v, size_t *opt_bytes);

/* Member of an object as a value of one type. Absent or null: the fallback. Wrong type or out of
 * [lo, hi]: a failure "WHERE: key: found X, expected Y". */
az_err az_json_get_bool(bool *out, const az_json_doc *doc, const az_json *object, const char *key,
                        bool fallback);
az_err az_json_get_int(int64_t *out, const az_json_doc *doc, const az_json *object, const char *key,
                       int64_t lo, int64_t hi, int64_t fallback);
az_err az_json_get_real(double *out, const az_json_doc *doc, const az_json *object, const char *key,
                        double lo, double hi, double fallback);
/* Borrowed string. */
az_err az_json_get_string(const char **out, const az_json_doc *doc, const az_json *object,
                          const char *key, const char *fallback);
/* Append s as a JSON string literal with its quotes. s is UTF-8. */
az_err az_json_quote(az_str *out, const char *s, size_t bytes);
/* Append a zero-terminated text as such a literal; NULL: null. */
az_err az_json_add_text(az_str *out, const char *opt_s);
/* Append a number in the fewest digits that read back the same; null if it is not finite, for which
 * JSON has no number. */
az_err az_json_add_real(az_str *out, double v);

#endif
