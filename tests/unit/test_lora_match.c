/* lora: the same modules, ranks and scales as PEFT, for the cases of tests/golden/lora_match.json
 * (make_lora_match.py beside it); each adapter is also written and read again.
 *
 *   test_lora_match [CASES [DIR]]   other cases; the adapter of case i is left in DIR/i */
#include <config.h>

#include <math.h>

#include "store/json.h"
#include "tests/unit/lora_util.h"

static const char *cases_path, *keep_dir;

static az_err create(az_peft_config *config, az_lora *lora, const char *dir)
{
    az_err err;
    *config = (az_peft_config){0};
    *lora = (az_lora){0};
    AZ_TRY(az_peft_read_config(config, dir));
    AZ_TRY(az_lora_create(lora, config, linears, N_LINEARS, "q_proj, v_proj"));
out:
    return err;
}

/* The A of all pairs of one input, then their B, without gaps. */
static void check_places(const az_lora *lora)
{
    int64_t off = 0;
    for (int k = 0; k < lora->n_pairs;) {
        const az_linear *first = &linears[lora->pairs[k].linear];
        int end = k;
        for (; end < lora->n_pairs; end++) {
            const az_pair *p = &lora->pairs[end];
            const az_linear *x = &linears[p->linear];
            if (x->layer != first->layer || x->input != first->input)
                break;
            assert_int_equal(p->a_off, off);
            off += p->R * x->in;
        }
        for (; k < end; k++) {
            assert_int_equal(lora->pairs[k].b_off, off);
            off += lora->pairs[k].R * linears[lora->pairs[k].linear].out;
        }
    }
    assert_int_equal(lora->n_elements, off);
}

static int compare(const az_lora *lora, const az_json *c, size_t number, const char *json)
{
    const char *map = az_json_string(az_json_member(c, "map"), NULL);
    const az_json *kinds = az_json_member(c, "kinds");
    int n_pairs = 0, n_wrong = 0;
    assert_int_equal(strlen(map), N_LINEARS);
    for (int i = 0; i < N_LINEARS; i++) {
        const az_pair *p = lora->pair_of[i] >= 0 ? &lora->pairs[lora->pair_of[i]] : NULL;
        double r = 0, alpha = 0, scale = 0;
        if (map[i] != '.') {
            const az_json *kind = az_json_at(kinds, (size_t)(map[i] - 'a'));
            r = az_json_real(az_json_at(kind, 0));
            alpha = az_json_real(az_json_at(kind, 1));
            scale = az_json_real(az_json_at(kind, 2));
            n_pairs++;
        }
        bool same = p == NULL ? r == 0
                              : (double)p->R == r && p->alpha == alpha &&
                                    fabs(p->scale - scale) <= 1e-15 * fabs(scale);
        if (!same) {
            print_error("case %zu, %s: %s: r %lld, alpha %g; PEFT: r %g, alpha %g\n", number, json,
                        linears[i].path, p != NULL ? (long long)p->R : 0, p != NULL ? p->alpha : 0,
                        r, alpha);
            n_wrong++;
        }
        if (p == NULL)
            continue;
        assert_int_equal(p->linear, i);
    }
    assert_int_equal(lora->n_pairs, n_pairs);
    check_places(lora);
    return n_wrong;
}

static void write_again(const az_lora *lora, const az_peft_config *config, size_t number)
{
    char dir[700];
    float *flat = az_alloc((size_t)lora->n_elements, sizeof *flat, "test");
    assert_non_null(flat);
    az_lora_fill(flat, lora, config, 1, 0, lora->n_elements);
    if (keep_dir != NULL)
        snprintf(dir, sizeof dir, "%s/%zu", keep_dir, number);
    else
        snprintf(dir, sizeof dir, "%s", tmp_path("written"));
    if (az_lora_write(flat, lora, config, AZ_F32, dir) != AZ_OK)
        fail_msg("case %zu: %s", number, az_err_message());
    az_free(flat);
}

static void test_cases(void **state)
{
    (void)state;
    az_json_doc *doc;
    if (az_json_load(&doc, cases_path) != AZ_OK)
        fail_msg("%s", az_err_message());
    assert_int_equal(az_json_int(az_json_member(az_json_root(doc), "layers")), LAYERS);
    const az_json *cases = az_json_member(az_json_root(doc), "cases");
    const size_t n = az_json_count(cases);
    int n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const az_json *c = az_json_at(cases, i), *refused = az_json_member(c, "refused");
        const char *json = az_json_string(az_json_member(c, "config"), NULL);
        az_peft_config config;
        az_lora lora;
        az_err err = create(&config, &lora, put_config("case", json));
        if ((err != AZ_OK) != (refused != NULL)) {
            print_error("case %zu, %s: PEFT: %s, adze: \"%s\"\n", i, json,
                        refused != NULL ? az_json_string(refused, NULL) : "adapted",
                        az_err_message());
            n_wrong++;
        } else if (err == AZ_OK) {
            n_wrong += compare(&lora, c, i, json);
            write_again(&lora, &config, i);
        } else {
            assert_int_equal(err, AZ_EINPUT);
        }
        az_err_clear();
        az_lora_fini(&lora);
        az_peft_config_fini(&config);
    }
    assert_true(n >= 100);
    assert_int_equal(n_wrong, 0);
    az_json_close(doc);
}

#define WHERE "the modules are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, in "

