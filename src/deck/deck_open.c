/* Reading a deck: file, arguments, rules, defaults; all faults in one message. */
#include <config.h>

#include "deck/deck_priv.h"

#include <string.h>

/* The keys of a section, for a message. */
static az_err add_keys_of(az_str *out, const char *section)
{
    az_err err = AZ_OK;
    bool first = true;
    for (int i = 0; i < az_n_keys; i++) {
        if (!az_key_in_section(&az_keys[i], section))
            continue;
        AZ_TRY(az_str_add(out, "%s%s", first ? "" : ", ", az_key_short(&az_keys[i])));
        first = false;
    }
out:
    return err;
}

static az_err unknown_section(az_deck_faults *faults, const az_node *name)
{
    az_err err = AZ_OK;
    az_str sections = {0};
    const az_section *near = az_section_nearest(name->text);
    int cut = az_deck_cut_text(name->text, 60), key = az_key_find(name->text);
    const az_key *near_key = key >= 0 ? &az_keys[key] : az_key_nearest(name->text);
    if (strcmp(name->text, "<<") == 0) {
        err = az_deck_note(faults, name->line, "merge keys (<<) are not part of a deck");
    } else if (key >= 0) {
        err = az_deck_note(faults, name->line,
                           "%s: keys stand in their section: write it as \"%.*s:\" and, below it "
                           "and indented, \"%s:\"",
                           name->text, (int)strcspn(name->text, "."), name->text,
                           az_key_short(near_key));
    } else if (near != NULL) {
        err = az_deck_note(faults, name->line, "%.*s: unknown section; did you mean %s?", cut,
                           name->text, near->name);
    } else if (near_key != NULL) {
        err = az_deck_note(faults, name->line, "%.*s: unknown section; did you mean the key %s?",
                           cut, name->text, near_key->name);
    } else {
        for (int i = 0; i < az_n_sections; i++)
            AZ_TRY(az_str_add(&sections, "%s%s", i > 0 ? ", " : "", az_sections[i].name));
        err = az_deck_note(faults, name->line, "%.*s: unknown section; there are %s", cut,
                           name->text, sections.s);
    }
out:
    az_str_fini(&sections);
    return err;
}

static az_err unknown_key(az_deck_faults *faults, int line, const char *full)
{
    az_err err;
    az_str keys = {0}, section = {0};
    const az_key *near = az_key_nearest(full);
    const char *point = strchr(full, '.');
    int cut = az_deck_cut_text(full, 80);
    AZ_TRY(az_str_add_bytes(&section, full, point != NULL ? (size_t)(point - full) : 0));
    if (point != NULL && strcmp(point, ".<<") == 0) {
        err = az_deck_note(faults, line, "merge keys (<<) are not part of a deck");
    } else if (near != NULL) {
        err = az_deck_note(faults, line, "%.*s: unknown key; did you mean %s?", cut, full,
                           near->name);
    } else if (az_section_find(section.s) >= 0) {
        AZ_TRY(add_keys_of(&keys, section.s));
        err = az_deck_note(faults, line, "%.*s: unknown key; keys of %s are %s", cut, full,
                           section.s, keys.s);
    } else {
        err =
            az_deck_note(faults, line, "%.*s: unknown key; `adze help keys` lists all", cut, full);
    }
out:
    az_str_fini(&keys);
    az_str_fini(&section);
    return err;
}

/* Give key i the value of a node. null is "not given" where there is no default. */
static az_err set_key(az_deck *deck, int i, const az_node *node, const char *opt_place,
                      const char *base, az_deck_faults *faults)
{
    az_value *v = &deck->values[i];
    bool null = az_node_is_null(node) && !node->bad;
    az_value_fini(v);
    if (null && (opt_place != NULL || az_keys[i].fallback == NULL))
        return AZ_OK;
    v->given = true;
    v->line = node->line;
    v->place = opt_place;
    return az_value_set(v, &az_keys[i], node, base, faults);
}

