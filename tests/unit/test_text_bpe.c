/* text: merging against plain loops, unknown bytes, long words in time, what goes in comes out. */
#include <config.h>

#include "text_util.h"

#include <time.h>

/* ---- A random vocabulary, and BPE as its definition says: look through the word for the best
 * pair, merge, start again */
enum { LETTERS = 4, MERGES = 60, MOST = LETTERS + MERGES, LONGEST = 80 };
static char content[MOST][64];
static int left_of[MERGES], right_of[MERGES], size_of_vocab;

static unsigned draw(unsigned n)
{
    static uint32_t x = 12345;
    x = x * 1664525u + 1013904223u;
    return (x >> 8) % n;
}

static void make_vocab(az_str *model, bool ignore_merges)
{
    size_of_vocab = LETTERS;
    for (int i = 0; i < LETTERS; i++)
        snprintf(content[i], sizeof content[i], "%c", 'a' + i);
    for (int tries = 0; tries < 10000 && size_of_vocab < MOST; tries++) {
        int l = (int)draw((unsigned)size_of_vocab), r = (int)draw((unsigned)size_of_vocab);
        char new[sizeof content[0] * 2];
        bool known = false;
        snprintf(new, sizeof new, "%s%s", content[l], content[r]);
        for (int i = 0; i < size_of_vocab; i++)
            known |= strcmp(content[i], new) == 0;
        if (known || strlen(new) > 12)
            continue;
        left_of[size_of_vocab - LETTERS] = l;
        right_of[size_of_vocab - LETTERS] = r;
        snprintf(content[size_of_vocab++], sizeof content[0], "%.60s", new);
    }
    model->len = 0;
    assert_int_equal(az_str_add(model, "{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{",
                                ignore_merges ? "true" : "false"),
                     AZ_OK);
    for (int i = 0; i < size_of_vocab; i++)
        assert_int_equal(az_str_add(model, "%s\"%s\":%d", i > 0 ? "," : "", content[i], i), AZ_OK);
    assert_int_equal(az_str_add(model, "},\"merges\":["), AZ_OK);
    for (int i = 0; i < size_of_vocab - LETTERS; i++)
        assert_int_equal(az_str_add(model, i % 2 ? "%s\"%s %s\"" : "%s[\"%s\",\"%s\"]",
                                    i > 0 ? "," : "", content[left_of[i]], content[right_of[i]]),
                         AZ_OK);
    assert_int_equal(az_str_add(model, "]}"), AZ_OK);
}

