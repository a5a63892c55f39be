/* data: what becomes of lines: ids, labels, counts, refusals. */
#include <config.h>

#include "tests/unit/data_stub.h"
#include "tests/unit/store_util.h"

static az_comm *comm;
static az_tokenizer tokenizer;

static az_err load_with(az_dataset *set, const char *text, const az_data_options *options)
{
    const char *path = tmp_path("rows.jsonl");
    put_text(path, text);
    return az_data_load(set, &path, 1, &tokenizer, options, comm);
}

/* One sample: its ids and labels, both ending in -1; -1 alone: dropped. */
static void expect_row(const char *line, const az_data_options *options, const int32_t *ids,
                       const int32_t *labels)
{
    az_dataset set;
    az_err err = load_with(&set, line, options);
    if (err != AZ_OK)
        fail_msg("%s: %s", line, az_err_message());
    assert_int_equal(set.n, 1);
    int64_t n = 0, targets = 0;
    for (; ids[n] >= 0; n++) {
        assert_true(n < set.n_tokens);
        if (set.ids[n] != ids[n] || set.labels[n] != labels[n])
            fail_msg("%s: token %d is %d, label %d; expected %d, label %d", line, (int)n,
                     set.ids[n], set.labels[n], ids[n], labels[n]);
        targets += n > 0 && labels[n] != AZ_NO_LABEL;
    }
    assert_int_equal(set.n_tokens, n);
    assert_int_equal(set.start[0], 0);
    assert_int_equal(set.start[1], n);
    assert_int_equal(set.targets[0], targets);
    assert_int_equal(set.n_targets, targets);
    assert_int_equal(set.longest, n);
    az_data_fini(&set);
}

#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})
#define M AZ_NO_LABEL

static void test_text(void **state)
{
    (void)state;
    az_data_options o = stub_options;
    expect_row("{\"text\": \"hi\"}\n", &o, IDS('h', 'i', STUB_EOS), IDS('h', 'i', STUB_EOS));
    /* A text that ends its sequence itself gets no second end, and its own is trained. */
    expect_row("{\"text\": \"hi|\"}", &o, IDS('h', 'i', STUB_EOS), IDS('h', 'i', STUB_EOS));
    expect_row("{\"text\": \"h\\u00e9\"}\n", &o, IDS('h', 0xc3, 0xa9, STUB_EOS),
               IDS('h', 0xc3, 0xa9, STUB_EOS));
    expect_row("{\"id\": 7, \"text\": \"hi\", \"meta\": {\"text\": 1}}\n", &o,
               IDS('h', 'i', STUB_EOS), IDS('h', 'i', STUB_EOS));
    o.add_eos = false;
    expect_row("{\"text\": \"hi\"}\n", &o, IDS('h', 'i'), IDS('h', 'i'));
    o.add_bos = true;
    expect_row("{\"text\": \"hi\"}\n", &o, IDS(STUB_BOS, 'h', 'i'), IDS(STUB_BOS, 'h', 'i'));
    expect_row("{\"text\": \"^hi\"}\n", &o, IDS(STUB_BOS, 'h', 'i'), IDS(STUB_BOS, 'h', 'i'));
    o.add_eos = true; /* once, and what the post-processor puts behind is left out */
    expect_row("{\"text\": \"hi\"}\n", &o, IDS(STUB_BOS, 'h', 'i', STUB_EOS),
               IDS(STUB_BOS, 'h', 'i', STUB_EOS));
}

