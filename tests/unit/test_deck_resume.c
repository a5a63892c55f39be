/* Decks compared with the one that a run was begun with: values, not texts; what is named; decks of
 * other versions. */
#include <config.h>

#include "deck_fixture.h"

#include "deck/deck_priv.h"

#define M "model: {path: m}\n"
#define HEAD                                                                          \
    "c.h5: was made with other values of keys that must stay the same when a run is " \
    "resumed:\n  "
#define TAIL "\nGive the earlier values, or start anew: checkpoint.resume=no and another output.dir"

typedef struct {
    const char *then, *now, *arg;
    const char *differences; /* NULL: none */
} comparison;

/* Decks of this version: the earlier one as az_deck_write wrote it. */
static const comparison cases[] = {
    {M, M, NULL, NULL},
    /* values, not texts */
    {M "train: {learning_rate: 1e-3}\n", M "train: {learning_rate: 0.001}\n", NULL, NULL},
    {M "lora: {r: 8}\n", M, NULL, NULL},
    {M, M, "lora.lora_alpha=8.0", NULL},
    {M "lora: {target_modules: [q_proj, v_proj]}\n", M, "lora.target_modules=[v_proj, q_proj]",
     NULL},
    {M "lora: {target_modules: [a], layers_to_transform: 1, layers_pattern: h}\n",
     M "lora: {target_modules: [a, a], layers_to_transform: [1], layers_pattern: [h]}\n", NULL,
     NULL},
    {M "lora: {rank_pattern: {a: 1, b: 2}}\n", M "lora: {rank_pattern: {'a': 1, b: 2}}\n", NULL,
     NULL},
    /* what is free */
    {"model: {path: a}\ndata: {files: x, tokenizer: y}\nlora: {init_from: a}\n"
     "train: {max_steps: 3}\noutput: {dir: o}\nrun: {threads: 2}\neval: {file: e}\n",
     "model: {path: b}\ndata: {files: [y, z]}\nlora: {init_from: b}\n"
     "train: {num_train_epochs: 4}\noutput: {dir: p}\neval: {file: [f], steps: 2}\n"
     "checkpoint: {save_steps: 3, keep_best: false}\n",
     NULL, NULL},
    {M, M "eval: {file: e}\n", NULL, NULL},
    {M "train: {micro_batch_size: 2}\n", M "train: {micro_batch_tokens: 64}\n", NULL, NULL},
    /* what is not */
    {M "train: {learning_rate: 0.001}\n", M "train:\n  learning_rate: 2e-3\n", NULL,
     "train.learning_rate: 0.001 then, 0.002 now (d.yaml:3)"},
    {M "train: {learning_rate: 0.001}\n", M, NULL,
     "train.learning_rate: 0.001 then, 0.0001 now (the default)"},
    {M, M "data: {shuffle: false, max_length: 4}\n", "train.seed=1",
     "data.max_length: 2048 then, 4 now (d.yaml:2)\n"
     "  data.shuffle: true then, false now (d.yaml:2)\n"
     "  train.seed: 42 then, 1 now (argument train.seed=1)"},
    {M "train: {lr_scheduler_type: cosine}\n", M, NULL,
     "train.lr_scheduler_type: cosine then, linear now (the default)"},
    {M, M "lora: {target_modules: [a]}\n", NULL,
     "lora.target_modules: not given then, [\"a\"] now (d.yaml:2)"},
    {M "lora: {target_modules: [a, b]}\n", M "lora: {target_modules: [a]}\n", NULL,
     "lora.target_modules: [\"a\", \"b\"] then, [\"a\"] now (d.yaml:2)"},
    {M "lora: {target_modules: [a]}\n", M "lora: {target_modules: [a, b]}\n", NULL,
     "lora.target_modules: [\"a\"] then, [\"a\", \"b\"] now (d.yaml:2)"},
    {M "lora: {target_modules: [a]}\n", M "lora: {target_modules: a}\n", NULL,
     "lora.target_modules: [\"a\"] then, \"a\" now (d.yaml:2)"},
    {M "lora: {target_modules: all-linear}\n", M, NULL,
     "lora.target_modules: \"all-linear\" then, not given now"},
    {M "lora: {target_modules: [a], layers_to_transform: [1, 2]}\n",
     M "lora: {target_modules: [a], layers_to_transform: [1, 3]}\n", NULL,
     "lora.layers_to_transform: [1, 2] then, [1, 3] now (d.yaml:2)"},
    {M "lora: {rank_pattern: {a: 1, b: 2}}\n", M "lora: {rank_pattern: {b: 2, a: 1}}\n", NULL,
     "lora.rank_pattern: {\"a\": 1, \"b\": 2} then, {\"b\": 2, \"a\": 1} now (d.yaml:2)"},
    {M "lora: {alpha_pattern: {a: 1}}\n", M "lora: {alpha_pattern: {a: 1.5}}\n", NULL,
     "lora.alpha_pattern: {\"a\": 1} then, {\"a\": 1.5} now (d.yaml:2)"},
    /* keys that exclude each other */
    {M "train: {warmup_steps: 3}\n", M "train: {warmup_ratio: 0.1}\n", NULL,
     "train.warmup_steps: 3 then, train.warmup_ratio: 0.1 now (d.yaml:2)"},
    {M "train: {warmup_ratio: 0.1}\n", M, NULL,
     "train.warmup_ratio: 0.1 then, train.warmup_steps: 0 now (the default)"},
    {M "train: {warmup_ratio: 0.1}\n", M "train: {warmup_ratio: 0.2}\n", NULL,
     "train.warmup_ratio: 0.1 then, 0.2 now (d.yaml:2)"},
    {M "eval: {split: 0.1}\n", M, NULL, "eval.split: 0.1 then, not given now"},
    {M, M "eval: {split: 0.1}\n", NULL, "eval.split: not given then, 0.1 now (d.yaml:2)"},
    {M "eval: {split: 0.1}\n", M "eval: {file: /e}\n", NULL,
     "eval.split: 0.1 then, eval.file: [\"/e\"] now (d.yaml:2)"},
    {M "eval: {file: /e}\n", M "eval: {split: 0.1}\n", NULL,
     "eval.file: [\"/e\"] then, eval.split: 0.1 now (d.yaml:2)"},
    /* an adapter that says the keys of lora */
    {M "lora: {init_from: /a}\n", M "lora: {r: 4}\n", NULL,
     "lora.init_from: \"/a\" then, not given now"},
    {M "lora: {r: 4, lora_dropout: 0.1}\n", M "lora: {init_from: /a}\n", NULL,
     "lora.init_from: not given then, \"/a\" now (d.yaml:2)"},
    {M "lora: {init_from: a, lora_dropout: 0.1}\n", M "lora: {init_from: b, lora_dropout: .1}\n",
     NULL, NULL},
    {M "lora: {init_from: a, lora_dropout: 0.1}\n", M "lora: {init_from: b}\n", NULL,
     "lora.lora_dropout: 0.1 then, not given now"},
};