static size_t merge_plainly(int *ids, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i < n; i++)
        ids[i] = word[i] - 'a';
    for (;;) {
        int best = MERGES;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (int m = 0; m < size_of_vocab - LETTERS && m < best; m++)
                if (left_of[m] == ids[i] && right_of[m] == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == MERGES)
            return n;
        ids[at] = LETTERS + best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void random_words(void **state)
{
    (void)state;
    az_str model = {0};
    for (int round = 0; round < 20; round++) {
        bool ignore_merges = round % 4 == 3;
        make_vocab(&model, ignore_merges);
        az_tokenizer *tok = open_parts((parts){.model = model.s});
        for (int k = 0; k < 300; k++) {
            char word[LONGEST + 1];
            int want[LONGEST];
            size_t n = 1 + draw(k % 3 == 0 ? LONGEST : 30), n_want = 1;
            for (size_t i = 0; i < n; i++)
                word[i] = (char)('a' + draw(LETTERS));
            word[n] = '\0';
            want[0] = -1;
            for (int i = 0; ignore_merges && i < size_of_vocab; i++)
                if (strcmp(content[i], word) == 0)
                    want[0] = i;
            if (want[0] < 0)
                n_want = merge_plainly(want, word);
            az_ids got = {0};
            for (int twice = 0; twice < 2; twice++) { /* the second time from the cache */
                got.n = 0;
                assert_int_equal(az_text_encode(&got, tok, word, n, false), AZ_OK);
                assert_int_equal(got.n, n_want);
                for (size_t i = 0; i < n_want; i++)
                    assert_int_equal(got.v[i], want[i]);
            }
            az_ids_fini(&got);
        }
        az_text_close(tok);
    }
    az_str_fini(&model);
}

#define TINY(more)                                                           \
    "{\"type\":\"BPE\"," more "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"?\":3," \
    "\"?a\":4},\"merges\":[\"a b\",\"? a\"]}"

static void unknown_bytes(void **state)
{
    (void)state;
    az_tokenizer *tok = open_parts((parts){.model = TINY("")});
    assert_string_equal(ids_of(tok, "axxb", false), "2"); /* what is between them vanished */
    az_text_close(tok);
    tok = open_parts((parts){.model = TINY("\"unk_token\":\"?\",\"fuse_unk\":false,")});
    assert_string_equal(ids_of(tok, "bxxb", false), "1 3 3 1");
    assert_string_equal(ids_of(tok, "xa", false), "4");
    az_text_close(tok);
    tok = open_parts((parts){.model = TINY("\"unk_token\":\"?\",\"fuse_unk\":true,")});
    assert_string_equal(ids_of(tok, "bxxbx", false), "1 3 1 3");
    az_text_close(tok);
}

/* A vocabulary of all bytes and of merges of two and four letters. */
static void put_bytes_model(az_str *model)
{
    int id = 0;
    assert_int_equal(az_str_add(model, "{\"type\":\"BPE\",\"vocab\":{"), AZ_OK);
    for (int b = 0; b < 256; b++) {
        bool plain = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        static int other;
        other = b == 0 ? 0 : other;
        assert_int_equal(az_str_add(model, "%s\"\\u%04x\":%d", b > 0 ? "," : "",
                                    plain ? b : 0x100 + other++, id++),
                         AZ_OK);
    }
    for (int a = 'a'; a <= 'z'; a++)
        for (int b = 'a'; b <= 'z'; b++)
            assert_int_equal(az_str_add(model, ",\"%c%c\":%d", a, b, id++), AZ_OK);
    for (int a = 'a'; a <= 'z'; a++)
        for (int b = 'a'; b <= 'z'; b++)
            assert_int_equal(az_str_add(model, ",\"%c%c%c%c\":%d", a, b, b, a, id++), AZ_OK);
    assert_int_equal(az_str_add(model, "},\"merges\":["), AZ_OK);
    for (int k = 0; k < 26 * 26; k++) { /* in an order unlike that of the alphabet */
        int m = k * 101 % (26 * 26);
        assert_int_equal(
            az_str_add(model, "%s\"%c %c\"", k > 0 ? "," : "", 'a' + m / 26, 'a' + m % 26), AZ_OK);
    }
    for (int a = 'a'; a <= 'z'; a++)
        for (int b = 'a'; b <= 'z'; b++)
            assert_int_equal(az_str_add(model, ",\"%c%c %c%c\"", a, b, b, a), AZ_OK);
    assert_int_equal(az_str_add(model, "]}"), AZ_OK);
}

static az_tokenizer *open_bytes(const char *pre, const char *normalizer)
{
    az_str model = {0};
    put_bytes_model(&model);
    az_tokenizer *tok = open_parts((parts){.model = model.s, .pre = pre, .normalizer = normalizer});
    az_str_fini(&model);
    return tok;
}

#if defined __SANITIZE_ADDRESS__ || defined AZ_SANITIZED
#define SLOWER 20
#else
#define SLOWER 1
#endif

/* Text without a place to cut is one word: a quadratic loop would take hours over a megabyte. */
static void one_long_word(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    az_tokenizer *tok = open_bytes(NULL, NULL);
    char *text = az_alloc(BYTES, 1, "test");
    az_ids ids = {0};
    az_str out = {0};
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < BYTES; i++)
            text[i] = kind == 0 ? (char)('a' + draw(26)) : kind == 1 ? 'a' : kind == 2 ? ' ' : '\n';
        clock_t start = clock();
        ids.n = out.len = 0;
        assert_int_equal(az_text_encode(&ids, tok, text, BYTES, false), AZ_OK);
        double s = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (!(s < 2.0 * SLOWER))
            fail_msg("kind %d: one megabyte took %.1f s", kind, s);
        assert_int_equal(az_text_decode(&out, tok, ids.v, ids.n, false), AZ_OK);
        assert_int_equal(out.len, BYTES);
        assert_memory_equal(out.s, text, BYTES);
    }
    az_free(text);
    az_ids_fini(&ids);
    az_str_fini(&out);
    az_text_close(tok);
}

