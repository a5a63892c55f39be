/* train/prompts: prompts from the deck or a JSONL file, as ids on every rank. */
#include <config.h>

#include <string.h>

#include "store/json.h"
#include "train/generate.h"

#define ALLOWED "a line has \"prompt\" (text) or \"input_ids\", and may have \"completion\" (text)"

/* What rank 0 gathers. */
typedef struct {
    az_prompts *prompts;
    const az_prompts_options *options;
    az_tokenizer *tokenizer;
    az_ids ids;
    int64_t cap; /* prompts that start, text and expected have room for */
} reader;

/* One more prompt, whose ids will be added to r->ids. */
static az_err add_prompt(reader *r, const char *opt_text, const char *opt_expected)
{
    az_err err = AZ_OK;
    az_prompts *p = r->prompts;
    if (p->n == r->cap) {
        const size_t cap = r->cap > 0 ? (size_t)r->cap * 2 : 64;
        AZ_TRY(AZ_GROW(p->start, cap + 1, "prompts"));
        AZ_TRY(AZ_GROW(p->text, cap, "prompts"));
        AZ_TRY(AZ_GROW(p->expected, cap, "prompts"));
        r->cap = (int64_t)cap;
    }
    p->text[p->n] = p->expected[p->n] = NULL;
    p->start[p->n] = (int64_t)r->ids.n;
    p->n++;
    if (opt_text != NULL)
        AZ_TRY((p->text[p->n - 1] = az_strdup(opt_text, "prompts")) != NULL ? AZ_OK : AZ_EENV);
    if (opt_expected != NULL) {
        AZ_TRY((p->expected[p->n - 1] = az_strdup(opt_expected, "prompts")) != NULL ? AZ_OK
                                                                                    : AZ_EENV);
        p->n_expected++;
    }
out:
    return err;
}

/* The ids of the last prompt are complete: check and close it. */
static az_err end_prompt(reader *r, const char *where)
{
    az_prompts *p = r->prompts;
    const int64_t first = p->start[p->n - 1], n = (int64_t)r->ids.n - first;
    if (n == 0)
        return az_fail(AZ_EINPUT, "%s: the prompt has no tokens, so there is nothing to continue%s",
                       where,
                       r->options->add_bos ? "" : " (data.add_bos may put a first token in front)");
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = r->ids.v[first + i];
        if (id < 0 || id >= r->options->n_rows)
            return az_fail(AZ_EINPUT, "%s: token id %d, but the model's embedding has %lld rows",
                           where, (int)id, (long long)r->options->n_rows);
    }
    if (n >= r->options->max_position)
        return az_fail(AZ_EINPUT,
                       "%s: the prompt has %lld tokens; the model's max_position_embeddings is "
                       "%lld, and a continuation must fit as well",
                       where, (long long)n, (long long)r->options->max_position);
    p->start[p->n] = (int64_t)r->ids.n;
    return AZ_OK;
}

static az_err add_text(reader *r, const char *text, const char *where)
{
    if (r->tokenizer == NULL)
        return az_fail(AZ_EINPUT,
                       "%s: a prompt that is text needs a tokenizer, and model.path holds no "
                       "tokenizer.json; give data.tokenizer, or \"input_ids\" in generate.file",
                       where);
    az_err err = r->options->add_bos
                     ? az_text_encode_front(&r->ids, r->tokenizer, text, strlen(text))
                     : az_text_encode(&r->ids, r->tokenizer, text, strlen(text), false);
    return az_err_place(err, where);
}

static az_err add_ids(reader *r, const az_json *list, const char *where)
{
    az_err err = AZ_OK;
    if (az_json_get_type(list) != AZ_JSON_ARRAY)
        return az_fail(AZ_EINPUT, "%s: input_ids: found %s, expected a list of token ids", where,
                       az_json_type_name(list));
    for (size_t i = 0; i < az_json_count(list); i++) {
        const az_json *v = az_json_at(list, i);
        const bool is_int = az_json_get_type(v) == AZ_JSON_INT;
        if (!is_int || az_json_int(v) < 0 || az_json_int(v) >= r->options->n_rows) {
            if (is_int)
                return az_fail(AZ_EINPUT,
                               "%s: input_ids[%zu]: found %lld, expected an id below the %lld rows "
                               "of the model's embedding",
                               where, i, (long long)az_json_int(v), (long long)r->options->n_rows);
            return az_fail(AZ_EINPUT, "%s: input_ids[%zu]: found %s, expected a token id", where, i,
                           az_json_type_name(v));
        }
        AZ_TRY(az_ids_add(&r->ids, (int32_t)az_json_int(v)));
    }
out:
    return err;
}

/* A line without a prompt, or with two: say what it has. */
static az_err fail_members(const az_json *line, const char *what, const char *where)
{
    az_err err;
    az_str found = {0};
    void *cursor = NULL;
    const char *key;
    const az_json *v;
    AZ_TRY(az_str_add(&found, "nothing"));
    for (bool first = true; az_json_next(line, &cursor, &key, &v); first = false) {
        if (first)
            found.len = 0;
        AZ_TRY(az_str_add(&found, "%s\"%.60s\"", first ? "" : ", ", key));
    }
    err = az_fail(AZ_EINPUT, "%s: %s: found %s; " ALLOWED, where, what, found.s);
out:
    az_str_fini(&found);
    return err;
}

