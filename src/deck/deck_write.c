/* The deck as understood, as YAML that reads back to the same values. Paths are absolute, so that
 * it can be read from anywhere. */
#include <config.h>

#include "deck/deck_priv.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* A double-quoted YAML string. */
static az_err add_quoted(az_str *out, const char *s)
{
    az_err err;
    AZ_TRY(az_str_add(out, "\""));
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            AZ_TRY(az_str_add(out, "\\%c", c));
        else if (c < 0x20 || c == 0x7f)
            AZ_TRY(az_str_add(out, "\\x%02x", c));
        else
            AZ_TRY(az_str_add_bytes(out, s, 1));
    }
    err = az_str_add(out, "\"");
out:
    return err;
}

static az_err add_plain(az_str *out, const char *text)
{
    return az_str_add(out, "%s", text);
}

/* A path, absolute, by add_quoted or add_plain. */
static az_err add_path(az_str *out, const char *path, az_err (*add)(az_str *, const char *))
{
    az_err err;
    char here[PATH_MAX];
    char *whole = NULL;
    if (path[0] == '/')
        return add(out, path);
    if (getcwd(here, sizeof here) == NULL)
        return az_fail(AZ_EENV, "cannot tell the working directory: %s", strerror(errno));
    whole = az_path_join(here, path);
    AZ_TRY(whole != NULL ? AZ_OK : AZ_EENV);
    err = add(out, whole);
out:
    az_free(whole);
    return err;
}

static az_err add_items(az_str *out, const az_key *key, const az_value *v)
{
    az_err err;
    AZ_TRY(az_str_add(out, "["));
    for (int i = 0; i < v->n; i++) {
        if (i > 0)
            AZ_TRY(az_str_add(out, ", "));
        if (key->type == AZ_TYPE_INTS)
            err = az_str_add(out, "%lld", (long long)v->ints[i]);
        else if (key->type == AZ_TYPE_PATHS)
            err = add_path(out, v->items[i], add_quoted);
        else
            err = add_quoted(out, v->items[i]);
        AZ_TRY(err);
    }
    err = az_str_add(out, "]");
out:
    return err;
}

static az_err add_map(az_str *out, const az_key *key, const az_value *v)
{
    az_err err;
    AZ_TRY(az_str_add(out, "{"));
    for (int i = 0; i < v->n; i++) {
        if (i > 0)
            AZ_TRY(az_str_add(out, ", "));
        AZ_TRY(add_quoted(out, v->items[i]));
        AZ_TRY(az_str_add(out, ": "));
        if (key->type == AZ_TYPE_MAP_INT)
            err = az_str_add(out, "%.0f", v->reals[i]);
        else
            err = az_str_add_real(out, v->reals[i]);
        AZ_TRY(err);
    }
    err = az_str_add(out, "}");
out:
    return err;
}

/* A word as it is, a path absolute by add. */
static az_err add_choice_or_path(az_str *out, const az_key *key, const az_value *v,
                                 az_err (*add)(az_str *, const char *))
{
    return az_choices_hold(key->choices, v->s) ? add_plain(out, v->s) : add_path(out, v->s, add);
}

az_err az_value_add_yaml(az_str *out, const az_key *key, const az_value *v)
{
    if (!v->present)
        return az_str_add(out, "null");
    switch (key->type) {
    case AZ_TYPE_INT:
    case AZ_TYPE_SIZE:
        return az_str_add(out, "%lld", (long long)v->i);
    case AZ_TYPE_REAL:
        return az_str_add_real(out, v->r);
    case AZ_TYPE_BOOL:
        return az_str_add(out, v->b ? "true" : "false");
    case AZ_TYPE_CHOICE:
        return az_str_add(out, "%s", v->s);
    case AZ_TYPE_STRING:
        return add_quoted(out, v->s);
    case AZ_TYPE_PATH:
        return add_path(out, v->s, add_quoted);
    case AZ_TYPE_CHOICE_OR_PATH:
        return add_choice_or_path(out, key, v, add_quoted);
    case AZ_TYPE_LIST_OR_STRING:
        return v->s != NULL ? add_quoted(out, v->s) : add_items(out, key, v);
    case AZ_TYPE_STRINGS:
    case AZ_TYPE_PATHS:
    case AZ_TYPE_INTS:
        return add_items(out, key, v);
    case AZ_TYPE_MAP_INT:
    case AZ_TYPE_MAP_REAL:
        return add_map(out, key, v);
    }
    return AZ_OK;
}

az_err az_deck_write(az_str *out, const az_deck *deck)
{
    az_err err = AZ_OK;
    for (int s = 0; s < az_n_sections; s++) {
        AZ_TRY(az_str_add(out, "%s%s:\n", s > 0 ? "\n" : "", az_sections[s].name));
        for (int i = 0; i < az_n_keys; i++) {
            if (!az_key_in_section(&az_keys[i], az_sections[s].name) ||
                az_deck_is_excluded(deck, i))
                continue;
            AZ_TRY(az_str_add(out, "  %s: ", az_key_short(&az_keys[i])));
            AZ_TRY(az_value_add_yaml(out, &az_keys[i], &deck->values[i]));
            AZ_TRY(az_str_add(out, "\n"));
        }
    }
out:
    return err;
}

az_err az_deck_add_text(az_str *out, const az_deck *deck, const char *key)
{
    az_err err;
    az_str near = {0};
    bool found;
    const int i = az_key_find(key);
    if (i < 0) {
        AZ_TRY(az_deck_help_key(&near, key, &found));
        err = az_fail(AZ_EINPUT, "%.80s: no such key; %s", key,
                      found ? "a key is named section.key" : near.s);
    } else if (!deck->values[i].present || az_deck_is_excluded(deck, i)) {
        err = AZ_OK;
    } else if (az_keys[i].type == AZ_TYPE_PATH) {
        err = add_path(out, deck->values[i].s, add_plain);
    } else if (az_keys[i].type == AZ_TYPE_CHOICE_OR_PATH) {
        err = add_choice_or_path(out, &az_keys[i], &deck->values[i], add_plain);
    } else if (az_keys[i].type == AZ_TYPE_STRING) {
        err = add_plain(out, deck->values[i].s);
    } else {
        err = az_value_add_yaml(out, &az_keys[i], &deck->values[i]);
    }
out:
    az_str_fini(&near);
    return err;
}
