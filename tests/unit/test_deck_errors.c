/* Decks: everything that can be wrong, by its message. */
#include <config.h>

#include "deck_fixture.h"

typedef struct {
    const char *text, *args[4];
    const char *message;
} wrong;

#define M "model: {path: m}\n"
#define ALL_LORA                                                                          \
    "r, lora_alpha, lora_dropout, target_modules, exclude_modules, layers_to_transform, " \
    "layers_pattern, rank_pattern, alpha_pattern, use_rslora, init_lora_weights, init_from"

#define NO_EVAL "there is nothing to evaluate on: give eval.file or eval.split"

static const wrong cases[] = {
    /* names */
    {M "lora: {lora_alfa: 8}\n",
     {0},
     "d.yaml:2: lora.lora_alfa: unknown key; did you mean lora.lora_alpha?"},
    {M "train:\n  seed: 1\n  max_length: 8\n",
     {0},
     "d.yaml:4: train.max_length: unknown key; did you mean data.max_length?"},
    {M "lora: {banana: 8}\n",
     {0},
     "d.yaml:2: lora.banana: unknown key; keys of lora are " ALL_LORA},
    {M "lorra: {r: 8}\n", {0}, "d.yaml:2: lorra: unknown section; did you mean lora?"},
    {M "lora.r: 8\n",
     {0},
     "d.yaml:2: lora.r: keys stand in their section: write it as \"lora:\" and, below it and "
     "indented, \"r:\""},
    {M "learning_rate: 8\n",
     {0},
     "d.yaml:2: learning_rate: unknown section; did you mean the key train.learning_rate?"},
    {M "banana: 8\n",
     {0},
     "d.yaml:2: banana: unknown section; there are model, data, lora, train, eval, generate, "
     "output, shard, comm, checkpoint, run"},
    {M "lora: {r: 4}\ntrain: {seed: 1}\nlora: {r: 8}\n",
     {0},
     "d.yaml:4: lora: given twice, first on line 2"},
    {M "lora:\n  r: 4\n  r: 4\n", {0}, "d.yaml:4: lora.r: given twice, first on line 3"},
    {M "lora: 8\n", {0}, "d.yaml:2: lora: found 8, expected a section with keys " ALL_LORA},
    {M "lora: {[a]: 8}\n",
     {0},
     "d.yaml:2: lora.(not a name): unknown key; keys of lora are " ALL_LORA},
    {M "[a]: 8\n", {0}, "d.yaml:2: found a list of 1, expected the name of a section"},
    {"just text\n", {0}, "d.yaml:1: found just text, expected sections: \"model:\" and so on"},
    {"", {0}, "d.yaml: model.path: missing; every deck must give it"},
    {"lora: {r: 4}\n", {0}, "d.yaml: model.path: missing; every deck must give it"},
    /* integers */
    {M "lora: {r: 0}\n", {0}, "d.yaml:2: lora.r: found 0, expected an integer from 1 to 65536"},
    {M "lora: {r: 8.0}\n", {0}, "d.yaml:2: lora.r: found 8.0, expected an integer from 1 to 65536"},
    {M "lora: {r: 08}\n", {0}, "d.yaml:2: lora.r: found 08, expected an integer from 1 to 65536"},
    {M "lora: {r: 8 16}\n",
     {0},
     "d.yaml:2: lora.r: found 8 16, expected an integer from 1 to 65536"},
    {M "lora: {r: \"8\"}\n",
     {0},
     "d.yaml:2: lora.r: found the string \"8\", expected an integer from 1 to 65536"},
    {M "lora: {r: [8]}\n",
     {0},
     "d.yaml:2: lora.r: found a list of 1, expected an integer from 1 to 65536"},
    {M "lora: {r: {a: 8}}\n",
     {0},
     "d.yaml:2: lora.r: found a map, expected an integer from 1 to 65536"},
    {M "lora: {r: }\n",
     {0},
     "d.yaml:2: lora.r: found nothing, expected an integer from 1 to 65536; leave the key out for "
     "its default, 8"},
    {M "train: {seed: -1}\n",
     {0},
     "d.yaml:2: train.seed: found -1, expected an integer, at least 0"},
    {M "train: {seed: 9223372036854775808}\n",
     {0},
     "d.yaml:2: train.seed: found 9223372036854775808, expected an integer, at least 0"},
    /* numbers */
    {M "lora: {lora_alpha: 0}\n",
     {0},
     "d.yaml:2: lora.lora_alpha: found 0, expected a number above 0 to 1e+09"},
    {M "lora: {lora_dropout: 1}\n",
     {0},
     "d.yaml:2: lora.lora_dropout: found 1, expected a number from 0 to below 1"},
    {M "train: {warmup_ratio: 1.01}\n",
     {0},
     "d.yaml:2: train.warmup_ratio: found 1.01, expected a number from 0 to 1"},
    {M "eval: {split: 0.6}\n",
     {0},
     "d.yaml:2: eval.split: found 0.6, expected a number above 0 to 0.5"},
    {M "train: {max_grad_norm: null}\n",
     {0},
     "d.yaml:2: train.max_grad_norm: found null, expected a number, at least 0; leave the key out "
     "for its default, 1"},
    {M "train: {learning_rate: 1e-4x}\n",
     {0},
     "d.yaml:2: train.learning_rate: found 1e-4x, expected a number from 0 to 1000"},
    {M "train: {learning_rate: 1e}\n",
     {0},
     "d.yaml:2: train.learning_rate: found 1e, expected a number from 0 to 1000"},
    {M "train: {learning_rate: .}\n",
     {0},
     "d.yaml:2: train.learning_rate: found ., expected a number from 0 to 1000"},
    {M "train: {learning_rate: 0x1p-3}\n",
     {0},
     "d.yaml:2: train.learning_rate: found 0x1p-3, expected a number from 0 to 1000"},
    {M "train: {max_grad_norm: inf}\n",
     {0},
     "d.yaml:2: train.max_grad_norm: found inf, expected a number, at least 0"},
    {M "train: {max_grad_norm: .nan}\n",
     {0},
     "d.yaml:2: train.max_grad_norm: found .nan, expected a number, at least 0"},
    {M "train: {max_grad_norm: 1e999}\n",
     {0},
     "d.yaml:2: train.max_grad_norm: found 1e999, expected a number, at least 0"},
    /* bools, strings, paths, choices */
    {M "data: {add_eos: yes}\n", {0}, "d.yaml:2: data.add_eos: found yes, expected true or false"},
    {M "data: {add_eos: \"true\"}\n",
     {0},
     "d.yaml:2: data.add_eos: found the string \"true\", expected true or false"},
    {M "data: {overlong: crop}\n",
     {0},
     "d.yaml:2: data.overlong: found crop, expected one of cut, drop"},
    {M "data: {overlong: cut|drop}\n",
     {0},
     "d.yaml:2: data.overlong: found cut|drop, expected one of cut, drop"},
    {M "lora: {init_lora_weights: pissa}\n",
     {0},
     "d.yaml:2: lora.init_lora_weights: found pissa, expected one of true, false, gaussian"},
    {M "lora: {init_lora_weights: 'true'}\n",
     {0},
     "d.yaml:2: lora.init_lora_weights: found the string \"true\", expected one of true, false, "
     "gaussian"},
    {M "run: {compute: fp16}\n",
     {0},
     "d.yaml:2: run.compute: found fp16, expected one of auto, f32, bf16"},
    {"model: {path: ''}\n", {0}, "d.yaml:1: model.path: found the string \"\", expected a path"},
    {M "generate: {prompt: [a, b]}\n",
     {0},
     "d.yaml:2: generate.prompt: found a list of 2, expected a string"},
    {M "checkpoint: {resume: false}\n",
     {0},
     "d.yaml:2: checkpoint.resume: found false, expected one of auto, no, or a path"},
    {M "checkpoint: {resume: [a]}\n",
     {0},
     "d.yaml:2: checkpoint.resume: found a list of 1, expected one of auto, no, or a path"},
    {M "checkpoint: {resume: ~}\n",
     {0},
     "d.yaml:2: checkpoint.resume: found null, expected one of auto, no, or a path; leave the key "
     "out for its default, auto"},
    {M "train: {save_steps: 10}\n",
     {0},
     "d.yaml:2: train.save_steps: unknown key; did you mean checkpoint.save_steps?"},
    {M "train: {resume_from_checkpoint: x}\n",
     {0},
     "d.yaml:2: train.resume_from_checkpoint: unknown key; did you mean checkpoint.resume?"},
    {M "checkpoint: {save_total_limit: 0}\n",
     {0},
     "d.yaml:2: checkpoint.save_total_limit: found 0, expected an integer from 1 to 2147483647"},
    /* lists and maps */
    {M "data: {files: []}\n",
     {0},
     "d.yaml:2: data.files: found an empty list, expected a path or a list of paths"},
    {M "data:\n  files:\n  - a\n  - {b: c}\n",
     {0},
     "d.yaml:5: data.files: item 2: found a map, expected a path or a list of paths"},
    {M "data: {files: {a: b}}\n",
     {0},
     "d.yaml:2: data.files: found a map, expected a path or a list of paths"},
    {M "lora: {target_modules: {a: b}}\n",
     {0},
     "d.yaml:2: lora.target_modules: found a map, expected a list of names or one string"},
    {M "lora: {target_modules: [a, ~]}\n",
     {0},
     "d.yaml:2: lora.target_modules: item 2: found null, expected a list of names or one string"},
    {M "lora: {layers_to_transform: [1, x]}\n",
     {0},
     "d.yaml:2: lora.layers_to_transform: item 2: found x, expected a list of integers from 0 to "
     "1048576"},
    {M "lora: {layers_to_transform: -1}\n",
     {0},
     "d.yaml:2: lora.layers_to_transform: found -1, expected a list of integers from 0 to 1048576"},
    {M "lora: {target_modules: [a], layers_to_transform: [1], layers_pattern: [[x]]}\n",
     {0},
     "d.yaml:2: lora.layers_pattern: item 1: found a list of 1, expected a string or a list of "
     "strings"},
    {M "lora: {rank_pattern: 8}\n",
     {0},
     "d.yaml:2: lora.rank_pattern: found 8, expected a map of names to integers from 1 to 65536"},
    {M "lora: {rank_pattern: {q: 0}}\n",
     {0},
     "d.yaml:2: lora.rank_pattern: q: found 0, expected a map of names to integers from 1 to "
     "65536"},
    {M "lora: {alpha_pattern: {q: x}}\n",
     {0},
     "d.yaml:2: lora.alpha_pattern: q: found x, expected a map of names to numbers above 0"},
    {M "lora: {alpha_pattern: {q: 1, q: 2}}\n",
     {0},
     "d.yaml:2: lora.alpha_pattern: q: given twice"},
    {M "lora: {alpha_pattern: {[q]: 1}}\n",
     {0},
     "d.yaml:2: lora.alpha_pattern: name of an entry: found a list of 1, expected a map of names "
     "to numbers above 0"},
    /* what a deck cannot */
    {M "lora: &x {r: 4}\n",
     {0},
     "d.yaml:2: anchors and aliases (&name, *name) are not part of a deck"},
    {M "lora: {r: *x}\n",
     {0},
     "d.yaml:2: anchors and aliases (&name, *name) are not part of a deck"},
    {M "lora: {r: !!int 8}\n", {0}, "d.yaml:2: tags (!name) are not part of a deck"},
    {M "lora: {<<: {r: 8}}\n", {0}, "d.yaml:2: merge keys (<<) are not part of a deck"},
    {M "<<: {r: 8}\n", {0}, "d.yaml:2: merge keys (<<) are not part of a deck"},
    {M "---\nlora: {r: 8}\n",
     {0},
     "d.yaml:2: a second document begins here; a deck is one document"},
    {M "generate: {prompt: \"a\\0b\"}\n",
     {0},
     "d.yaml:2: a string with a zero byte is not part of a deck"},
    {M "data: {files: [[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]}\n",
     {0},
     "d.yaml:2: nested too deep for a deck"},
    {M "lora:\n  r: 8\n   s: 9\n",
     {0},
     "d.yaml:4: not valid YAML: mapping values are not allowed in this context"},
    {M "lora: {r: 8\n",
     {0},
     "d.yaml:3: not valid YAML: did not find expected ',' or '}' (while parsing a flow mapping "
     "that begins on line 2)"},
    {M "lora:\n\tr: 8\n",
     {0},
     "d.yaml:3: not valid YAML: found character that cannot start any token (while scanning for "
     "the next token that begins on line 3); there is a tab, YAML indents with spaces"},
    {M "lora: {r: \"\xff\"}\n", {0}, "d.yaml:2: not valid YAML: invalid leading UTF-8 octet"},
    /* contradictions */
    {M "train:\n  micro_batch_size: 1\n  micro_batch_tokens: 100\n",
     {0},
     "d.yaml:4: train.micro_batch_tokens: excludes train.micro_batch_size (d.yaml:3): give one of "
     "them"},
    {M,
     {"eval.file=x", "eval.split=0.1"},
     "argument eval.split=0.1: eval.split: excludes eval.file (argument eval.file=x): give one of "
     "them"},
    {M "train: {warmup_steps: 0, warmup_ratio: 0}\n",
     {0},
     "d.yaml:2: train.warmup_ratio: excludes train.warmup_steps (d.yaml:2): give one of them"},
    {M "generate: {prompt: a, file: b}\n",
     {0},
     "d.yaml:2: generate.file: excludes generate.prompt (d.yaml:2): give one of them"},
    {M "train: {min_lr: 2e-4}\n", {0}, "d.yaml:2: train.min_lr: is above train.learning_rate"},
    {M "lora: {layers_pattern: h}\n",
     {0},
     "d.yaml:2: lora.layers_pattern: has no meaning without lora.layers_to_transform"},
    {M "lora: {target_modules: all-linear, layers_to_transform: [0]}\n",
     {0},
     "d.yaml:2: lora.layers_to_transform: needs lora.target_modules as a list, not as one string"},
    {M "eval: {steps: 4}\n",
     {0},
     "d.yaml:2: eval.steps: there is nothing to evaluate on: give eval.file or eval.split"},
    {M "eval: {early_stopping_patience: 1}\ncheckpoint: {keep_best: true, load_best_model_at_end: "
       "true}\n",
     {0},
     "d.yaml:2: eval.early_stopping_patience: " NO_EVAL "\n"
     "d.yaml:3: checkpoint.keep_best: " NO_EVAL "\n"
     "d.yaml:3: checkpoint.load_best_model_at_end: " NO_EVAL},
    {M "eval: {split: 0.1, early_stopping_patience: 1}\n",
     {"checkpoint.load_best_model_at_end=true", "checkpoint.keep_best=false"},
     "d.yaml:2: eval.early_stopping_patience: needs evaluations during training: give eval.steps\n"
     "argument checkpoint.load_best_model_at_end=true: checkpoint.load_best_model_at_end: needs "
     "evaluations during training: give eval.steps\n"
     "argument checkpoint.load_best_model_at_end=true: checkpoint.load_best_model_at_end: needs "
     "the "
     "best checkpoint: leave out checkpoint.keep_best=false"},
    {M "eval: {file: e, early_stopping_threshold: 0.1}\n",
     {0},
     "d.yaml:2: eval.early_stopping_threshold: has no meaning without "
     "eval.early_stopping_patience"},
    {M "checkpoint: {mpiio_hints: [a=b, c, '=d', 'e f=g', a=h, striping_unit=1]}\n",
     {0},
     "d.yaml:2: checkpoint.mpiio_hints: item 2: found c, expected \"name=value\"\n"
     "d.yaml:2: checkpoint.mpiio_hints: item 3: found =d, expected \"name=value\"\n"
     "d.yaml:2: checkpoint.mpiio_hints: item 4: found e f=g, expected \"name=value\"\n"
     "d.yaml:2: checkpoint.mpiio_hints: item 5: a: given twice\n"
     "d.yaml:2: checkpoint.mpiio_hints: item 6: striping_unit has its own key, "
     "checkpoint.striping_unit"},
    {M "checkpoint: {striping_unit: 100000}\n",
     {0},
     "d.yaml:2: checkpoint.striping_unit: is no multiple of 65536"},
    {M "lora:\n  r: 8\n  init_from: a\n  lora_dropout: 0.1\n  use_rslora: true\n",
     {0},
     "d.yaml:3: lora.r: cannot be given together with lora.init_from (d.yaml:4), whose "
     "adapter_config.json says it\n"
     "d.yaml:6: lora.use_rslora: cannot be given together with lora.init_from (d.yaml:4), whose "
     "adapter_config.json says it"},
    /* arguments */
    {M, {"lora.r"}, "argument lora.r: expected section.key=value"},
    {M, {"lora.r=x"}, "argument lora.r=x: lora.r: found x, expected an integer from 1 to 65536"},
    {M, {"lora.rr=8"}, "argument lora.rr=8: lora.rr: unknown key; did you mean lora.r?"},
    {M, {"lr=8"}, "argument lr=8: lr: unknown key; did you mean train.learning_rate?"},
    {M,
     {"lora.r=8", "lora.r=9"},
     "argument lora.r=9: lora.r: given twice, first by argument lora.r=8"},
    {M,
     {"lora.target_modules=[a"},
     "argument lora.target_modules=[a: not valid YAML: did not find expected ',' or ']' (while "
     "parsing a flow sequence that begins on line 1)"},
    {M, {"model.path="}, "d.yaml: model.path: missing; every deck must give it"},
    {M, {"banana=8"}, "argument banana=8: banana: unknown key; `adze help keys` lists all"},
    {M "train: {per_device_train_batch_size: 1}\n",
     {0},
     "d.yaml:2: train.per_device_train_batch_size: unknown key; did you mean "
     "train.micro_batch_size?"},
    {M "lora: {r: \"\\e[1m\"}\n",
     {0},
     "d.yaml:2: lora.r: found the string \"?[1m\", expected an integer from 1 to 65536"},
    /* all at once, in the order of reading */
    {"lora:\n  r: x\n  rr: 8\ntrain: {seed: -1}\n",
     {"data.add_eos=2"},
     "d.yaml:2: lora.r: found x, expected an integer from 1 to 65536\n"
     "d.yaml:3: lora.rr: unknown key; did you mean lora.r?\n"
     "d.yaml:4: train.seed: found -1, expected an integer, at least 0\n"
     "argument data.add_eos=2: data.add_eos: found 2, expected true or false\n"
     "d.yaml: model.path: missing; every deck must give it"},
};

