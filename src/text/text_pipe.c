/* tokenizer.json: normalizer, pre-tokenizer, post-processor and decoder. Each is an object with a
 * type, a Sequence of such objects, or null. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

/* GPT-2's pattern, which ByteLevel splits by unless use_regex is false. */
static const char byte_level_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                       " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef az_err read_fn(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                       const char *type);

/* Call fn for v, or for each element of the Sequence v; part: the name of the whole in messages,
 * list: the Sequence's member. */
static az_err read_sequence(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                            const char *part, const char *list, int depth, read_fn *fn)
{
    az_err err;
    const char *type = NULL, *where = az_json_where(doc);
    if (az_json_get_type(v) == AZ_JSON_NULL)
        return AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_OBJECT)
        return az_fail(AZ_EINPUT, "%s: %s: found %s, expected an object or null", where, part,
                       az_json_type_name(v));
    AZ_TRY(az_json_get_string(&type, doc, v, "type", "(none)"));
    if (strcmp(type, "Sequence") != 0)
        return fn(tok, doc, v, type);
    const az_json *elements = az_json_member(v, list);
    if (az_json_get_type(elements) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT, "%s: %s: Sequence: %s: found %s, expected an array", where, part,
                       list, az_json_type_name(elements));
    if (depth == 8)
        return az_fail(AZ_EINPUT, "%s: %s: more than 8 Sequences in each other", where, part);
    for (size_t i = 0; i < az_json_count(elements); i++)
        AZ_TRY(read_sequence(tok, doc, az_json_at(elements, i), part, list, depth + 1, fn));
out:
    return err;
}

static az_err refuse_type(const az_json_doc *doc, const char *part, const char *type,
                          const char *supported)
{
    return az_fail(AZ_EINPUT, "%s: %s: type %s is not supported; %s are", az_json_where(doc), part,
                   type, supported);
}

static az_err check_room(const az_json_doc *doc, const char *part, int n)
{
    if (n < AZ_TEXT_MAX_STEPS)
        return AZ_OK;
    return az_fail(AZ_EINPUT, "%s: %s: more than %d steps", az_json_where(doc), part,
                   AZ_TEXT_MAX_STEPS);
}

/* ---- Normalizer */
static az_err read_normalizer(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                              const char *type)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    az_err err;
    (void)v;
    AZ_TRY(check_room(doc, "normalizer", tok->n_norm));
    for (int i = 0; i < 4; i++)
        if (strcmp(type, names[i]) == 0) {
            tok->norm[tok->n_norm++] = (az_norm_form)i;
            return AZ_OK;
        }
    err = refuse_type(doc, "normalizer", type, "NFC, NFD, NFKC, NFKD, Sequence and null");
out:
    return err;
}

az_err az_text_read_normalizer(az_tokenizer *tok, const az_json_doc *doc)
{
    return read_sequence(tok, doc, az_json_member(az_json_root(doc), "normalizer"), "normalizer",
                         "normalizers", 0, read_normalizer);
}

/* ---- Pre-tokenizer */
static az_err read_split(az_pretok *t, const az_json_doc *doc, const az_json *v)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    static const char part[] = "pre_tokenizer: Split";
    az_err err;
    const char *where = az_json_where(doc), *behavior = NULL;
    const az_json *pattern = az_json_member(v, "pattern");
    const az_json *regex = az_json_member(pattern, "Regex");
    const az_json *literal = az_json_member(pattern, "String");
    const az_json *text = regex != NULL ? regex : literal;
    size_t bytes = 0;
    if (az_json_get_type(text) != AZ_JSON_STRING)
        return az_fail(AZ_EINPUT,
                       "%s: %s: pattern: expected {\"Regex\": \"...\"} or {\"String\": \"...\"}",
                       where, part);
    AZ_TRY(az_json_get_string(&behavior, doc, v, "behavior", "(none)"));
    int k = 0;
    while (k < 5 && strcmp(behavior, names[k]) != 0)
        k++;
    if (k == 5)
        return az_fail(AZ_EINPUT,
                       "%s: %s: behavior %s is not supported; Removed, Isolated, "
                       "MergedWithPrevious, MergedWithNext and Contiguous are",
                       where, part, behavior);
    t->kind = AZ_PRETOK_SPLIT;
    t->behavior = (az_split_behavior)k;
    AZ_TRY(az_json_get_bool(&t->invert, doc, v, "invert", false));
    const char *s = az_json_string(text, &bytes);
    AZ_TRY(az_text_regex_create(&t->regex, s, bytes, regex == NULL, where));
