/* The one table of keys. Parsing, ranges, `adze help` and doc/inputs.md come from it.
 *
 * Names are those of PEFT's LoraConfig and of the Hugging Face Trainer where they have one. */
#include <config.h>

#include "deck/deck_priv.h"

#include <math.h>
#include <string.h>

#define NO_LIMIT INT64_MAX

const az_section az_sections[] = {
    {"model", "the base model"},
    {"data", "what is trained"},
    {"lora", "the adapter; names and meaning as in PEFT's LoraConfig"},
    {"train", "steps, optimizer and schedule; names as in the Hugging Face Trainer"},
    {"eval", "evaluation, during training and by `adze eval`"},
    {"generate", "generation by `adze generate`"},
    {"output", "where results go and what is printed"},
    {"run", "how the program runs; no key here changes what is computed, except run.threads in "
            "the last bits"},
};
const int az_n_sections = sizeof az_sections / sizeof az_sections[0];

const char *const az_exclusive[][2] = {
    {"train.micro_batch_size", "train.micro_batch_tokens"},
    {"train.warmup_steps", "train.warmup_ratio"},
    {"eval.file", "eval.split"},
    {"generate.prompt", "generate.file"},
};
const int az_n_exclusive = sizeof az_exclusive / sizeof az_exclusive[0];

