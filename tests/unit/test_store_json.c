/* JSON: numbers beyond int64, which other programs write for "without limit". */
#include <config.h>

#include "store_util.h"

#include "store/json.h"

#include <math.h>

static az_json_doc *parse(const char *text)
{
    az_json_doc *doc;
    assert_int_equal(az_json_parse(&doc, text, strlen(text), "t"), AZ_OK);
    return doc;
}

static void test_big_integers(void **state)
{
    (void)state;
    az_json_doc *doc = parse(
        "{\"model_max_length\": 1000000000000000019884624838656, \"a\\\"1\": "
        "\"99999999999999999999 \\\\\", \"more\":9223372036854775808,\"less\":-9223372036854775809,"
        "\"e\": 99999999999999999999e-1, \"r\": 12345678901234567890.5, \"n\": [-3, 0, "
        "10000000000000000000]}");
    const az_json *root = az_json_root(doc);
    assert_int_equal(az_json_get_type(az_json_member(root, "model_max_length")), AZ_JSON_REAL);
    assert_true(az_json_real(az_json_member(root, "model_max_length")) == 1e30);
    assert_string_equal(az_json_string(az_json_member(root, "a\"1"), NULL),
                        "99999999999999999999 \\");
    assert_true(az_json_real(az_json_member(root, "more")) == 9223372036854775808.0);
    assert_true(az_json_real(az_json_member(root, "less")) == -9223372036854775808.0);
    assert_true(az_json_real(az_json_member(root, "e")) == 1e19);
    assert_true(az_json_real(az_json_member(root, "r")) == 12345678901234567890.5);
    const az_json *n = az_json_member(root, "n");
    assert_true(az_json_int(az_json_at(n, 0)) == -3 && az_json_int(az_json_at(n, 1)) == 0);
    assert_true(az_json_real(az_json_at(n, 2)) == 1e19);
    int64_t v;
    assert_int_equal(az_json_get_int(&v, doc, root, "model_max_length", 0, 100, 0), AZ_EINPUT);
    assert_string_equal(az_err_message(),
                        "t: model_max_length: found 1e30, expected an integer from 0 to 100");
    az_json_close(doc);
    doc = parse("[9223372036854775807, -9223372036854775808]");
    assert_true(az_json_int(az_json_at(az_json_root(doc), 0)) == INT64_MAX);
    assert_true(az_json_int(az_json_at(az_json_root(doc), 1)) == INT64_MIN);
    az_json_close(doc);
    doc = parse("99999999999999999999");
    assert_true(az_json_real(az_json_root(doc)) == 1e20);
    az_json_close(doc);
    az_err_clear();
}

/* What is wrong beside a big integer is still found, and a real beyond double is refused. */
static void test_refusals(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "[99999999999999999999, ]",      "[1e999]",
        "[99999999999999999999, 1e999]", "[99999999999999999999",
        "[099999999999999999999]",       "{\"a\":\"99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        az_json_doc *doc;
        assert_int_equal(az_json_parse(&doc, bad[i], strlen(bad[i]), "t"), AZ_EINPUT);
        assert_null(doc);
        assert_memory_equal(az_err_message(), "t: not valid JSON: column ", 26);
        az_err_clear();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_big_integers),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
