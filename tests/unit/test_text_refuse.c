/* text: what a tokenizer directory may hold and what is refused, by its message; every allocation
 * made to fail. */
#include <config.h>

#include "text_util.h"

#define MODEL(more, vocab, merges) \
    "{\"type\":\"BPE\"" more ",\"vocab\":" vocab ",\"merges\":" merges "}"
#define VOCAB "{\"a\":0,\"b\":1,\"ab\":2}"
#define SEQUENCE(name, elements) "{\"type\":\"Sequence\",\"" name "\":[" elements "]}"
#define SPLIT(pattern, behavior)                                         \
    SEQUENCE("pretokenizers", "{\"type\":\"Split\",\"pattern\":" pattern \
                              ",\"behavior\":\"" behavior "\",\"invert\":false}," BYTES_PRE)
#define REGEX(regex) SPLIT("{\"Regex\":\"" regex "\"}", "Isolated")

static void models(void **state)
{
    (void)state;
    refuse_parts("tokenizer.json: model: type WordPiece is not supported; BPE is",
                 (parts){.model = "{\"type\":\"WordPiece\",\"vocab\":{}}"});
    refuse_parts("model: type Unigram is not supported",
                 (parts){.model = "{\"type\":\"Unigram\"}"});
    refuse_parts("model: type without type is not supported", (parts){.model = "{\"vocab\":{}}"});
    refuse_parts("model: found null, expected an object", (parts){.model = "null"});
    refuse_parts("model: byte_fallback true (the SentencePiece layout) is not supported; "
                 "byte-level BPE is",
                 (parts){.model = MODEL(",\"byte_fallback\":true", VOCAB, "[]")});
    refuse_parts("model: dropout 0.1 is not supported; null and 0 are",
                 (parts){.model = MODEL(",\"dropout\":0.1", VOCAB, "[]")});
    refuse_parts("model: continuing_subword_prefix \"##\" is not supported; null and \"\" are",
                 (parts){.model = MODEL(",\"continuing_subword_prefix\":\"##\"", VOCAB, "[]")});
    refuse_parts("model: end_of_word_suffix \"</w>\" is not supported",
                 (parts){.model = MODEL(",\"end_of_word_suffix\":\"</w>\"", VOCAB, "[]")});
    refuse_parts("model: unk_token \"<unk>\" is not in the vocabulary",
                 (parts){.model = MODEL(",\"unk_token\":\"<unk>\"", VOCAB, "[]")});
    refuse_parts("fuse_unk: found 3, expected true or false",
                 (parts){.model = MODEL(",\"fuse_unk\":3", VOCAB, "[]")});
}

static void vocabularies(void **state)
{
    (void)state;
    refuse_parts("model: vocab: found an array, expected an object",
                 (parts){.model = MODEL("", "[]", "[]")});
    refuse_parts("model: vocab: \"b\": found an integer out of range, expected an id from 0 to "
                 "16777215",
                 (parts){.model = MODEL("", "{\"a\":0,\"b\":-1}", "[]")});
    refuse_parts("model: vocab: \"b\": found a string, expected an id",
                 (parts){.model = MODEL("", "{\"a\":0,\"b\":\"1\"}", "[]")});
    refuse_parts("model: vocab: id 7 belongs to both \"a\" and \"b\"",
                 (parts){.model = MODEL("", "{\"a\":7,\"b\":7}", "[]")});
    refuse_parts("model: merges: found null, expected an array",
                 (parts){.model = MODEL("", VOCAB, "null")});
    refuse_parts("model: merges: element 1: found a b c, expected \"left right\" or [\"left\", "
                 "\"right\"]",
                 (parts){.model = MODEL("", VOCAB, "[\"a b\",\"a b c\"]")});
    refuse_parts("model: merges: element 0: found ab, expected",
                 (parts){.model = MODEL("", VOCAB, "[\"ab\"]")});
    refuse_parts("model: merges: element 0: found an array, expected",
                 (parts){.model = MODEL("", VOCAB, "[[\"a\"]]")});
    refuse_parts("model: merges: element 0: \"x\" is not in the vocabulary",
                 (parts){.model = MODEL("", VOCAB, "[\"a x\"]")});
    refuse_parts("model: merges: element 1: \"ba\" is not in the vocabulary",
                 (parts){.model = MODEL("", VOCAB, "[\"a b\",[\"b\",\"a\"]]")});
    refuse_parts("not valid JSON", (parts){.model = MODEL("", "{\"a\":0,\"a\":1}", "[]")});
}