out:
    return err;
}

static az_err read_byte_level(az_pretok *t, const az_json_doc *doc, const az_json *v)
{
    az_err err;
    bool use_regex = true;
    t->kind = AZ_PRETOK_BYTES;
    t->behavior = AZ_SPLIT_ISOLATED;
    AZ_TRY(az_json_get_bool(&t->prefix_space, doc, v, "add_prefix_space", true));
    AZ_TRY(az_json_get_bool(&use_regex, doc, v, "use_regex", true));
    if (use_regex)
        AZ_TRY(az_text_regex_create(&t->regex, byte_level_regex, sizeof byte_level_regex - 1, false,
                                    az_json_where(doc)));
out:
    return err;
}

static az_err read_pretok(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                          const char *type)
{
    az_err err;
    bool individual = false;
    AZ_TRY(check_room(doc, "pre_tokenizer", tok->n_pretok));
    if (tok->n_pretok > 0 && tok->pretok[tok->n_pretok - 1].kind == AZ_PRETOK_BYTES)
        return az_fail(AZ_EINPUT,
                       "%s: pre_tokenizer: %s after ByteLevel is not supported; "
                       "ByteLevel as the last step is",
                       az_json_where(doc), type);
    az_pretok *t = &tok->pretok[tok->n_pretok++];
    if (strcmp(type, "Split") == 0) {
        err = read_split(t, doc, v);
    } else if (strcmp(type, "Digits") == 0) {
        AZ_TRY(az_json_get_bool(&individual, doc, v, "individual_digits", false));
        t->kind = AZ_PRETOK_DIGITS;
        t->behavior = individual ? AZ_SPLIT_ISOLATED : AZ_SPLIT_CONTIGUOUS;
    } else if (strcmp(type, "ByteLevel") == 0) {
        err = read_byte_level(t, doc, v);
    } else {
        err = refuse_type(doc, "pre_tokenizer", type, "ByteLevel, Split, Digits and Sequence");
    }
out:
    return err;
}

az_err az_text_read_pretok(az_tokenizer *tok, const az_json_doc *doc)
{
    az_err err;
    AZ_TRY(read_sequence(tok, doc, az_json_member(az_json_root(doc), "pre_tokenizer"),
                         "pre_tokenizer", "pretokenizers", 0, read_pretok));
    if (tok->n_pretok == 0 || tok->pretok[tok->n_pretok - 1].kind != AZ_PRETOK_BYTES)
        return az_fail(AZ_EINPUT,
                       "%s: pre_tokenizer: does not end in ByteLevel; only byte-level "
                       "BPE is supported",
                       az_json_where(doc));
out:
    return err;
}