static az_err add_line(reader *r, const char *line, size_t bytes, const char *where)
{
    az_err err;
    az_json_doc *doc = NULL;
    const char *text, *expected;
    AZ_TRY(az_json_parse(&doc, line, bytes, where));
    const az_json *root = az_json_root(doc), *ids = az_json_given(root, "input_ids");
    if (az_json_get_type(root) != AZ_JSON_OBJECT) {
        err = az_fail(AZ_EINPUT, "%s: found %s, expected an object; " ALLOWED, where,
                      az_json_type_name(root));
        goto out;
    }
    AZ_TRY(az_json_get_string(&text, doc, root, "prompt", NULL));
    AZ_TRY(az_json_get_string(&expected, doc, root, "completion", NULL));
    if ((text != NULL) == (ids != NULL)) {
        err = fail_members(root, text != NULL ? "two prompts in one line" : "no prompt", where);
        goto out;
    }
    if (az_json_given(root, "labels") != NULL) {
        err = az_fail(AZ_EINPUT,
                      "%s: \"labels\" belong to training data, where input_ids hold the answer as "
                      "well; give the prompt alone",
                      where);
        goto out;
    }
    if (expected != NULL && r->tokenizer == NULL) {
        err = az_fail(AZ_EINPUT,
                      "%s: \"completion\" is text to be compared with, which needs a tokenizer; "
                      "model.path holds no tokenizer.json: give data.tokenizer",
                      where);
        goto out;
    }
    AZ_TRY(add_prompt(r, text, expected));
    AZ_TRY(text != NULL ? add_text(r, text, where) : add_ids(r, ids, where));
    err = end_prompt(r, where);
out:
    az_json_close(doc);
    return err;
}

static az_err read_file(reader *r, const char *path)
{
    az_err err;
    char *data = NULL;
    const char *line;
    size_t bytes, n, at = 0;
    az_str where = {0};
    AZ_TRY(az_file_read(&data, &bytes, path));
    for (int64_t number = 1; az_str_next_line(&line, &n, data, bytes, &at); number++) {
        if (az_str_is_blank(line, n))
            continue;
        where.len = 0;
        AZ_TRY(az_str_add(&where, "%s:%lld", path, (long long)number));
        AZ_TRY(add_line(r, line, n, where.s));
    }
    if (r->prompts->n == 0)
        err = az_fail(AZ_EINPUT, "%s: no prompt in it; " ALLOWED, path);
out:
    az_str_fini(&where);
    az_free(data);
    return err;
}

static az_err read_all(reader *r)
{
    az_err err;
    if (r->options->opt_file != NULL)
        return read_file(r, r->options->opt_file);
    AZ_TRY(add_prompt(r, r->options->opt_text, NULL));
    AZ_TRY(add_text(r, r->options->opt_text, "generate.prompt"));
    err = end_prompt(r, "generate.prompt");
out:
    return err;
}

/* Rank 0's ids to all. */
static az_err share(az_prompts *prompts, az_ids *ids, az_comm *comm)
{
    az_err err = AZ_OK;
    int64_t sizes[3] = {prompts->n, (int64_t)ids->n, prompts->n_expected};
    az_comm_bcast(comm, sizes, sizeof sizes, 0);
    prompts->n = sizes[0];
    prompts->n_expected = sizes[2];
    AZ_TRY(AZ_NEW(prompts->ids, (size_t)sizes[1], "prompts"));
    if (az_comm_rank(comm) == 0)
        memcpy(prompts->ids, ids->v, ids->n * sizeof *ids->v);
    else
        AZ_TRY(AZ_NEW(prompts->start, (size_t)sizes[0] + 1, "prompts"));
out:
    err = az_comm_agree(comm, err);
    if (err == AZ_OK) {
        az_comm_bcast(comm, prompts->start, ((size_t)sizes[0] + 1) * sizeof *prompts->start, 0);
        az_comm_bcast(comm, prompts->ids, (size_t)sizes[1] * sizeof *prompts->ids, 0);
    }
    return err;
}

az_err az_prompts_load(az_prompts *prompts, const az_prompts_options *options,
                       az_tokenizer *opt_tokenizer, az_comm *comm)
{
    az_err err = AZ_OK;
    reader r = {.prompts = prompts, .options = options, .tokenizer = opt_tokenizer};
    if (az_comm_rank(comm) == 0)
        err = read_all(&r);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(share(prompts, &r.ids, comm));
out:
    az_ids_fini(&r.ids);
    if (err != AZ_OK)
        az_prompts_fini(prompts);
    return err;
}

void az_prompts_fini(az_prompts *prompts)
{
    for (int64_t i = 0; i < prompts->n; i++) {
        if (prompts->text != NULL)
            az_free(prompts->text[i]);
        if (prompts->expected != NULL)
            az_free(prompts->expected[i]);
    }
    az_free(prompts->text);
    az_free(prompts->expected);
    az_free(prompts->start);
    az_free(prompts->ids);
    *prompts = (az_prompts){0};
}
