/* Strings that grow, for messages and files written. Local. */
#ifndef AZ_BASE_STR_H
#define AZ_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Start from {0}. s is zero-terminated once anything was added; NULL before. */
typedef struct {
    char *s;
    size_t len, cap;
} az_str;

az_err az_str_add(az_str *str, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
az_err az_str_add_bytes(az_str *str, const void *bytes, size_t n);
/* The fewest digits that read back to the same number. */
az_err az_str_add_real(az_str *str, double v);
void az_str_fini(az_str *str);

/* "1.50 GiB": bytes for people, in one of sixteen static buffers that are used in turn. */
const char *az_format_bytes(double bytes);
/* "6,738,415,616", likewise. */
const char *az_format_count(long long n);
/* "2h05m", "3m20s", "12.3s", likewise. */
const char *az_format_seconds(double s);
/* Bytes from the start that are valid UTF-8; n if all are. */
size_t az_str_check_utf8(const char *s, size_t n);
/* Walk over the lines of text[bytes), from *io_at = 0 on: the next line without its end (LF or CR
 * LF; the last may have none), the first without a byte order mark. False after the last. */
bool az_str_next_line(const char **out_line, size_t *out_n, const char *text, size_t bytes,
                      size_t *io_at);
/* Spaces and tabs only, or nothing. */
bool az_str_is_blank(const char *s, size_t n);
/* Edit distance of two strings (for "did you mean"). */
int az_str_distance(const char *a, const char *b);

#endif
