/* Decks: every type of value, defaults, arguments, paths, writing and reading back. */
#include <config.h>

#include "deck_fixture.h"

#include "deck/deck_priv.h"

static az_deck *open_deck(const char *text, const char *const *args)
{
    az_deck *deck = NULL;
    az_err_clear();
    az_err err = deck_open_at(&deck, "d.yaml", text, args);
    if (err != AZ_OK)
        fail_msg("%s", az_err_message());
    return deck;
}

#define MINIMAL "model: {path: m}\n"

static void defaults(void **state)
{
    (void)state;
    az_deck *d = open_deck(MINIMAL, NULL);
    for (int i = 0; i < az_n_keys; i++) {
        assert_int_equal(d->values[i].present, az_keys[i].fallback != NULL || i == 0);
        assert_int_equal(az_deck_has(d, az_keys[i].name), i == 0);
    }
    assert_int_equal(az_deck_int(d, "lora.r"), 8);
    assert_true(az_deck_real(d, "lora.lora_alpha") == 8);
    assert_true(az_deck_real(d, "train.learning_rate") == 1e-4);
    assert_true(az_deck_real(d, "train.adam_epsilon") == 1e-8);
    assert_true(az_deck_real(d, "train.adam_beta2") == 0.999);
    assert_true(az_deck_bool(d, "data.add_eos"));
    assert_false(az_deck_bool(d, "data.add_bos"));
    assert_string_equal(az_deck_string(d, "data.overlong"), "cut");
    assert_string_equal(az_deck_string(d, "lora.init_lora_weights"), "true");
    assert_null(az_deck_string(d, "data.tokenizer"));
    assert_null(az_deck_string(d, "lora.target_modules"));
    assert_int_equal(az_deck_count(d, "data.files"), 0);
    assert_int_equal(az_deck_count(d, "lora.rank_pattern"), 0);
    assert_string_equal(az_deck_path(d), "d.yaml");
    az_deck_close(d);
}

/* Names are unique, in a known section, and sentences end in a full stop. */
static void table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; i < az_n_keys; i++) {
        const az_key *k = &az_keys[i];
        char section[32];
        assert_int_equal(az_key_find(k->name), i);
        snprintf(section, sizeof section, "%.*s", (int)strcspn(k->name, "."), k->name);
        assert_true(az_section_find(section) >= 0);
        assert_non_null(k->text);
        assert_int_equal(k->text[strlen(k->text) - 1], '.');
        assert_true((k->fallback == NULL) == (k->absent != NULL));
        assert_true((k->type == AZ_TYPE_CHOICE || k->type == AZ_TYPE_CHOICE_OR_PATH) ==
                    (k->choices != NULL));
    }
    for (int p = 0; p < az_n_exclusive; p++) {
        assert_true(az_key_find(az_exclusive[p][0]) >= 0);
        assert_true(az_key_find(az_exclusive[p][1]) >= 0);
    }
}

