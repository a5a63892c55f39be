/* Strings that grow, and numbers for people. */
#include <config.h>

#include "base/str.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static az_err reserve(az_str *str, size_t more)
{
    az_err err = AZ_OK;
    if (str->len + more + 1 <= str->cap)
        return AZ_OK;
    size_t cap = 2 * (str->len + more) + 64;
    AZ_TRY(AZ_GROW(str->s, cap, "text"));
    str->cap = cap;
out:
    return err;
}

az_err az_str_add_bytes(az_str *str, const void *bytes, size_t n)
{
    az_err err;
    AZ_TRY(reserve(str, n));
    if (n > 0)
        memcpy(str->s + str->len, bytes, n);
    str->len += n;
    str->s[str->len] = '\0';
out:
    return err;
}

az_err az_str_add(az_str *str, const char *fmt, ...)
{
    az_err err;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    AZ_ASSERT(n >= 0);
    AZ_TRY(reserve(str, (size_t)n));
    va_start(args, fmt);
    vsnprintf(str->s + str->len, (size_t)n + 1, fmt, args);
    va_end(args);
    str->len += (size_t)n;
out:
    return err;
}

az_err az_str_add_real(az_str *str, double v)
{
    char digits[40];
    for (int n = 1; n <= 17; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, v);
        if (strtod(digits, NULL) == v)
            break;
    }
    return az_str_add(str, "%s", digits);
}

void az_str_fini(az_str *str)
{
    az_free(str->s);
    *str = (az_str){0};
}

static char *next_buffer(void)
{
    static char buffers[16][40];
    static int turn;
    turn = (turn + 1) % 16;
    return buffers[turn];
}

const char *az_format_bytes(double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *s = next_buffer();
    int u = 0;
    for (; bytes >= 1024 && u < 5; u++)
        bytes /= 1024;
    snprintf(s, 40, u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
    return s;
}

const char *az_format_count(long long n)
{
    char digits[24], *s = next_buffer(), *d = s;
    int len = snprintf(digits, sizeof digits, "%lld", n < 0 ? -n : n);
    if (n < 0)
        *d++ = '-';
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            *d++ = ',';
        *d++ = digits[i];
    }
    *d = '\0';
    return s;
}

const char *az_format_seconds(double t)
{
    char *s = next_buffer();
    if (!(t < 100 * 3600.0))
        snprintf(s, 40, "%.1fd", t / 86400);
    else if (t >= 3600)
        snprintf(s, 40, "%dh%02dm", (int)t / 3600, (int)t / 60 % 60);
    else if (t >= 60)
        snprintf(s, 40, "%dm%02ds", (int)t / 60, (int)t % 60);
    else
        snprintf(s, 40, "%.1fs", t);
    return s;
}

int az_str_distance(const char *a, const char *b)
{
    enum { MAX = 63 };
    int la = (int)strnlen(a, MAX), lb = (int)strnlen(b, MAX), row[MAX + 1];
    for (int j = 0; j <= lb; j++)
        row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[lb];
}

size_t az_str_check_utf8(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t i = 0;
    while (i < n) {
        uint8_t b = p[i];
        if (b < 0x80) {
            i++;
            continue;
        }
        /* The second byte's range shuts out overlong forms, surrogates, and what lies beyond
         * U+10FFFF. */
        uint8_t lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
        uint8_t hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        size_t len = b >= 0xc2 && b <= 0xdf   ? 2
                     : b >= 0xe0 && b <= 0xef ? 3
                     : b >= 0xf0 && b <= 0xf4 ? 4
                                              : 0;
        if (len == 0 || len > n - i || p[i + 1] < lo || p[i + 1] > hi)
            return i;
        for (size_t k = 2; k < len; k++)
            if ((p[i + k] & 0xc0) != 0x80)
                return i;
        i += len;
    }
    return n;
}

bool az_str_next_line(const char **out_line, size_t *out_n, const char *text, size_t bytes,
                      size_t *io_at)
{
    static const char mark[] = "\xef\xbb\xbf";
    if (*io_at >= bytes)
        return false;
    const char *line = text + *io_at, *end = memchr(line, '\n', bytes - *io_at);
    size_t n = end != NULL ? (size_t)(end - line) : bytes - *io_at;
    const bool first = *io_at == 0;
    *io_at += n + 1;
    if (first && n >= 3 && memcmp(line, mark, 3) == 0) {
        line += 3;
        n -= 3;
    }
    *out_line = line;
    *out_n = n > 0 && line[n - 1] == '\r' ? n - 1 : n;
    return true;
}

bool az_str_is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}
