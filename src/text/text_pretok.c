/* Pre-tokenizers: a piece of text goes through the steps of the file in turn; what the last one
 * leaves are the words that BPE merges. */
#include <config.h>

#include "text/text_priv.h"

/* ---- Behaviours of a split: matches and the stretches between them come in order; what they are
 * joined to is known with the next one at the latest, so one pending range is enough. */
typedef struct {
    az_ids *ids;
    az_tokenizer *tok;
    int next; /* the step that takes what is cut off */
    const char *s;
    az_split_behavior behavior;
    bool pending, was_match; /* was_match: of the last range, false before the first */
    size_t start, end;       /* the pending range */
} splitter;

static az_err run(az_ids *ids, az_tokenizer *tok, int step, const char *s, size_t n);

static az_err flush(splitter *p)
{
    if (!p->pending)
        return AZ_OK;
    p->pending = false;
    return run(p->ids, p->tok, p->next, p->s + p->start, p->end - p->start);
}

static az_err add_range(splitter *p, size_t start, size_t end, bool match)
{
    az_err err = AZ_OK;
    bool join = false;
    switch (p->behavior) {
    case AZ_SPLIT_REMOVED:
        if (match)
            return AZ_OK;
        break;
    case AZ_SPLIT_ISOLATED:
        break;
    case AZ_SPLIT_CONTIGUOUS:
        join = match == p->was_match;
        break;
    case AZ_SPLIT_WITH_PREVIOUS:
        join = match && !p->was_match;
        break;
    case AZ_SPLIT_WITH_NEXT:
        join = !match && p->was_match;
        break;
    }
    p->was_match = match;
    if (join && p->pending) {
        p->end = end;
        return AZ_OK;
    }
    AZ_TRY(flush(p));
    p->pending = true;
    p->start = start;
    p->end = end;
out:
    return err;
}

static az_err split_regex(splitter *p, az_regex *regex, bool invert, size_t n)
{
    az_err err = AZ_OK;
    size_t done = 0, from = 0, start = 0, end = 0;
    bool found, any = false;
    while (from <= n) {
        AZ_TRY(az_text_regex_find(&found, &start, &end, regex, p->s, n, from));
        if (!found)
            break;
        if (start == end && any && end == done) {
            /* No empty match right behind a match: search from the next character. */
            int len = 1;
            if (from < n)
                az_text_get_char(&len, p->s + from);
            from += (size_t)len;
            continue;
        }
        if (done < start)
            AZ_TRY(add_range(p, done, start, invert));
        AZ_TRY(add_range(p, start, end, !invert));
        done = from = end;
        any = true;
    }
    if (done < n)
        AZ_TRY(add_range(p, done, n, invert));
    AZ_TRY(flush(p));
out:
    return err;
}

/* Each digit is a match. */
static az_err split_digits(splitter *p, size_t n)
{
    az_err err = AZ_OK;
    size_t done = 0;
    int len = 0;
    for (size_t i = 0; i < n; i += (size_t)len) {
        if (!az_text_is_numeric(az_text_get_char(&len, p->s + i)))
            continue;
        if (done < i)
            AZ_TRY(add_range(p, done, i, false));
        done = i + (size_t)len;
        AZ_TRY(add_range(p, i, done, true));
    }
    if (done < n)
        AZ_TRY(add_range(p, done, n, false));
    AZ_TRY(flush(p));
out:
    return err;
}

/* ---- The steps */
static az_err run(az_ids *ids, az_tokenizer *tok, int step, const char *s, size_t n)
{
    az_err err = AZ_OK;
    if (n == 0)
        return AZ_OK;
    if (step == tok->n_pretok)
        return az_text_bpe_encode(ids, &tok->bpe, s, n);
    az_pretok *t = &tok->pretok[step];
    if (t->kind == AZ_PRETOK_BYTES && t->prefix_space && s[0] != ' ') {
        t->work.len = 0;
        AZ_TRY(az_str_add_bytes(&t->work, " ", 1));
        AZ_TRY(az_str_add_bytes(&t->work, s, n));
        s = t->work.s;
        n = t->work.len;
    }
    splitter p = {.ids = ids, .tok = tok, .next = step + 1, .s = s, .behavior = t->behavior};
    if (t->kind == AZ_PRETOK_DIGITS)
        AZ_TRY(split_digits(&p, n));
    else if (t->regex != NULL)
        AZ_TRY(split_regex(&p, t->regex, t->invert, n));
    else
        AZ_TRY(run(ids, tok, step + 1, s, n));
out:
    return err;
}

az_err az_text_pretok_encode(az_ids *ids, az_tokenizer *tok, const char *s, size_t n)
{
    return run(ids, tok, 0, s, n);
}
