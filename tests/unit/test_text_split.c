/* text: patterns read as Oniguruma reads them, behaviours of Split, Digits, prefix spaces, added
 * tokens. What is expected was taken from the tokenizers library, version 0.23. */
#include <config.h>

#include "text_util.h"

#include "text/text_priv.h"

/* ---- Patterns: all matches of a regex in a text, joined by bars */
static void expect_matches(const char *pattern, const char *text, const char *matches)
{
    az_regex *regex = NULL;
    az_str got = {0};
    size_t n = strlen(text), from = 0, start = 0, end = 0;
    bool found = true;
    if (az_text_regex_create(&regex, pattern, strlen(pattern), false, "test") != AZ_OK)
        fail_msg("%s: %s", pattern, az_err_message());
    while (from <= n) {
        assert_int_equal(az_text_regex_find(&found, &start, &end, regex, text, n, from), AZ_OK);
        if (!found)
            break;
        assert_int_equal(
            az_str_add(&got, "%s%.*s", got.len > 0 ? "|" : "", (int)(end - start), text + start),
            AZ_OK);
        from = end > start ? end : end + 1;
    }
    if (strcmp(got.s != NULL ? got.s : "", matches) != 0)
        fail_msg("%s on \"%s\": \"%s\", expected \"%s\"", pattern, text, got.s != NULL ? got.s : "",
                 matches);
    az_str_fini(&got);
    az_text_regex_destroy(regex);
}

static void sets(void **state)
{
    (void)state;
    /* U+180E is no space, U+0085 is one; both differ between the engines. */
    expect_matches("\\s+",
                   "a\xe1\xa0\x8e"
                   "b\xc2\x85\xe3\x80\x80 c",
                   "\xc2\x85\xe3\x80\x80 ");
    expect_matches("\\S+",
                   "a\xe1\xa0\x8e"
                   "b\xc2\x85"
                   "c",
                   "a\xe1\xa0\x8e"
                   "b|c");
    expect_matches("[^\\S\\r\\n]+", "a \t\r\n b", " \t| ");
    expect_matches("\\h+", "xfF0g", "fF0");
    expect_matches("\\H+", "xfF0g", "x|g");
    expect_matches("\\v|\\f|\\a|\\e", "a\v\n\f\a\x1b", "\v|\f|\a|\x1b");
    expect_matches("\\d+",
                   "a\xd9\xa1"
                   "2\xc2\xbd",
                   "\xd9\xa1"
                   "2");
    expect_matches("\\D+", "12a3", "a");
    expect_matches("\\w+", "a_\xc2\xbd-\xe2\x93\x90\xcc\x81", "a_\xc2\xbd|\xe2\x93\x90\xcc\x81");
    expect_matches("\\W+", "a -b", " -");
    expect_matches("\\p{Lu}\\p{^Lu}+", "aBcdE1", "Bcd|E1");
    expect_matches("\\P{L}+", "a1-b", "1-");
    expect_matches(".+", "a\rb\nc", "a\rb|c");
    /* Letters, marks and numbers of Unicode 15 and 16. */
    expect_matches("\\p{L}+",
                   "\xf0\xb1\x8d\x90"
                   "a\xea\x9f\x8b-",
                   "\xf0\xb1\x8d\x90"
                   "a\xea\x9f\x8b");
    expect_matches("\\p{M}+", "a\xe0\xa2\x97", "\xe0\xa2\x97");
    expect_matches("[^\\p{N}]+",
                   "\xf0\x91\x9b\x90"
                   "a",
                   "a");
}

static void classes(void **state)
{
    (void)state;
    expect_matches("[]a-c]+", "xa]b-c", "a]b|c");
    expect_matches("[a\\-\\]x-]+", "a-]xb", "a-]x");
    expect_matches("[\\x{e9}\\u00e8\\x41\\n]+",
                   "\xc3\xa9\xc3\xa8"
                   "AB\n",
                   "\xc3\xa9\xc3\xa8"
                   "A|\n");
    expect_matches("[a[x-z]]+", "axbzy", "ax|zy");
    expect_matches("[^a[x-z]]+", "axbczy", "bc");
    expect_matches("[a-z&&[^aeiou]]+", "abcei-d", "bc|d");
    expect_matches("[^a-z&&[^aeiou]]+", "abcei-d", "a|ei-");
    expect_matches("[\\P{L}b]+", "ab1c-", "b1|-");
    expect_matches("[^\\P{L}b]+", "ab1c-", "a|c");
    expect_matches("[\\b]", "a\bc", "\b");
}

