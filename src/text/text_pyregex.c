/* text/pyregex: Python's regular expressions on PCRE2.
 *
 * The two agree on everything that names of modules call for, with these exceptions, which are
 * refused before PCRE2 sees them: escapes that Python does not know (\h, \K, \Q, \p, ...), groups
 * that it does not know ((?<name>, (?|, (?R), (*VERB), ...) and POSIX classes. Strings in Python
 * are Unicode: UTF and UCP. */
#include <config.h>

#include "text/pyregex.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* A sensible pattern takes some thousand steps on a module's path. */
#define MATCH_LIMIT 10000000u

struct az_pyregex {
    pcre2_general_context *general;
    pcre2_match_context *limits;
    pcre2_code *code;
    pcre2_match_data *match;
    char *pattern, *where;
};

static void *take(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return az_alloc(bytes, 1, "regular expression");
}

static void give(void *block, void *unused)
{
    (void)unused;
    az_free(block);
}

static az_err refuse(const char *where, const char *pattern, const char *at, int n)
{
    return az_fail(AZ_EINPUT,
                   "%s: regular expression \"%s\": \"%.*s\" at offset %td is not Python's", where,
                   pattern, n, at, at - pattern);
}

/* What may stand behind "(?" in Python; flags are left to PCRE2. */
static bool is_group_known(const char *s)
{
    static const char *const known[] = {":", "P<", "P=", "#", "=", "!", "<=", "<!", ">", "("};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(s, known[i], strlen(known[i])) == 0)
            return true;
    size_t n = strspn(s, "imsx-");
    return n > 0 && (s[n] == ')' || s[n] == ':');
}

/* Refuse what is not Python's, or is read in two ways. */
static az_err check_syntax(const char *pattern, const char *where)
{
    bool in_class = false;
    for (const char *s = pattern; *s != '\0'; s++) {
        if (*s == '\\' && s[1] != '\0') {
            bool letter = (s[1] >= 'a' && s[1] <= 'z') || (s[1] >= 'A' && s[1] <= 'Z');
            if (letter && strchr(in_class ? "abfnrtdDsSwWx" : "abfnrtdDsSwWxABZ", s[1]) == NULL)
                return refuse(where, pattern, s, 2);
            s++;
        } else if (in_class) {
            if (*s == '[' && (s[1] == ':' || s[1] == '.' || s[1] == '='))
                return refuse(where, pattern, s, 2);
            in_class = *s != ']';
        } else if (*s == '[') {
            in_class = true;
            s += s[1] == '^';
            s += s[1] == ']'; /* the first one stands for itself */
        } else if (*s == '(' && (s[1] == '*' || (s[1] == '?' && !is_group_known(s + 2)))) {
            return refuse(where, pattern, s, 3);
        }
    }
    return AZ_OK;
}

static az_err compile(az_pyregex *r)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    char text[160];
    pcre2_compile_context *context = pcre2_compile_context_create(r->general);
    if (context == NULL)
        return AZ_EENV;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)r->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code != NULL)
        return AZ_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return AZ_EENV; /* az_alloc has said so */
    if (pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text) < 0)
        text[0] = '\0';
    return az_fail(AZ_EINPUT, "%s: regular expression \"%s\": %s at offset %zu", r->where,
                   r->pattern, text, (size_t)at);
}

az_err az_pyregex_open(az_pyregex **out_regex, const char *pattern, const char *where)
{
    az_err err;
    az_pyregex *r = NULL;
    *out_regex = NULL;
    AZ_TRY(check_syntax(pattern, where));
    AZ_TRY(AZ_NEW(r, 1, "regular expression"));
    r->pattern = az_strdup(pattern, "regular expression");
    r->where = az_strdup(where, "regular expression");
    r->general = pcre2_general_context_create(take, give, NULL);
    if (r->pattern == NULL || r->where == NULL || r->general == NULL) {
        err = AZ_EENV;
        goto out;
    }
    AZ_TRY(compile(r));
    r->match = pcre2_match_data_create_from_pattern(r->code, r->general);
    r->limits = pcre2_match_context_create(r->general);
    if (r->match == NULL || r->limits == NULL) {
        err = AZ_EENV;
        goto out;
    }
    pcre2_set_match_limit(r->limits, MATCH_LIMIT);
    *out_regex = r;
    r = NULL;
out:
    az_pyregex_close(r);
    return err;
}

void az_pyregex_close(az_pyregex *opt_regex)
{
    if (opt_regex == NULL)
        return;
    pcre2_match_context_free(opt_regex->limits);
    pcre2_match_data_free(opt_regex->match);
    pcre2_code_free(opt_regex->code);
    pcre2_general_context_free(opt_regex->general);
    az_free(opt_regex->pattern);
    az_free(opt_regex->where);
    az_free(opt_regex);
}

static az_err match(bool *out_matches, az_pyregex *r, const char *s, uint32_t options)
{
    char text[160];
    const int rc = pcre2_match(r->code, (PCRE2_SPTR)s, strlen(s), 0, options, r->match, r->limits);
    *out_matches = rc > 0;
    if (rc > 0 || rc == PCRE2_ERROR_NOMATCH)
        return AZ_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return az_fail(AZ_EENV, "%s: out of memory", r->where);
    if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text) < 0)
        text[0] = '\0';
    return az_fail(AZ_EINPUT, "%s: regular expression \"%s\" on \"%s\": %s", r->where, r->pattern,
                   s, text);
}

az_err az_pyregex_fullmatch(bool *out_matches, az_pyregex *regex, const char *s)
{
    return match(out_matches, regex, s, PCRE2_ANCHORED | PCRE2_ENDANCHORED);
}

az_err az_pyregex_match_prefix(bool *out_matches, az_pyregex *regex, const char *s)
{
    return match(out_matches, regex, s, PCRE2_ANCHORED);
}

const char *az_pyregex_get_group(size_t *out_bytes, const az_pyregex *regex, const char *s,
                                 const char *opt_name)
{
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(regex->match);
    int group =
        opt_name != NULL ? pcre2_substring_number_from_name(regex->code, (PCRE2_SPTR)opt_name) : 0;
    *out_bytes = 0;
    if (group < 0 || v[2 * group] == PCRE2_UNSET)
        return NULL;
    *out_bytes = v[2 * group + 1] - v[2 * group];
    return s + v[2 * group];
}
