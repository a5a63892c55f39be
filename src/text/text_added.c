/* Added tokens are found in the text before anything splits it: the leftmost, and of those that
 * start at one place the longest. Their contents lie sorted, so that the candidates at a place are
 * a range that each further byte narrows. */
#include <config.h>

#include "text/text_priv.h"

#include <stdlib.h>
#include <string.h>

az_err az_text_match_add(az_match_set *set, const char *content, size_t bytes, int added)
{
    az_err err;
    if (bytes == 0)
        return AZ_OK;
    AZ_TRY(AZ_GROW(set->pattern, set->n + 1, "tokenizer"));
    set->pattern[set->n] = (az_match){set->pool.len, bytes, added};
    AZ_TRY(az_str_add_bytes(&set->pool, content, bytes));
    set->first[(uint8_t)content[0]] = true;
    set->n++;
out:
    return err;
}

void az_text_match_fini(az_match_set *set)
{
    az_str_fini(&set->pool);
    az_free(set->pattern);
    *set = (az_match_set){0};
}

static const char *sort_pool;

/* By bytes, a prefix before what it begins, and of equal contents the one added first. */
static int compare(const void *a, const void *b)
{
    const az_match *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(sort_pool + x->off, sort_pool + y->off, n);
    if (c == 0 && x->len != y->len)
        c = x->len < y->len ? -1 : 1;
    return c != 0 ? c : (x->off > y->off) - (x->off < y->off);
}

void az_text_match_sort(az_match_set *set)
{
    sort_pool = set->pool.s;
    if (set->n > 1)
        qsort(set->pattern, set->n, sizeof *set->pattern, compare);
}

static uint8_t byte_at(const az_match_set *set, size_t i, size_t k)
{
    return (uint8_t)set->pool.s[set->pattern[i].off + k];
}

/* The longest pattern at the start of s, or NULL. */
static const az_match *find_at(const az_match_set *set, const char *s, size_t n)
{
    const az_match *best = NULL;
    size_t lo = 0, hi = set->n;
    for (size_t k = 0; lo < hi; k++) {
        /* All of [lo, hi) begin with s[0, k); those that end here come first. */
        if (set->pattern[lo].len == k) {
            best = &set->pattern[lo];
            while (lo < hi && set->pattern[lo].len == k)
                lo++;
        }
        if (k == n || lo == hi)
            break;
        uint8_t c = (uint8_t)s[k];
        size_t a = lo, b = hi;
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if (byte_at(set, mid, k) < c)
                a = mid + 1;
            else
                b = mid;
        }
        lo = a;
        for (b = hi; a < b;) {
            size_t mid = a + (b - a) / 2;
            if (byte_at(set, mid, k) <= c)
                a = mid + 1;
            else
                b = mid;
        }
        hi = a;
    }
    return best;
}

static uint32_t char_before(const char *s, size_t i)
{
    int len;
    do
        i--;
    while (i > 0 && ((uint8_t)s[i] & 0xc0) == 0x80);
    return az_text_get_char(&len, s + i);
}

static bool is_single_word(const char *s, size_t n, size_t start, size_t stop)
{
    int len;
    return (start == 0 || !az_text_is_word(char_before(s, start))) &&
           (stop == n || !az_text_is_word(az_text_get_char(&len, s + stop)));
}

static size_t strip_left(const char *s, size_t start)
{
    while (start > 0 && az_text_is_space(char_before(s, start)))
        do
            start--;
        while (start > 0 && ((uint8_t)s[start] & 0xc0) == 0x80);
    return start;
}

static size_t strip_right(const char *s, size_t n, size_t stop)
{
    int len;
    while (stop < n && az_text_is_space(az_text_get_char(&len, s + stop)))
        stop += (size_t)len;
    return stop;
}

az_err az_text_match_split(az_ids *ids, az_tokenizer *tok, const az_match_set *set, const char *s,
                           size_t n, az_piece_fn *fn)
{
    az_err err = AZ_OK;
    size_t done = 0;
    for (size_t i = 0; set->n > 0 && i < n;) {
        const az_match *m = set->first[(uint8_t)s[i]] ? find_at(set, s + i, n - i) : NULL;
        if (m == NULL) {
            i++;
            continue;
        }
        const az_added *a = &tok->added[m->added];
        size_t start = i, stop = i + m->len;
        i = stop; /* the search goes on behind the content, not behind stripped spaces */
        if (a->single_word && !is_single_word(s, n, start, stop))
            continue;
        if (a->lstrip) {
            start = strip_left(s, start);
            if (start < done) /* spaces that the token before has taken */
                start = done;
        }
        if (a->rstrip)
            stop = strip_right(s, n, stop);
        if (done < start)
            AZ_TRY(fn(ids, tok, s + done, start - done));
        /* A token of spaces only, all of them taken: the library drops it. */
        if (start < stop)
            AZ_TRY(az_ids_add(ids, a->id));
        done = stop;
    }
    if (done < n)
        AZ_TRY(fn(ids, tok, s + done, n - done));
out:
    return err;
}
