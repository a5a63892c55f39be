/* Units: numbers with a unit behind them. */
#include <config.h>

#include "base/units.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    double value;
} unit;

static const unit bytes[] = {
    {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}, {"KB", 1e3},
    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"bytes", 1},
};
static const unit bits[] = {
    {"bit", 0.125}, {"kbit", 125}, {"Mbit", 125e3}, {"Gbit", 125e6}, {"Tbit", 125e9},
};
static const unit prefixes[] = {
    {"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15},
};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* A number that is not negative, in decimal digits; *out_rest: what stands behind it and spaces. */
static bool take_number(double *out, const char **out_rest, const char *text)
{
    const size_t n = strspn(text, "0123456789");
    const size_t part = text[n] == '.' ? strspn(text + n + 1, "0123456789") : 0;
    if (n + part == 0 || strpbrk(text, "xX") != NULL) /* hexadecimal is not meant */
        return false;
    char *rest;
    *out = strtod(text, &rest);
    if (!(*out < 1e300) || rest == text)
        return false;
    *out_rest = rest + strspn(rest, " ");
    return true;
}

/* The unit whose name the first n bytes of text are, NULL if there is none. */
static const unit *find(const unit *table, size_t count, const char *text, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, text, n) == 0)
            return &table[i];
    return NULL;
}

bool az_parse_size(int64_t *out_bytes, const char *text)
{
    double v;
    const char *rest;
    if (!take_number(&v, &rest, text))
        return false;
    if (*rest != '\0') {
        const unit *u = find(bytes, COUNT(bytes), rest, strlen(rest));
        if (u == NULL)
            return false;
        v *= u->value;
    }
    if (v > 0x1p62)
        return false;
    *out_bytes = (int64_t)v;
    return true;
}

/* Nothing is slower than one a second or faster than any machine will be: times can be told from
 * it. */
static bool is_rate(double per_s)
{
    return per_s >= 1 && per_s <= 1e24;
}

bool az_parse_speed(double *out_bytes_per_s, const char *text)
{
    double v;
    const char *rest;
    if (!take_number(&v, &rest, text))
        return false;
    const size_t n = strlen(rest);
    if (n < 3 || strcmp(rest + n - 2, "/s") != 0)
        return false;
    const unit *u = find(bytes, COUNT(bytes), rest, n - 2);
    if (u == NULL)
        u = find(bits, COUNT(bits), rest, n - 2);
    if (u == NULL)
        return false;
    *out_bytes_per_s = v * u->value;
    return is_rate(*out_bytes_per_s);
}

bool az_parse_rate(double *out_per_s, const char *text)
{
    static const char *const ends[] = {"FLOP/s", "FLOPS", "flop/s", "flops", ""};
    double v;
    const char *rest;
    if (!take_number(&v, &rest, text))
        return false;
    const size_t n = strlen(rest);
    for (size_t i = 0; i < COUNT(ends); i++) {
        const size_t end = strlen(ends[i]);
        if (n < end || strcmp(rest + n - end, ends[i]) != 0)
            continue;
        const unit *u = find(prefixes, COUNT(prefixes), rest, n - end);
        if (u == NULL)
            return false;
        *out_per_s = v * u->value;
        return is_rate(*out_per_s);
    }
    return false;
}