const az_key az_keys[] = {
    /* ---- model */
    {.name = "model.path",
     .also = "model_name_or_path base_model pretrained_model_name_or_path model",
     .type = AZ_TYPE_PATH,
     .absent = "must be given",
     .needed = "*",
     .text = "Hugging Face directory of the base model: config.json, safetensors, tokenizer.json.",
     .resume = true},

    /* ---- data */
    {.name = "data.files",
     .also = "dataset train_file train_files datasets dataset_path",
     .type = AZ_TYPE_PATHS,
     .absent = "must be given for train and data",
     .needed = "train data",
     .text = "JSONL files, a sample a line: \"text\", \"prompt\" and \"completion\", or "
             "\"input_ids\" and optional \"labels\"."},
    {.name = "data.tokenizer",
     .also = "tokenizer_name tokenizer_path",
     .type = AZ_TYPE_PATH,
     .absent = "model.path",
     .text = "Directory that holds tokenizer.json; not needed for \"input_ids\"."},
    {.name = "data.max_length",
     .also = "max_seq_length max_seq_len cutoff_len sequence_len model_max_length",
     .type = AZ_TYPE_INT,
     .ilo = 2,
     .ihi = 1 << 24,
     .fallback = "2048",
     .unit = "tokens",
     .text = "Longest sample; data.overlong says what happens to a longer one."},
    {.name = "data.overlong",
     .type = AZ_TYPE_CHOICE,
     .choices = "cut|drop",
     .fallback = "cut",
     .text = "Cut samples longer than data.max_length at their end, or drop them; either is "
             "counted and said."},
    {.name = "data.add_eos",
     .type = AZ_TYPE_BOOL,
     .fallback = "true",
     .text = "Append the end-of-sequence token to text and completion once, and train it."},
    {.name = "data.add_bos",
     .type = AZ_TYPE_BOOL,
     .fallback = "false",
     .text = "Put the tokenizer's own special tokens in front of text and prompt."},
    {.name = "data.shuffle",
     .type = AZ_TYPE_BOOL,
     .fallback = "true",
     .text = "Shuffle the samples anew each epoch, as a function of train.seed and the epoch."},

    /* ---- lora */
    {.name = "lora.r",
     .also = "rank lora_r lora_rank",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 65536,
     .fallback = "8",
     .text = "Rank of each pair of adapter matrices."},
    {.name = "lora.lora_alpha",
     .also = "alpha scaling",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = INFINITY,
     .open = AZ_LO_OPEN,
     .fallback = "8",
     .text = "Scaling: the adapter's output is multiplied by lora_alpha / r."},
    {.name = "lora.lora_dropout",
     .also = "dropout",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .open = AZ_HI_OPEN,
     .fallback = "0",
     .unit = "probability",
     .text = "Dropout of the adapter's input during training."},
    {.name = "lora.target_modules",
     .also = "target_module lora_target lora_target_modules targets modules",
     .type = AZ_TYPE_LIST_OR_STRING,
     .absent = "the default of the model's family (q_proj and v_proj for Llama)",
     .text = "Modules that get an adapter: a list of names or name endings, \"all-linear\" (every "
             "linear module but the head), or one regular expression that must match the whole "
             "module path."},
    {.name = "lora.exclude_modules",
     .type = AZ_TYPE_LIST_OR_STRING,
     .absent = "none",
     .text = "Modules that get none although lora.target_modules names them; a list or a regular "
             "expression."},
    {.name = "lora.layers_to_transform",
     .type = AZ_TYPE_INTS,
     .ilo = 0,
     .ihi = 1 << 20,
     .absent = "all layers",
     .text = "Numbers of the layers that are adapted, from 0; only with a list of targets."},
    {.name = "lora.layers_pattern",
     .type = AZ_TYPE_STRINGS,
     .absent = "the layer is the first number in the module path",
     .text = "Name of the list of layers in the module path; only with lora.layers_to_transform."},
    {.name = "lora.rank_pattern",
     .type = AZ_TYPE_MAP_INT,
     .ilo = 1,
     .ihi = 65536,
     .fallback = "{}",
     .text = "Rank of single modules: name, ending or regular expression to rank; the first that "
             "matches counts."},
    {.name = "lora.alpha_pattern",
     .type = AZ_TYPE_MAP_REAL,
     .lo = 0,
     .hi = INFINITY,
     .open = AZ_LO_OPEN,
     .fallback = "{}",
     .text = "lora_alpha of single modules, likewise."},
    {.name = "lora.use_rslora",
     .type = AZ_TYPE_BOOL,
     .fallback = "false",
     .text = "Scale by lora_alpha / sqrt(r) instead of lora_alpha / r."},
    {.name = "lora.init_lora_weights",
     .type = AZ_TYPE_CHOICE,
     .choices = "true|false|gaussian",
     .fallback = "true",
     .text = "Start: true is A uniform and B zero, gaussian is A normal and B zero, false is both "
             "uniform (the adapter then changes the model from the start)."},
    {.name = "lora.init_from",
     .type = AZ_TYPE_PATH,
     .absent = "a fresh adapter",
     .text = "PEFT directory whose adapter is where training starts; it must have the modules and "
             "ranks that this deck asks for."},

    /* ---- train */
    {.name = "train.batch_size",
     .also = "global_batch_size train_batch_size gradient_accumulation_steps",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 1 << 24,
     .fallback = "8",
     .unit = "samples",
     .text = "Samples of one step, over all ranks together; it does not depend on the number of "
             "ranks."},
    {.name = "train.micro_batch_size",
     .also = "per_device_train_batch_size",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 1 << 20,
     .fallback = "1",
     .unit = "samples",
     .text = "Samples that one rank computes at once."},
    {.name = "train.micro_batch_tokens",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 1 << 30,
     .absent = "train.micro_batch_size counts",
     .unit = "tokens",
     .text = "Tokens that one rank computes at once, at most, instead of a number of samples; a "
             "longer sample stands alone."},
    {.name = "train.num_train_epochs",
     .also = "epochs num_epochs",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1e6,
     .open = AZ_LO_OPEN,
     .fallback = "1",
     .unit = "epochs",
     .text = "Passes over the data; 0.5 is half a pass.",
     .resume = true},
    {.name = "train.max_steps",
     .also = "steps num_steps iters",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = INT32_MAX,
     .absent = "train.num_train_epochs counts",
     .unit = "steps",
     .text = "Exactly this many steps, whatever train.num_train_epochs says.",
     .resume = true},
    {.name = "train.learning_rate",
     .also = "lr",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1e3,
     .fallback = "1e-4",
     .text = "Highest learning rate of AdamW. The default is usual for LoRA; the Trainer's 5e-5 is "
             "meant for training whole models."},
    {.name = "train.lr_scheduler_type",
     .also = "lr_scheduler scheduler",
     .type = AZ_TYPE_CHOICE,
     .choices = "constant|linear|cosine",
     .fallback = "linear",
     .text = "How the learning rate goes from train.learning_rate to train.min_lr after the "
             "warm-up."},
    {.name = "train.warmup_steps",
     .also = "num_warmup_steps",
     .type = AZ_TYPE_INT,
     .ilo = 0,
     .ihi = INT32_MAX,
     .fallback = "0",
     .unit = "steps",
     .text = "Steps over which the learning rate rises linearly from 0."},
    {.name = "train.warmup_ratio",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .fallback = "0",
     .unit = "fraction",
     .text = "The same as a fraction of all steps, rounded up."},
    {.name = "train.min_lr",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1e3,
     .fallback = "0",
     .text = "Learning rate at the end of a linear or cosine schedule; at most "
             "train.learning_rate."},
    {.name = "train.weight_decay",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1e3,
     .fallback = "0.01",
     .text = "Decoupled weight decay of AdamW on A and B. The default is that of "
             "torch.optim.AdamW; the Trainer's is 0."},
    {.name = "train.adam_beta1",
     .also = "beta1 betas",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .open = AZ_HI_OPEN,
     .fallback = "0.9",
     .text = "Decay of the first moment."},
    {.name = "train.adam_beta2",
     .also = "beta2",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .open = AZ_HI_OPEN,
     .fallback = "0.999",
     .text = "Decay of the second moment."},
    {.name = "train.adam_epsilon",
     .also = "eps epsilon adam_eps",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .fallback = "1e-8",
     .text = "Added to the root of the second moment."},
    {.name = "train.max_grad_norm",
     .also = "clip grad_clip gradient_clipping",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = INFINITY,
     .fallback = "1",
     .text = "The gradient of all adapters together is scaled down to this norm if it is larger; 0 "
             "is no clipping."},
    {.name = "train.seed",
     .type = AZ_TYPE_INT,
     .ilo = 0,
     .ihi = NO_LIMIT,
     .fallback = "42",
     .text = "Seed of initial values, dropout, order of samples and eval.split."},
    {.name = "train.on_nonfinite",
     .type = AZ_TYPE_CHOICE,
     .choices = "skip|stop",
     .fallback = "stop",
     .text = "If loss or gradient of a step is infinite or NaN: leave that step out and count it, "
             "or end the run.",
     .resume = true},
    {.name = "train.logging_steps",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = INT32_MAX,
     .fallback = "1",
     .unit = "steps",
     .text = "A line is printed every so many steps; metrics.jsonl gets every step.",
     .resume = true},

    /* ---- eval */
    {.name = "eval.file",
     .also = "eval_file validation_file",
     .type = AZ_TYPE_PATHS,
     .absent = "no separate file",
     .text = "JSONL files to evaluate on, in the layouts of data.files.",
     .resume = true},
    {.name = "eval.split",
     .also = "val_set_size test_size",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 0.5,
     .open = AZ_LO_OPEN,
     .absent = "nothing is held out",
     .unit = "fraction",
     .text = "Fraction of the samples of data.files that is held out of training and evaluated "
             "on."},
    {.name = "eval.steps",
     .also = "eval_steps",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = INT32_MAX,
     .absent = "only at the end",
     .unit = "steps",
     .text = "Evaluate every so many steps of training, and at the end.",
     .resume = true},
    {.name = "eval.micro_batch_tokens",
     .also = "per_device_eval_batch_size",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 1 << 30,
     .fallback = "4096",
     .unit = "tokens",
     .text = "Tokens that one rank evaluates at once, at most; a longer sample stands alone.",
     .resume = true},
    {.name = "eval.adapter",
     .type = AZ_TYPE_PATH,
     .absent = "the base model alone",
     .text = "PEFT directory that `adze eval` puts on the base model.",
     .resume = true},

    /* ---- generate */
    {.name = "generate.prompt",
     .type = AZ_TYPE_STRING,
     .absent = "generate.file",
     .text = "Text to be continued.",
     .resume = true},
    {.name = "generate.file",
     .type = AZ_TYPE_PATH,
     .absent = "generate.prompt",
     .text = "JSONL file of prompts: lines with \"prompt\", and \"completion\" to compare with if "
             "there is one.",
     .resume = true},
    {.name = "generate.max_new_tokens",
     .also = "max_tokens",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 1 << 20,
     .fallback = "64",
     .unit = "tokens",
     .text = "Longest continuation.",
     .resume = true},
    {.name = "generate.temperature",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1e3,
     .fallback = "0",
     .text = "Logits are divided by it before sampling; 0 takes the most probable token.",
     .resume = true},
    {.name = "generate.top_p",
     .type = AZ_TYPE_REAL,
     .lo = 0,
     .hi = 1,
     .open = AZ_LO_OPEN,
     .fallback = "1",
     .unit = "probability",
     .text = "Sample from the most probable tokens that together reach this.",
     .resume = true},
    {.name = "generate.adapter",
     .type = AZ_TYPE_PATH,
     .absent = "the base model alone",
     .text = "PEFT directory that `adze generate` puts on the base model.",
     .resume = true},
    {.name = "generate.seed",
     .type = AZ_TYPE_INT,
     .ilo = 0,
     .ihi = NO_LIMIT,
     .fallback = "42",
     .text = "Seed of sampling.",
     .resume = true},
    {.name = "generate.batch_size",
     .type = AZ_TYPE_INT,
     .ilo = 1,
     .ihi = 65536,
     .fallback = "16",
     .unit = "prompts",
     .text = "Prompts that one rank continues at once.",
     .resume = true},
    {.name = "generate.output",
     .type = AZ_TYPE_PATH,
     .absent = "only printed",
     .text = "JSONL file for prompts and continuations.",
     .resume = true},

    /* ---- output */
    {.name = "output.dir",
     .also = "output_dir",
     .type = AZ_TYPE_PATH,
     .absent = "must be given for train",
     .needed = "train",
     .text = "Directory for adapter/, metrics.jsonl and run.yaml; it is made if it is not there.",
     .resume = true},
    {.name = "output.progress",
     .type = AZ_TYPE_CHOICE,
     .choices = "auto|line|none",
     .fallback = "auto",
     .text =
         "Steps on the screen: auto is one line that is renewed on a terminal and a line a step "
         "elsewhere, line is a line a step, none is silence.",
     .resume = true},

    /* ---- run */
    {.name = "run.threads",
     .also = "num_threads omp_num_threads",
     .type = AZ_TYPE_INT,
     .ilo = 0,
     .ihi = 4096,
     .fallback = "0",
     .unit = "threads",
     .text = "Threads of each rank; 0 takes what the environment says (OMP_NUM_THREADS, cores / "
             "ranks).",
     .resume = true},
    {.name = "run.compute",
     .also = "bf16 fp16 dtype torch_dtype",
     .type = AZ_TYPE_CHOICE,
     .choices = "f32",
     .fallback = "f32",
     .text = "Type of the arithmetic."},
    {.name = "run.poison",
     .type = AZ_TYPE_BOOL,
     .fallback = "false",
     .text = "Fill released memory and bytes of other ranks with NaN, to find mistakes in the "
             "program; results must not change.",
     .resume = true},
};
const int az_n_keys = sizeof az_keys / sizeof az_keys[0];