static az_err read_section(az_deck *deck, const char *section, const az_node *node, int *first_line,
                           az_deck_faults *faults)
{
    az_err err = AZ_OK;
    az_str full = {0}, keys = {0}, found = {0};
    if (node->bad || az_node_is_null(node))
        return AZ_OK;
    if (node->kind != AZ_NODE_MAP) {
        AZ_TRY(az_node_add_found(&found, node));
        AZ_TRY(add_keys_of(&keys, section));
        err = az_deck_note(faults, node->line, "%s: found %s, expected a section with keys %s",
                           section, found.s, keys.s);
        goto out;
    }
    for (int j = 0; j + 1 < node->n; j += 2) {
        const az_node *name = node->items[j], *value = node->items[j + 1];
        if (name->bad)
            continue;
        az_str_fini(&full);
        AZ_TRY(az_str_add(&full, "%s.%s", section,
                          name->kind == AZ_NODE_SCALAR ? name->text : "(not a name)"));
        int i = az_key_find(full.s);
        if (i < 0) {
            AZ_TRY(unknown_key(faults, name->line, full.s));
        } else if (first_line[i] > 0) {
            AZ_TRY(az_deck_note(faults, name->line, "%s: given twice, first on line %d", full.s,
                                first_line[i]));
        } else {
            first_line[i] = name->line;
            AZ_TRY(set_key(deck, i, value, NULL, deck->dir, faults));
        }
    }
out:
    az_str_fini(&full);
    az_str_fini(&keys);
    az_str_fini(&found);
    return err;
}

static az_err read_root(az_deck *deck, const az_node *root, az_deck_faults *faults)
{
    az_err err = AZ_OK;
    int *first_line = NULL, *section_line = NULL;
    az_str found = {0};
    if (root->bad || az_node_is_null(root))
        return AZ_OK;
    if (root->kind != AZ_NODE_MAP) {
        AZ_TRY(az_node_add_found(&found, root));
        err = az_deck_note(faults, root->line, "found %s, expected sections: \"model:\" and so on",
                           found.s);
        goto out;
    }
    AZ_TRY(AZ_NEW(first_line, (size_t)az_n_keys, "deck"));
    AZ_TRY(AZ_NEW(section_line, (size_t)az_n_sections, "deck"));
    for (int j = 0; j + 1 < root->n; j += 2) {
        const az_node *name = root->items[j];
        if (name->bad)
            continue;
        if (name->kind != AZ_NODE_SCALAR) {
            AZ_TRY(az_node_add_found(&found, name));
            AZ_TRY(az_deck_note(faults, name->line, "found %s, expected the name of a section",
                                found.s));
            az_str_fini(&found);
            continue;
        }
        int s = az_section_find(name->text);
        if (s < 0) {
            AZ_TRY(unknown_section(faults, name));
        } else if (section_line[s] > 0) {
            AZ_TRY(az_deck_note(faults, name->line, "%s: given twice, first on line %d", name->text,
                                section_line[s]));
        } else {
            section_line[s] = name->line;
            AZ_TRY(read_section(deck, name->text, root->items[j + 1], first_line, faults));
        }
    }
out:
    az_free(first_line);
    az_free(section_line);
    az_str_fini(&found);
    return err;
}

static az_err read_file(az_deck *deck, bool *out_broken, az_deck_faults *faults)
{
    az_err err;
    char *text = NULL;
    size_t bytes = 0;
    az_node *root = NULL;
    AZ_TRY(az_file_read(&text, &bytes, deck->path));
    faults->where = deck->path;
    AZ_TRY(az_yaml_read(&root, out_broken, text, bytes, faults));
    if (root != NULL)
        err = read_root(deck, root, faults);
    if (root != NULL && root->kind != AZ_NODE_MAP && !az_node_is_null(root))
        *out_broken = true;
out:
    az_node_destroy(root);
    az_free(text);
    return err;
}