static void test_prompt(void **state)
{
    (void)state;
    az_data_options o = stub_options;
    expect_row("{\"prompt\": \"x\", \"completion\": \"yz\"}\n", &o, IDS('x', 'y', 'z', STUB_EOS),
               IDS(M, 'y', 'z', STUB_EOS));
    /* No token over the seam. */
    expect_row("{\"completion\": \"by\", \"prompt\": \"xa\"}\n", &o,
               IDS('x', 'a', 'b', 'y', STUB_EOS), IDS(M, M, 'b', 'y', STUB_EOS));
    expect_row("{\"prompt\": \"xab\", \"completion\": \"ab|\"}\n", &o,
               IDS('x', STUB_AB, STUB_AB, STUB_EOS), IDS(M, M, STUB_AB, STUB_EOS));
    /* An end inside the prompt is no end of the completion. */
    expect_row("{\"prompt\": \"x|\", \"completion\": \"\"}\n", &o, IDS('x', STUB_EOS, STUB_EOS),
               IDS(M, M, STUB_EOS));
    o.add_bos = true;
    expect_row("{\"prompt\": \"x\", \"completion\": \"y\"}\n", &o,
               IDS(STUB_BOS, 'x', 'y', STUB_EOS), IDS(M, M, 'y', STUB_EOS));
    expect_row("{\"prompt\": \"\", \"completion\": \"y\"}\n", &o, IDS(STUB_BOS, 'y', STUB_EOS),
               IDS(M, 'y', STUB_EOS));
}

static void test_input_ids(void **state)
{
    (void)state;
    az_data_options o = stub_options;
    expect_row("{\"input_ids\": [5, 6, 7]}\n", &o, IDS(5, 6, 7), IDS(5, 6, 7));
    expect_row("{\"input_ids\": [5, 6, 259], \"labels\": [-100, -100, 8]}\n", &o, IDS(5, 6, 259),
               IDS(M, M, 8));
    expect_row("{\"text\": null, \"input_ids\": [5, 6], \"labels\": null}\n", &o, IDS(5, 6),
               IDS(5, 6));
    az_dataset set;
    const char *path = tmp_path("ids.jsonl");
    put_text(path, "{\"input_ids\": [1, 2]}\n");
    assert_int_equal(az_data_load(&set, &path, 1, NULL, &o, comm), AZ_OK); /* no tokenizer */
    az_data_fini(&set);
}

