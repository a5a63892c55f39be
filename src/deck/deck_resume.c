/* Whether a run may go on with another deck than it was begun with.
 *
 * The earlier deck is the text that az_deck_write made of it, perhaps of another version of the
 * program. Values are compared, not texts: it is read by the same table. Rules where the two
 * versions or decks do not have the same keys:
 *   - a key that the earlier text lacks had this version's default: a new key's default must do
 *     what was done before there was the key;
 *   - a key of the earlier text that is not in the table has to be without a value, or in a section
 *     whose keys have no part in what is computed;
 *   - of two keys that exclude each other the pair is compared: which is in force, with what;
 *   - lora.init_from may name another place, but not come or go: with it the adapter's own config
 *     says what the keys of lora say else. */
#include <config.h>

#include "deck/deck_priv.h"

#include <string.h>

typedef struct {
    const az_deck *now;
    az_deck then;
    bool *done; /* [az_n_keys] nothing more to be said of it */
    const char *name;
    az_str text; /* differences, a line each */
} comparison;

/* ---- texts */

/* At most so many bytes of a value. */
static az_err add_cut(az_str *out, const char *text)
{
    const int cut = az_deck_cut_text(text, 160);
    return az_str_add(out, "%.*s%s", cut, text, text[cut] != '\0' ? "..." : "");
}

/* "0.002", or "not given". */
static az_err add_value(az_str *out, const az_deck *deck, int i)
{
    az_err err;
    az_str value = {0};
    if (!deck->values[i].present || az_deck_is_excluded(deck, i))
        return az_str_add(out, "not given");
    AZ_TRY(az_value_add_yaml(&value, &az_keys[i], &deck->values[i]));
    err = add_cut(out, value.s);
out:
    az_str_fini(&value);
    return err;
}

/* "0.002 now (d.yaml:12)" */
static az_err add_now(az_str *out, const az_deck *deck, int i)
{
    az_err err;
    AZ_TRY(add_value(out, deck, i));
    AZ_TRY(az_str_add(out, " now"));
    if (deck->values[i].given) {
        AZ_TRY(az_str_add(out, " ("));
        AZ_TRY(az_deck_add_place(out, deck, i));
        AZ_TRY(az_str_add(out, ")"));
    } else if (deck->values[i].present && !az_deck_is_excluded(deck, i)) {
        AZ_TRY(az_str_add(out, " (the default)"));
    }
out:
    return err;
}

/* "train.warmup_steps: 3 then, train.warmup_ratio: 0.1 now (d.yaml:12)"; i and k are the same key,
 * or two that exclude each other. */
static az_err add_change(az_str *out, const comparison *c, int i, int k)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%s: ", az_keys[i].name));
    AZ_TRY(add_value(out, &c->then, i));
    AZ_TRY(az_str_add(out, " then, "));
    if (k != i)
        AZ_TRY(az_str_add(out, "%s: ", az_keys[k].name));
    err = add_now(out, c->now, k);
out:
    return err;
}

static az_err add_difference(comparison *c, int i, int k)
{
    az_err err;
    AZ_TRY(az_str_add(&c->text, "\n  "));
    err = add_change(&c->text, c, i, k);
out:
    return err;
}

/* ---- the earlier deck */

/* A key that this version does not have. */
static az_err read_unknown(comparison *c, const char *section, const char *full,
                           const az_node *node)
{
    az_err err;
    az_str found = {0};
    const int s = az_section_find(section);
    if (az_node_is_null(node) || (s >= 0 && !az_sections[s].computes))
        return AZ_OK;
    AZ_TRY(az_node_add_found(&found, node));
    AZ_TRY(az_str_add(&c->text, "\n  "));
    AZ_TRY(add_cut(&c->text, full));
    err = az_str_add(&c->text, ": %s then, a key that this version of adze does not have", found.s);
out:
    az_str_fini(&found);
    return err;
}

