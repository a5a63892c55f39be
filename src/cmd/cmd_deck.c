/* adze deck: the deck as understood, or the value of one key as plain text, which is how a batch
 * script learns where a run puts its results. */
#include <config.h>

#include <string.h>

#include "cmd/cmd.h"

/* Arguments without "=" are keys: at most one, at any place after the deck. The others move up to
 * argv[1] ... */
static az_err take_key(const char **out_key, int *out_n, int argc, char **argv)
{
    int n = 0;
    *out_key = NULL;
    for (int i = 0; i < argc; i++) {
        if (i < 2 || strchr(argv[i], '=') != NULL)
            argv[n++] = argv[i];
        else if (*out_key == NULL)
            *out_key = argv[i];
        else
            return az_fail(AZ_EINPUT, "adze deck: %.80s and %.80s: one key at a time", *out_key,
                           argv[i]);
    }
    *out_n = n;
    return AZ_OK;
}

az_err az_cmd_deck(az_comm *opt_comm, int argc, char **argv)
{
    az_err err;
    az_deck *deck = NULL;
    az_str out = {0};
    const char *key;
    AZ_TRY(take_key(&key, &argc, argc, argv));
    AZ_TRY(az_cmd_open_deck(&deck, opt_comm, argc, argv));
    if (key != NULL)
        err = az_deck_add_text(&out, deck, key);
    else
        err = az_deck_write(&out, deck);
    AZ_TRY(err);
    if (out.len > 0 && out.s[out.len - 1] == '\n')
        out.s[--out.len] = '\0'; /* az_say adds one */
    az_say("%s", out.len > 0 ? out.s : "");
out:
    az_str_fini(&out);
    az_deck_close(deck);
    return err;
}