/* One argument "section.key=value". */
static az_err read_override(az_deck *deck, const char *arg, bool *out_broken,
                            az_deck_faults *faults)
{
    az_err err;
    az_str place = {0}, name = {0};
    az_node *node = NULL, nothing = {.kind = AZ_NODE_SCALAR, .text = (char[]){""}};
    const char *equals = strchr(arg, '=');
    int cut = az_deck_cut_text(arg, 80);
    AZ_TRY(az_str_add(&place, "argument %.*s%s", cut, arg, arg[cut] != '\0' ? "..." : ""));
    deck->places[deck->n_places++] = place.s;
    faults->where = place.s;
    faults->one_line = true;
    place = (az_str){0};
    if (equals == NULL) {
        err = az_deck_note(faults, 0, "expected section.key=value");
        goto out;
    }
    AZ_TRY(az_str_add_bytes(&name, arg, (size_t)(equals - arg)));
    int i = az_key_find(name.s);
    if (i < 0) {
        err = unknown_key(faults, 0, name.s);
        goto out;
    }
    if (deck->values[i].place != NULL) {
        err =
            az_deck_note(faults, 0, "%s: given twice, first by %s", name.s, deck->values[i].place);
        goto out;
    }
    AZ_TRY(az_yaml_read(&node, out_broken, equals + 1, strlen(equals + 1), faults));
    if (!*out_broken)
        err = set_key(deck, i, node != NULL ? node : &nothing, faults->where, ".", faults);
out:
    az_node_destroy(node);
    az_str_fini(&name);
    az_str_fini(&place);
    return err;
}

az_err az_deck_set_defaults(az_deck *deck)
{
    az_err err = AZ_OK;
    az_node *node = NULL;
    az_deck_faults faults = {.where = "default"};
    for (int i = 0; i < az_n_keys; i++) {
        bool broken;
        const char *text = az_keys[i].fallback;
        if (text == NULL || deck->values[i].given)
            continue;
        AZ_TRY(az_yaml_read(&node, &broken, text, strlen(text), &faults));
        AZ_ASSERT(node != NULL);
        AZ_TRY(az_value_set(&deck->values[i], &az_keys[i], node, ".", &faults));
        AZ_ASSERT(deck->values[i].present);
        az_node_destroy(node);
        node = NULL;
    }
out:
    az_node_destroy(node);
    az_str_fini(&faults.text);
    return err;
}

az_err az_deck_open(az_deck **out_deck, const char *path, char *const *overrides, int n_overrides)
{
    az_err err;
    az_deck *deck = NULL;
    az_deck_faults faults = {0};
    bool broken = false, any_broken = false;
    *out_deck = NULL;
    AZ_TRY(AZ_NEW(deck, 1, "deck"));
    AZ_TRY((deck->path = az_strdup(path, "deck")) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY((deck->dir = az_path_dir(path)) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(AZ_NEW(deck->values, (size_t)az_n_keys, "deck"));
    AZ_TRY(AZ_NEW(deck->places, (size_t)n_overrides, "deck"));
    AZ_TRY(read_file(deck, &any_broken, &faults));
    for (int i = 0; i < n_overrides; i++) {
        AZ_TRY(read_override(deck, overrides[i], &broken, &faults));
        any_broken = any_broken || broken;
    }
    if (!any_broken)
        AZ_TRY(az_deck_check_rules(deck, &faults));
    AZ_TRY(az_deck_report(&faults));
    AZ_TRY(az_deck_set_defaults(deck));
    *out_deck = deck;
    deck = NULL;
out:
    az_deck_close(deck);
    az_str_fini(&faults.text);
    return err;
}

void az_deck_close(az_deck *opt_deck)
{
    if (opt_deck == NULL)
        return;
    for (int i = 0; opt_deck->values != NULL && i < az_n_keys; i++)
        az_value_fini(&opt_deck->values[i]);
    for (int i = 0; i < opt_deck->n_places; i++)
        az_free(opt_deck->places[i]);
    az_free(opt_deck->values);
    az_free(opt_deck->places);
    az_free(opt_deck->path);
    az_free(opt_deck->dir);
    az_free(opt_deck);
}

az_err az_deck_check(const az_deck *deck, const char *command)
{
    az_err err = AZ_OK;
    az_deck_faults faults = {.where = deck->path};
    az_str expected = {0};
    for (int i = 0; i < az_n_keys; i++) {
        if (deck->values[i].present || !az_words_hold(az_keys[i].needed, command))
            continue;
        AZ_TRY(az_key_add_expected(&expected, &az_keys[i]));
        AZ_TRY(az_deck_note(&faults, 0, "%s: missing; adze %s needs it (%s)", az_keys[i].name,
                            command, expected.s));
        az_str_fini(&expected);
    }
    err = az_deck_report(&faults);
out:
    az_str_fini(&faults.text);
    az_str_fini(&expected);
    return err;
}
