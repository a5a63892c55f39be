/* Keys by name: look-up, the nearest key to a wrong name, what a value must be. */
#include <config.h>

#include "deck/deck_priv.h"

#include <math.h>
#include <string.h>

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

bool az_choices_hold(const char *choices, const char *word)
{
    const size_t n = strlen(word);
    if (strchr(word, '|') != NULL)
        return false;
    for (const char *c = choices; c != NULL; c = strchr(c, '|')) {
        c += *c == '|';
        if (n > 0 && strncmp(c, word, n) == 0 && (c[n] == '|' || c[n] == '\0'))
            return true;
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
    if (key->ihi == INT64_MAX)
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
    case AZ_TYPE_SIZE:
        err = az_str_add(out, AZ_SIZE_FORM ", at least %s", az_format_bytes((double)key->ilo));
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
    case AZ_TYPE_CHOICE_OR_PATH:
        AZ_TRY(az_str_add(out, "one of "));
        AZ_TRY(add_choices(out, key->choices));
        err = az_str_add(out, ", or a path");
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