static az_err read_key(comparison *c, int i, const az_node *node)
{
    az_err err;
    az_deck_faults faults = {.where = c->name};
    az_str found = {0};
    az_value *v = &c->then.values[i];
    az_value_fini(v);
    if (az_node_is_null(node) && !node->bad)
        return AZ_OK;
    v->given = true;
    AZ_TRY(az_value_set(v, &az_keys[i], node, ".", &faults));
    if (v->present)
        goto out;
    c->done[i] = true;
    if (az_keys[i].resume)
        goto out;
    AZ_TRY(az_node_add_found(&found, node));
    AZ_TRY(az_str_add(&c->text, "\n  %s: %s then, which this version of adze does not take; ",
                      az_keys[i].name, found.s));
    err = add_now(&c->text, c->now, i);
out:
    az_str_fini(&faults.text);
    az_str_fini(&found);
    return err;
}

static az_err read_section(comparison *c, const az_node *name, const az_node *node)
{
    az_err err = AZ_OK;
    az_str full = {0};
    if (name->kind != AZ_NODE_SCALAR)
        return AZ_OK;
    if (node->kind != AZ_NODE_MAP)
        return read_unknown(c, name->text, name->text, node);
    for (int j = 0; j + 1 < node->n; j += 2) {
        const az_node *key = node->items[j], *value = node->items[j + 1];
        az_str_fini(&full);
        AZ_TRY(az_str_add(&full, "%s.%s", name->text,
                          key->kind == AZ_NODE_SCALAR ? key->text : "(not a name)"));
        const int i = az_key_find(full.s);
        AZ_TRY(i >= 0 ? read_key(c, i, value) : read_unknown(c, name->text, full.s, value));
    }
out:
    az_str_fini(&full);
    return err;
}

static az_err read_earlier(comparison *c, const char *text)
{
    az_err err;
    az_deck_faults faults = {.where = c->name};
    az_node *root = NULL;
    bool broken;
    AZ_TRY(az_yaml_read(&root, &broken, text, strlen(text), &faults));
    if (faults.n > 0) {
        err = az_fail(AZ_EINPUT, "%s: the deck in it cannot be read:\n%s", c->name, faults.text.s);
        goto out;
    }
    if (root == NULL || root->kind != AZ_NODE_MAP) {
        err = az_fail(AZ_EINPUT, "%s: the deck in it cannot be read: it has no sections", c->name);
        goto out;
    }
    for (int j = 0; j + 1 < root->n; j += 2)
        AZ_TRY(read_section(c, root->items[j], root->items[j + 1]));
    err = az_deck_set_defaults(&c->then);
out:
    az_node_destroy(root);
    az_str_fini(&faults.text);
    return err;
}

/* ---- comparing */

static bool same_int(const az_value *a, int i, const az_value *b, int k)
{
    return a->ints[i] == b->ints[k];
}

static bool same_item(const az_value *a, int i, const az_value *b, int k)
{
    return strcmp(a->items[i], b->items[k]) == 0;
}

/* Lists say which modules or layers: order and repetition mean nothing. */
static bool is_subset(const az_value *a, const az_value *b)
{
    for (int i = 0; i < a->n; i++) {
        bool found = false;
        for (int k = 0; k < b->n && !found; k++)
            found = a->ints != NULL ? same_int(a, i, b, k) : same_item(a, i, b, k);
        if (!found)
            return false;
    }
    return true;
}

/* In maps the first entry that matches counts: order is part of the value. */
static bool same_maps(const az_value *a, const az_value *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (!same_item(a, i, b, i) || a->reals[i] != b->reals[i])
            return false;
    return true;
}

static bool same_values(az_type type, const az_value *a, const az_value *b)
{
    switch (type) {
    case AZ_TYPE_INT:
    case AZ_TYPE_SIZE:
        return a->i == b->i;
    case AZ_TYPE_REAL:
        return a->r == b->r;
    case AZ_TYPE_BOOL:
        return a->b == b->b;
    case AZ_TYPE_STRING:
    case AZ_TYPE_PATH:
    case AZ_TYPE_CHOICE:
    case AZ_TYPE_CHOICE_OR_PATH:
        return strcmp(a->s, b->s) == 0;
    case AZ_TYPE_LIST_OR_STRING:
        if (a->s != NULL || b->s != NULL)
            return a->s != NULL && b->s != NULL && strcmp(a->s, b->s) == 0;
        return is_subset(a, b) && is_subset(b, a);
    case AZ_TYPE_STRINGS:
    case AZ_TYPE_PATHS:
    case AZ_TYPE_INTS:
        return is_subset(a, b) && is_subset(b, a);
    case AZ_TYPE_MAP_INT:
    case AZ_TYPE_MAP_REAL:
        return same_maps(a, b);
    }
    return true;
}

