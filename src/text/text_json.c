/* tokenizer.json: the model (vocabulary and merges) and the added tokens. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

/* Larger ids than any model has: tables are indexed by them. */
#define MAX_ID ((1 << 24) - 1)

/* ---- Model */
/* Options that change how words are merged and that no byte-level layout sets. */
static az_err check_options(const az_json_doc *doc, const az_json *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *where = az_json_where(doc), *affix = NULL;
    double dropout = 0;
    bool byte_fallback = false;
    az_err err;
    for (int i = 0; i < 2; i++) {
        AZ_TRY(az_json_get_string(&affix, doc, model, affixes[i], ""));
        if (affix[0] != '\0')
            return az_fail(AZ_EINPUT, "%s: model: %s \"%s\" is not supported; null and \"\" are",
                           where, affixes[i], affix);
    }
    AZ_TRY(az_json_get_real(&dropout, doc, model, "dropout", 0, 1, 0));
    if (dropout > 0)
        return az_fail(AZ_EINPUT, "%s: model: dropout %g is not supported; null and 0 are", where,
                       dropout);
    AZ_TRY(az_json_get_bool(&byte_fallback, doc, model, "byte_fallback", false));
    if (byte_fallback)
        return az_fail(AZ_EINPUT,
                       "%s: model: byte_fallback true (the SentencePiece layout) is not supported; "
                       "byte-level BPE is",
                       where);
out:
    return err;
}

static az_err read_vocab(az_tokenizer *tok, const az_json_doc *doc, const az_json *model)
{
    az_err err;
    const char *where = az_json_where(doc), *content;
    const az_json *vocab = az_json_member(model, "vocab"), *v;
    az_vocab *to = &tok->bpe.vocab;
    if (az_json_get_type(vocab) != AZ_JSON_OBJECT)
        return az_fail(AZ_EINPUT, "%s: model: vocab: found %s, expected an object", where,
                       az_json_type_name(vocab));
    AZ_TRY(az_text_vocab_init(to, az_json_count(vocab)));
    for (void *cursor = NULL; az_json_next(vocab, &cursor, &content, &v);) {
        if (az_json_get_type(v) != AZ_JSON_INT || az_json_int(v) < 0 || az_json_int(v) > MAX_ID)
            return az_fail(AZ_EINPUT,
                           "%s: model: vocab: \"%s\": found %s, expected an id from 0 to %d", where,
                           content,
                           az_json_get_type(v) == AZ_JSON_INT ? "an integer out of range"
                                                              : az_json_type_name(v),
                           MAX_ID);
        int32_t id = (int32_t)az_json_int(v);
        size_t bytes = 0;
        const char *other = az_text_vocab_get(to, id, &bytes);
        if (other != NULL)
            return az_fail(AZ_EINPUT, "%s: model: vocab: id %d belongs to both \"%.*s\" and \"%s\"",
                           where, (int)id, (int)bytes, other, content);
        AZ_TRY(az_text_vocab_add(to, content, strlen(content), id));
    }
out:
    return err;
}

/* A merge is "left right" in older files and ["left", "right"] in newer ones; false: neither. */
static bool get_merge(const char **out_left, size_t *out_left_bytes, const char **out_right,
                      size_t *out_right_bytes, const az_json *v)
{
    if (az_json_get_type(v) == AZ_JSON_STRING) {
        size_t n = 0;
        const char *s = az_json_string(v, &n);
        const char *space = memchr(s, ' ', n);
        if (space == NULL || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)) != NULL)
            return false;
        *out_left = s;
        *out_left_bytes = (size_t)(space - s);
        *out_right = space + 1;
        *out_right_bytes = n - (size_t)(space + 1 - s);
        return true;
    }
    if (az_json_get_type(v) != AZ_JSON_ARRAY || az_json_count(v) != 2 ||
        az_json_get_type(az_json_at(v, 0)) != AZ_JSON_STRING ||
        az_json_get_type(az_json_at(v, 1)) != AZ_JSON_STRING)
        return false;
    *out_left = az_json_string(az_json_at(v, 0), out_left_bytes);
    *out_right = az_json_string(az_json_at(v, 1), out_right_bytes);
    return true;
}