static void every_type(void **state)
{
    (void)state;
    az_deck *d = open_deck("model:\n"
                           "  path: \"my model\"\n"
                           "data:\n"
                           "  files: [a.jsonl, /b/c.jsonl, \"d e\"]\n"
                           "  add_bos: True\n"
                           "  overlong: drop\n"
                           "lora:\n"
                           "  r: +16\n"
                           "  lora_alpha: 1.5e1\n"
                           "  lora_dropout: .05\n"
                           "  target_modules: [q_proj, 'v_proj']\n"
                           "  exclude_modules: '.*\\.0\\..*'\n"
                           "  layers_to_transform: [0, 3]\n"
                           "  layers_pattern: layers\n"
                           "  rank_pattern:\n"
                           "    q_proj: 4\n"
                           "    ^model.layers.1.self_attn.v_proj: 2\n"
                           "  alpha_pattern: {q_proj: 3}\n"
                           "  init_lora_weights: FALSE\n"
                           "train:\n"
                           "  seed: 9223372036854775807\n"
                           "  max_steps: ~\n"
                           "generate:\n"
                           "  prompt: |\n"
                           "    two\n"
                           "    lines\n"
                           "eval:\n",
                           NULL);
    assert_string_equal(az_deck_string(d, "model.path"), "my model");
    assert_int_equal(az_deck_count(d, "data.files"), 3);
    assert_string_equal(az_deck_item(d, "data.files", 0), "a.jsonl");
    assert_string_equal(az_deck_item(d, "data.files", 1), "/b/c.jsonl");
    assert_string_equal(az_deck_item(d, "data.files", 2), "d e");
    assert_true(az_deck_bool(d, "data.add_bos"));
    assert_string_equal(az_deck_string(d, "data.overlong"), "drop");
    assert_int_equal(az_deck_int(d, "lora.r"), 16);
    assert_true(az_deck_real(d, "lora.lora_alpha") == 15);
    assert_true(az_deck_real(d, "lora.lora_dropout") == 0.05);
    assert_true(az_deck_is_list(d, "lora.target_modules"));
    assert_null(az_deck_string(d, "lora.target_modules"));
    assert_int_equal(az_deck_count(d, "lora.target_modules"), 2);
    assert_string_equal(az_deck_item(d, "lora.target_modules", 1), "v_proj");
    assert_false(az_deck_is_list(d, "lora.exclude_modules"));
    assert_string_equal(az_deck_string(d, "lora.exclude_modules"), ".*\\.0\\..*");
    assert_int_equal(az_deck_count(d, "lora.exclude_modules"), 1);
    assert_int_equal(az_deck_count(d, "lora.layers_to_transform"), 2);
    assert_int_equal(az_deck_item_int(d, "lora.layers_to_transform", 1), 3);
    assert_int_equal(az_deck_count(d, "lora.layers_pattern"), 1);
    assert_string_equal(az_deck_item(d, "lora.layers_pattern", 0), "layers");
    assert_int_equal(az_deck_count(d, "lora.rank_pattern"), 2);
    assert_string_equal(az_deck_map_key(d, "lora.rank_pattern", 1),
                        "^model.layers.1.self_attn.v_proj");
    assert_true(az_deck_map_value(d, "lora.rank_pattern", 1) == 2);
    assert_true(az_deck_map_value(d, "lora.alpha_pattern", 0) == 3);
    assert_string_equal(az_deck_string(d, "lora.init_lora_weights"), "false");
    assert_true(az_deck_int(d, "train.seed") == INT64_MAX);
    assert_false(az_deck_has(d, "train.max_steps"));
    assert_string_equal(az_deck_string(d, "generate.prompt"), "two\nlines\n");
    az_deck_close(d);
}

static void a_scalar_is_a_list_of_one(void **state)
{
    (void)state;
    az_deck *d = open_deck(MINIMAL "data: {files: x.jsonl}\n"
                                   "lora: {layers_to_transform: 1, target_modules: [k]}\n",
                           NULL);
    assert_int_equal(az_deck_count(d, "data.files"), 1);
    assert_string_equal(az_deck_item(d, "data.files", 0), "x.jsonl");
    assert_int_equal(az_deck_item_int(d, "lora.layers_to_transform", 0), 1);
    az_deck_close(d);
}

static void arguments_override(void **state)
{
    (void)state;
    const char *more[] = {"lora.r=32", "lora.target_modules=[k_proj]", "train.max_steps=null",
                          "generate.prompt='a, b: c'", NULL};
    az_deck *d = open_deck(MINIMAL "lora: {r: 4, target_modules: all-linear}\n"
                                   "train: {max_steps: 7}\n",
                           more);
    assert_int_equal(az_deck_int(d, "lora.r"), 32);
    assert_true(az_deck_is_list(d, "lora.target_modules"));
    assert_string_equal(az_deck_item(d, "lora.target_modules", 0), "k_proj");
    assert_false(az_deck_has(d, "train.max_steps"));
    assert_string_equal(az_deck_string(d, "generate.prompt"), "a, b: c");
    az_deck_close(d);

    const char *empty[] = {"lora.r=", NULL};
    d = open_deck(MINIMAL "lora: {r: 4}\n", empty);
    assert_int_equal(az_deck_int(d, "lora.r"), 8);
    assert_false(az_deck_has(d, "lora.r"));
    az_deck_close(d);
}

