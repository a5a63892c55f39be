/* text against the tokenizers library: the ids and decoded texts of tests/golden/text. */
#include <config.h>

#include "text_util.h"

#include "store/json.h"

static char folder[512];

static const char *get_path(const char *name, const char *ending)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, ending);
    return path;
}

/* member, or member_hex: a text with a NUL. */
static bool get_text(az_str *out, const az_json *v, const char *member)
{
    char hex_member[64];
    snprintf(hex_member, sizeof hex_member, "%s_hex", member);
    const az_json *text = az_json_member(v, member), *hex = az_json_member(v, hex_member);
    size_t n = 0;
    out->len = 0;
    assert_int_equal(az_str_add_bytes(out, "", 0), AZ_OK);
    if (text != NULL) {
        const char *s = az_json_string(text, &n);
        assert_int_equal(az_str_add_bytes(out, s, n), AZ_OK);
    } else if (hex != NULL) {
        const char *s = az_json_string(hex, &n);
        for (size_t i = 0; i + 1 < n; i += 2) {
            char pair[3] = {s[i], s[i + 1], '\0'};
            char byte = (char)strtoul(pair, NULL, 16);
            assert_int_equal(az_str_add_bytes(out, &byte, 1), AZ_OK);
        }
    }
    return text != NULL || hex != NULL;
}

static void add_list(az_ids *ids, const az_json *list)
{
    for (size_t i = 0; i < az_json_count(list); i++)
        assert_int_equal(az_ids_add(ids, (int32_t)az_json_int(az_json_at(list, i))), AZ_OK);
}

static void compare_ids(const char *layout, size_t k, const az_ids *got, const az_ids *want)
{
    for (size_t i = 0; i < got->n || i < want->n; i++)
        if (i >= got->n || i >= want->n || got->v[i] != want->v[i])
            fail_msg("%s, line %zu: id %zu of %zu is %d, the library's of %zu is %d", layout, k + 1,
                     i, got->n, i < got->n ? (int)got->v[i] : -1, want->n,
                     i < want->n ? (int)want->v[i] : -1);
}

static void compare_text(const char *layout, size_t k, const az_tokenizer *tok, const az_ids *ids,
                         size_t n, bool skip, const az_str *want)
{
    az_str got = {0};
    assert_int_equal(az_text_decode(&got, tok, ids->v, n, skip), AZ_OK);
    if (got.len != want->len || (got.len > 0 && memcmp(got.s, want->s, got.len) != 0))
        fail_msg("%s, line %zu: %zu ids decode to \"%s\", with the library to \"%s\"", layout,
                 k + 1, n, got.s != NULL ? got.s : "", want->s);
    az_str_fini(&got);
}

static void compare_case(const char *layout, size_t k, az_tokenizer *tok, const az_str *text,
                         const az_json *doc, const az_json *c)
{
    az_ids got = {0}, all = {0}, want = {0}, want_all = {0};
    az_str plain = {0}, other = {0};
    add_list(&want, az_json_member(c, "ids"));
    add_list(&want_all, az_json_member(doc, "before"));
    add_list(&want_all, az_json_member(c, "ids"));
    add_list(&want_all, az_json_member(doc, "after"));
    assert_int_equal(az_text_encode(&got, tok, text->s, text->len, false), AZ_OK);
    assert_int_equal(az_text_encode(&all, tok, text->s, text->len, true), AZ_OK);
    compare_ids(layout, k, &got, &want);
    compare_ids(layout, k, &all, &want_all);
    if (!get_text(&plain, c, "decoded"))
        assert_int_equal(az_str_add_bytes(&plain, text->s, text->len), AZ_OK);
    compare_text(layout, k, tok, &want, want.n, false, &plain);
    compare_text(layout, k, tok, &want_all, want_all.n, true,
                 get_text(&other, c, "decoded_skip") ? &other : &plain);
    if (get_text(&other, c, "decoded_cut"))
        compare_text(layout, k, tok, &want, (size_t)az_json_int(az_json_member(c, "cut")), false,
                     &other);
    az_ids_fini(&got);
    az_ids_fini(&all);
    az_ids_fini(&want);
    az_ids_fini(&want_all);
    az_str_fini(&plain);
    az_str_fini(&other);
}

static void compare_layout(const char *layout)
{
    az_tokenizer *tok = open_dir(get_path(layout, ""));
    az_json_doc *ids = NULL;
    char *corpus = NULL;
    size_t bytes = 0, k = 0;
    az_str text = {0};
    assert_int_equal(az_json_load(&ids, get_path(layout, ".ids.json")), AZ_OK);
    assert_int_equal(az_file_read(&corpus, &bytes, get_path("corpus.jsonl", "")), AZ_OK);
    const az_json *cases = az_json_member(az_json_root(ids), "cases");
    for (char *line = corpus, *end; line < corpus + bytes; line = end + 1, k++) {
        end = memchr(line, '\n', (size_t)(corpus + bytes - line));
        assert_non_null(end);
        az_json_doc *doc = NULL;
        assert_int_equal(az_json_parse(&doc, line, (size_t)(end - line), "corpus"), AZ_OK);
        assert_true(get_text(&text, az_json_root(doc), "text"));
        assert_true(k < az_json_count(cases));
        compare_case(layout, k, tok, &text, az_json_root(ids), az_json_at(cases, k));
        az_json_close(doc);
    }
    assert_int_equal(k, az_json_count(cases));
    assert_true(k > 250);
    az_json_close(ids);
    az_free(corpus);
    az_str_fini(&text);
    az_text_close(tok);
}

#define LAYOUT(function, name)                          \
    static void function(void **state)                  \
    {                                                   \
        (void)state;                                    \
        compare_layout(name);                           \
        assert_int_equal(az_mem_get_total().blocks, 0); \
    }
LAYOUT(gpt2, "gpt2")
LAYOUT(gpt2_prefix, "gpt2-prefix")
LAYOUT(llama3, "llama3")
LAYOUT(qwen, "qwen")
LAYOUT(smollm, "smollm")
LAYOUT(added, "added")
LAYOUT(added_nfc, "added-nfc")
LAYOUT(edges_llama3, "edges-llama3")
LAYOUT(edges_smollm, "edges-smollm")

static void named_tokens(void **state)
{
    (void)state;
    az_tokenizer *tok = open_dir(get_path("llama3", ""));
    assert_true(az_text_get_bos(tok) >= 0 && az_text_get_bos(tok) < az_text_get_size(tok));
    assert_true(az_text_get_eos(tok) >= 0);
    az_text_close(tok);
    tok = open_dir(get_path("added", "")); /* has no tokenizer_config.json */
    assert_int_equal(az_text_get_bos(tok), -1);
    assert_int_equal(az_text_get_eos(tok), -1);
    az_text_close(tok);
}

int main(void)
{
    const char *srcdir = getenv("srcdir");
    snprintf(folder, sizeof folder, "%s/tests/golden/text", srcdir != NULL ? srcdir : ".");
    if (!az_dir_exists(folder)) {
        fprintf(stderr, "%s is not there: start by make check, or set srcdir\n", folder);
        return 99;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2),         cmocka_unit_test(gpt2_prefix),
        cmocka_unit_test(llama3),       cmocka_unit_test(qwen),
        cmocka_unit_test(smollm),       cmocka_unit_test(added),
        cmocka_unit_test(added_nfc),    cmocka_unit_test(edges_llama3),
        cmocka_unit_test(edges_smollm), cmocka_unit_test(named_tokens),
    };
    return cmocka_run_group_tests_name("text against the tokenizers library", tests, NULL, NULL);
}
