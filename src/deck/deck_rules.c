/* Combinations of keys that contradict themselves. */
#include <config.h>

#include "deck/deck_priv.h"

#include <stdlib.h>
#include <string.h>

/* What the adapter that training starts from says itself: it would be ignored here. */
static const char *const said_by_adapter[] = {
    "lora.r",
    "lora.lora_alpha",
    "lora.target_modules",
    "lora.exclude_modules",
    "lora.layers_to_transform",
    "lora.layers_pattern",
    "lora.rank_pattern",
    "lora.alpha_pattern",
    "lora.use_rslora",
    "lora.init_lora_weights",
};
static const int n_said_by_adapter = sizeof said_by_adapter / sizeof said_by_adapter[0];

static az_value *value_of(const az_deck *deck, const char *key)
{
    int i = az_key_find(key);
    AZ_ASSERT(i >= 0);
    return &deck->values[i];
}

static az_err rule_fault(az_deck_faults *faults, const az_deck *deck, const char *key,
                         const char *what)
{
    az_err err;
    az_str place = {0};
    AZ_TRY(az_deck_add_place(&place, deck, az_key_find(key)));
    err = az_deck_note(faults, -1, "%s: %s: %s", place.s, key, what);
out:
    az_str_fini(&place);
    return err;
}

/* Of two exclusive keys the argument wins over the deck's; two of the same source are a fault. */
static az_err check_exclusive(az_deck *deck, const char *a, const char *b, az_deck_faults *faults)
{
    az_err err;
    az_value *va = value_of(deck, a), *vb = value_of(deck, b);
    az_str what = {0}, place = {0};
    if (!va->given || !vb->given)
        return AZ_OK;
    if ((va->place != NULL) != (vb->place != NULL)) {
        az_value_fini(va->place != NULL ? vb : va);
        return AZ_OK;
    }
    AZ_TRY(az_deck_add_place(&place, deck, az_key_find(a)));
    AZ_TRY(az_str_add(&what, "excludes %s (%s): give one of them", a, place.s));
    err = rule_fault(faults, deck, b, what.s);
out:
    az_str_fini(&what);
    az_str_fini(&place);
    return err;
}

static bool has_evaluation(const az_deck *deck)
{
    return value_of(deck, "eval.file")->given || value_of(deck, "eval.split")->given;
}

bool az_deck_is_excluded(const az_deck *deck, int i)
{
    const az_value *v = &deck->values[i];
    if (v->given || !v->present)
        return false;
    if (strcmp(az_keys[i].name, "checkpoint.keep_best") == 0)
        return !has_evaluation(deck);
    if (strcmp(az_keys[i].name, "eval.early_stopping_threshold") == 0)
        return !value_of(deck, "eval.early_stopping_patience")->given;
    for (int p = 0; p < az_n_exclusive; p++) {
        if (strcmp(az_exclusive[p][1], az_keys[i].name) == 0)
            return true;
        if (strcmp(az_exclusive[p][0], az_keys[i].name) == 0)
            return value_of(deck, az_exclusive[p][1])->given;
    }
    return value_of(deck, "lora.init_from")->given && az_deck_is_said_by_adapter(i);
}

bool az_deck_is_said_by_adapter(int i)
{
    for (int k = 0; k < n_said_by_adapter; k++)
        if (strcmp(said_by_adapter[k], az_keys[i].name) == 0)
            return true;
    return strcmp(az_keys[i].name, "lora.lora_dropout") == 0;
}

static az_err check_needed(const az_deck *deck, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    for (int i = 0; i < az_n_keys; i++) {
        const char *needed = az_keys[i].needed;
        if (needed == NULL || strcmp(needed, "*") != 0 || deck->values[i].given)
            continue;
        AZ_TRY(rule_fault(faults, deck, az_keys[i].name, "missing; every deck must give it"));
    }
out:
    return err;
}