static size_t put_char(char *s, uint32_t c)
{
    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)((0xf00 >> n) | c);
    return n;
}

/* Random valid UTF-8 goes in and comes out, whatever the pattern. */
static void round_trips(void **state)
{
    static const char *const pre[] = {
        NULL,
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false,\"use_regex\":false}]}",
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}"
        "," BYTES_PRE "]}"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        az_tokenizer *tok = open_bytes(pre[k], NULL);
        az_ids ids = {0};
        az_str out = {0};
        for (int round = 0; round < 2000; round++) {
            char text[400];
            size_t n = 0;
            unsigned chars = draw(80);
            for (unsigned i = 0; i < chars; i++) {
                unsigned kind = draw(8);
                uint32_t c = kind < 2   ? 'a' + draw(26)
                             : kind < 3 ? (uint32_t) " \n\t\r'1"[draw(6)]
                             : kind < 4 ? draw(0x80)
                             : kind < 5 ? draw(0x800)
                             : kind < 7 ? draw(0x10000)
                                        : draw(0x110000);
                if (c >= 0xd800 && c < 0xe000)
                    c = 0xfffd;
                n += put_char(text + n, c);
            }
            ids.n = out.len = 0;
            assert_int_equal(az_text_encode(&ids, tok, text, n, false), AZ_OK);
            assert_int_equal(az_text_decode(&out, tok, ids.v, ids.n, false), AZ_OK);
            assert_int_equal(out.len, n);
            if (n > 0)
                assert_memory_equal(out.s, text, n);
        }
        az_ids_fini(&ids);
        az_str_fini(&out);
        az_text_close(tok);
    }
}

/* More different words than the cache holds. */
static void many_words(void **state)
{
    (void)state;
    az_tokenizer *tok = open_bytes(NULL, NULL);
    az_ids ids = {0};
    az_str text = {0}, out = {0};
    for (int i = 0; i < 120000; i++)
        assert_int_equal(az_str_add(&text, " %c%c%c%c", 'a' + i % 26, 'a' + i / 26 % 26,
                                    'a' + i / 676 % 26, 'a' + i / 17576),
                         AZ_OK);
    for (int twice = 0; twice < 2; twice++) {
        ids.n = out.len = 0;
        assert_int_equal(az_text_encode(&ids, tok, text.s, text.len, false), AZ_OK);
        assert_int_equal(az_text_decode(&out, tok, ids.v, ids.n, false), AZ_OK);
        assert_int_equal(out.len, text.len);
        assert_memory_equal(out.s, text.s, text.len);
    }
    az_ids_fini(&ids);
    az_str_fini(&text);
    az_str_fini(&out);
    az_text_close(tok);
}

static int nothing_left(void **state)
{
    (void)state;
    return az_mem_get_total().blocks != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_words, nothing_left),
        cmocka_unit_test_teardown(unknown_bytes, nothing_left),
        cmocka_unit_test_teardown(one_long_word, nothing_left),
        cmocka_unit_test_teardown(round_trips, nothing_left),
        cmocka_unit_test_teardown(many_words, nothing_left),
    };
    return cmocka_run_group_tests_name("text merges", tests, make_tmp_dir, remove_tmp_dir);
}