int az_key_find(const char *name)
{
    for (int i = 0; i < az_n_keys; i++)
        if (strcmp(az_keys[i].name, name) == 0)
            return i;
    return -1;
}

int az_section_find(const char *name)
{
    for (int i = 0; i < az_n_sections; i++)
        if (strcmp(az_sections[i].name, name) == 0)
            return i;
    return -1;
}

bool az_key_in_section(const az_key *key, const char *section)
{
    size_t n = strlen(section);
    return strncmp(key->name, section, n) == 0 && key->name[n] == '.';
}

const char *az_key_short(const az_key *key)
{
    return strchr(key->name, '.') + 1;
}

/* A suggestion helps only if most of the word is right. */
static bool is_near(int distance, const char *word)
{
    return distance <= (int)strlen(word) / 3;
}

/* Names that other programs use count as right; else nearness is measured on the whole name and on
 * the part behind the point: a right key in the wrong section costs no more than one letter. */
const az_key *az_key_nearest(const char *name)
{
    const char *point = strchr(name, '.'), *word = point != NULL ? point + 1 : name;
    const az_key *best = NULL;
    int least = 1 << 20;
    for (int i = 0; i < az_n_keys; i++) {
        const az_key *key = &az_keys[i];
        int d = az_str_distance(name, key->name);
        int w = az_str_distance(word, az_key_short(key)) + (point != NULL);
        if (az_words_hold(key->also, word))
            return key;
        if (d < least && (is_near(d, word) || (point != NULL && d == 1))) {
            least = d;
            best = key;
        }
        if (w < least && is_near(w, word)) {
            least = w;
            best = key;
        }
    }
    return best;
}