static void added_tokens(void **state)
{
    (void)state;
    refuse_parts("added_tokens: element 0: content: found null, expected a string",
                 (parts){.added = "{\"id\":6}"});
    refuse_parts("added_tokens: \"<x>\" is listed twice",
                 (parts){.added = ADDED(6, "<x>", "") "," ADDED(6, "<x>", "")});
    refuse_parts("added_tokens: \"<y>\" has id 9, but its place gives it id 7",
                 (parts){.added = ADDED(6, "<x>", "") "," ADDED(9, "<y>", "")});
    refuse_parts("added_tokens: \"ab\" has id 6, but its place gives it id 4",
                 (parts){.added = ADDED(6, "ab", "")});
    refuse_parts(
        "added_tokens: \"<x>\" has id 2, which the vocabulary uses",
        (parts){.added = ADDED(2, "<x>", ""), .model = MODEL("", "{\"a\":0,\"b\":2}", "[]")});
    refuse_parts("lstrip: found \"yes\", expected true or false",
                 (parts){.added = ADDED(6, "<x>", ",\"lstrip\":\"yes\"")});
    refuse_parts("normalizer: type Lowercase is not supported; NFC, NFD, NFKC, NFKD, Sequence and "
                 "null are",
                 (parts){.normalizer = "{\"type\":\"Lowercase\"}"});
    refuse_parts("normalizer: type Prepend is not supported",
                 (parts){.normalizer = SEQUENCE("normalizers", "{\"type\":\"NFC\"},"
                                                               "{\"type\":\"Prepend\"}")});
    refuse_parts("normalizer: found a string, expected an object or null",
                 (parts){.normalizer = "\"NFC\""});
    refuse_parts("normalizer: Sequence: normalizers: found null, expected an array",
                 (parts){.normalizer = "{\"type\":\"Sequence\"}"});
    refuse_parts("normalizer: type (none) is not supported", (parts){.normalizer = "{}"});
}

static void pre_tokenizers(void **state)
{
    (void)state;
    refuse_parts("pre_tokenizer: type Metaspace is not supported; ByteLevel, Split, Digits and "
                 "Sequence are",
                 (parts){.pre = "{\"type\":\"Metaspace\"}"});
    refuse_parts("pre_tokenizer: does not end in ByteLevel; only byte-level BPE is supported",
                 (parts){.pre = "null"});
    refuse_parts("pre_tokenizer: does not end in ByteLevel",
                 (parts){.pre = "{\"type\":\"Digits\"}"});
    refuse_parts("pre_tokenizer: Digits after ByteLevel is not supported; ByteLevel as the last "
                 "step is",
                 (parts){.pre = SEQUENCE("pretokenizers", BYTES_PRE ",{\"type\":\"Digits\"}")});
    refuse_parts("pre_tokenizer: Split: behavior isolated is not supported; Removed, Isolated, "
                 "MergedWithPrevious, MergedWithNext and Contiguous are",
                 (parts){.pre = SPLIT("{\"Regex\":\"a\"}", "isolated")});
    refuse_parts("pre_tokenizer: Split: pattern: expected {\"Regex\": \"...\"} or {\"String\": "
                 "\"...\"}",
                 (parts){.pre = SPLIT("\"a\"", "Isolated")});
}

