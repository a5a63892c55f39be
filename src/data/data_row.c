/* data/row: one line of a JSONL file becomes a sample, or is dropped and counted, or is refused
 * with its place.
 *
 * Prompt and completion are tokenized as two segments. Tokenizing them as one text and looking for
 * the seam afterwards fails where a token lies over it; and at generation the prompt comes alone.
 */
#include <config.h>

#include "data/data_priv.h"

#include <string.h>

#include "store/json.h"

static const char expected[] =
    "expected \"text\", or \"prompt\" and \"completion\", or \"input_ids\" and optional \"labels\"";

/* What a line gives: members, each NULL if absent. */
typedef struct {
    const az_json *text, *prompt, *completion, *input_ids, *labels;
} row;

static az_err fail_unknown(const az_json *object, const char *where)
{
    az_str names = {0};
    void *cursor = NULL;
    const char *key;
    const az_json *v;
    az_err err = AZ_OK;
    int n = 0;
    while (err == AZ_OK && n < 8 && az_json_next(object, &cursor, &key, &v))
        err = az_str_add(&names, "%s\"%.40s\"", n++ > 0 ? ", " : "", key);
    if (err == AZ_OK)
        err = az_fail(AZ_EINPUT, "%s: found %s; %s", where,
                      n > 0 ? names.s : "an object without members", expected);
    az_str_fini(&names);
    return err;
}

/* Which kind of row it is, and that it is only one. */
static az_err read_members(row *r, const az_json *object, const char *where)
{
    if (az_json_get_type(object) != AZ_JSON_OBJECT)
        return az_fail(AZ_EINPUT, "%s: found %s; expected one JSON object a line", where,
                       az_json_type_name(object));
    *r = (row){az_json_given(object, "text"), az_json_given(object, "prompt"),
               az_json_given(object, "completion"), az_json_given(object, "input_ids"),
               az_json_given(object, "labels")};
    const char *kinds[3];
    int n = 0;
    if (r->text != NULL)
        kinds[n++] = "text";
    if (r->prompt != NULL || r->completion != NULL)
        kinds[n++] = r->prompt != NULL ? "prompt" : "completion";
    if (r->input_ids != NULL || r->labels != NULL)
        kinds[n++] = r->input_ids != NULL ? "input_ids" : "labels";
    if (n == 0)
        return fail_unknown(object, where);
    if (n > 1)
        return az_fail(AZ_EINPUT, "%s: \"%s\" and \"%s\" in one line; %s", where, kinds[0],
                       kinds[1], expected);
    if ((r->prompt == NULL) != (r->completion == NULL))
        return az_fail(AZ_EINPUT, "%s: \"%s\" without \"%s\"; %s", where, kinds[0],
                       r->prompt != NULL ? "completion" : "prompt", expected);
    if (r->labels != NULL && r->input_ids == NULL)
        return az_fail(AZ_EINPUT, "%s: \"labels\" without \"input_ids\"; %s", where, expected);
    return AZ_OK;
}

/* Append a string's tokens; trained: its labels are its ids. */
static az_err add_text(az_reader *r, const az_json *v, const char *key, bool first, bool trained,
                       const char *where)
{
    az_err err = AZ_OK;
    size_t bytes, start = r->ids.n;
    if (az_json_get_type(v) != AZ_JSON_STRING)
        return az_fail(AZ_EINPUT, "%s: %s: found %s, expected a string", where, key,
                       az_json_type_name(v));
    if (r->opt_tokenizer == NULL)
        return az_fail(AZ_EINPUT,
                       "%s: \"%s\" needs a tokenizer, and the model's directory has no "
                       "tokenizer.json: set data.tokenizer, or give \"input_ids\"",
                       where, key);
    const char *s = az_json_string(v, &bytes);
    if (first && r->options->add_bos)
        err = az_text_encode_front(&r->ids, r->opt_tokenizer, s, bytes);
    else
        err = az_text_encode(&r->ids, r->opt_tokenizer, s, bytes, false);
    AZ_TRY(az_err_place(err, where));
    for (size_t i = start; i < r->ids.n; i++)
        AZ_TRY(az_ids_add(&r->labels, trained ? r->ids.v[i] : AZ_NO_LABEL));
out:
    return err;
}

/* Append EOS to what began at token start, unless that ends with it already. */
static az_err add_eos(az_reader *r, size_t start, const char *where)
{
    az_err err = AZ_OK;
    const int32_t eos = r->options->eos;
    if (!r->options->add_eos)
        return AZ_OK;
    if (eos < 0)
        return az_fail(AZ_EINPUT,
                       "%s: no end-of-sequence token is known to append (neither the tokenizer nor "
                       "the model's config names one): set data.add_eos=false to train without",
                       where);
    if (r->ids.n > start && r->ids.v[r->ids.n - 1] == eos)
        return AZ_OK;
    AZ_TRY(az_ids_add(&r->ids, eos));
    AZ_TRY(az_ids_add(&r->labels, eos));
out:
    return err;
}

