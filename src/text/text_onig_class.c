/* Patterns of Split, the characters: sets, escapes and classes. See text_onig.c. */
#include <config.h>

#include "text/text_onig_priv.h"

#include <stdlib.h>
#include <string.h>

az_err az_onig_refuse(const az_onig *w, const char *what)
{
    return az_fail(
        AZ_EINPUT,
        "%s: regular expression %.*s: %s at byte %d is not supported; literals, classes, "
        "\\p{category}, \\s \\d \\w \\h, groups, (?i:), look-around, alternatives and "
        "quantifiers are",
        w->where, (int)(w->end - w->begin), w->begin, what, (int)(w->p - w->begin));
}

/* ---- Sets of characters, as the inside of a class */
#define SPACES                                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NO_SPACES                                                                           \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"  \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}" \
    "\\x{3001}-\\x{10ffff}"
/* Characters beside letters, marks, Nd, Nl, Pc that are \w: Latin-1 numbers and circled letters. */
#define MORE_WORD                                                                             \
    "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-" \
    "\\x{1f169}\\x{1f170}-\\x{1f189}"

/* A general category of one or two letters. */
static az_err add_category(const az_onig *w, az_str *body, const char *name)
{
    az_err err;
    AZ_TRY(az_str_add(body, "\\p{%s}", name));
    for (size_t i = 0; w->widen && i < az_ucd_n_additions; i++) {
        const az_ucd_range *r = &az_ucd_additions[i];
        if (strncmp(r->category, name, strlen(name)) != 0)
            continue;
        AZ_TRY(az_str_add(body, "\\x{%x}-\\x{%x}", (unsigned)r->lo, (unsigned)r->hi));
    }
out:
    return err;
}

static az_err add_word(const az_onig *w, az_str *body)
{
    static const char *const names[] = {"L", "M", "Nd", "Nl", "Pc"};
    az_err err;
    for (size_t i = 0; i < 5; i++)
        AZ_TRY(add_category(w, body, names[i]));
    AZ_TRY(az_str_add(body, "%s", MORE_WORD));
out:
    return err;
}

/* \b or \B */
az_err az_onig_add_boundary(az_onig *w, bool inside)
{
    az_err err;
    az_str body = {0};
    AZ_TRY(add_word(w, &body));
    AZ_TRY(inside ? az_str_add(w->out, "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))", body.s, body.s,
                               body.s, body.s)
                  : az_str_add(w->out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", body.s, body.s,
                               body.s, body.s));
out:
    az_str_fini(&body);
    return err;
}

/* ---- Escapes: p stands behind the backslash */
static az_err read_hex(az_onig *w, uint32_t *out_c, int most, bool braced)
{
    uint32_t c = 0;
    int n = 0;
    for (; n < most && w->p < w->end && strchr("0123456789abcdefABCDEF", *w->p) != NULL &&
           *w->p != '\0';
         n++, w->p++) {
        char digit[2] = {*w->p, '\0'};
        c = c * 16 + (uint32_t)strtoul(digit, NULL, 16);
    }
    if (n == 0 || (braced && (w->p == w->end || *w->p++ != '}')) || c > 0x10ffff ||
        (c >= 0xd800 && c < 0xe000))
        return az_onig_refuse(w, "a malformed \\x or \\u");
    *out_c = c;
    return AZ_OK;
}