/* Texts of other versions, spoilt texts. */
static const comparison texts[] = {
    {"model:\n  path: \"/m\"\n", M, NULL, NULL}, /* keys that came later: as by default */
    {"", M, NULL, "?c.h5: the deck in it cannot be read: it has no sections"},
    {"[a]", M, NULL, "?c.h5: the deck in it cannot be read: it has no sections"},
    {"train: {", M, NULL,
     "?c.h5: the deck in it cannot be read:\nc.h5:2: not valid YAML: did not find expected node "
     "content (while parsing a flow node that begins on line 2)"},
    {"train:\n  seed: 1\n", M, NULL, "train.seed: 1 then, 42 now (the default)"},
    {"train:\n  noise: null\nfuture:\n", M, NULL, NULL},
    {"output:\n  colour: red\ncheckpoint:\n  speed: [1]\nrun: 3\n", M, NULL, NULL},
    {"train:\n  noise: 0.5\nfuture:\n  a: 1\n  b: null\n", M, NULL,
     "train.noise: 0.5 then, a key that this version of adze does not have\n"
     "  future.a: 1 then, a key that this version of adze does not have"},
    {"train:\n  lr_scheduler_type: sqrt\n  logging_steps: often\n", M, NULL,
     "train.lr_scheduler_type: sqrt then, which this version of adze does not take; linear now "
     "(the default)"},
};

