/* Patterns of Split: from the syntax of the tokenizers library to that of PCRE2.
 *
 * The library hands its patterns to Oniguruma in Ruby's syntax, and the two engines read some
 * things differently: \s, \d, \w and \h are other sets, ^ and $ look at lines, {,n} is an interval
 * and a{1,2}+ is not possessive, classes nest and intersect, (?i) without a colon ends earlier, and
 * the tables of Unicode are of another age. Each pattern is therefore read once and written anew;
 * what has no exact counterpart is refused by name.
 *
 * Contents: atoms; groups; quantifiers; the walk. Characters and classes are in text_onig_class.c.
 */
#include <config.h>

#include "text/text_onig_priv.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* ---- Atoms */
static void set_atom(az_onig *w, size_t at)
{
    w->atom = at;
    w->has_atom = true;
    w->quantified = false;
    w->last = 0;
}

static az_err insert_group(az_str *out, size_t at)
{
    az_err err;
    AZ_TRY(az_str_add_bytes(out, "(?:)", 4));
    memmove(out->s + at + 3, out->s + at, out->len - 4 - at);
    memcpy(out->s + at, "(?:", 3);
out:
    return err;
}

static az_err add_char(az_str *out, uint32_t c)
{
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return plain ? az_str_add(out, "%c", (int)c) : az_str_add(out, "\\x{%x}", (unsigned)c);
}

/* ---- Groups: p stands behind the opening parenthesis */
static az_err open_group(az_onig *w)
{
    /* Spelling, and what it makes of case: -1 off, 1 on, 0 as before. */
    static const struct {
        const char *text;
        int icase;
    } kinds[] = {{"?:", 0},  {"?=", 0},  {"?!", 0},  {"?>", 0},
                 {"?<=", 0}, {"?<!", 0}, {"?i:", 1}, {"?-i:", -1}};
    az_err err = AZ_OK;
    size_t left = (size_t)(w->end - w->p), at = w->out->len;
    if (left >= 3 && memcmp(w->p, "?i)", 3) == 0) {
        if (w->out->len != w->inside[w->depth])
            return az_onig_refuse(w, "(?i) after the beginning of a group");
        w->p += 3;
        w->icase[w->depth] = true;
        AZ_TRY(az_str_add(w->out, "(?i)"));
        w->inside[w->depth] = w->out->len;
        return AZ_OK;
    }
    bool icase = w->icase[w->depth];
    if (left > 0 && *w->p == '?') {
        size_t k = 0, n = sizeof kinds / sizeof kinds[0];
        while (k < n && (strlen(kinds[k].text) > left ||
                         memcmp(w->p, kinds[k].text, strlen(kinds[k].text)) != 0))
            k++;
        if (k == n)
            return az_onig_refuse(w, "this kind of group");
        AZ_TRY(az_str_add(w->out, "(%s", kinds[k].text));
        w->p += strlen(kinds[k].text);
        icase = kinds[k].icase == 0 ? icase : kinds[k].icase > 0;
    } else {
        AZ_TRY(az_str_add(w->out, "(?:"));
    }
    if (++w->depth == AZ_ONIG_DEPTH)
        return az_onig_refuse(w, "so deep a group");
    w->start[w->depth] = at;
    w->inside[w->depth] = w->out->len;
    w->icase[w->depth] = icase;
    w->has_atom = false;
    w->last = 0;
out:
    return err;
}

static az_err close_group(az_onig *w)
{
    if (w->depth == 0)
        return az_onig_refuse(w, "a parenthesis that was not opened");
    az_err err = az_str_add(w->out, ")");
    set_atom(w, w->start[w->depth--]);
    return err;
}

/* ---- Quantifiers */
/* {n}, {n,}, {n,m}, {,m} at p; *out_bytes = 0 if it is none and the brace stands for itself. */
static void read_interval(const az_onig *w, long *out_lo, long *out_hi, size_t *out_bytes)
{
    const char *p = w->p + 1;
    long v[2] = {-1, -1};
    int k = 0;
    *out_bytes = 0;
    for (; p < w->end && *p != '}'; p++) {
        if (*p == ',' && k == 0)
            k = 1;
        else if (*p >= '0' && *p <= '9' && v[k] < 100000)
            v[k] = (v[k] < 0 ? 0 : v[k]) * 10 + (*p - '0');
        else
            return;
    }
    if (p == w->end || (v[0] < 0 && v[1] < 0))
        return;
    *out_lo = v[0] < 0 ? 0 : v[0];
    *out_hi = k == 0 ? v[0] : v[1]; /* -1: no limit */
    *out_bytes = (size_t)(p + 1 - w->p);
}

