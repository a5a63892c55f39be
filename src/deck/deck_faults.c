/* Faults: all that is wrong with a deck, so that one reading finds it all. */
#include <config.h>

#include "deck/deck_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_SHOWN 20
#define MAX_LINE 600

az_err az_deck_note(az_deck_faults *faults, int line, const char *fmt, ...)
{
    az_err err = AZ_OK;
    char what[MAX_LINE];
    va_list args;
    if (faults->n++ >= MAX_SHOWN)
        return AZ_OK;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (unsigned char *c = (unsigned char *)what; *c != '\0'; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
    if (faults->text.len > 0)
        AZ_TRY(az_str_add(&faults->text, "\n"));
    if (line > 0 && !faults->one_line)
        AZ_TRY(az_str_add(&faults->text, "%s:%d: ", faults->where, line));
    else if (line >= 0)
        AZ_TRY(az_str_add(&faults->text, "%s: ", faults->where));
    err = az_str_add(&faults->text, "%s", what);
out:
    return err;
}

az_err az_deck_report(const az_deck_faults *faults)
{
    if (faults->n == 0)
        return AZ_OK;
    if (faults->n > MAX_SHOWN)
        return az_fail(AZ_EINPUT, "%s\n... and %d more", faults->text.s, faults->n - MAX_SHOWN);
    return az_fail(AZ_EINPUT, "%s", faults->text.s);
}

int az_deck_cut_text(const char *s, int max)
{
    int n = (int)strcspn(s, "\n");
    if (n <= max)
        return n;
    for (n = max; n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80;)
        n--;
    return n;
}