static void test_messages(void **state)
{
    (void)state;
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\", \"vproj\"]}",
                   "lora: 3 faults:\n"
                   "  target_modules: \"vproj\" matches no module; did you mean \"v_proj\"?\n"
                   "  " WHERE "paths like model.layers.0.self_attn.q_proj up to "
                   "model.layers.10.mlp.down_proj\n"
                   "  this family's default is q_proj, v_proj");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"query_key_value\"]}",
                   "target_modules: \"query_key_value\" matches no module\n  " WHERE);
    expect_refused(
        "{\"peft_type\": \"LORA\", \"target_modules\": [\"12.mlp.up_proj\"]}",
        "target_modules: \"12.mlp.up_proj\" matches no module; did you mean \"up_proj\"?");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"all-linear\"]}",
                   "target_modules: \"all-linear\" must stand alone, not in a list");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \"q_proj\"}",
                   "target_modules: \"q_proj\" matches no module: one string must match the whole "
                   "path; for names or ends of names give a list\n  " WHERE);
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \".*(q|v_proj\"}",
                   "target_modules: regular expression \".*(q|v_proj\": missing closing "
                   "parenthesis at offset 11");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \".*\\\\h_proj\"}",
                   "target_modules: regular expression \".*\\h_proj\": \"\\h\" at offset 2 is not "
                   "Python's");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \"(?<a>q)\"}",
                   "\"(?<\" at offset 0 is not Python's");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \"(*FAIL)\"}",
                   "\"(*F\" at offset 0 is not Python's");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": \"[[:alpha:]]\"}",
                   "\"[:\" at offset 1 is not Python's");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], "
                   "\"exclude_modules\": [\"qproj\"]}",
                   "exclude_modules: \"qproj\" matches no module; did you mean \"q_proj\"?");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], "
                   "\"exclude_modules\": [\"self_attn.q_proj\"]}",
                   "lora: exclude_modules: leaves none of the 11 modules that target_modules "
                   "matches");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], "
                   "\"layers_to_transform\": [3, 11]}",
                   "layers_to_transform: 11 is the layer of no targeted module");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], "
                   "\"layers_to_transform\": [3], \"layers_pattern\": [\"layers\", \"h\"]}",
                   "layers_pattern: \"h\" stands before the layer's number in no targeted module");
    expect_refused("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], "
                   "\"rank_pattern\": {\"^q_proj\": 4}, \"alpha_pattern\": {\"k_proj\": 4}}",
                   "rank_pattern: \"^q_proj\" matches no adapted module\n"
                   "  alpha_pattern: \"k_proj\" matches no adapted module\n  " WHERE);
}

/* What a deck can say and a file cannot. */
static void test_values(void **state)
{
    (void)state;
    az_peft_config c;
    az_lora lora;
    assert_int_equal(az_peft_config_init(&c), AZ_OK);
    c.r = 0;
    expect_failure(az_lora_create(&lora, &c, linears, N_LINEARS, "q_proj, v_proj"), AZ_EINPUT,
                   "lora: r: found 0, expected 1 to 65536");
    c.r = 8;
    assert_int_equal(az_pattern_add(&c.rank_pattern, "q_proj", 2.5), AZ_OK);
    expect_failure(
        az_lora_create(&lora, &c, linears, N_LINEARS, "q_proj, v_proj"), AZ_EINPUT,
        "lora: rank_pattern: \"q_proj\": found 2.5, expected an integer from 1 to 65536");
    c.rank_pattern.values[0] = 2;
    assert_int_equal(az_pattern_add(&c.alpha_pattern, "v_proj", NAN), AZ_OK);
    expect_failure(az_lora_create(&lora, &c, linears, N_LINEARS, "q_proj, v_proj"), AZ_EINPUT,
                   "lora: alpha_pattern: \"v_proj\": found nan, expected a number");
    az_pattern_fini(&c.alpha_pattern);
    assert_int_equal(az_list_add(&c.layers_pattern, "layers"), AZ_OK);
    expect_failure(az_lora_create(&lora, &c, linears, N_LINEARS, "q_proj, v_proj"), AZ_EINPUT,
                   "lora: layers_pattern: means nothing without layers_to_transform");
    az_peft_config_fini(&c);
}

static az_err create_once(void *context)
{
    az_lora lora;
    az_err err = az_lora_create(&lora, context, linears, N_LINEARS, "q_proj, v_proj");
    az_lora_fini(&lora);
    return err;
}

static void test_memory(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"layers_to_transform\": [3], "
        "\"layers_pattern\": [\"layers\"], \"rank_pattern\": {\"q_proj\": 4}, "
        "\"exclude_modules\": [\"4.self_attn.q_proj\"]}",
        "{\"peft_type\": \"LORA\", \"target_modules\": \".*[qk]_proj\", "
        "\"exclude_modules\": \".*10.*\", \"alpha_pattern\": {\".*k_proj\": 4}}",
        "{\"peft_type\": \"LORA\"}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        az_peft_config config;
        read_config(&config, configs[i]);
        try_all_allocations(create_once, &config);
        az_peft_config_fini(&config);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_memory),
    };
    char path[1000];
    const char *srcdir = getenv("srcdir");
    snprintf(path, sizeof path, "%s/tests/golden/lora_match.json", srcdir != NULL ? srcdir : ".");
    cases_path = argc > 1 ? argv[1] : path;
    keep_dir = argc > 2 ? argv[2] : NULL;
    make_linears();
    int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