static void test_lines(void **state)
{
    (void)state;
    az_dataset set;
    assert_int_equal(load_with(&set,
                               "\xef\xbb\xbf{\"text\": \"a\"}\r\n"
                               "\n  \t\r\n"
                               "  {\"text\": \"c\"}  \n"
                               "\r\n"
                               "{\"text\": \"d\"}",
                               &stub_options),
                     AZ_OK);
    assert_int_equal(set.n, 3);
    assert_int_equal(set.ids[0], 'a');
    assert_int_equal(set.ids[2], 'c');
    assert_int_equal(set.ids[4], 'd');
    assert_int_equal(set.n_tokens, 6);
    az_data_fini(&set);
    const char *files[] = {tmp_path("1.jsonl"), tmp_path("2.jsonl")};
    put_text(files[0], "{\"text\": \"a\"}");
    put_text(files[1], "\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    assert_int_equal(az_data_load(&set, files, 2, &tokenizer, &stub_options, comm), AZ_OK);
    assert_int_equal(set.n, 3);
    assert_int_equal(set.ids[set.start[2]], 'c');
    az_data_fini(&set);
    put_text(files[1], "\n{\"text\": \"b\"}\n{\"text\": 1}\n");
    expect_failure(az_data_load(&set, files, 2, &tokenizer, &stub_options, comm), AZ_EINPUT,
                   "2.jsonl:3: text: found an integer, expected a string");
}

static void test_long(void **state)
{
    (void)state;
    az_dataset set;
    az_data_options o = stub_options;
    const char *text = "{\"text\": \"123456789\"}\n"                          /* 10 with its end */
                       "{\"text\": \"12345678\"}\n"                           /* 9 */
                       "{\"prompt\": \"123456789\", \"completion\": \"x\"}\n" /* 11 */
                       "{\"prompt\": \"12345678\", \"completion\": \"x\"}\n"  /* 10 */
                       "{\"text\": \"\"}\n"                                   /* the end alone */
                       "{\"input_ids\": []}\n"
                       "{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n";
    o.max_length = 9;
    assert_int_equal(load_with(&set, text, &o), AZ_OK);
    assert_int_equal(set.n, 3);
    assert_int_equal(set.n_cut, 2);
    assert_int_equal(set.n_dropped_long, 0);
    assert_int_equal(set.n_dropped_empty, 4);
    assert_int_equal(set.longest, 9);
    assert_int_equal(set.n_tokens, 27);
    assert_int_equal(set.n_targets, 8 + 8 + 1);
    assert_int_equal(set.ids[8], '9');
    assert_int_equal(set.ids[17], STUB_EOS);
    az_data_fini(&set);
    o.drop_long = true;
    assert_int_equal(load_with(&set, text, &o), AZ_OK);
    assert_int_equal(set.n, 1);
    assert_int_equal(set.n_cut, 0);
    assert_int_equal(set.n_dropped_long, 3);
    assert_int_equal(set.n_dropped_empty, 3);
    az_data_fini(&set);
    o.max_length = 2;
    expect_failure(load_with(&set, "{\"text\": \"12\"}\n{\"text\": \"\"}\n", &o), AZ_EINPUT,
                   "rows.jsonl: no sample is left: 1 without a target token (within the "
                   "first 2 tokens), 1 longer than data.max_length");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"text\": 5}", ":2: text: found an integer, expected a string"},
        {"{\"text\": null}", ":2: found \"text\"; "},
        {"{\"prompt\": [1], \"completion\": \"x\"}",
         ":2: prompt: found an array, expected a string"},
        {"{\"prompt\": \"x\", \"completion\": 1.5}",
         ":2: completion: found a number, expected a string"},
        {"{\"input_ids\": \"1 2\"}",
         ":2: input_ids: found a string, expected an array of token ids"},
        {"{\"input_ids\": [1, 2.0]}", ":2: input_ids[1]: found a number, expected an integer"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, null]}",
         ":2: labels[1]: found null, expected an integer"},
        {"{\"input_ids\": [1, 260]}",
         ":2: input_ids[1] is 260, but the model's embedding has 260 rows: expected an id from 0 "
         "to 259"},
        {"{\"input_ids\": [1, -100]}", ":2: input_ids[1] is -100, but"},
        {"{\"input_ids\": [1, 4294967297]}", ":2: input_ids[1] is 4294967297, but"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -1]}",
         ":2: labels[1] is -1, but the model's embedding has 260 rows: expected an id from 0 to "
         "259, or -100 for no target"},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}",
         ":2: labels has 1 elements, input_ids has 2: expected as many"},
        {"{\"text\": \"hi!\"}",
         ":2: token 2 of the sample has id 1000, but the model's embedding has 260 rows: the "
         "tokenizer does not belong to this model"},
        {"{\"text\": \"x\", \"input_ids\": [1]}",
         ":2: \"text\" and \"input_ids\" in one line; expected \"text\", or \"prompt\" and "
         "\"completion\", or \"input_ids\" and optional \"labels\""},
        {"{\"text\": \"x\", \"completion\": \"y\"}", ":2: \"text\" and \"completion\" in one line"},
        {"{\"text\": \"x\", \"labels\": [1]}", ":2: \"text\" and \"labels\" in one line"},
        {"{\"prompt\": \"x\"}", ":2: \"prompt\" without \"completion\"; expected"},
        {"{\"completion\": \"x\"}", ":2: \"completion\" without \"prompt\"; expected"},
        {"{\"labels\": [1]}", ":2: \"labels\" without \"input_ids\"; expected"},
        {"{\"messages\": [], \"id\": 1}", ":2: found \"messages\", \"id\"; expected \"text\", or"},
        {"{}", ":2: found an object without members; expected"},
        {"[1]", ":2: found an array; expected one JSON object a line"},
        {"\"x\"", ":2: found a string; expected one JSON object a line"},
        {"{\"text\": \"x\"", ":2: not valid JSON: column "},
        {"{\"text\": \"x\"} {}", ":2: not valid JSON: column "},
        {"{\"text\" \"x\"}", "column 11"},
        {"{\"text\": \"x\", \"text\": \"y\"}", "duplicate"},
        {"{\"text\": \"a~\"}", "rows.jsonl:2: a text with a tilde"},
        {"{\"text\": \"a\\u0000b\"}", "\\u0000"},
        {"{\"text\": \"a\\ud800b\"}", "invalid Unicode"},
        {"{\"text\": \"a\xff\"}", ":2: invalid UTF-8: byte 0xff at offset 11 of the line"},
        {"{\"text\": \"a\xc3\"}", ":2: invalid UTF-8: byte 0xc3 at offset 11 of the line"},
        {"{\"text\": \"\xed\xa0\x80\"}", "byte 0xed at offset 10"},
        {"{\"text\": \"\xc0\xaf\"}", "byte 0xc0 at offset 10"},
        {"{\"text\": \"\xf4\x90\x80\x80\"}", "byte 0xf4 at offset 10"},
        {"{\"text\": \"\xe2\x82", "byte 0xe2 at offset 10"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        az_dataset set;
        char text[400];
        snprintf(text, sizeof text, "{\"text\": \"fine\"}\n%s\n{\"text\": 0}\n", cases[i].line);
        expect_failure(load_with(&set, text, &stub_options), AZ_EINPUT, cases[i].message);
        assert_null(set.start);
    }
}