static void regular_expressions(void **state)
{
    static const struct {
        const char *regex, *message;
    } cases[] = {
        {"(a",
         "regular expression (a: a parenthesis that is not closed at byte 2 is not supported"},
        {"a)", "a parenthesis that was not opened"},
        {"[a", "a class without end"},
        {"[]", "a class without end"},
        {"[a&&]", "an empty class"},
        {"[&&a]", "an empty side of &&"},
        {"[[:alpha:]]", "a POSIX bracket"},
        {"[\\\\s-z]", "a range that begins with a set"},
        {"[a-\\\\s]", "a range without order"},
        {"[z-a]", "a range without order"},
        {"[a-[b]]", "a range that ends with a class"},
        {"[\\\\B]", "an anchor in a class"},
        {"\\\\p{Greek}", "a property other than the general categories"},
        {"\\\\p{L", "\\p without {category}"},
        {"\\\\pL", "\\p without {category}"},
        {"\\\\x{110000}", "a malformed \\x or \\u"},
        {"\\\\x{d800}", "a malformed \\x or \\u"},
        {"\\\\xff", "a single byte above 0x7f"},
        {"(a)\\\\1", "this escape"},
        {"\\\\K", "this escape"},
        {"a\\\\", "a backslash at the end"},
        {"(?<x>a)", "this kind of group"},
        {"(?m:a)", "this kind of group"},
        {"(?#a)", "this kind of group"},
        {"a(?i)b|c", "(?i) after the beginning of a group"},
        {"(?i:\\u00e9)", "a character beyond ASCII under (?i)"},
        {"(?i:[\\u00e9])", "a character beyond ASCII under (?i)"},
        {"(?i:'st)", "ss, ff, fi, fl or st under (?i)"},
        {"(?i:Ss)", "ss, ff, fi, fl or st under (?i)"},
        {"*a", "a quantifier without anything before it"},
        {"a|+", "a quantifier without anything before it"},
        {"a{3,2}", "an interval without order"},
        {"(?<=a*)b", "PCRE2 refuses"},
        {"a{70000}", "PCRE2 refuses"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char pre[400];
        snprintf(pre, sizeof pre, REGEX("%s"), cases[i].regex);
        refuse_parts(cases[i].message, (parts){.pre = pre});
    }
    az_str deep = {0};
    for (int i = 0; i < 70; i++)
        assert_int_equal(az_str_add(&deep, "("), AZ_OK);
    char pre[400];
    snprintf(pre, sizeof pre, REGEX("%s"), deep.s);
    refuse_parts("so deep a group", (parts){.pre = pre});
    az_str_fini(&deep);
    refuse_parts("so deep a class", (parts){.pre = REGEX("[[[[[[[[[[a]]]]]]]]]]")});
}

static void post_processors(void **state)
{
    (void)state;
    refuse_parts("post_processor: type BertProcessing is not supported; TemplateProcessing, "
                 "ByteLevel, Sequence and null are",
                 (parts){.post = "{\"type\":\"BertProcessing\"}"});
    refuse_parts("post_processor: TemplateProcessing: single: found a string, expected an array",
                 (parts){.post = "{\"type\":\"TemplateProcessing\",\"single\":\"a $A\"}"});
    refuse_parts("post_processor: TemplateProcessing: special_tokens has no ids of \"<s>\", which "
                 "its template names",
                 (parts){.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                                 "{\"id\":\"<s>\"}}],\"special_tokens\":{}}"});
    refuse_parts("special_tokens: \"<s>\": found an integer out of range as id, expected one from "
                 "0 to 5",
                 (parts){.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                                 "{\"id\":\"<s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[6]}}}"});
    refuse_parts("single: element 0 is neither a SpecialToken nor the Sequence A",
                 (parts){.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":"
                                 "{\"id\":\"B\"}}]}"});
    refuse_parts("decoder: type Metaspace is not supported; ByteLevel, Sequence and null are",
                 (parts){.decoder = "{\"type\":\"Metaspace\"}"});
    refuse_parts("decoder: a second ByteLevel is not supported; one is",
                 (parts){.decoder = SEQUENCE("decoders", BYTES_PRE "," BYTES_PRE)});
    refuse_parts("decoder: an empty Sequence is not supported",
                 (parts){.decoder = SEQUENCE("decoders", "")});
}

static void directories(void **state)
{
    az_tokenizer *tok = NULL;
    (void)state;
    expect_failure(az_text_open(&tok, fresh_dir("empty")), AZ_EINPUT, "empty/tokenizer.json");
    put_text(tmp_path("empty/tokenizer.json"), "[1]");
    expect_failure(az_text_open(&tok, tmp_path("empty")), AZ_EINPUT,
                   "empty/tokenizer.json: found an array, expected an object");
    put_text(tmp_path("empty/tokenizer.json"), "{\"model\":");
    expect_failure(az_text_open(&tok, tmp_path("empty")), AZ_EINPUT, "not valid JSON");
    parts p = {.added = ADDED(6, "<e>", ",\"special\":true")};
    const char *dir = put_parts(&p);
    const char *config = tmp_path("tokenizer/tokenizer_config.json");
    put_text(config, "{\"eos_token\":{\"content\":\"<e>\"},\"bos_token\":\"ab\"}");
    tok = open_dir(dir);
    assert_int_equal(az_text_get_eos(tok), 6);
    assert_int_equal(az_text_get_bos(tok), 4);
    assert_int_equal(az_text_get_size(tok), 7);
    assert_int_equal(az_text_get_id(tok, "<e>"), 6);
    assert_int_equal(az_text_get_id(tok, "abc"), 5);
    assert_int_equal(az_text_get_id(tok, "x"), -1);
    az_text_close(tok);
    /* A real file's way to say that there is no limit; digits in strings stay. */
    put_text(config,
             "{\"model_max_length\":1000000000000000019884624838656,\"x\":[-1.5e3,\"\\\"\\\\\","
             "\"12345678901234567890123\",0.1234567890123456789012,12345678901234567890e1],"
             "\"eos_token\":\"ab\"}");
    tok = open_dir(dir);
    assert_int_equal(az_text_get_eos(tok), 4);
    az_text_close(tok);
    put_text(config, "{\"eos_token\":null}");
    tok = open_dir(dir);
    assert_int_equal(az_text_get_eos(tok), -1);
    az_text_close(tok);
    put_text(config, "{\"eos_token\":\"</s>\"}");
    expect_failure(az_text_open(&tok, dir), AZ_EINPUT,
                   "tokenizer_config.json: eos_token \"</s>\" is not a token of tokenizer.json");
    put_text(config, "{\"bos_token\":7}");
    expect_failure(az_text_open(&tok, dir), AZ_EINPUT,
                   "bos_token: found an integer, expected a string or an object with content");
}

static void bad_text(void **state)
{
    static const struct {
        const char *text;
        size_t bytes, at;
        unsigned byte;
    } cases[] = {{"ab\xff", 3, 2, 0xff},
                 {"a\xc3", 2, 1, 0xc3},
                 {"a\xc3z", 3, 1, 0xc3},
                 {"\xc0\x80", 2, 0, 0xc0},
                 {"\xe0\x80\x80", 3, 0, 0xe0},
                 {"b\xed\xa0\x80", 4, 1, 0xed},
                 {"\xf4\x90\x80\x80", 4, 0, 0xf4},
                 {"\xf0\x9f\x98", 3, 0, 0xf0},
                 {"\x80", 1, 0, 0x80},
                 {"\xe2\x82\xac\xe2\x28\xa1", 6, 3, 0xe2}};
    (void)state;
    az_tokenizer *tok = open_parts((parts){0});
    az_ids ids = {0};
    assert_int_equal(az_ids_add(&ids, 77), AZ_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[100];
        snprintf(message, sizeof message, "not valid UTF-8: byte 0x%02x at offset %zu",
                 cases[i].byte, cases[i].at);
        expect_failure(az_text_encode(&ids, tok, cases[i].text, cases[i].bytes, false), AZ_EINPUT,
                       message);
        assert_int_equal(ids.n, 1);
    }
    az_ids_fini(&ids);
    az_text_close(tok);
}

static az_err open_and_use(void *context)
{
    static const char text[] = "<e> abc cab\xcc\x81 12 abcabcabcabcabcabcabcabcabcabc";
    az_tokenizer *tok = NULL;
    az_ids ids = {0};
    az_str out = {0};
    az_err err;
    AZ_TRY(az_text_open(&tok, context));
    AZ_TRY(az_text_encode(&ids, tok, text, sizeof text - 1, true));
    AZ_TRY(az_text_decode(&out, tok, ids.v, ids.n, false));
out:
    az_ids_fini(&ids);
    az_str_fini(&out);
    az_text_close(tok);
    return err;
}

static void each_allocation_fails(void **state)
{
    (void)state;
    parts p = {.added = ADDED(6, "<e>", ",\"special\":true") "," ADDED(7, "12", ""),
               .normalizer = "{\"type\":\"NFC\"}",
               .pre = REGEX(" ?\\\\p{L}+|[^\\\\P{N}a]|\\\\b"),
               .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                       "\"e\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"e\":{\"ids\":"
                       "[6]}}}"};
    char dir[512];
    snprintf(dir, sizeof dir, "%s", put_parts(&p));
    put_text(tmp_path("tokenizer/tokenizer_config.json"), "{\"eos_token\":\"<e>\"}");
    try_all_allocations(open_and_use, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models),
        cmocka_unit_test(vocabularies),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(pre_tokenizers),
        cmocka_unit_test(regular_expressions),
        cmocka_unit_test(post_processors),
        cmocka_unit_test(directories),
        cmocka_unit_test(bad_text),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests_name("text refuses", tests, make_tmp_dir, remove_tmp_dir);
}
