/* text: a text with the special tokens that belong in front of it. */
#include <config.h>

#include <string.h>

#include "text/text.h"

static bool starts_with(const az_ids *ids, size_t at, const az_ids *what)
{
    return ids->n - at >= what->n && memcmp(ids->v + at, what->v, what->n * sizeof *what->v) == 0;
}

/* What the post-processor puts in front: the same for every text, so a short one tells. */
static az_err find_front(az_ids *front, az_tokenizer *tokenizer)
{
    az_err err;
    az_ids plain = {0};
    size_t at = 0;
    AZ_TRY(az_text_encode(&plain, tokenizer, "a", 1, false));
    AZ_TRY(az_text_encode(front, tokenizer, "a", 1, true));
    while (at < front->n && !starts_with(front, at, &plain))
        at++;
    if (at == front->n && plain.n > 0)
        err = az_fail(AZ_EINPUT, "the tokenizer's special tokens do not lie around the tokens of "
                                 "the text, so there is nothing to put in front (data.add_bos)");
    front->n = at;
out:
    az_ids_fini(&plain);
    return err;
}

az_err az_text_encode_front(az_ids *ids, az_tokenizer *tokenizer, const char *text, size_t bytes)
{
    az_err err;
    az_ids front = {0}, plain = {0};
    AZ_TRY(az_text_encode(&plain, tokenizer, text, bytes, false));
    AZ_TRY(find_front(&front, tokenizer));
    for (size_t i = 0; i < front.n && !starts_with(&plain, 0, &front); i++)
        AZ_TRY(az_ids_add(ids, front.v[i]));
    for (size_t i = 0; i < plain.n; i++)
        AZ_TRY(az_ids_add(ids, plain.v[i]));
out:
    az_ids_fini(&plain);
    az_ids_fini(&front);
    return err;
}