static void anchors(void **state)
{
    (void)state;
    expect_matches("^.", "ab\ncd\n", "a|c");
    expect_matches(".$", "ab\ncd\n", "b|d");
    expect_matches("\\A.|.\\z", "ab\nc", "a|c");
    expect_matches(".\\Z", "ab\nc\n", "c");
    expect_matches("\\b\\w",
                   "ab \xc3\xa9"
                   "d",
                   "a|\xc3\xa9");
    expect_matches("\\B\\w", "ab cd", "b|d");
    expect_matches("(?<=a)b|b(?=c)|(?<!x)d(?!y)", "ab bc xd dy d", "b|b|d");
}

static void quantifiers(void **state)
{
    (void)state;
    expect_matches("a{1,2}+", "aaaaa", "aaaaa"); /* not possessive */
    expect_matches("a{2}?", "aaa", "aa||");      /* not lazy: an optional pair */
    expect_matches("a{,2}b", "aaab", "aab");
    expect_matches("xa{2,}", "xaxaaa", "xaaa");
    expect_matches("xa{2,3}?", "xaaaa", "xaa");
    expect_matches("a{b}{2", "a{b}{2", "a{b}{2");
    expect_matches("(?:ab)++c", "ababc", "ababc");
    expect_matches("a++a", "aaa", "");
    expect_matches("a+?", "aa", "a|a");
    expect_matches("(?>a|ab)c", "abc ac", "ac");
    expect_matches("a{2}*b", "aaaab", "aaaab");
}

static void letter_case(void **state)
{
    (void)state;
    expect_matches("(?i:'s|'ll)", "'S 'Ll '\xc5\xbf 's", "'S|'Ll|'\xc5\xbf|'s");
    expect_matches("(?i)'s|k", "'S K \xe2\x84\xaa", "'S|K|\xe2\x84\xaa");
    expect_matches("a(?i:b)c|(?i:x(?-i:y))", "aBc aBC Xy XY", "aBc|Xy");
    expect_matches("(?i:[k-m])+", "KLmn", "KLm");
}

/* ---- Behaviours: a vocabulary in which any two letters merge shows where the cuts are */
#define PAIRS                                                                                   \
    "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\" \":9,\"-\":1,\"aa\":2,\"a-\":3,\"-a\":4,\"--\":5," \
    "\"\\u0120\":6,\"1\":7,\"11\":8,\"a1\":10},"                                                \
    "\"merges\":[\"a -\",\"- a\",\"a a\",\"- -\",\"1 1\",\"a 1\"]}"
#define PLAIN "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(behavior, invert)                                                              \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":" \
    "\"-\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}," PLAIN "]}"

static void expect_ids(parts p, const char *text, const char *ids)
{
    if (p.model == NULL)
        p.model = PAIRS;
    az_tokenizer *tok = open_parts(p);
    if (strcmp(ids_of(tok, text, false), ids) != 0)
        fail_msg("%s: ids %s, expected %s", text, ids_of(tok, text, false), ids);
    az_text_close(tok);
}

static void behaviours(void **state)
{
    (void)state;
    expect_ids((parts){.pre = PLAIN}, "a--aa", "3 4 0");
    expect_ids((parts){.pre = SPLIT("Isolated", "false")}, "a--aa", "0 1 1 2");
    expect_ids((parts){.pre = SPLIT("Removed", "false")}, "a--aa", "0 2");
    expect_ids((parts){.pre = SPLIT("Removed", "true")}, "a--aa", "1 1");
    expect_ids((parts){.pre = SPLIT("Contiguous", "false")}, "a--aa", "0 5 2");
    expect_ids((parts){.pre = SPLIT("MergedWithPrevious", "false")}, "a--aa", "3 1 2");
    expect_ids((parts){.pre = SPLIT("MergedWithNext", "false")}, "a--aa", "0 1 4 0");
    expect_ids((parts){.pre = SPLIT("MergedWithPrevious", "true")}, "a--aa", "0 1 4 0");
    expect_ids((parts){.pre = SPLIT("MergedWithPrevious", "false")}, "-a-", "1 3");
    expect_ids((parts){.pre = SPLIT("MergedWithNext", "false")}, "-a-", "4 1");
}