bool az_words_hold(const char *opt_words, const char *word)
{
    size_t n = strlen(word);
    for (const char *w = opt_words; w != NULL && *w != '\0';) {
        size_t len = strcspn(w, " ");
        if (len == n && strncmp(w, word, n) == 0)
            return true;
        w += len + (w[len] == ' ');
    }
    return false;
}

const az_section *az_section_nearest(const char *name)
{
    const az_section *best = NULL;
    int least = 1 << 20;
    for (int i = 0; i < az_n_sections; i++) {
        int d = az_str_distance(name, az_sections[i].name);
        if (d < least && is_near(d, name)) {
            least = d;
            best = &az_sections[i];
        }
    }
    return best;
}

static az_err add_int_range(az_str *out, const az_key *key)
{
    if (key->ihi == NO_LIMIT)
        return az_str_add(out, ", at least %lld", (long long)key->ilo);
    return az_str_add(out, " from %lld to %lld", (long long)key->ilo, (long long)key->ihi);
}

static az_err add_real_range(az_str *out, const az_key *key)
{
    if (isinf(key->hi))
        return az_str_add(out, key->open & AZ_LO_OPEN ? " above %g" : ", at least %g", key->lo);
    return az_str_add(out, " %s %g %s %g", key->open & AZ_LO_OPEN ? "above" : "from", key->lo,
                      key->open & AZ_HI_OPEN ? "to below" : "to", key->hi);
}