static az_err read_property(az_onig *w, az_escape *e, bool negated)
{
    static const char *const names[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                        "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                        "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                        "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
    const char *from = w->p;
    const char *close =
        w->p < w->end && *w->p == '{' ? memchr(w->p, '}', (size_t)(w->end - w->p)) : NULL;
    if (close == NULL)
        return az_onig_refuse(w, "\\p without {category}");
    from++;
    if (*from == '^') {
        negated = !negated;
        from++;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == (size_t)(close - from) &&
            memcmp(names[i], from, (size_t)(close - from)) == 0) {
            w->p = close + 1;
            e->kind = AZ_ESC_SET;
            e->negated = negated;
            return add_category(w, &e->body, names[i]);
        }
    return az_onig_refuse(w, "a property other than the general categories");
}

/* Letters that stand for one control character each. */
static const char simple_escapes[] = "tnrfvae", simple_values[] = "\t\n\r\f\v\a\x1b";

az_err az_onig_read_escape(az_escape *e, az_onig *w, bool in_class)
{
    az_err err = AZ_OK;
    if (w->p == w->end)
        return az_onig_refuse(w, "a backslash at the end");
    int len;
    uint32_t c = az_text_get_char(&len, w->p);
    w->p += len;
    *e = (az_escape){.kind = AZ_ESC_CHAR, .c = c};
    const char *simple = c > 0 && c < 0x80 ? strchr(simple_escapes, (int)c) : NULL;
    if (simple != NULL) {
        e->c = (uint32_t)simple_values[simple - simple_escapes];
        return AZ_OK;
    }
    switch (c) {
    case 'x':
        if (w->p < w->end && *w->p == '{') {
            w->p++;
            AZ_TRY(read_hex(w, &e->c, 8, true));
        } else {
            AZ_TRY(read_hex(w, &e->c, 2, false));
            if (e->c >= 0x80)
                err = az_onig_refuse(w, "a single byte above 0x7f");
        }
        break;
    case 'u':
        AZ_TRY(read_hex(w, &e->c, 4, false));
        break;
    case 's':
    case 'S':
        e->kind = AZ_ESC_SET;
        e->negated = c == 'S';
        e->no = NO_SPACES;
        err = az_str_add(&e->body, "%s", SPACES);
        break;
    case 'd':
    case 'D':
        e->kind = AZ_ESC_SET;
        e->negated = c == 'D';
        err = add_category(w, &e->body, "Nd");
        break;
    case 'w':
    case 'W':
        e->kind = AZ_ESC_SET;
        e->negated = c == 'W';
        err = add_word(w, &e->body);
        break;
    case 'h':
    case 'H':
        e->kind = AZ_ESC_SET;
        e->negated = c == 'H';
        err = az_str_add(&e->body, "0-9A-Fa-f");
        break;
    case 'p':
    case 'P':
        err = read_property(w, e, c == 'P');
        break;
    case 'A':
    case 'z':
    case 'Z':
    case 'b':
    case 'B':
        if (in_class && c == 'b')
            e->c = '\b';
        else if (in_class)
            err = az_onig_refuse(w, "an anchor in a class");
        else
            e->kind = AZ_ESC_ANCHOR;
        break;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
            err = az_onig_refuse(w, "this escape");
        break;
    }
out:
    return err;
}

/* ---- Classes. An expression for one character: [body], or with alternatives that no class of
 * PCRE2 can hold (complements of widened sets, nested classes). */
typedef struct {
    az_str body, others; /* others: |alternative|alternative */
} class_part;

static az_err add_part(az_str *out, const class_part *part, bool negated)
{
    if (part->others.len == 0)
        return az_str_add(out, negated ? "[^%s]" : "[%s]", part->body.s);
    const char *others = part->others.s + (part->body.len == 0);
    az_err err;
    AZ_TRY(az_str_add(out, negated ? "(?:(?!" : "(?:"));
    if (part->body.len > 0)
        AZ_TRY(az_str_add(out, "[%s]", part->body.s));
    AZ_TRY(az_str_add(out, negated ? "%s)(?s:.))" : "%s)", others));
out:
    return err;
}

az_err az_onig_check_icase(const az_onig *w, uint32_t c)
{
    if (w->icase[w->depth] && c >= 0x80)
        return az_onig_refuse(w, "a character beyond ASCII under (?i)");
    return AZ_OK;
}

static az_err add_class_set(class_part *part, const az_escape *e)
{
    if (!e->negated)
        return az_str_add(&part->body, "%s", e->body.s);
    if (e->no != NULL)
        return az_str_add(&part->body, "%s", e->no);
    return az_str_add(&part->others, "|[^%s]", e->body.s);
}

/* One element: a character, a range, a set. */
static az_err read_class_item(az_onig *w, class_part *part)
{
    az_err err = AZ_OK;
    az_escape lo = {0}, hi = {0};
    bool escaped = *w->p == '\\';
    int len;
    if (escaped) {
        w->p++;
        AZ_TRY(az_onig_read_escape(&lo, w, true));
    } else {
        lo = (az_escape){.kind = AZ_ESC_CHAR, .c = az_text_get_char(&len, w->p)};
        w->p += len;
    }
    bool range = w->end - w->p >= 2 && w->p[0] == '-' && w->p[1] != ']';
    if (lo.kind == AZ_ESC_SET) {
        if (range)
            err = az_onig_refuse(w, "a range that begins with a set");
        else
            err = add_class_set(part, &lo);
        goto out;
    }
    AZ_TRY(az_onig_check_icase(w, lo.c));
    AZ_TRY(az_str_add(&part->body, "\\x{%x}", (unsigned)lo.c));
    if (!range)
        goto out;
    w->p++;
    if (*w->p == '\\') {
        w->p++;
        AZ_TRY(az_onig_read_escape(&hi, w, true));
    } else {
        hi = (az_escape){.kind = AZ_ESC_CHAR, .c = az_text_get_char(&len, w->p)};
        if (hi.c == '[')
            AZ_TRY(az_onig_refuse(w, "a range that ends with a class"));
        w->p += len;
    }
    if (hi.kind != AZ_ESC_CHAR || hi.c < lo.c)
        AZ_TRY(az_onig_refuse(w, "a range without order"));
    AZ_TRY(az_onig_check_icase(w, hi.c));
    AZ_TRY(az_str_add(&part->body, "-\\x{%x}", (unsigned)hi.c));
out:
    az_str_fini(&lo.body);
    az_str_fini(&hi.body);
    return err;
}

/* p stands behind the opening bracket. */
az_err az_onig_read_class(az_str *out, az_onig *w)
{
    az_err err = AZ_OK;
    class_part part = {0};
    az_str both = {0}; /* what stands before &&, as look-aheads */
    bool negated = false, first = true;
    if (++w->class_depth > 8)
        AZ_TRY(az_onig_refuse(w, "so deep a class"));
    if (w->p < w->end && *w->p == '^') {
        negated = true;
        w->p++;
    }
    for (;; first = false) {
        if (w->p == w->end)
            AZ_TRY(az_onig_refuse(w, "a class without end"));
        if (*w->p == ']' && !first)
            break;
        if (*w->p == '[') {
            w->p++;
            if (w->p < w->end && *w->p == ':')
                AZ_TRY(az_onig_refuse(w, "a POSIX bracket"));
            AZ_TRY(az_str_add(&part.others, "|"));
            AZ_TRY(az_onig_read_class(&part.others, w));
        } else if (w->end - w->p >= 2 && w->p[0] == '&' && w->p[1] == '&') {
            w->p += 2;
            if (part.body.len + part.others.len == 0)
                AZ_TRY(az_onig_refuse(w, "an empty side of &&"));
            AZ_TRY(az_str_add(&both, "(?="));
            AZ_TRY(add_part(&both, &part, false));
            AZ_TRY(az_str_add(&both, ")"));
            part.body.len = part.others.len = 0;
        } else {
            AZ_TRY(read_class_item(w, &part));
        }
    }
    w->p++;
    if (part.body.len + part.others.len == 0)
        AZ_TRY(az_onig_refuse(w, "an empty class"));
    if (both.len == 0) {
        AZ_TRY(add_part(out, &part, negated));
    } else {
        AZ_TRY(az_str_add(out, negated ? "(?:(?!%s" : "(?:%s", both.s));
        AZ_TRY(add_part(out, &part, false));
        AZ_TRY(az_str_add(out, negated ? ")(?s:.))" : ")"));
    }
    w->class_depth--;
out:
    az_str_fini(&part.body);
    az_str_fini(&part.others);
    az_str_fini(&both);
    return err;
}