static void digits_and_spaces(void **state)
{
    (void)state;
    expect_ids((parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                              "\"individual_digits\":true}," PLAIN "]}"},
               "a11a", "0 7 7 0");
    expect_ids((parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                              "\"individual_digits\":false}," PLAIN "]}"},
               "a11a", "0 8 0");
    parts prefix = {.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}",
                    .added = ADDED(11, "<x>", ""),
                    .model = PAIRS};
    expect_ids(prefix, "aa", "6 2");
    expect_ids(prefix, " aa", "6 2");
    expect_ids(prefix, "aa<x>a<x>", "6 2 11 6 0 11");
    expect_ids(prefix, "", "");
    assert_true(az_text_is_numeric(0xbd) && az_text_is_numeric(0x2167) &&
                az_text_is_numeric(0x11de0) && !az_text_is_numeric('a') &&
                !az_text_is_numeric(0x4e00));
}

static void added_tokens(void **state)
{
    (void)state;
    /* clang-format off */
    static const char tokens[] =
        ADDED(11, "<x>", ",\"normalized\":false") ","
        ADDED(12, "<x>-", ",\"normalized\":false") ","
        ADDED(13, "<l>", ",\"lstrip\":true") ","
        ADDED(14, "<r>", ",\"rstrip\":true") ","
        ADDED(15, "<w>", ",\"single_word\":true") ","
        ADDED(16, "\\n", ",\"lstrip\":true");
    /* clang-format on */
    parts p = {.pre = PLAIN, .model = PAIRS, .added = tokens};
    expect_ids(p, "a<x>--a", "0 12 4"); /* the longest at a place */
    expect_ids(p, "<<x>", "11");        /* what the vocabulary lacks vanishes */
    expect_ids(p, "a  <l>  a", "0 13 6 6 0");
    expect_ids(p, "a  <r> \xe3\x80\x80 a", "0 6 6 14 0");
    expect_ids(p, "a<w> <w>- <w>1 -<w>", "0 6 15 1 6 7 6 1 15");
    expect_ids(p, "<r> \na", "14 0"); /* the spaces are taken: the token is dropped */
    expect_ids(p, "a \n", "0 16");
    /* Normalized ones are sought in the normal form, each piece between the others on its own. */
    parts nfc = {.pre = PLAIN,
                 .model = PAIRS,
                 .normalizer = "{\"type\":\"NFC\"}",
                 .added = ADDED(11, "[e\\u0301]", ",\"normalized\":true") "," ADDED(
                     12, "<e\\u0301>", ",\"normalized\":false")};
    expect_ids(nfc, "[e\xcc\x81]a[\xc3\xa9]", "11 0 11");
    expect_ids(nfc, "<e\xcc\x81>a<\xc3\xa9>", "12 0");
}