static void messages(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        az_deck *deck = NULL;
        size_t blocks = az_mem_get_total().blocks;
        az_err_clear();
        az_err err = deck_open_at(&deck, "d.yaml", cases[i].text, cases[i].args);
        if (err != AZ_EINPUT || deck != NULL || strcmp(az_err_message(), cases[i].message) != 0) {
            print_error("case %zu:\n%s  code     %d\n  message  %s\n  expected %s\n", i,
                        cases[i].text, err, az_err_message(), cases[i].message);
            failed++;
        }
        az_deck_close(deck);
        assert_int_equal(az_mem_get_total().blocks, blocks);
    }
    assert_int_equal(failed, 0);
}

static void a_deck_that_is_not_there(void **state)
{
    (void)state;
    az_deck *deck;
    az_err_clear();
    assert_int_equal(az_deck_open(&deck, "none.yaml", NULL, 0), AZ_EINPUT);
    assert_string_equal(az_err_message(), "none.yaml: cannot open: No such file or directory");
    az_err_clear();
    assert_int_equal(az_deck_open(&deck, ".", NULL, 0), AZ_EINPUT);
    assert_string_equal(az_err_message(), ".: not a regular file");
}

static void many_faults_are_counted(void **state)
{
    (void)state;
    az_deck *deck;
    az_str text = {0};
    az_err_clear();
    az_str_add(&text, "model: {path: m}\ntrain:\n");
    for (int i = 0; i < 30; i++)
        az_str_add(&text, "  banana%d: 1\n", i);
    assert_int_equal(deck_open_at(&deck, "d.yaml", text.s, NULL), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "d.yaml:22: train.banana19: unknown key"));
    assert_null(strstr(az_err_message(), "banana20"));
    assert_non_null(strstr(az_err_message(), "\n... and 10 more"));
    az_str_fini(&text);
}