static void test_files(void **state)
{
    (void)state;
    az_dataset set;
    az_data_options o = stub_options;
    expect_failure(az_data_load(&set, NULL, 0, &tokenizer, &o, comm), AZ_EINPUT,
                   "data.files: no file is given");
    expect_failure(load_with(&set, "", &o), AZ_EINPUT, "rows.jsonl: the file holds no samples (0");
    expect_failure(load_with(&set, "\n \r\n\n", &o), AZ_EINPUT,
                   "rows.jsonl: the file holds no samples (5 bytes)");
    const char *path = tmp_path("none.jsonl");
    expect_failure(az_data_load(&set, &path, 1, &tokenizer, &o, comm), AZ_EINPUT,
                   "none.jsonl: cannot open: No such file");
    path = tmp_path("");
    expect_failure(az_data_load(&set, &path, 1, &tokenizer, &o, comm), AZ_EINPUT,
                   "not a regular file");
    path = tmp_path("rows.jsonl");
    put_text(path, "{\"text\": \"x\"}");
    expect_failure(az_data_load(&set, &path, 1, NULL, &o, comm), AZ_EINPUT,
                   "rows.jsonl:1: \"text\" needs a tokenizer");
    o.eos = -1;
    expect_failure(load_with(&set, "{\"text\": \"x\"}", &o), AZ_EINPUT,
                   "rows.jsonl:1: no end-of-sequence token is known");
    o.add_eos = false;
    assert_int_equal(load_with(&set, "{\"text\": \"xy\"}", &o), AZ_OK);
    az_data_fini(&set);
}

/* A line longer than the pieces that are read. */
static void test_long_line(void **state)
{
    (void)state;
    az_dataset set;
    az_data_options o = stub_options;
    enum { N = 400000 };
    char *text = malloc(N + 64);
    int n = sprintf(text, "{\"text\": \"");
    memset(text + n, 'x', N);
    strcpy(text + n + N, "\"}\n{\"text\": \"y\"}\n");
    o.max_length = N;
    assert_int_equal(load_with(&set, text, &o), AZ_OK);
    assert_int_equal(set.n, 2);
    assert_int_equal(set.n_cut, 1);
    assert_int_equal(set.longest, N);
    az_data_fini(&set);
    free(text);
}

static az_err load_once(void *context)
{
    az_dataset set;
    az_err err = az_data_load(&set, context, 2, &tokenizer, &stub_options, comm);
    az_data_fini(&set);
    return err;
}

static void test_memory(void **state)
{
    (void)state;
    const char *files[] = {tmp_path("1.jsonl"), tmp_path("2.jsonl")};
    put_text(files[0], "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"a longer text\"}");
    put_text(files[1], "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 3]}\n");
    try_all_allocations(load_once, files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),      cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_input_ids), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_long),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_files),     cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_memory),
    };
    if (az_comm_create_self(&comm) != AZ_OK)
        return 99;
    int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
