/* UTF-8 and sets of characters. */
#include <config.h>

#include "text/text_priv.h"

#include <utf8proc.h>

uint32_t az_text_get_char(int *out_bytes, const char *s)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *out_bytes = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *out_bytes = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *out_bytes = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *out_bytes = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

int az_text_fill_char(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

bool az_text_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static const char *get_category(uint32_t c)
{
    size_t lo = 0, hi = az_ucd_n_additions;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c > az_ucd_additions[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < az_ucd_n_additions && c >= az_ucd_additions[lo].lo)
        return az_ucd_additions[lo].category;
    return utf8proc_category_string((utf8proc_int32_t)c);
}

bool az_text_is_numeric(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    /* Unicode 17's two new sets of digits: here the library is a version further. */
    if ((c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6))
        return true;
    return get_category(c)[0] == 'N';
}

bool az_text_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
               c == '_';
    /* Symbols that Unicode counts as alphabetic, and the joiners. */
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
        (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
        c == 0x200d)
        return true;
    const char *g = get_category(c);
    return g[0] == 'L' || g[0] == 'M' || (g[0] == 'N' && g[1] != 'o') ||
           (g[0] == 'P' && g[1] == 'c');
}
