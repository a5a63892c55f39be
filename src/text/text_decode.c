/* Ids to text. The contents of the tokens are turned back from the byte-level alphabet, and what
 * the bytes do not spell in UTF-8 becomes U+FFFD. */
#include <config.h>

#include "text/text_priv.h"

/* Append the bytes that a content stands for; a content with a character outside the byte-level
 * alphabet stands for itself. */
static az_err add_bytes(az_str *out, const char *content, size_t n)
{
    az_err err;
    size_t before = out->len;
    int len;
    for (size_t i = 0; i < n; i += (size_t)len) {
        int byte = az_text_char_to_byte(az_text_get_char(&len, content + i));
        if (byte < 0) {
            out->len = before;
            return az_str_add_bytes(out, content, n);
        }
        char c = (char)byte;
        AZ_TRY(az_str_add_bytes(out, &c, 1));
    }
    return AZ_OK;
out:
    return err;
}

/* Bytes at the start of s, where no character begins, that count as one error: the longest start
 * of a character, at least one byte. */
static size_t get_error_bytes(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t b = p[0];
    size_t want = b >= 0xc2 && b <= 0xdf   ? 2
                  : (b & 0xf0) == 0xe0     ? 3
                  : b >= 0xf0 && b <= 0xf4 ? 4
                                           : 1;
    uint8_t lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
    if (want == 1 || n < 2 || p[1] < lo || p[1] > hi)
        return 1;
    size_t k = 2;
    while (k < want && k < n && (p[k] & 0xc0) == 0x80)
        k++;
    return k;
}

static az_err add_lossy(az_str *out, const char *s, size_t n)
{
    az_err err = AZ_OK;
    while (n > 0) {
        size_t valid = az_str_check_utf8(s, n);
        AZ_TRY(az_str_add_bytes(out, s, valid));
        s += valid;
        n -= valid;
        if (n == 0)
            break;
        size_t bad = get_error_bytes(s, n);
        AZ_TRY(az_str_add_bytes(out, "\xef\xbf\xbd", 3));
        s += bad;
        n -= bad;
    }
out:
    return err;
}

az_err az_text_decode(az_str *out, const az_tokenizer *tokenizer, const int32_t *ids, size_t n,
                      bool skip_special)
{
    az_err err = AZ_OK;
    az_str raw = {0};
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        const char *content = az_text_vocab_get(&tokenizer->shown, ids[i], &bytes);
        if (content == NULL)
            content = az_text_vocab_get(&tokenizer->bpe.vocab, ids[i], &bytes);
        /* An id without a token says nothing, as in the library. */
        if (content == NULL || (skip_special && tokenizer->special[ids[i]]))
            continue;
        if (tokenizer->decoder == AZ_DECODE_BYTES) {
            AZ_TRY(add_bytes(&raw, content, bytes));
        } else {
            if (!first)
                AZ_TRY(az_str_add_bytes(out, " ", 1));
            AZ_TRY(az_str_add_bytes(out, content, bytes));
        }
        first = false;
    }
    AZ_TRY(add_lossy(out, raw.s, raw.len));
out:
    az_str_fini(&raw);
    return err;
}