/* ---- Post-processor */
static az_err read_special(az_ids *ids, const az_tokenizer *tok, const az_json_doc *doc,
                           const az_json *specials, const char *name)
{
    az_err err = AZ_OK;
    const char *where = az_json_where(doc);
    const az_json *list = az_json_member(az_json_member(specials, name), "ids");
    if (az_json_get_type(list) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT,
                       "%s: post_processor: TemplateProcessing: special_tokens has no ids of "
                       "\"%s\", which its template names",
                       where, name);
    for (size_t i = 0; i < az_json_count(list); i++) {
        const az_json *id = az_json_at(list, i);
        if (az_json_get_type(id) != AZ_JSON_INT || az_json_int(id) < 0 ||
            az_json_int(id) >= tok->size)
            return az_fail(AZ_EINPUT,
                           "%s: post_processor: TemplateProcessing: special_tokens: \"%s\": found "
                           "%s as id, expected one from 0 to %d",
                           where, name,
                           az_json_get_type(id) == AZ_JSON_INT ? "an integer out of range"
                                                               : az_json_type_name(id),
                           (int)tok->size - 1);
        AZ_TRY(az_ids_add(ids, (int32_t)az_json_int(id)));
    }
out:
    return err;
}

static az_err read_template(az_tokenizer *tok, const az_json_doc *doc, const az_json *v)
{
    az_err err;
    const char *where = az_json_where(doc), *name = NULL;
    const az_json *single = az_json_member(v, "single");
    AZ_TRY(check_room(doc, "post_processor", tok->n_template));
    az_ids *template = &tok->template[tok->n_template++];
    if (az_json_get_type(single) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT,
                       "%s: post_processor: TemplateProcessing: single: found %s, expected an "
                       "array",
                       where, az_json_type_name(single));
    for (size_t i = 0; i < az_json_count(single); i++) {
        const az_json *special = az_json_member(az_json_at(single, i), "SpecialToken");
        const az_json *sequence = az_json_member(az_json_at(single, i), "Sequence");
        AZ_TRY(az_json_get_string(&name, doc, special != NULL ? special : sequence, "id", ""));
        if (special != NULL)
            AZ_TRY(read_special(template, tok, doc, az_json_member(v, "special_tokens"), name));
        else if (sequence != NULL && strcmp(name, "A") == 0)
            AZ_TRY(az_ids_add(template, AZ_TEMPLATE_TEXT));
        else
            return az_fail(AZ_EINPUT,
                           "%s: post_processor: TemplateProcessing: single: element %zu is neither "
                           "a SpecialToken nor the Sequence A",
                           where, i);
    }
out:
    return err;
}

static az_err read_processor(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                             const char *type)
{
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(tok, doc, v);
    if (strcmp(type, "ByteLevel") == 0)
        return AZ_OK; /* moves offsets only */
    return refuse_type(doc, "post_processor", type,
                       "TemplateProcessing, ByteLevel, Sequence and null");
}

az_err az_text_read_template(az_tokenizer *tok, const az_json_doc *doc)
{
    return read_sequence(tok, doc, az_json_member(az_json_root(doc), "post_processor"),
                         "post_processor", "processors", 0, read_processor);
}

/* ---- Decoder */
static az_err read_decoder(az_tokenizer *tok, const az_json_doc *doc, const az_json *v,
                           const char *type)
{
    (void)v;
    if (strcmp(type, "ByteLevel") != 0)
        return refuse_type(doc, "decoder", type, "ByteLevel, Sequence and null");
    if (tok->decoder == AZ_DECODE_BYTES)
        return az_fail(AZ_EINPUT, "%s: decoder: a second ByteLevel is not supported; one is",
                       az_json_where(doc));
    tok->decoder = AZ_DECODE_BYTES;
    return AZ_OK;
}

az_err az_text_read_decoder(az_tokenizer *tok, const az_json_doc *doc)
{
    const az_json *v = az_json_member(az_json_root(doc), "decoder");
    az_err err;
    tok->decoder = AZ_DECODE_JOIN;
    AZ_TRY(read_sequence(tok, doc, v, "decoder", "decoders", 0, read_decoder));
    if (v != NULL && az_json_get_type(v) != AZ_JSON_NULL && tok->decoder == AZ_DECODE_JOIN)
        return az_fail(AZ_EINPUT, "%s: decoder: an empty Sequence is not supported",
                       az_json_where(doc));
out:
    return err;
}
