/* train/prompts: what a file of prompts may say, what it is refused for, with file and line. */
#include <config.h>

#include "tests/unit/store_util.h"
#include "train/generate.h"

static az_comm *self;
static az_tokenizer *tokenizer;

static int set_up(void **state)
{
    char dir[600];
    const char *srcdir = getenv("srcdir");
    snprintf(dir, sizeof dir, "%s/tests/golden/text/llama3", srcdir != NULL ? srcdir : ".");
    return make_tmp_dir(state) != 0 || az_comm_create_self(&self) != AZ_OK ||
           az_text_open(&tokenizer, dir) != AZ_OK;
}

static int tear_down(void **state)
{
    az_text_close(tokenizer);
    az_comm_fini(self);
    return remove_tmp_dir(state) != 0 || az_mem_get_total().blocks != 0;
}

static az_prompts_options options_for(const char *content)
{
    const char *path = tmp_path("prompts.jsonl");
    put_text(path, content);
    return (az_prompts_options){.opt_file = path, .n_rows = 100000, .max_position = 40};
}

static void test_text(void **state)
{
    (void)state;
    az_prompts p = {0};
    az_ids ids = {0};
    const az_prompts_options o = options_for(
        "{\"prompt\": \"Hello world\", \"completion\": \" again\", \"n\": 1}\n"
        "\n"
        "  \t\r\n"
        "{\"input_ids\": [5, 3, 99999]}\r\n"
        "{\"prompt\": \"\\u00e4\", \"completion\": null, \"input_ids\": null, \"labels\": null}");
    assert_int_equal(az_prompts_load(&p, &o, tokenizer, self), AZ_OK);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.n_expected, 1);
    assert_string_equal(p.text[0], "Hello world");
    assert_string_equal(p.expected[0], " again");
    assert_null(p.text[1]);
    assert_null(p.expected[2]);
    assert_int_equal(az_text_encode(&ids, tokenizer, "Hello world", 11, false), AZ_OK);
    assert_int_equal(p.start[1], ids.n);
    assert_memory_equal(p.ids, ids.v, ids.n * sizeof *ids.v);
    assert_int_equal(p.start[2] - p.start[1], 3);
    assert_int_equal(p.ids[p.start[1] + 2], 99999);
    az_ids_fini(&ids);
    az_prompts_fini(&p);
}

static void test_deck_text(void **state)
{
    (void)state;
    az_prompts p = {0};
    az_ids ids = {0};
    az_prompts_options o = {
        .opt_text = "Hello", .add_bos = true, .n_rows = 100000, .max_position = 40};
    assert_int_equal(az_prompts_load(&p, &o, tokenizer, self), AZ_OK);
    assert_int_equal(az_text_encode(&ids, tokenizer, "Hello", 5, true), AZ_OK);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.start[1], ids.n);
    assert_memory_equal(p.ids, ids.v, ids.n * sizeof *ids.v);
    az_ids_fini(&ids);
    az_prompts_fini(&p);
    /* An empty text is a prompt where special tokens are put in front, else nothing. */
    o.opt_text = "";
    assert_int_equal(az_prompts_load(&p, &o, tokenizer, self), AZ_OK);
    assert_true(p.start[1] > 0);
    az_prompts_fini(&p);
    o.add_bos = false;
    expect_failure(az_prompts_load(&p, &o, tokenizer, self), AZ_EINPUT,
                   "generate.prompt: the prompt has no tokens, so there is nothing to continue "
                   "(data.add_bos may put a first token in front)");
    o.opt_text = "x";
    o.n_rows = 1;
    expect_failure(az_prompts_load(&p, &o, tokenizer, self), AZ_EINPUT,
                   "but the model's embedding has 1 rows");
    expect_failure(az_prompts_load(&p, &o, NULL, self), AZ_EINPUT,
                   "generate.prompt: a prompt that is text needs a tokenizer");
}

/* Special tokens go in front, as in training; what the post-processor puts behind ends a text,
 * which a prompt does not. */