static void decoding(void **state)
{
    (void)state;
    az_tokenizer *tok = open_parts(
        (parts){.normalizer = "{\"type\":\"NFC\"}",
                .model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u00e2\":1,\"\\u0124\":2,"
                         "\"\\u00ac\":3,\"\\u00f0\":4,\"\\u0120b\":5,\"x y\":6,\"\\u00ed\":7,"
                         "\"\\u0142\":8},\"merges\":[]}",
                .added = ADDED(9, "<s>", ",\"special\":true") "," ADDED(
                    10, "<e\\u0301>", "") "," ADDED(11, "e\\u0301 ", "")});
    expect_text(tok, (int32_t[]){0, 5, 6}, 3, false, "a bx y");
    expect_text(tok, (int32_t[]){9, 0, 9}, 3, false, "<s>a<s>");
    expect_text(tok, (int32_t[]){9, 0, 9}, 3, true, "a");
    expect_text(tok, (int32_t[]){99, -1, 0}, 3, true, "a"); /* no such tokens */
    /* Normalized tokens show their normal form, which is read as bytes where it can be. */
    expect_text(tok, (int32_t[]){10, 11}, 2, false, "<\xef\xbf\xbd>\xc3\xa9 ");
    /* U+FFFD for each longest start of a character. */
    expect_text(tok, (int32_t[]){1, 0}, 2, false,
                "\xef\xbf\xbd"
                "a");
    expect_text(tok, (int32_t[]){1, 3, 0}, 3, false,
                "\xef\xbf\xbd"
                "a");
    expect_text(tok, (int32_t[]){4, 4, 3}, 3, false, "\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(tok, (int32_t[]){3, 3}, 2, false, "\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(tok, (int32_t[]){7, 8, 8}, 3, false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(tok, NULL, 0, false, "");
    az_text_close(tok);
    tok = open_parts((parts){.decoder = "null"});
    expect_text(tok, (int32_t[]){4, 3, 0}, 3, false, "ab \xc4\xa0 a");
    az_text_close(tok);
}

static void templates(void **state)
{
    (void)state;
#define TEMPLATE(before, after)                                                                  \
    "{\"type\":\"TemplateProcessing\",\"single\":[" before "{\"Sequence\":{\"id\":\"A\"}}" after \
    "],\"special_tokens\":{\"s\":{\"ids\":[6]},\"e\":{\"ids\":[7,0]}}}"
#define S "{\"SpecialToken\":{\"id\":\"s\"}}"
#define E "{\"SpecialToken\":{\"id\":\"e\"}}"
    const char *added = ADDED(6, "<s>", ",\"special\":true") "," ADDED(7, "<e>", "");
    az_tokenizer *tok = open_parts((parts){.added = added, .post = TEMPLATE(S ",", "")});
    assert_string_equal(ids_of(tok, "abc", true), "6 5");
    assert_string_equal(ids_of(tok, "abc", false), "5");
    assert_string_equal(ids_of(tok, "", true), "6");
    az_text_close(tok);
    tok = open_parts(
        (parts){.added = added,
                .post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(
                    "", "," E) "," TEMPLATE(S ",", "," S) "]}"});
    assert_string_equal(ids_of(tok, "c", true), "6 2 7 0 6");
    az_text_close(tok);
}

/* ---- Normal forms */
static void expect_norm(az_norm_form form, const char *text, const char *want)
{
    az_norm_work work = {0};
    az_str got = {0};
    assert_int_equal(az_text_normalize(&got, &work, form, text, strlen(text)), AZ_OK);
    assert_string_equal(got.s, want);
    az_str_fini(&got);
    az_free(work.c);
}

static void normal_forms(void **state)
{
    (void)state;
    expect_norm(AZ_NFC, "plain \xc3\xa9", "plain \xc3\xa9");
    expect_norm(AZ_NFC, "xe\xcc\x81 e", "x\xc3\xa9 e");
    expect_norm(AZ_NFD, "x\xc3\xa9", "xe\xcc\x81");
    expect_norm(AZ_NFC, "q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87");
    expect_norm(AZ_NFC, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81");
    expect_norm(AZ_NFC, "\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"); /* U+11A7 */
    expect_norm(AZ_NFC, "\xe2\x84\xab\xe0\xa5\x98", "\xc3\x85\xe0\xa4\x95\xe0\xa4\xbc");
    expect_norm(AZ_NFKC, "\xef\xac\x81\xc2\xb2", "fi2");
    expect_norm(AZ_NFKD, "\xef\xac\x81\xc3\xa9", "fie\xcc\x81");
    /* A mark of Unicode 14 stays where it is and is passed by nothing. */
    expect_norm(AZ_NFC, "a\xcc\x81\xe1\xab\x8e\xcc\xa3", "\xc3\xa1\xe1\xab\x8e\xcc\xa3");
}

/* 300,000 marks in the worst order: quadratic sorting would take minutes. */
static void many_marks(void **state)
{
    (void)state;
    enum { PAIRS_OF_MARKS = 150000 };
    az_norm_work work = {0};
    az_str text = {0}, got = {0};
    assert_int_equal(az_str_add(&text, "x"), AZ_OK);
    for (int i = 0; i < PAIRS_OF_MARKS; i++) /* classes 230 and 220 */
        assert_int_equal(az_str_add(&text, "\xcc\x8d\xcc\xa4"), AZ_OK);
    assert_int_equal(az_text_normalize(&got, &work, AZ_NFC, text.s, text.len), AZ_OK);
    assert_int_equal(got.len, text.len);
    assert_memory_equal(got.s + 1, "\xcc\xa4\xcc\xa4", 4);
    assert_memory_equal(got.s + got.len - 4, "\xcc\x8d\xcc\x8d", 4);
    az_str_fini(&text);
    az_str_fini(&got);
    az_free(work.c);
}

static int nothing_left(void **state)
{
    (void)state;
    return az_mem_get_total().blocks != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(sets, nothing_left),
        cmocka_unit_test_teardown(classes, nothing_left),
        cmocka_unit_test_teardown(anchors, nothing_left),
        cmocka_unit_test_teardown(quantifiers, nothing_left),
        cmocka_unit_test_teardown(letter_case, nothing_left),
        cmocka_unit_test_teardown(behaviours, nothing_left),
        cmocka_unit_test_teardown(digits_and_spaces, nothing_left),
        cmocka_unit_test_teardown(added_tokens, nothing_left),
        cmocka_unit_test_teardown(decoding, nothing_left),
        cmocka_unit_test_teardown(templates, nothing_left),
        cmocka_unit_test_teardown(normal_forms, nothing_left),
        cmocka_unit_test_teardown(many_marks, nothing_left),
    };
    return cmocka_run_group_tests_name("text splits", tests, make_tmp_dir, remove_tmp_dir);
}
