/* Opening a tokenizer, text to ids. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

/* ---- Open and close */
/* eos_token or bos_token of tokenizer_config.json: a string, an object with content, or null. */
static az_err read_named(int32_t *out_id, const az_tokenizer *tok, const az_json_doc *doc,
                         const char *key)
{
    const az_json *v = az_json_member(az_json_root(doc), key);
    if (az_json_get_type(v) == AZ_JSON_OBJECT)
        v = az_json_member(v, "content");
    *out_id = -1;
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_STRING)
        return az_fail(AZ_EINPUT, "%s: %s: found %s, expected a string or an object with content",
                       az_json_where(doc), key, az_json_type_name(v));
    *out_id = az_text_get_id(tok, az_json_string(v, NULL));
    if (*out_id < 0)
        return az_fail(AZ_EINPUT, "%s: %s \"%s\" is not a token of tokenizer.json",
                       az_json_where(doc), key, az_json_string(v, NULL));
    return AZ_OK;
}

static az_err read_config(az_tokenizer *tok, const char *dir)
{
    az_err err = AZ_OK;
    az_json_doc *doc = NULL;
    char *path = az_path_join(dir, "tokenizer_config.json");
    tok->bos = tok->eos = -1;
    if (path == NULL)
        return AZ_EENV;
    if (!az_file_exists(path))
        goto out;
    AZ_TRY(az_json_load(&doc, path));
    AZ_TRY(read_named(&tok->bos, tok, doc, "bos_token"));
    AZ_TRY(read_named(&tok->eos, tok, doc, "eos_token"));
out:
    az_json_close(doc);
    az_free(path);
    return err;
}

az_err az_text_open(az_tokenizer **out_tokenizer, const char *dir)
{
    az_err err;
    az_tokenizer *tok = NULL;
    az_json_doc *doc = NULL;
    char *path = az_path_join(dir, "tokenizer.json");
    *out_tokenizer = NULL;
    if (path == NULL)
        return AZ_EENV;
    AZ_TRY(AZ_NEW(tok, 1, "tokenizer"));
    AZ_TRY(az_json_load(&doc, path));
    if (az_json_get_type(az_json_root(doc)) != AZ_JSON_OBJECT) {
        err = az_fail(AZ_EINPUT, "%s: found %s, expected an object", path,
                      az_json_type_name(az_json_root(doc)));
        goto out;
    }
    /* truncation and padding are passed over on purpose: a length saved with them would silently
     * cut training text. */
    AZ_TRY(az_text_read_model(tok, doc));
    AZ_TRY(az_text_read_normalizer(tok, doc));
    AZ_TRY(az_text_read_added(tok, doc));
    AZ_TRY(az_text_read_pretok(tok, doc));
    AZ_TRY(az_text_read_template(tok, doc));
    AZ_TRY(az_text_read_decoder(tok, doc));
    AZ_TRY(read_config(tok, dir));
    *out_tokenizer = tok;
    tok = NULL;
out:
    az_json_close(doc);
    az_free(path);
    az_text_close(tok);
    return err;
}

void az_text_close(az_tokenizer *opt_tokenizer)
{
    az_tokenizer *tok = opt_tokenizer;
    if (tok == NULL)
        return;
    az_text_bpe_fini(&tok->bpe);
    az_text_vocab_fini(&tok->added_vocab);
    az_text_vocab_fini(&tok->shown);
    az_text_match_fini(&tok->raw);
    az_text_match_fini(&tok->normalized);
    for (int i = 0; i < tok->n_pretok; i++) {
        az_text_regex_destroy(tok->pretok[i].regex);
        az_str_fini(&tok->pretok[i].work);
    }
    for (int i = 0; i < tok->n_template; i++)
        az_ids_fini(&tok->template[i]);
    for (int i = 0; i < 2; i++) {
        az_str_fini(&tok->norm_text[i]);
        az_ids_fini(&tok->work[i]);
    }
    az_free(tok->norm_work.c);
    az_free(tok->added);
    az_free(tok->special);
    az_free(tok);
}

/* ---- Text to ids */
static az_err encode_raw(az_ids *ids, az_tokenizer *tok, const char *s, size_t n)
{
    az_err err;
    AZ_TRY(az_text_apply_norm(&s, &n, tok, s, n));
    AZ_TRY(az_text_match_split(ids, tok, &tok->normalized, s, n, az_text_pretok_encode));
out:
    return err;
}

/* The template around the text, in work[0] and work[1] in turn. */
static az_err encode_template(az_ids *ids, az_tokenizer *tok, const char *text, size_t bytes)
{
    az_err err;
    tok->work[0].n = 0;
    AZ_TRY(az_text_match_split(&tok->work[0], tok, &tok->raw, text, bytes, encode_raw));
    for (int k = 0; k < tok->n_template; k++) {
        const az_ids *template = &tok->template[k], *from = &tok->work[k & 1];
        az_ids *to = k + 1 < tok->n_template ? &tok->work[!(k & 1)] : ids;
        if (to != ids)
            to->n = 0;
        for (size_t i = 0; i < template->n; i++)
            if (template->v[i] != AZ_TEMPLATE_TEXT)
                AZ_TRY(az_ids_add(to, template->v[i]));
            else
                for (size_t j = 0; j < from->n; j++)
                    AZ_TRY(az_ids_add(to, from->v[j]));
    }
out:
    return err;
}

az_err az_text_encode(az_ids *ids, az_tokenizer *tokenizer, const char *text, size_t bytes,
                      bool add_special)
{
    az_err err;
    size_t n = ids->n, valid = az_str_check_utf8(text, bytes);
    if (valid < bytes)
        return az_fail(AZ_EINPUT, "not valid UTF-8: byte 0x%02x at offset %zu",
                       (unsigned)(uint8_t)text[valid], valid);
    /* A word may be as long as the text, and its symbols are counted in 32 bits. */
    if (bytes > INT32_MAX / 4)
        return az_fail(AZ_EINPUT,
                       "a text of %zu bytes is too long: at most %d bytes can be "
                       "tokenized at once",
                       bytes, INT32_MAX / 4);
    if (add_special && tokenizer->n_template > 0)
        AZ_TRY(encode_template(ids, tokenizer, text, bytes));
    else
        AZ_TRY(az_text_match_split(ids, tokenizer, &tokenizer->raw, text, bytes, encode_raw));
out:
    if (err != AZ_OK)
        ids->n = n;
    return err;
}

/* ---- Questions */
int32_t az_text_get_size(const az_tokenizer *tokenizer)
{
    return tokenizer->size;
}

int32_t az_text_get_id(const az_tokenizer *tokenizer, const char *content)
{
    int32_t id = az_text_vocab_find(&tokenizer->added_vocab, content, strlen(content));
    return id >= 0 ? id : az_text_vocab_find(&tokenizer->bpe.vocab, content, strlen(content));
}

int32_t az_text_get_eos(const az_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

int32_t az_text_get_bos(const az_tokenizer *tokenizer)
{
    return tokenizer->bos;
}
