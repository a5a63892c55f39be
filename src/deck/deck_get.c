/* Values of a deck for those who use it. */
#include <config.h>

#include "deck/deck_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int index_of(const char *key)
{
    int i = az_key_find(key);
    AZ_ASSERT(i >= 0 && "no such key in the table");
    return i;
}

/* The value of a key of this type, which must be there. */
static const az_value *get(const az_deck *deck, const char *key, az_type type)
{
    int i = index_of(key);
    AZ_ASSERT(az_keys[i].type == type);
    AZ_ASSERT(deck->values[i].present && "no value: ask az_deck_has first");
    return &deck->values[i];
}

const char *az_deck_path(const az_deck *deck)
{
    return deck->path;
}

bool az_deck_has(const az_deck *deck, const char *key)
{
    return deck->values[index_of(key)].given;
}

int64_t az_deck_int(const az_deck *deck, const char *key)
{
    return get(deck, key, AZ_TYPE_INT)->i;
}

int64_t az_deck_size(const az_deck *deck, const char *key)
{
    return get(deck, key, AZ_TYPE_SIZE)->i;
}

double az_deck_real(const az_deck *deck, const char *key)
{
    return get(deck, key, AZ_TYPE_REAL)->r;
}

bool az_deck_bool(const az_deck *deck, const char *key)
{
    return get(deck, key, AZ_TYPE_BOOL)->b;
}

const char *az_deck_string(const az_deck *deck, const char *key)
{
    int i = index_of(key);
    az_type t = az_keys[i].type;
    AZ_ASSERT(t == AZ_TYPE_STRING || t == AZ_TYPE_PATH || t == AZ_TYPE_CHOICE ||
              t == AZ_TYPE_CHOICE_OR_PATH || t == AZ_TYPE_LIST_OR_STRING);
    return deck->values[i].s;
}

int az_deck_find(const az_deck *deck, const char *key, const char *const *words, int n)
{
    const char *s = az_deck_string(deck, key);
    for (int i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0)
            return i;
    return -1;
}

int az_deck_count(const az_deck *deck, const char *key)
{
    int i = index_of(key);
    const az_value *v = &deck->values[i];
    AZ_ASSERT(az_keys[i].type >= AZ_TYPE_STRINGS);
    return v->s != NULL ? 1 : v->n;
}

const char *az_deck_item(const az_deck *deck, const char *key, int i)
{
    const az_value *v = &deck->values[index_of(key)];
    AZ_ASSERT(i >= 0 && i < az_deck_count(deck, key));
    if (v->s != NULL)
        return v->s;
    AZ_ASSERT(v->items != NULL);
    return v->items[i];
}

int64_t az_deck_item_int(const az_deck *deck, const char *key, int i)
{
    const az_value *v = get(deck, key, AZ_TYPE_INTS);
    AZ_ASSERT(i >= 0 && i < v->n);
    return v->ints[i];
}

bool az_deck_is_list(const az_deck *deck, const char *key)
{
    return deck->values[index_of(key)].is_list;
}

const char *az_deck_map_key(const az_deck *deck, const char *key, int i)
{
    return az_deck_item(deck, key, i);
}

double az_deck_map_value(const az_deck *deck, const char *key, int i)
{
    const az_value *v = &deck->values[index_of(key)];
    AZ_ASSERT(v->reals != NULL && i >= 0 && i < v->n);
    return v->reals[i];
}

az_err az_deck_add_place(az_str *out, const az_deck *deck, int i)
{
    const az_value *v = &deck->values[i];
    if (v->given && v->place != NULL)
        return az_str_add(out, "%s", v->place);
    if (v->given && v->line > 0)
        return az_str_add(out, "%s:%d", deck->path, v->line);
    return az_str_add(out, "%s", deck->path);
}

az_err az_deck_fail(const az_deck *deck, const char *key, const char *fmt, ...)
{
    az_err err;
    az_str place = {0};
    char what[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    AZ_TRY(az_deck_add_place(&place, deck, index_of(key)));
    err = az_fail(AZ_EINPUT, "%s: %s: %s", place.s, key, what);
out:
    az_str_fini(&place);
    return err;
}