static az_err check_init_from(const az_deck *deck, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    az_str what = {0};
    if (!value_of(deck, "lora.init_from")->given)
        return AZ_OK;
    AZ_TRY(az_str_add(&what, "cannot be given together with lora.init_from ("));
    AZ_TRY(az_deck_add_place(&what, deck, az_key_find("lora.init_from")));
    AZ_TRY(az_str_add(&what, "), whose adapter_config.json says it"));
    for (int k = 0; k < n_said_by_adapter; k++)
        if (value_of(deck, said_by_adapter[k])->given)
            AZ_TRY(rule_fault(faults, deck, said_by_adapter[k], what.s));
out:
    az_str_fini(&what);
    return err;
}

/* A value that was given and is right. */
static const az_value *right(const az_deck *deck, const char *key)
{
    const az_value *v = value_of(deck, key);
    return v->given && v->present ? v : NULL;
}

/* A real that was given, or the table's default. */
static double real_of(const az_deck *deck, const char *key)
{
    const az_value *v = right(deck, key);
    return v != NULL ? v->r : strtod(az_keys[az_key_find(key)].fallback, NULL);
}

static bool is_true(const az_deck *deck, const char *key)
{
    const az_value *v = right(deck, key);
    return v != NULL && v->b;
}

/* What needs evaluations, or a number of them. */
static az_err check_evaluation(const az_deck *deck, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    static const char nothing[] = "there is nothing to evaluate on: give eval.file or eval.split";
    static const char never[] = "needs evaluations during training: give eval.steps";
    static const char best[] = "checkpoint.load_best_model_at_end";
    const bool patience = right(deck, "eval.early_stopping_patience") != NULL;
    const az_value *keep = right(deck, "checkpoint.keep_best");
    if (!has_evaluation(deck)) {
        if (right(deck, "eval.steps") != NULL)
            AZ_TRY(rule_fault(faults, deck, "eval.steps", nothing));
        if (patience)
            AZ_TRY(rule_fault(faults, deck, "eval.early_stopping_patience", nothing));
        if (is_true(deck, "checkpoint.keep_best"))
            AZ_TRY(rule_fault(faults, deck, "checkpoint.keep_best", nothing));
        if (is_true(deck, best))
            AZ_TRY(rule_fault(faults, deck, best, nothing));
    } else if (!value_of(deck, "eval.steps")->given) {
        if (patience)
            AZ_TRY(rule_fault(faults, deck, "eval.early_stopping_patience", never));
        if (is_true(deck, best))
            AZ_TRY(rule_fault(faults, deck, best, never));
    }
    if (is_true(deck, best) && keep != NULL && !keep->b)
        AZ_TRY(rule_fault(faults, deck, best,
                          "needs the best checkpoint: leave out checkpoint.keep_best=false"));
    if (right(deck, "eval.early_stopping_threshold") != NULL && !patience &&
        !value_of(deck, "eval.early_stopping_patience")->given)
        AZ_TRY(rule_fault(faults, deck, "eval.early_stopping_threshold",
                          "has no meaning without eval.early_stopping_patience"));
out:
    return err;
}

/* Bytes of the name of a hint "name=value", 0 if it is none. Names as MPI-IO has them: no blanks,
 * and both parts within what every MPI takes. */
static size_t hint_name(const char *hint)
{
    const size_t n = strcspn(hint, "= \t\r\n");
    const size_t value = hint[n] == '=' ? strlen(hint + n + 1) : 0;
    return n <= 254 && value > 0 && value <= 1023 ? n : 0;
}

/* Of hints that are sizes and numbers: some MPIs end the job where such a one is none. */
static bool is_bad_size(const char *hint, size_t n)
{
    static const char *const sizes[] = {"cb_buffer_size", "cb_nodes", "ind_rd_buffer_size",
                                        "ind_wr_buffer_size"};
    const char *value = hint + n + 1;
    const long long v = value[strspn(value, "0123456789")] == '\0' ? strtoll(value, NULL, 10) : 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strlen(sizes[i]) == n && strncmp(sizes[i], hint, n) == 0)
            return v <= 0 || v > INT32_MAX;
    return false;
}