/* Long values are cut, between characters. */
static void long_values_are_cut(void **state)
{
    (void)state;
    az_deck *deck;
    az_str text = {0};
    az_err_clear();
    az_str_add(&text, "model: {path: m}\nlora: {r: x");
    for (int i = 0; i < 100; i++)
        az_str_add(&text, "\xc3\xa9");
    az_str_add(&text, "}\n");
    assert_int_equal(deck_open_at(&deck, "d.yaml", text.s, NULL), AZ_EINPUT);
    const char *dots = strstr(az_err_message(), "...");
    assert_non_null(dots);
    assert_int_equal((unsigned char)dots[-2], 0xc3);
    assert_int_equal((unsigned char)dots[-1], 0xa9);
    az_str_fini(&text);
}

static void needed_keys(void **state)
{
    (void)state;
    az_deck *deck;
    az_err_clear();
    assert_int_equal(deck_open_at(&deck, "d.yaml", M, NULL), AZ_OK);
    assert_int_equal(az_deck_check(deck, "eval"), AZ_OK);
    assert_int_equal(az_deck_check(deck, "train"), AZ_EINPUT);
    assert_string_equal(az_err_message(),
                        "d.yaml: data.files: missing; adze train needs it (a path or a list of "
                        "paths)\nd.yaml: output.dir: missing; adze train needs it (a path)");
    az_deck_close(deck);
}

static void failures_of_users_of_the_deck(void **state)
{
    (void)state;
    const char *args[] = {"lora.lora_alpha=3", NULL};
    az_deck *deck;
    az_err_clear();
    assert_int_equal(deck_open_at(&deck, "d.yaml", M "lora: {r: 9}\n", args), AZ_OK);
    assert_int_equal(az_deck_fail(deck, "lora.r", "too large for %s", "it"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "d.yaml:2: lora.r: too large for it");
    az_err_clear();
    az_deck_fail(deck, "lora.lora_alpha", "x");
    assert_string_equal(az_err_message(), "argument lora.lora_alpha=3: lora.lora_alpha: x");
    az_err_clear();
    az_deck_fail(deck, "train.seed", "x");
    assert_string_equal(az_err_message(), "d.yaml: train.seed: x");
    az_deck_close(deck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),
        cmocka_unit_test(a_deck_that_is_not_there),
        cmocka_unit_test(many_faults_are_counted),
        cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(needed_keys),
        cmocka_unit_test(failures_of_users_of_the_deck),
    };
    return cmocka_run_group_tests_name("deck errors", tests, deck_setup, deck_teardown) != 0;
}