static az_err read_merges(az_tokenizer *tok, const az_json_doc *doc, const az_json *model)
{
    az_err err;
    az_bpe *bpe = &tok->bpe;
    const char *where = az_json_where(doc), *left = NULL, *right = NULL;
    size_t n_left = 0, n_right = 0;
    const az_json *merges = az_json_member(model, "merges");
    size_t n = az_json_count(merges);
    uint32_t rank = 0;
    if (az_json_get_type(merges) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT, "%s: model: merges: found %s, expected an array", where,
                       az_json_type_name(merges));
    AZ_TRY(az_text_bpe_init_merges(bpe, n));
    for (size_t i = 0; i < n; i++) {
        const az_json *v = az_json_at(merges, i);
        /* Very old files keep the first line of merges.txt. */
        if (az_json_get_type(v) == AZ_JSON_STRING &&
            strncmp(az_json_string(v, NULL), "#version", 8) == 0)
            continue;
        if (!get_merge(&left, &n_left, &right, &n_right, v))
            return az_fail(AZ_EINPUT,
                           "%s: model: merges: element %zu: found %s, expected \"left right\" or "
                           "[\"left\", \"right\"]",
                           where, i,
                           az_json_get_type(v) == AZ_JSON_STRING ? az_json_string(v, NULL)
                                                                 : az_json_type_name(v));
        int32_t a = az_text_vocab_find(&bpe->vocab, left, n_left);
        int32_t b = az_text_vocab_find(&bpe->vocab, right, n_right);
        bpe->word.len = 0;
        AZ_TRY(az_str_add_bytes(&bpe->word, left, n_left));
        AZ_TRY(az_str_add_bytes(&bpe->word, right, n_right));
        int32_t id = az_text_vocab_find(&bpe->vocab, bpe->word.s, bpe->word.len);
        if (a < 0 || b < 0 || id < 0)
            return az_fail(AZ_EINPUT,
                           "%s: model: merges: element %zu: \"%.*s\" is not in the vocabulary",
                           where, i,
                           (int)(a < 0   ? n_left
                                 : b < 0 ? n_right
                                         : bpe->word.len),
                           a < 0   ? left
                           : b < 0 ? right
                                   : bpe->word.s);
        az_text_bpe_add_merge(bpe, a, b, rank++, id);
    }
out:
    return err;
}

az_err az_text_read_model(az_tokenizer *tok, const az_json_doc *doc)
{
    az_err err;
    az_bpe *bpe = &tok->bpe;
    const char *where = az_json_where(doc), *type = NULL, *unk = NULL;
    const az_json *model = az_json_member(az_json_root(doc), "model");
    if (az_json_get_type(model) != AZ_JSON_OBJECT)
        return az_fail(AZ_EINPUT, "%s: model: found %s, expected an object", where,
                       az_json_type_name(model));
    AZ_TRY(az_json_get_string(&type, doc, model, "type",
                              az_json_member(model, "merges") != NULL ? "BPE" : "without type"));
    if (strcmp(type, "BPE") != 0)
        return az_fail(AZ_EINPUT, "%s: model: type %s is not supported; BPE is", where, type);
    AZ_TRY(check_options(doc, model));
    AZ_TRY(az_json_get_bool(&bpe->fuse_unk, doc, model, "fuse_unk", false));
    AZ_TRY(az_json_get_bool(&bpe->ignore_merges, doc, model, "ignore_merges", false));
    AZ_TRY(read_vocab(tok, doc, model));
    AZ_TRY(read_merges(tok, doc, model));
    AZ_TRY(az_json_get_string(&unk, doc, model, "unk_token", NULL));
    bpe->unk = unk == NULL ? -1 : az_text_vocab_find(&bpe->vocab, unk, strlen(unk));
    if (unk != NULL && bpe->unk < 0)
        return az_fail(AZ_EINPUT, "%s: model: unk_token \"%s\" is not in the vocabulary", where,
                       unk);
    AZ_TRY(az_text_bpe_init(bpe));
out:
    return err;
}

/* ---- Added tokens */
/* The id that the tokenizers library gives: the vocabulary's, else the next free one, whatever the
 * file says. */
static int32_t next_id(const az_tokenizer *tok, const char *content, size_t bytes)
{
    const az_vocab *vocab = &tok->bpe.vocab, *added = &tok->added_vocab;
    int32_t id = az_text_vocab_find(vocab, content, bytes);
    if (id >= 0)
        return id;
    return added->count > 0 && added->size - 1 >= vocab->count ? added->size : vocab->count;
}

