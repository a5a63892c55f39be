/* A tokenizer in a few lines, so that tests of datasets know every id: a byte is its own id, but
 * "ab" is one token, '^' is the beginning, '|' the end of a sequence, '!' an id that no model has;
 * '~' is refused.
 * Special tokens stand around a text, as some tokenizers have it. */
#ifndef AZ_TESTS_DATA_STUB_H
#define AZ_TESTS_DATA_STUB_H

#include "data/data.h"

enum { STUB_BOS = 256, STUB_EOS, STUB_AB, STUB_SEP, STUB_ROWS, STUB_TOO_LARGE = 1000 };

struct az_tokenizer {
    int n_encoded;
};

az_err az_text_encode(az_ids *ids, az_tokenizer *tokenizer, const char *text, size_t bytes,
                      bool add_special)
{
    az_err err = AZ_OK;
    tokenizer->n_encoded++;
    if (add_special)
        AZ_TRY(az_ids_add(ids, STUB_BOS));
    if (memchr(text, '~', bytes) != NULL)
        return az_fail(AZ_EINPUT, "a text with a tilde");
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = (unsigned char)text[i];
        if (id == 'a' && i + 1 < bytes && text[i + 1] == 'b') {
            id = STUB_AB;
            i++;
        }
        id = id == '^' ? STUB_BOS : id == '|' ? STUB_EOS : id == '!' ? STUB_TOO_LARGE : id;
        AZ_TRY(az_ids_add(ids, id));
    }
    if (add_special)
        AZ_TRY(az_ids_add(ids, STUB_SEP));
out:
    return err;
}

static const az_data_options stub_options = {
    .max_length = 64, .add_eos = true, .eos = STUB_EOS, .n_rows = STUB_ROWS};

#endif