static az_err add_quantifier(az_onig *w, long lo, long hi, bool interval)
{
    az_err err = AZ_OK;
    if (!w->has_atom)
        return az_onig_refuse(w, "a quantifier without anything before it");
    if (w->quantified)
        AZ_TRY(insert_group(w->out, w->atom));
    if (interval && hi >= 0 && lo > hi)
        return az_onig_refuse(w, "an interval without order");
    if (!interval) {
        AZ_TRY(az_str_add(w->out, "%c", *w->p++));
    } else if (hi < 0) {
        AZ_TRY(az_str_add(w->out, "{%ld,}", lo));
    } else {
        AZ_TRY(az_str_add(w->out, "{%ld,%ld}", lo, hi));
    }
    w->quantified = true;
    w->last = 0;
    /* Lazy and possessive marks; behind {n} a question mark is a quantifier, and behind any
     * interval a plus is. */
    char mark = w->p < w->end ? *w->p : '\0';
    if ((mark == '?' && !(interval && lo == hi)) || (mark == '+' && !interval)) {
        AZ_TRY(az_str_add(w->out, "%c", mark));
        w->p++;
    }
out:
    return err;
}

/* ---- The walk */
/* Under (?i) Oniguruma also lets one character match several (U+FB06 for st): pairs of literals
 * that fold so are refused. */
static az_err add_literal(az_onig *w, uint32_t c)
{
    static const char *const folds[] = {"ss", "ff", "fi", "fl", "st"};
    az_err err;
    uint32_t before = w->last;
    AZ_TRY(az_onig_check_icase(w, c));
    uint32_t low = c >= 'A' && c <= 'Z' ? c + 32 : c;
    for (size_t i = 0; w->icase[w->depth] && i < 5; i++)
        if (before == (uint32_t)folds[i][0] && low == (uint32_t)folds[i][1])
            AZ_TRY(az_onig_refuse(w, "ss, ff, fi, fl or st under (?i)"));
    set_atom(w, w->out->len);
    w->last = low;
    AZ_TRY(add_char(w->out, c));
out:
    return err;
}

static az_err add_escape(az_onig *w)
{
    az_err err;
    az_escape e = {0};
    w->p++;
    AZ_TRY(az_onig_read_escape(&e, w, false));
    if (e.kind == AZ_ESC_CHAR) {
        AZ_TRY(add_literal(w, e.c));
    } else if (e.kind == AZ_ESC_SET) {
        set_atom(w, w->out->len);
        AZ_TRY(az_str_add(w->out, e.negated ? "[^%s]" : "[%s]", e.body.s));
    } else {
        if (e.c == 'b' || e.c == 'B')
            AZ_TRY(az_onig_add_boundary(w, e.c == 'B'));
        else
            AZ_TRY(az_str_add(w->out, "\\%c", (int)e.c));
        w->has_atom = false;
        w->last = 0;
    }
out:
    az_str_fini(&e.body);
    return err;
}

static az_err step(az_onig *w)
{
    az_err err = AZ_OK;
    long lo = 0, hi = 0;
    size_t bytes = 0, at = w->out->len;
    int len;
    uint32_t c = az_text_get_char(&len, w->p);
    switch (c) {
    case '\\':
        return add_escape(w);
    case '[':
        w->p++;
        AZ_TRY(az_onig_read_class(w->out, w));
        set_atom(w, at);
        return AZ_OK;
    case '(':
        w->p++;
        return open_group(w);
    case ')':
        w->p++;
        return close_group(w);
    case '|':
        w->p++;
        w->has_atom = false;
        w->last = 0;
        return az_str_add(w->out, "|");
    case '^': /* at the start, and after each newline but one at the end */
    case '$': /* before each newline, and at the end but for after a newline */
        w->p++;
        w->has_atom = false;
        w->last = 0;
        return az_str_add(w->out, c == '^' ? "(?:\\A|(?<=\\n)(?!\\z))" : "(?:(?=\\n)|(?<!\\n)\\z)");
    case '.':
        w->p++;
        set_atom(w, at);
        return az_str_add(w->out, "[^\\n]");
    case '*':
    case '+':
    case '?':
        return add_quantifier(w, 0, 0, false);
    case '{':
        read_interval(w, &lo, &hi, &bytes);
        if (bytes > 0) {
            w->p += bytes;
            return add_quantifier(w, lo, hi, true);
        }
        break;
    default:
        break;
    }
    w->p += len;
    err = add_literal(w, c);
out:
    return err;
}

az_err az_text_translate_regex(az_str *out, const char *pattern, size_t bytes, const char *where)
{
    az_err err = AZ_OK;
    char version[64] = "";
    az_onig w = {
        .begin = pattern, .p = pattern, .end = pattern + bytes, .where = where, .out = out};
    AZ_ASSERT(pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) <= (int)sizeof version);
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    w.widen = atoi(version) < 16;
    w.inside[0] = out->len;
    while (w.p < w.end)
        AZ_TRY(step(&w));
    if (w.depth > 0)
        AZ_TRY(az_onig_refuse(&w, "a parenthesis that is not closed"));
out:
    return err;
}