static az_err read_added(az_tokenizer *tok, const az_json_doc *doc, const az_json *v, size_t index)
{
    az_err err;
    const char *where = az_json_where(doc);
    const az_json *c = az_json_member(v, "content");
    int64_t id = -1;
    size_t bytes = 0, clash = 0;
    az_added a = {0};
    if (az_json_get_type(c) != AZ_JSON_STRING)
        return az_fail(AZ_EINPUT,
                       "%s: added_tokens: element %zu: content: found %s, expected a "
                       "string",
                       where, index, az_json_type_name(c));
    const char *content = az_json_string(c, &bytes);
    if (bytes == 0)
        return AZ_OK; /* the library passes over it */
    AZ_TRY(az_json_get_int(&id, doc, v, "id", 0, MAX_ID, -1));
    AZ_TRY(az_json_get_bool(&a.single_word, doc, v, "single_word", false));
    AZ_TRY(az_json_get_bool(&a.lstrip, doc, v, "lstrip", false));
    AZ_TRY(az_json_get_bool(&a.rstrip, doc, v, "rstrip", false));
    AZ_TRY(az_json_get_bool(&a.special, doc, v, "special", false));
    AZ_TRY(az_json_get_bool(&a.normalized, doc, v, "normalized", !a.special));
    if (az_text_vocab_find(&tok->added_vocab, content, bytes) >= 0)
        return az_fail(AZ_EINPUT, "%s: added_tokens: \"%s\" is listed twice", where, content);
    a.id = next_id(tok, content, bytes);
    if (id >= 0 && id != a.id)
        return az_fail(AZ_EINPUT,
                       "%s: added_tokens: \"%s\" has id %d, but its place gives it id %d (ids that "
                       "the vocabulary lacks follow each other)",
                       where, content, (int)id, (int)a.id);
    if (az_text_vocab_get(&tok->bpe.vocab, a.id, &clash) != NULL &&
        az_text_vocab_find(&tok->bpe.vocab, content, bytes) != a.id)
        return az_fail(AZ_EINPUT, "%s: added_tokens: \"%s\" has id %d, which the vocabulary uses",
                       where, content, (int)a.id);
    AZ_TRY(az_text_vocab_add(&tok->added_vocab, content, bytes, a.id));
    tok->added[tok->n_added++] = a;
out:
    return err;
}

/* Contents as decoded, and which ids are skipped with the special ones: those whose decoded content
 * is that of a special token in the file, as in the library. */
static az_err fill_shown(az_tokenizer *tok)
{
    az_err err;
    bool *special = NULL;
    size_t bytes = 0;
    AZ_TRY(AZ_NEW(special, (size_t)tok->size, "tokenizer"));
    AZ_TRY(AZ_NEW(tok->special, (size_t)tok->size, "tokenizer"));
    AZ_TRY(az_text_vocab_init(&tok->shown, tok->n_added));
    for (size_t i = 0; i < tok->n_added; i++)
        special[tok->added[i].id] = tok->added[i].special;
    for (size_t i = 0; i < tok->n_added; i++) {
        const az_added *a = &tok->added[i];
        const char *content = az_text_vocab_get(&tok->added_vocab, a->id, &bytes);
        if (a->normalized)
            AZ_TRY(az_text_apply_norm(&content, &bytes, tok, content, bytes));
        AZ_TRY(az_text_vocab_add(&tok->shown, content, bytes, a->id));
        int32_t same = az_text_vocab_find(&tok->added_vocab, content, bytes);
        tok->special[a->id] = same >= 0 && special[same];
    }
out:
    az_free(special);
    return err;
}

az_err az_text_read_added(az_tokenizer *tok, const az_json_doc *doc)
{
    az_err err;
    const az_json *list = az_json_member(az_json_root(doc), "added_tokens");
    az_json_type type = az_json_get_type(list);
    size_t n = az_json_count(list);
    if (type != AZ_JSON_ARRAY && type != AZ_JSON_NULL)
        return az_fail(AZ_EINPUT, "%s: added_tokens: found %s, expected an array",
                       az_json_where(doc), az_json_type_name(list));
    AZ_TRY(az_text_vocab_init(&tok->added_vocab, n));
    AZ_TRY(AZ_NEW(tok->added, n, "tokenizer"));
    for (size_t i = 0; i < n; i++)
        AZ_TRY(read_added(tok, doc, az_json_at(list, i), i));
    tok->size =
        tok->bpe.vocab.size > tok->added_vocab.size ? tok->bpe.vocab.size : tok->added_vocab.size;
    AZ_TRY(fill_shown(tok));
    /* Special tokens first: of equal contents the first is found. */
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < tok->n_added; i++) {
            const az_added *a = &tok->added[i];
            if (a->special != (pass == 0))
                continue;
            size_t bytes = 0;
            const char *content = az_text_vocab_get(&tok->shown, a->id, &bytes);
            AZ_TRY(az_text_match_add(a->normalized ? &tok->normalized : &tok->raw, content, bytes,
                                     (int)i));
        }
    az_text_match_sort(&tok->raw);
    az_text_match_sort(&tok->normalized);
out:
    return err;
}