static void test_front(void **state)
{
    (void)state;
    char dir[400];
    const char *src = getenv("srcdir");
    az_tokenizer *tok = NULL;
    az_ids whole = {0};
    az_prompts p = {0};
    const az_prompts_options o = {
        .opt_text = "Hello", .add_bos = true, .n_rows = 100000, .max_position = 40};
    snprintf(dir, sizeof dir, "%s/tests/golden/text/gpt2-prefix", src != NULL ? src : ".");
    assert_int_equal(az_text_open(&tok, dir), AZ_OK);
    assert_int_equal(az_text_encode(&whole, tok, "Hello", 5, true), AZ_OK);
    assert_int_equal(whole.v[whole.n - 1], az_text_get_id(tok, "<|im_end|>"));
    assert_int_equal(az_prompts_load(&p, &o, tok, self), AZ_OK);
    assert_int_equal(p.start[1], whole.n - 1);
    assert_memory_equal(p.ids, whole.v, (whole.n - 1) * sizeof *whole.v);
    az_prompts_fini(&p);
    az_ids_fini(&whole);
    az_text_close(tok);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *content, *message;
    } cases[] = {
        {"", "prompts.jsonl: no prompt in it; a line has"},
        {"\n \n", "prompts.jsonl: no prompt in it"},
        {"\xef\xbb\xbf", "prompts.jsonl: no prompt in it"},
        {"{\"text\": \"a\", \"id\": 3}",
         "prompts.jsonl:1: no prompt: found \"text\", \"id\"; a line has \"prompt\" (text) or "
         "\"input_ids\""},
        {"\n{}", "prompts.jsonl:2: no prompt: found nothing; a line has"},
        {"[1]", "prompts.jsonl:1: found an array, expected an object"},
        {"{\"prompt\": \"a\"", "prompts.jsonl:1"},
        {"{\"prompt\": \"a\"}\n{\"prompt\": 7}", "prompts.jsonl:2: prompt: found"},
        {"{\"prompt\": \"a\", \"completion\": [1]}", "prompts.jsonl:1: completion: found"},
        {"{\"prompt\": \"a\", \"input_ids\": [1]}",
         "prompts.jsonl:1: two prompts in one line: found \"prompt\", \"input_ids\""},
        {"{\"input_ids\": [1, 2], \"labels\": [-100, 2]}",
         "prompts.jsonl:1: \"labels\" belong to training data"},
        {"{\"input_ids\": []}", "prompts.jsonl:1: the prompt has no tokens"},
        {"{\"input_ids\": \"12\"}", "prompts.jsonl:1: input_ids: found a string, expected a list"},
        {"{\"input_ids\": [1, 2.5]}", "prompts.jsonl:1: input_ids[1]: found a number"},
        {"{\"input_ids\": [1, -1]}", "prompts.jsonl:1: input_ids[1]: found -1"},
        {"{\"input_ids\": [100000]}",
         "prompts.jsonl:1: input_ids[0]: found 100000, expected an id below the 100000 rows"},
        {"{\"input_ids\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1,1,1]}",
         "prompts.jsonl:1: the prompt has 40 tokens; the model's max_position_embeddings is 40"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        az_prompts p = {0};
        const az_prompts_options o = options_for(cases[i].content);
        expect_failure(az_prompts_load(&p, &o, tokenizer, self), AZ_EINPUT, cases[i].message);
    }
    az_prompts p = {0};
    const az_prompts_options o = options_for("{\"input_ids\": [1], \"completion\": \"a\"}");
    expect_failure(az_prompts_load(&p, &o, NULL, self), AZ_EINPUT,
                   "\"completion\" is text to be compared with, which needs a tokenizer");
    const az_prompts_options none = {.opt_file = tmp_path("none.jsonl"), .n_rows = 10};
    const az_err err = az_prompts_load(&p, &none, NULL, self);
    assert_true(err == AZ_EINPUT || err == AZ_EENV);
    assert_non_null(strstr(az_err_message(), "none.jsonl"));
    az_err_clear();
}

/* Ids need no tokenizer. */
static az_err load_and_drop(void *context)
{
    az_prompts p = {0};
    az_err err = az_prompts_load(&p, context, NULL, self);
    az_prompts_fini(&p);
    return err;
}

static void test_memory(void **state)
{
    (void)state;
    char content[200 * 32] = "";
    for (int i = 0; i < 200; i++) /* more than the arrays have room for at first */
        strcat(content, "{\"input_ids\": [1, 2, 3]}\n");
    az_prompts_options o = options_for(content);
    try_all_allocations(load_and_drop, &o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),   cmocka_unit_test(test_deck_text),
        cmocka_unit_test(test_front),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("train_prompts", tests, set_up, tear_down);
}