static az_err add_array(az_ids *out, const az_json *v, const char *key, bool may_mask,
                        int64_t n_rows, const char *where)
{
    az_err err = AZ_OK;
    if (az_json_get_type(v) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT, "%s: %s: found %s, expected an array of token ids", where, key,
                       az_json_type_name(v));
    for (size_t i = 0; i < az_json_count(v); i++) {
        const az_json *item = az_json_at(v, i);
        if (az_json_get_type(item) != AZ_JSON_INT)
            return az_fail(AZ_EINPUT, "%s: %s[%zu]: found %s, expected an integer", where, key, i,
                           az_json_type_name(item));
        int64_t id = az_json_int(item);
        if ((id < 0 || id >= n_rows) && !(may_mask && id == AZ_NO_LABEL))
            return az_fail(AZ_EINPUT,
                           "%s: %s[%zu] is %lld, but the model's embedding has %lld rows: expected "
                           "an id from 0 to %lld%s",
                           where, key, i, (long long)id, (long long)n_rows, (long long)n_rows - 1,
                           may_mask ? ", or -100 for no target" : "");
        AZ_TRY(az_ids_add(out, (int32_t)id));
    }
out:
    return err;
}

static az_err add_ids(az_reader *r, const row *m, const char *where)
{
    az_err err;
    size_t start = r->ids.n;
    AZ_TRY(add_array(&r->ids, m->input_ids, "input_ids", false, r->options->n_rows, where));
    if (m->labels == NULL) {
        for (size_t i = start; i < r->ids.n; i++)
            AZ_TRY(az_ids_add(&r->labels, r->ids.v[i]));
        goto out;
    }
    AZ_TRY(add_array(&r->labels, m->labels, "labels", true, r->options->n_rows, where));
    if (r->labels.n != r->ids.n)
        err = az_fail(AZ_EINPUT, "%s: labels has %zu elements, input_ids has %zu: expected as many",
                      where, r->labels.n - start, r->ids.n - start);
out:
    return err;
}

/* Ids that the tokenizer made: a tokenizer may know more tokens than the model has rows. */
static az_err check_ids(const az_reader *r, size_t start, const char *where)
{
    for (size_t i = start; i < r->ids.n; i++)
        if (r->ids.v[i] < 0 || r->ids.v[i] >= r->options->n_rows)
            return az_fail(AZ_EINPUT,
                           "%s: token %zu of the sample has id %ld, but the model's embedding has "
                           "%lld rows: the tokenizer does not belong to this model",
                           where, i - start, (long)r->ids.v[i], (long long)r->options->n_rows);
    return AZ_OK;
}

/* Cut or drop what began at token start, count its targets, keep it. */
static az_err finish(az_reader *r, size_t start, const char *where)
{
    az_err err = AZ_OK;
    const size_t limit = (size_t)r->options->max_length, n = r->ids.n - start;
    int32_t targets = 0;
    if (n > limit && r->options->drop_long) {
        r->ids.n = r->labels.n = start;
        r->n_dropped_long++;
        return AZ_OK;
    }
    if (n > limit)
        r->ids.n = r->labels.n = start + limit;
    if (r->ids.n - start > INT32_MAX)
        return az_fail(AZ_EINPUT, "%s: a sample of %zu tokens", where, n);
    for (size_t i = start + 1; i < r->labels.n; i++)
        targets += r->labels.v[i] != AZ_NO_LABEL;
    if (targets == 0) {
        r->ids.n = r->labels.n = start;
        r->n_dropped_empty++;
        return AZ_OK;
    }
    r->n_cut += n > limit;
    AZ_TRY(az_ids_add(&r->lengths, (int32_t)(r->ids.n - start)));
    AZ_TRY(az_ids_add(&r->targets, targets));
out:
    return err;
}

az_err az_reader_add(az_reader *reader, const char *line, size_t bytes, const char *where)
{
    az_err err;
    az_json_doc *doc = NULL;
    row m = {0};
    const size_t start = reader->ids.n;
    const size_t valid = az_str_check_utf8(line, bytes);
    if (valid < bytes)
        return az_fail(AZ_EINPUT, "%s: invalid UTF-8: byte 0x%02x at offset %zu of the line", where,
                       (unsigned char)line[valid], valid);
    AZ_TRY(az_json_parse(&doc, line, bytes, where));
    AZ_TRY(read_members(&m, az_json_root(doc), where));
    if (m.input_ids != NULL) {
        AZ_TRY(add_ids(reader, &m, where));
    } else {
        size_t trained = start;
        if (m.text != NULL) {
            AZ_TRY(add_text(reader, m.text, "text", true, true, where));
        } else {
            AZ_TRY(add_text(reader, m.prompt, "prompt", true, false, where));
            trained = reader->ids.n;
            AZ_TRY(add_text(reader, m.completion, "completion", false, true, where));
        }
        AZ_TRY(add_eos(reader, trained, where));
        AZ_TRY(check_ids(reader, start, where));
    }
    AZ_TRY(finish(reader, start, where));
out:
    az_json_close(doc);
    return err;
}

void az_reader_fini(az_reader *reader)
{
    az_ids_fini(&reader->ids);
    az_ids_fini(&reader->labels);
    az_ids_fini(&reader->lengths);
    az_ids_fini(&reader->targets);
}
