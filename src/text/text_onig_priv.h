/* Inside of text: the translation of a regular expression, between text_onig.c and
 * text_onig_class.c. Local. */
#ifndef AZ_TEXT_ONIG_PRIV_H
#define AZ_TEXT_ONIG_PRIV_H

#include "text/text_priv.h"

#define AZ_ONIG_DEPTH 64

/* Where the translation stands. */
typedef struct {
    const char *begin, *p, *end;
    const char *where;
    az_str *out;
    bool widen;                  /* PCRE2's tables are older than Unicode 16 */
    int depth;                   /* of groups */
    size_t start[AZ_ONIG_DEPTH]; /* where each open group begins in out */
    size_t inside[AZ_ONIG_DEPTH];
    bool icase[AZ_ONIG_DEPTH];
    size_t atom; /* where the last atom begins in out */
    bool has_atom, quantified;
    uint32_t last; /* the literal just before, or 0 */
    int class_depth;
} az_onig;

/* What a backslash begins. */
typedef enum { AZ_ESC_CHAR, AZ_ESC_SET, AZ_ESC_ANCHOR } az_esc_kind;
typedef struct {
    az_esc_kind kind;
    uint32_t c;     /* CHAR; ANCHOR: its letter */
    bool negated;   /* SET */
    const char *no; /* SET that has its complement as a body, too */
    az_str body;    /* SET */
} az_escape;

/* The failure that names what is not supported. */
az_err az_onig_refuse(const az_onig *w, const char *what);
/* Case is only folded for ASCII. */
az_err az_onig_check_icase(const az_onig *w, uint32_t c);
/* p stands behind the backslash. The caller frees out_escape->body, also after a failure. */
az_err az_onig_read_escape(az_escape *out_escape, az_onig *w, bool in_class);
/* p stands behind the opening bracket. Append an expression for one character. */
az_err az_onig_read_class(az_str *out, az_onig *w);
/* Append a word boundary (or inside = true: the opposite) to w->out. */
az_err az_onig_add_boundary(az_onig *w, bool inside);

#endif