static az_err add_choices(az_str *out, const char *choices)
{
    az_err err = AZ_OK;
    for (const char *c = choices; *c != '\0' && err == AZ_OK; c++)
        err = *c == '|' ? az_str_add(out, ", ") : az_str_add_bytes(out, c, 1);
    return err;
}

az_err az_key_add_expected(az_str *out, const az_key *key)
{
    az_err err = AZ_OK;
    switch (key->type) {
    case AZ_TYPE_INT:
        AZ_TRY(az_str_add(out, "an integer"));
        err = add_int_range(out, key);
        break;
    case AZ_TYPE_REAL:
        AZ_TRY(az_str_add(out, "a number"));
        err = add_real_range(out, key);
        break;
    case AZ_TYPE_BOOL:
        err = az_str_add(out, "true or false");
        break;
    case AZ_TYPE_STRING:
        err = az_str_add(out, "a string");
        break;
    case AZ_TYPE_PATH:
        err = az_str_add(out, "a path");
        break;
    case AZ_TYPE_CHOICE:
        AZ_TRY(az_str_add(out, strchr(key->choices, '|') != NULL ? "one of " : "only "));
        err = add_choices(out, key->choices);
        break;
    case AZ_TYPE_STRINGS:
        err = az_str_add(out, "a string or a list of strings");
        break;
    case AZ_TYPE_PATHS:
        err = az_str_add(out, "a path or a list of paths");
        break;
    case AZ_TYPE_INTS:
        AZ_TRY(az_str_add(out, "a list of integers"));
        err = add_int_range(out, key);
        break;
    case AZ_TYPE_LIST_OR_STRING:
        err = az_str_add(out, "a list of names or one string");
        break;
    case AZ_TYPE_MAP_INT:
        AZ_TRY(az_str_add(out, "a map of names to integers"));
        err = add_int_range(out, key);
        break;
    case AZ_TYPE_MAP_REAL:
        AZ_TRY(az_str_add(out, "a map of names to numbers"));
        err = add_real_range(out, key);
        break;
    }
out:
    return err;
}