static az_err check_hints(const az_deck *deck, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    az_str what = {0};
    static const char *const own[] = {"striping_factor", "striping_unit"};
    static const char key[] = "checkpoint.mpiio_hints";
    const az_value *v = right(deck, key);
    for (int i = 0; v != NULL && i < v->n; i++) {
        const char *hint = v->items[i];
        const size_t n = hint_name(hint);
        if (n == 0)
            AZ_TRY(az_str_add(&what, "item %d: found %.*s, expected \"name=value\"", i + 1,
                              az_deck_cut_text(hint, 60), hint));
        else if (is_bad_size(hint, n))
            AZ_TRY(az_str_add(&what, "item %d: %.*s: found %.*s, expected an integer from 1 to %d",
                              i + 1, (int)n, hint, az_deck_cut_text(hint + n + 1, 60), hint + n + 1,
                              INT32_MAX));
        for (int j = 0; n > 0 && j < i && what.len == 0; j++)
            if (strncmp(v->items[j], hint, n + 1) == 0)
                AZ_TRY(az_str_add(&what, "item %d: %.*s: given twice", i + 1, (int)n, hint));
        for (int k = 0; n > 0 && k < 2 && what.len == 0; k++)
            if (strlen(own[k]) == n && strncmp(own[k], hint, n) == 0)
                AZ_TRY(az_str_add(&what, "item %d: %s has its own key, checkpoint.%s", i + 1,
                                  own[k], own[k]));
        if (what.len > 0)
            AZ_TRY(rule_fault(faults, deck, key, what.s));
        az_str_fini(&what);
    }
out:
    az_str_fini(&what);
    return err;
}

/* The files that are mapped are the node's copy. */
static az_err check_map(const az_deck *deck, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    static const char why[] = "goes against model.load: map, in which every unit is resident, as "
                              "the system's cache of the files";
    const az_value *load = right(deck, "model.load"), *scope = right(deck, "shard.scope");
    const az_value *resident = right(deck, "shard.resident");
    if (load == NULL || strcmp(load->s, "map") != 0)
        return AZ_OK;
    if (scope != NULL && strcmp(scope->s, "world") == 0)
        AZ_TRY(rule_fault(faults, deck, "shard.scope", why));
    if (resident != NULL && resident->r < 1)
        AZ_TRY(rule_fault(faults, deck, "shard.resident", why));
out:
    return err;
}

az_err az_deck_check_rules(az_deck *deck, az_deck_faults *faults)
{
    az_err err;
    AZ_TRY(check_needed(deck, faults));
    for (int p = 0; p < az_n_exclusive; p++)
        AZ_TRY(check_exclusive(deck, az_exclusive[p][0], az_exclusive[p][1], faults));
    AZ_TRY(check_init_from(deck, faults));
    if (right(deck, "train.min_lr") != NULL &&
        real_of(deck, "train.min_lr") > real_of(deck, "train.learning_rate"))
        AZ_TRY(rule_fault(faults, deck, "train.min_lr", "is above train.learning_rate"));
    if (right(deck, "lora.layers_pattern") != NULL &&
        !value_of(deck, "lora.layers_to_transform")->given)
        AZ_TRY(rule_fault(faults, deck, "lora.layers_pattern",
                          "has no meaning without lora.layers_to_transform"));
    const az_value *targets = right(deck, "lora.target_modules");
    if (right(deck, "lora.layers_to_transform") != NULL && targets != NULL && !targets->is_list)
        AZ_TRY(rule_fault(faults, deck, "lora.layers_to_transform",
                          "needs lora.target_modules as a list, not as one string"));
    AZ_TRY(check_evaluation(deck, faults));
    AZ_TRY(check_hints(deck, faults));
    AZ_TRY(check_map(deck, faults));
    const az_value *unit = right(deck, "checkpoint.striping_unit");
    if (unit != NULL && unit->i % 65536 != 0)
        AZ_TRY(rule_fault(faults, deck, "checkpoint.striping_unit", "is no multiple of 65536"));
out:
    return err;
}
