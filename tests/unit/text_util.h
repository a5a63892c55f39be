/* What the tests of text share: a tokenizer.json put together from parts, ids and texts compared.
 */
#ifndef AZ_TESTS_TEXT_UTIL_H
#define AZ_TESTS_TEXT_UTIL_H

#include "store_util.h"

#include "text/text.h"

/* Parts of a tokenizer.json as JSON; NULL takes the default. */
typedef struct {
    const char *added, *normalizer, *pre, *post, *decoder, *model, *more;
} parts;

#define BYTES_PRE \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"

static inline const char *part_or(const char *part, const char *fallback)
{
    return part != NULL ? part : fallback;
}

/* The directory of such a file. */
static inline const char *put_parts(const parts *p)
{
    const char *dir = fresh_dir("tokenizer");
    az_str s = {0};
    assert_int_equal(
        az_str_add(&s,
                   "{\"version\":\"1.0\",\"truncation\":{\"max_length\":3},\"padding\":null,"
                   "\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
                   "\"post_processor\":%s,\"decoder\":%s,\"model\":%s%s}",
                   part_or(p->added, ""), part_or(p->normalizer, "null"),
                   part_or(p->pre, BYTES_PRE), part_or(p->post, "null"),
                   part_or(p->decoder, "{\"type\":\"ByteLevel\"}"),
                   part_or(p->model, "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,"
                                     "\"\\u0120\":3,\"ab\":4,\"abc\":5},"
                                     "\"merges\":[\"a b\",[\"ab\",\"c\"]]}"),
                   part_or(p->more, "")),
        AZ_OK);
    put_text(tmp_path("tokenizer/tokenizer.json"), s.s);
    az_str_fini(&s);
    return dir;
}

static inline az_tokenizer *open_dir(const char *dir)
{
    az_tokenizer *tok = NULL;
    if (az_text_open(&tok, dir) != AZ_OK)
        fail_msg("%s: %s", dir, az_err_message());
    return tok;
}

static inline az_tokenizer *open_parts(parts p)
{
    return open_dir(put_parts(&p));
}

/* Opening fails and says this. */
static inline void refuse_parts(const char *message, parts p)
{
    az_tokenizer *tok = (void *)1;
    expect_failure(az_text_open(&tok, put_parts(&p)), AZ_EINPUT, message);
    assert_null(tok);
}

/* The ids of a text as "1 2 3". */
static inline const char *ids_of(az_tokenizer *tok, const char *text, bool add_special)
{
    static char s[4096];
    az_ids ids = {0};
    size_t n = 0;
    if (az_text_encode(&ids, tok, text, strlen(text), add_special) != AZ_OK)
        fail_msg("%s: %s", text, az_err_message());
    s[0] = '\0';
    for (size_t i = 0; i < ids.n; i++)
        n += (size_t)snprintf(s + n, sizeof s - n, "%s%d", i > 0 ? " " : "", (int)ids.v[i]);
    az_ids_fini(&ids);
    return s;
}

static inline void expect_text(const az_tokenizer *tok, const int32_t *ids, size_t n, bool skip,
                               const char *text)
{
    az_str out = {0};
    assert_int_equal(az_text_decode(&out, tok, ids, n, skip), AZ_OK);
    assert_string_equal(out.s != NULL ? out.s : "", text);
    az_str_fini(&out);
}

#endif
