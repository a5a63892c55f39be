/* Normalization forms NFC, NFD, NFKC, NFKD.
 *
 * utf8proc supplies decompositions, combining classes and composition. The order of marks is made
 * here by merging, because utf8proc's own ordering takes quadratic time on long runs of marks.
 *
 * The tokenizers library normalizes by the tables of Unicode 9: marks and compositions that came
 * later are ordinary starters to it, which neither move nor combine. They are left alone here, too,
 * and nothing moves or combines across them. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>
#include <utf8proc.h>

/* Characters younger than Unicode 9 that have a combining class, a decomposition or a composition
 * in a later version, and their neighbours; and U+11A7, a letter just before the trailing
 * consonants of Hangul, which utf8proc takes for an empty one of them and drops. */
static const uint32_t aside_ranges[][2] = {
    {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},
    {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},
    {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c0, 0x105f3},
    {0x10780, 0x107ba}, {0x10d24, 0x10d27}, {0x10d40, 0x10d8f}, {0x10eab, 0x10eac},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x11380, 0x113e2}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16100, 0x16139}, {0x16d40, 0x16d79}, {0x16ff0, 0x16ff1}, {0x1ccd6, 0x1ccf9},
    {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9}};
#define N_ASIDE (sizeof aside_ranges / sizeof aside_ranges[0])

static bool is_aside(uint32_t c)
{
    size_t lo = 0, hi = N_ASIDE;
    if (c < aside_ranges[0][0])
        return false;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c > aside_ranges[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < N_ASIDE && c >= aside_ranges[lo][0];
}

static az_err reserve(az_norm_work *work, size_t n)
{
    az_err err = AZ_OK;
    if (n <= work->cap)
        return AZ_OK;
    size_t cap = n + n / 2 + 256;
    AZ_TRY(AZ_GROW(work->c, cap, "tokenizer"));
    work->cap = cap;
out:
    return err;
}

static int get_class(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Sort c[0, n), all marks, by class, keeping the order of equals. tmp: n more. */
static void sort_marks(int32_t *c, int32_t *tmp, size_t n)
{
    if (n <= 8) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = c[i];
            size_t k = i;
            for (; k > 0 && get_class(c[k - 1]) > get_class(v); k--)
                c[k] = c[k - 1];
            c[k] = v;
        }
        return;
    }
    size_t h = n / 2, i = 0, j = h;
    sort_marks(c, tmp, h);
    sort_marks(c + h, tmp, n - h);
    for (size_t k = 0; k < n; k++)
        tmp[k] = j == n || (i < h && get_class(c[i]) <= get_class(c[j])) ? c[i++] : c[j++];
    memcpy(c, tmp, n * sizeof *c);
}

/* The n code points in work, decomposed, in canonical order, composed if asked; appended. */
static az_err flush(az_str *out, az_norm_work *work, size_t n, bool compose)
{
    az_err err;
    AZ_TRY(reserve(work, 2 * n));
    int32_t *c = work->c;
    for (size_t i = 0; i < n; i++) {
        size_t first = i;
        while (i < n && get_class(c[i]) > 0)
            i++;
        if (i > first + 1)
            sort_marks(c + first, c + n, i - first);
    }
    if (compose)
        n = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n,
                                             UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (size_t i = 0; i < n; i++) {
        char s[AZ_UTF8_MAX];
        int k = az_text_fill_char(s, (uint32_t)c[i]);
        AZ_TRY(az_str_add_bytes(out, s, (size_t)k));
    }
out:
    return err;
}

/* Bytes from the start that stay as they are and do not touch what follows. Below U+0300 (ASCII for
 * the forms that decompose) every character is a starter in normal form, but the last one may
 * combine with what comes after it. */
static size_t get_plain(const char *s, size_t n, bool nfc)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t limit = nfc ? 0xcc : 0x80;
    size_t i = 0;
    while (i < n && (p[i] < limit))
        i++;
    if (i == n)
        return n;
    if (i > 0)
        do
            i--;
        while (i > 0 && (p[i] & 0xc0) == 0x80);
    return i;
}

az_err az_text_normalize(az_str *out, az_norm_work *work, az_norm_form form, const char *s,
                         size_t n)
{
    az_err err = AZ_OK;
    bool compose = form == AZ_NFC || form == AZ_NFKC;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                  (form == AZ_NFKC || form == AZ_NFKD ? UTF8PROC_COMPAT : 0);
    size_t filled = 0;
    for (size_t i = 0; i < n;) {
        if (filled == 0) {
            size_t plain = get_plain(s + i, n - i, form == AZ_NFC);
            AZ_TRY(az_str_add_bytes(out, s + i, plain));
            i += plain;
            if (i == n)
                break;
        }
        int len;
        uint32_t c = az_text_get_char(&len, s + i);
        bool aside = is_aside(c);
        /* A starter below U+0300 begins a stretch of its own. */
        if (filled > 0 && (aside || c < (form == AZ_NFC ? 0x300u : 0x80u))) {
            AZ_TRY(flush(out, work, filled, compose));
            filled = 0;
            if (!aside)
                continue;
        }
        if (aside) {
            AZ_TRY(az_str_add_bytes(out, s + i, (size_t)len));
        } else {
            AZ_TRY(reserve(work, filled + 32));
            int last = 0;
            utf8proc_ssize_t k =
                utf8proc_decompose_char((utf8proc_int32_t)c, work->c + filled, 32, options, &last);
            if (k < 0 || k > 32)
                return az_fail(AZ_EINPUT, "normalization of U+%04X failed: %s", (unsigned)c,
                               utf8proc_errmsg(k));
            filled += (size_t)k;
        }
        i += (size_t)len;
    }
    if (filled > 0)
        AZ_TRY(flush(out, work, filled, compose));
out:
    return err;
}

az_err az_text_apply_norm(const char **out, size_t *out_n, az_tokenizer *tok, const char *s,
                          size_t n)
{
    az_err err = AZ_OK;
    for (int i = 0; i < tok->n_norm; i++) {
        az_str *text = &tok->norm_text[i & 1];
        text->len = 0;
        AZ_TRY(az_text_normalize(text, &tok->norm_work, tok->norm[i], s, n));
        s = text->s;
        n = text->len;
    }
    *out = s;
    *out_n = n;
out:
    return err;
}