/* An argument takes the key that it excludes out of the deck. */
static void an_argument_wins_over_what_it_excludes(void **state)
{
    (void)state;
    const char *args[] = {"train.micro_batch_tokens=512", "eval.split=0.1", NULL};
    az_deck *d = open_deck(MINIMAL "train: {micro_batch_size: 2}\neval: {file: e}\n", args);
    assert_true(az_deck_has(d, "train.micro_batch_tokens"));
    assert_false(az_deck_has(d, "train.micro_batch_size"));
    assert_false(az_deck_has(d, "eval.file"));
    az_deck_close(d);
}

static void paths_are_relative_to_the_deck(void **state)
{
    (void)state;
    const char *args[] = {"output.dir=out", NULL};
    az_deck *d = NULL;
    az_err_clear();
    assert_int_equal(az_dir_create("sub"), AZ_OK);
    assert_int_equal(
        deck_open_at(&d, "sub/d.yaml",
                     "model: {path: m}\ndata: {files: [x, ~/y, /z], tokenizer: ../t}\n", args),
        AZ_OK);
    assert_string_equal(az_deck_string(d, "model.path"), "sub/m");
    assert_string_equal(az_deck_item(d, "data.files", 0), "sub/x");
    assert_string_equal(az_deck_item(d, "data.files", 1), "sub/~/y");
    assert_string_equal(az_deck_item(d, "data.files", 2), "/z");
    assert_string_equal(az_deck_string(d, "data.tokenizer"), "sub/../t");
    assert_string_equal(az_deck_string(d, "output.dir"), "out");
    az_deck_close(d);
}

/* A word of the key is that word wherever the deck lies; all else is a path. */
static void words_or_a_path(void **state)
{
    (void)state;
    static const struct {
        const char *deck, *arg, *value;
    } cases[] = {
        {"", NULL, "auto"},
        {"checkpoint: {resume: auto}\n", NULL, "auto"},
        {"checkpoint: {resume: no}\n", NULL, "no"},
        {"checkpoint: {resume: 'no'}\n", NULL, "no"},
        {"checkpoint: {resume: ./auto}\n", NULL, "sub/./auto"},
        {"checkpoint: {resume: out/checkpoint-000010.h5}\n", NULL, "sub/out/checkpoint-000010.h5"},
        {"checkpoint: {resume: auto|no}\n", NULL, "sub/auto|no"},
        {"checkpoint: {resume: /c.h5}\n", NULL, "/c.h5"},
        {"checkpoint: {resume: no}\n", "checkpoint.resume=auto", "auto"},
        {"checkpoint: {resume: no}\n", "checkpoint.resume=c.h5", "c.h5"},
        {"checkpoint: {resume: no}\n", "checkpoint.resume=", "auto"},
    };
    az_err_clear();
    assert_int_equal(az_dir_create("sub"), AZ_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *args[] = {cases[i].arg, NULL};
        az_str text = {0};
        az_deck *d = NULL;
        assert_int_equal(az_str_add(&text, "%s%s", MINIMAL, cases[i].deck), AZ_OK);
        assert_int_equal(deck_open_at(&d, "sub/d.yaml", text.s, args), AZ_OK);
        assert_string_equal(az_deck_string(d, "checkpoint.resume"), cases[i].value);
        az_str_fini(&text);
        az_deck_close(d);
    }
}

