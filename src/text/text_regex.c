/* Regular expressions by PCRE2, compiled to machine code where that is allowed. */
#include <config.h>

#include "text/text_priv.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Steps and machine stack that one match may take: more than any sensible pattern needs on text of
 * gigabytes, so that only a hopeless pattern ends in a failure rather than in a hang. */
#define MATCH_LIMIT 1000000000u
#define JIT_STACK_MIN ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)64 << 20)

struct az_regex {
    pcre2_general_context *general;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *match;
    pcre2_jit_stack *stack;
    bool jit;
    bool failed; /* an allocation did */
    char *where;
};

static void *take(PCRE2_SIZE bytes, void *data)
{
    void *p = az_alloc(bytes, 1, "tokenizer");
    if (p == NULL)
        ((az_regex *)data)->failed = true;
    return p;
}

static void give(void *p, void *data)
{
    (void)data;
    az_free(p);
}

static az_err compile(az_regex *r, const char *text, size_t bytes, uint32_t options)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(r->general);
    if (context == NULL)
        return AZ_EENV;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)text, bytes, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code != NULL)
        return AZ_OK;
    if (r->failed)
        return AZ_EENV;
    char message[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
    return az_fail(AZ_EINPUT, "%s: regular expression: PCRE2 refuses %.*s at byte %zu: %s",
                   r->where, (int)bytes, text, (size_t)at, message);
}

az_err az_text_regex_create(az_regex **out_regex, const char *pattern, size_t bytes, bool literal,
                            const char *where)
{
    az_err err;
    az_regex *r = NULL;
    az_str text = {0};
    *out_regex = NULL;
    AZ_TRY(AZ_NEW(r, 1, "tokenizer"));
    r->where = az_strdup(where, "tokenizer");
    r->general = pcre2_general_context_create(take, give, r);
    if (r->where == NULL || r->general == NULL) {
        err = AZ_EENV;
        goto out;
    }
    if (literal && bytes > 0) {
        AZ_TRY(compile(r, pattern, bytes, PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_LITERAL));
    } else {
        AZ_TRY(az_text_translate_regex(&text, pattern, bytes, where));
        AZ_TRY(compile(r, text.s != NULL ? text.s : "", text.len,
                       PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C));
    }
    r->data = pcre2_match_data_create_from_pattern(r->code, r->general);
    r->match = pcre2_match_context_create(r->general);
    if (r->data == NULL || r->match == NULL) {
        err = AZ_EENV;
        goto out;
    }
    pcre2_set_match_limit(r->match, MATCH_LIMIT);
    /* Without leave to make executable memory the interpreter does the same, only slower. */
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    if (r->jit)
        r->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, r->general);
    if (r->failed) {
        err = AZ_EENV;
        goto out;
    }
    if (r->stack != NULL)
        pcre2_jit_stack_assign(r->match, NULL, r->stack);
    *out_regex = r;
    r = NULL;
out:
    az_str_fini(&text);
    az_text_regex_destroy(r);
    return err;
}

void az_text_regex_destroy(az_regex *opt_regex)
{
    if (opt_regex == NULL)
        return;
    pcre2_jit_stack_free(opt_regex->stack);
    pcre2_match_context_free(opt_regex->match);
    pcre2_match_data_free(opt_regex->data);
    pcre2_code_free(opt_regex->code);
    pcre2_general_context_free(opt_regex->general);
    az_free(opt_regex->where);
    az_free(opt_regex);
}

az_err az_text_regex_find(bool *out_found, size_t *out_start, size_t *out_end, az_regex *regex,
                          const char *s, size_t n, size_t from)
{
    int rc = regex->jit ? pcre2_jit_match(regex->code, (PCRE2_SPTR)s, n, from, 0, regex->data,
                                          regex->match)
                        : pcre2_match(regex->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK,
                                      regex->data, regex->match);
    *out_found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(regex->data);
        *out_start = v[0];
        *out_end = v[1];
        return AZ_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return AZ_OK;
    char message[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return az_fail(rc == PCRE2_ERROR_NOMEMORY ? AZ_EENV : AZ_EINPUT,
                   "%s: the regular expression fails on a text of %zu bytes: %s", regex->where, n,
                   message);
}