static bool check(const comparison *k, const char *text)
{
    const char *args[] = {k->arg, NULL};
    az_deck *now = NULL;
    az_str expected = {0};
    assert_int_equal(deck_open_at(&now, "d.yaml", k->now, args), AZ_OK);
    const char *d = k->differences;
    if (d != NULL)
        assert_int_equal(d[0] == '?' ? az_str_add(&expected, "%s", d + 1)
                                     : az_str_add(&expected, "%s%s%s", HEAD, d, TAIL),
                         AZ_OK);
    const size_t blocks = az_mem_get_total().blocks;
    az_err err = az_deck_check_resume(now, text, "c.h5");
    assert_int_equal(az_mem_get_total().blocks, blocks);
    bool right =
        d == NULL ? err == AZ_OK : err == AZ_EINPUT && strcmp(az_err_message(), expected.s) == 0;
    if (!right)
        print_error("then:\n%s\nnow:\n%s code %d\n%s\nexpected:\n%s\n", text, k->now, err,
                    az_err_message(), d != NULL ? expected.s : "no difference");
    az_err_clear();
    az_str_fini(&expected);
    az_deck_close(now);
    return right;
}

static void decks_of_this_version(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        az_deck *then = NULL;
        az_str text = {0};
        az_err_clear();
        if (deck_open_at(&then, "d.yaml", cases[i].then, NULL) != AZ_OK)
            fail_msg("%s", az_err_message());
        assert_int_equal(az_deck_write(&text, then), AZ_OK);
        failed += !check(&cases[i], text.s);
        az_str_fini(&text);
        az_deck_close(then);
    }
    assert_int_equal(failed, 0);
}

static void texts_of_other_versions(void **state)
{
    (void)state;
    int failed = 0;
    az_err_clear();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        failed += !check(&texts[i], texts[i].then);
    assert_int_equal(failed, 0);
}

/* A value of every type that is fixed, and no fixed path: what a path leads to is compared instead.
 */
static void fixed_keys_are_comparable(void **state)
{
    (void)state;
    for (int i = 0; i < az_n_keys; i++) {
        const az_type t = az_keys[i].type;
        if (!az_keys[i].resume)
            assert_true(t != AZ_TYPE_PATH && t != AZ_TYPE_PATHS && t != AZ_TYPE_CHOICE_OR_PATH);
        if (strncmp(az_keys[i].name, "checkpoint.", 11) == 0)
            assert_true(az_keys[i].resume);
    }
}

static void no_memory(void **state)
{
    (void)state;
    const comparison *k = &cases[13];
    az_deck *now = NULL, *then = NULL;
    az_str text = {0};
    az_err_clear();
    assert_int_equal(deck_open_at(&then, "d.yaml", M "train: {warmup_steps: 3, seed: 4}\n", NULL),
                     AZ_OK);
    assert_int_equal(az_deck_write(&text, then), AZ_OK);
    assert_int_equal(deck_open_at(&now, "d.yaml", k->now, NULL), AZ_OK);
    const size_t blocks = az_mem_get_total().blocks;
    for (long n = 0;; n++) {
        az_err_clear();
        az_mem_set_fault(n);
        az_err err = az_deck_check_resume(now, text.s, "c.h5");
        az_mem_set_fault(-1);
        assert_int_equal(az_mem_get_total().blocks, blocks);
        if (err == AZ_EINPUT)
            break;
        assert_int_equal(err, AZ_EENV);
        assert_true(n < 5000);
    }
    az_err_clear();
    az_str_fini(&text);
    az_deck_close(now);
    az_deck_close(then);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decks_of_this_version),
        cmocka_unit_test(texts_of_other_versions),
        cmocka_unit_test(fixed_keys_are_comparable),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("deck resume", tests, deck_setup, deck_teardown) != 0;
}