/* What is written reads back to the same text, and so to the same values. */
static void round_trip(void **state)
{
    (void)state;
    static const char *const decks[] = {
        MINIMAL,
        MINIMAL "lora: {init_from: a, lora_dropout: 0.1}\n",
        MINIMAL "train: {micro_batch_tokens: 512, warmup_ratio: 0.03, learning_rate: 3.3e-5}\n",
        MINIMAL "train: {warmup_steps: 3, adam_beta2: 0.95}\neval: {split: 0.1, steps: 5}\n",
        "model: {path: 'a \"b\\c'}\ndata: {files: [x, /y]}\n"
        "lora: {target_modules: '.*(q|v)_proj', rank_pattern: {q_proj: 100, 'a: b': 65536},"
        " alpha_pattern: {x: 0.1}, init_lora_weights: gaussian}\n"
        "generate: {prompt: \"tab\\t, newline\\n, \\u00e9\\x01\", max_new_tokens: 1000}\n",
        MINIMAL "lora: {target_modules: [a, b], layers_to_transform: [1, 2], layers_pattern: [h]}\n"
                "train: {max_steps: 100000, max_grad_norm: 0, num_train_epochs: 0.3333333333333333}"
                "\n",
        MINIMAL "checkpoint: {resume: no, keep_best: false, mpiio_hints: [a=b, 'c=d = e']}\n",
        MINIMAL "checkpoint: {resume: /c.h5, save_minutes: 0, lead: 90, striping_unit: 1048576}\n"
                "eval: {file: e, steps: 2, early_stopping_patience: 3}\n",
        MINIMAL "checkpoint: {load_best_model_at_end: true}\neval: {split: 0.1, steps: 2}\n",
    };
    for (size_t i = 0; i < sizeof decks / sizeof decks[0]; i++) {
        az_str once = {0}, twice = {0};
        az_deck *d = open_deck(decks[i], NULL);
        assert_int_equal(az_deck_write(&once, d), AZ_OK);
        az_deck *e = open_deck(once.s, NULL);
        assert_int_equal(az_deck_write(&twice, e), AZ_OK);
        assert_string_equal(once.s, twice.s);
        for (int k = 0; k < az_n_keys; k++) {
            const az_value *a = &d->values[k], *b = &e->values[k];
            assert_int_equal(a->present, b->present);
            assert_true(a->i == b->i && a->r == b->r && a->b == b->b && a->n == b->n);
            for (int j = 0; j < a->n && a->reals != NULL; j++) {
                assert_string_equal(a->items[j], b->items[j]);
                assert_true(a->reals[j] == b->reals[j]);
            }
            if (az_keys[k].type == AZ_TYPE_STRING && a->s != NULL)
                assert_string_equal(a->s, b->s);
        }
        az_str_fini(&once);
        az_str_fini(&twice);
        az_deck_close(d);
        az_deck_close(e);
    }
}

static void check_text(const az_deck *d, const char *key, const char *expected)
{
    az_str out = {0};
    assert_int_equal(az_deck_add_text(&out, d, key), AZ_OK);
    assert_string_equal(out.len > 0 ? out.s : "", expected);
    az_str_fini(&out);
}

static void sizes(void **state)
{
    (void)state;
    static const char *const args[] = {"run.memory=512 MB", NULL};
    az_deck *d = open_deck(MINIMAL "run: {memory: 24GiB}\n", NULL);
    assert_true(az_deck_size(d, "run.memory") == (int64_t)24 << 30);
    check_text(d, "run.memory", "25769803776");
    az_deck_close(d);
    d = open_deck(MINIMAL "run: {memory: \"24 GiB\"}\n", args);
    assert_true(az_deck_size(d, "run.memory") == 512000000);
    az_deck_close(d);
    d = open_deck(MINIMAL "run: {memory: 2000000}\n", NULL);
    assert_true(az_deck_size(d, "run.memory") == 2000000);
    az_deck_close(d);
}