static bool is_in_force(const az_deck *deck, int i)
{
    return deck->values[i].present && !az_deck_is_excluded(deck, i);
}

static bool is_same(const comparison *c, int i)
{
    const bool then = is_in_force(&c->then, i), now = is_in_force(c->now, i);
    if (!then || !now)
        return then == now;
    return same_values(az_keys[i].type, &c->then.values[i], &c->now->values[i]);
}

/* Of two keys that exclude each other the one in force; a if none is. */
static int pick(const az_deck *deck, int a, int b)
{
    return is_in_force(deck, b) ? b : a;
}

/* Only the size of micro-batches changes bits and is free. */
static bool changes_bits(int i)
{
    return strncmp(az_keys[i].name, "train.micro_batch_", 18) == 0;
}

static az_err compare_pair(comparison *c, int a, int b)
{
    az_err err = AZ_OK;
    az_str change = {0};
    if (c->done[a] || c->done[b])
        return AZ_OK;
    c->done[a] = c->done[b] = true;
    const int then = pick(&c->then, a, b), now = pick(c->now, a, b);
    if (is_same(c, a) && is_same(c, b))
        return AZ_OK;
    if ((!az_keys[a].resume && !is_same(c, a)) || (!az_keys[b].resume && !is_same(c, b))) {
        /* One side may have neither: it is told by the key of the other. */
        if (!is_in_force(&c->then, then))
            err = add_difference(c, now, now);
        else
            err = add_difference(c, then, is_in_force(c->now, now) ? now : then);
    } else if (changes_bits(a)) {
        AZ_TRY(add_change(&change, c, then, now));
        az_say("resume    %s: the last bits of the results may differ", change.s);
    }
out:
    az_str_fini(&change);
    return err;
}

static az_err compare_init_from(comparison *c)
{
    const int from = az_key_find("lora.init_from");
    AZ_ASSERT(from >= 0);
    c->done[from] = true;
    if (c->then.values[from].given == c->now->values[from].given)
        return AZ_OK;
    for (int i = 0; i < az_n_keys; i++)
        c->done[i] = c->done[i] || az_deck_is_said_by_adapter(i);
    return add_difference(c, from, from);
}

static az_err compare(comparison *c)
{
    az_err err;
    AZ_TRY(compare_init_from(c));
    for (int p = 0; p < az_n_exclusive; p++)
        AZ_TRY(compare_pair(c, az_key_find(az_exclusive[p][0]), az_key_find(az_exclusive[p][1])));
    for (int i = 0; i < az_n_keys; i++)
        if (!c->done[i] && !az_keys[i].resume && !is_same(c, i))
            AZ_TRY(add_difference(c, i, i));
out:
    return err;
}

az_err az_deck_check_resume(const az_deck *deck, const char *earlier_text, const char *earlier_name)
{
    az_err err;
    comparison c = {.now = deck, .name = earlier_name};
    AZ_TRY(AZ_NEW(c.then.values, (size_t)az_n_keys, "deck"));
    AZ_TRY(AZ_NEW(c.done, (size_t)az_n_keys, "deck"));
    AZ_TRY(read_earlier(&c, earlier_text));
    AZ_TRY(compare(&c));
    if (c.text.len > 0)
        err = az_fail(AZ_EINPUT,
                      "%s: was made with other values of keys that must stay the same when a run "
                      "is resumed:%s\nGive the earlier values, or start anew: checkpoint.resume=no "
                      "and another output.dir",
                      earlier_name, c.text.s);
out:
    for (int i = 0; c.then.values != NULL && i < az_n_keys; i++)
        az_value_fini(&c.then.values[i]);
    az_free(c.then.values);
    az_free(c.done);
    az_str_fini(&c.text);
    return err;
}
