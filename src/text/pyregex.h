/* text/pyregex: regular expressions as Python's re understands them, for what PEFT configs say.
 * PCRE2 does the work; what Python refuses, or reads in another way than PCRE2, is refused. Local.
 */
#ifndef AZ_TEXT_PYREGEX_H
#define AZ_TEXT_PYREGEX_H

#include "base/base.h"

typedef struct az_pyregex az_pyregex;

/* where: what messages call the expression, e.g. "target_modules". Copied. */
az_err az_pyregex_open(az_pyregex **out_regex, const char *pattern, const char *where);
void az_pyregex_close(az_pyregex *opt_regex);
/* re.fullmatch(pattern, s). A failure: the match was given up after too many steps. */
az_err az_pyregex_fullmatch(bool *out_matches, az_pyregex *regex, const char *s);
/* re.match(pattern, s): a match at the start of s, not necessarily of all of it. */
az_err az_pyregex_match_prefix(bool *out_matches, az_pyregex *regex, const char *s);
/* The named group of the last match: its text within s, *out_bytes long; NULL if it took no part.
 * opt_name NULL: the whole match. */
const char *az_pyregex_get_group(size_t *out_bytes, const az_pyregex *regex, const char *s,
                                 const char *opt_name);

#endif