/* For scripts: no quotes, nothing where there is nothing. */
static void plain_text(void **state)
{
    (void)state;
    az_str out = {0};
    az_deck *d = open_deck("model: {path: /m \"x\"}\ndata: {files: [/y]}\n"
                           "train: {micro_batch_tokens: 512, learning_rate: 3.3e-5}\n"
                           "generate: {prompt: \"a b\"}\noutput: {dir: /o}\n"
                           "checkpoint: {resume: /c d.h5}\n",
                           NULL);
    check_text(d, "model.path", "/m \"x\"");
    check_text(d, "output.dir", "/o");
    check_text(d, "checkpoint.resume", "/c d.h5");
    check_text(d, "checkpoint.on_error", "continue");
    check_text(d, "data.files", "[\"/y\"]");
    check_text(d, "generate.prompt", "a b");
    check_text(d, "train.learning_rate", "3.3e-05");
    check_text(d, "train.micro_batch_size", ""); /* excluded */
    check_text(d, "lora.r", "8");
    check_text(d, "data.tokenizer", "");
    assert_int_equal(az_deck_add_text(&out, d, "output.dirs"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "output.dirs: no such key; did you mean output.dir?");
    az_err_clear();
    assert_int_equal(az_deck_add_text(&out, d, "lora"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "lora: no such key; a key is named section.key");
    az_err_clear();
    az_str_fini(&out);
    az_deck_close(d);
}

/* Every allocation fails in turn: code 3, nothing left behind. */
static void no_memory(void **state)
{
    (void)state;
    const char *args[] = {"lora.r=32", "eval.split=0.1", NULL};
    const char *text = MINIMAL "lora: {target_modules: [a], rank_pattern: {a: 1}}\n"
                               "eval: {file: e}\ntrain: {lr: 1, <<: 2}\n";
    const char *fine = MINIMAL "lora: {target_modules: [a], rank_pattern: {a: 1}}\n"
                               "eval: {file: e}\ndata: {files: [x, y]}\n";
    for (int which = 0; which < 2; which++)
        for (long n = 0;; n++) {
            az_deck *d = NULL;
            char *list[] = {(char *)(uintptr_t)args[0], (char *)(uintptr_t)args[1]};
            const char *t = which == 0 ? fine : text;
            assert_int_equal(az_file_write_atomic("d.yaml", t, strlen(t)), AZ_OK);
            size_t before = az_mem_get_total().blocks;
            az_err_clear();
            az_mem_set_fault(n);
            az_err err = az_deck_open(&d, "d.yaml", list, 2);
            az_mem_set_fault(-1);
            if (err == AZ_EENV)
                assert_memory_equal(az_err_message(), "out of memory", 13);
            else
                assert_int_equal(err, which == 0 ? AZ_OK : AZ_EINPUT);
            az_deck_close(d);
            assert_int_equal(az_mem_get_total().blocks, before);
            if (err != AZ_EENV)
                break;
            assert_true(n < 2000);
        }
    az_err_clear();
}

static void help_finds_and_suggests(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        bool found;
        const char *holds;
    } cases[] = {
        {"lora.r", true, "an integer from 1 to 65536"},
        {"train.learning_rate", true, "default  1e-4"},
        {"train.micro_batch_tokens", true, "excludes train.micro_batch_size"},
        {"train.max_steps", true, "may change when a run is resumed"},
        {"lora.use_rslora", true, "must stay the same"},
        {"lora", true, "lora.target_modules"},
        {"seed", true, "generate.seed"},
        {"learning_rat", false, "did you mean train.learning_rate?"},
        {"lorra", false, "did you mean lora?"},
        {"xyzzyplugh", false, "adze help keys"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        az_str out = {0};
        bool found = false;
        assert_int_equal(az_deck_help_key(&out, cases[i].word, &found), AZ_OK);
        assert_int_equal(found, cases[i].found);
        if (strstr(out.s, cases[i].holds) == NULL)
            fail_msg("%s: %s", cases[i].word, out.s);
        az_str_fini(&out);
    }
}

static void help_names_every_key(void **state)
{
    (void)state;
    az_str all = {0}, page = {0}, sections = {0};
    assert_int_equal(az_deck_help(&all), AZ_OK);
    assert_int_equal(az_deck_help_markdown(&page), AZ_OK);
    assert_int_equal(az_deck_help_sections(&sections), AZ_OK);
    for (int i = 0; i < az_n_keys; i++) {
        assert_non_null(strstr(all.s, az_keys[i].name));
        assert_non_null(strstr(page.s, az_keys[i].name));
    }
    for (int i = 0; i < az_n_sections; i++)
        assert_non_null(strstr(sections.s, az_sections[i].name));
    az_str_fini(&all);
    az_str_fini(&page);
    az_str_fini(&sections);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(every_type),
        cmocka_unit_test(a_scalar_is_a_list_of_one),
        cmocka_unit_test(arguments_override),
        cmocka_unit_test(an_argument_wins_over_what_it_excludes),
        cmocka_unit_test(paths_are_relative_to_the_deck),
        cmocka_unit_test(words_or_a_path),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(sizes),
        cmocka_unit_test(plain_text),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(help_finds_and_suggests),
        cmocka_unit_test(help_names_every_key),
    };
    return cmocka_run_group_tests_name("deck values", tests, deck_setup, deck_teardown) != 0;
}
