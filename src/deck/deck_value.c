/* Values: a node of the tree becomes a number, a string, a list or a map, strictly. */
#include <config.h>

#include "deck/deck_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void az_value_fini(az_value *value)
{
    for (int i = 0; value->items != NULL && i < value->n; i++)
        az_free(value->items[i]);
    az_free(value->items);
    az_free(value->ints);
    az_free(value->reals);
    az_free(value->s);
    *value = (az_value){0};
}

/* "found X, expected Y"; item: number of a list's item from 1, or 0; name: of a map's entry. */
static az_err fault(az_deck_faults *faults, const az_key *key, const az_node *node, int item,
                    const char *opt_name)
{
    az_err err;
    az_str found = {0}, expected = {0}, at = {0};
    AZ_TRY(az_node_add_found(&found, node));
    AZ_TRY(az_key_add_expected(&expected, key));
    if (item > 0)
        AZ_TRY(az_str_add(&at, ": item %d", item));
    if (opt_name != NULL)
        AZ_TRY(az_str_add(&at, ": %.*s", az_deck_cut_text(opt_name, 60), opt_name));
    if (az_node_is_null(node) && item == 0 && opt_name == NULL)
        AZ_TRY(az_str_add(&expected, "; leave the key out for its default, %s", key->fallback));
    err = az_deck_note(faults, node->line, "%s%s: found %s, expected %s", key->name,
                       at.s != NULL ? at.s : "", found.s, expected.s);
out:
    az_str_fini(&found);
    az_str_fini(&expected);
    az_str_fini(&at);
    return err;
}

/* Decimal digits with an optional sign; no leading zero, which YAML 1.1 reads as octal. */
static bool parse_int(int64_t *out, const az_node *node)
{
    if (node->kind != AZ_NODE_SCALAR || node->quoted)
        return false;
    const char *d = node->text + (node->text[0] == '-' || node->text[0] == '+');
    size_t n = strspn(d, "0123456789");
    if (n == 0 || d[n] != '\0' || (d[0] == '0' && n > 1))
        return false;
    errno = 0;
    *out = strtoll(node->text, NULL, 10);
    return errno == 0;
}

/* [sign] digits [. digits] [e [sign] digits], with a digit before or after the point. */
static bool parse_real(double *out, const az_node *node)
{
    if (node->kind != AZ_NODE_SCALAR || node->quoted)
        return false;
    const char *p = node->text + (node->text[0] == '-' || node->text[0] == '+');
    size_t whole = strspn(p, "0123456789"), part = 0;
    p += whole;
    if (*p == '.') {
        part = strspn(p + 1, "0123456789");
        p += 1 + part;
    }
    if (whole + part == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        size_t digits = strspn(p, "0123456789");
        if (digits == 0)
            return false;
        p += digits;
    }
    if (*p != '\0')
        return false;
    *out = strtod(node->text, NULL);
    return *out - *out == 0; /* finite */
}

static bool int_in_range(const az_key *key, int64_t v)
{
    return v >= key->ilo && v <= key->ihi;
}

static bool real_in_range(const az_key *key, double v)
{
    return (key->open & AZ_LO_OPEN ? v > key->lo : v >= key->lo) &&
           (key->open & AZ_HI_OPEN ? v < key->hi : v <= key->hi);
}

static bool parse_size(int64_t *out, const az_node *node)
{
    return node->kind == AZ_NODE_SCALAR && az_parse_size(out, node->text);
}

static bool parse_bool(bool *out, const az_node *node)
{
    static const char *const words[2][3] = {{"false", "False", "FALSE"}, {"true", "True", "TRUE"}};
    if (node->kind != AZ_NODE_SCALAR || node->quoted)
        return false;
    for (int w = 0; w < 6; w++)
        if (strcmp(node->text, words[w / 3][w % 3]) == 0) {
            *out = w / 3 == 1;
            return true;
        }
    return false;
}

/* true and false of YAML are choices too, in their three spellings; a quoted "true" is not. */
static bool parse_choice(char *out, size_t size, const char *choices, const az_node *node)
{
    bool yes;
    const char *text = node->text;
    if (node->kind != AZ_NODE_SCALAR)
        return false;
    if (parse_bool(&yes, node))
        text = yes ? "true" : "false";
    else if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return false;
    size_t n = strlen(text);
    if (n >= size || !az_choices_hold(choices, text))
        return false;
    memcpy(out, text, n + 1);
    return true;
}

/* A path as the user means it: relative to base. */
static char *path_create(const char *base, const char *text)
{
    return strcmp(base, ".") == 0 ? az_strdup(text, "deck") : az_path_join(base, text);
}

/* One of the words, or a path. true and false are neither: whoever writes them means a word. */
static char *choice_or_path_create(const az_key *key, const char *base, const char *text)
{
    return az_choices_hold(key->choices, text) ? az_strdup(text, "deck") : path_create(base, text);
}

static bool is_text(const az_node *node)
{
    return node->kind == AZ_NODE_SCALAR && !az_node_is_null(node);
}

static az_err set_text(az_value *value, const az_key *key, const az_node *node, const char *base,
                       az_deck_faults *faults)
{
    char choice[32];
    bool yes;
    bool empty_is_fine = key->type == AZ_TYPE_STRING;
    bool right = is_text(node) && (empty_is_fine || node->text[0] != '\0');
    if (right && key->type == AZ_TYPE_CHOICE)
        right = parse_choice(choice, sizeof choice, key->choices, node);
    if (right && key->type == AZ_TYPE_CHOICE_OR_PATH)
        right = !parse_bool(&yes, node);
    if (!right)
        return fault(faults, key, node, 0, NULL);
    value->s = key->type == AZ_TYPE_PATH             ? path_create(base, node->text)
               : key->type == AZ_TYPE_CHOICE         ? az_strdup(choice, "deck")
               : key->type == AZ_TYPE_CHOICE_OR_PATH ? choice_or_path_create(key, base, node->text)
                                                     : az_strdup(node->text, "deck");
    value->present = true;
    return value->s != NULL ? AZ_OK : AZ_EENV;
}

/* Lists of strings, paths and integers; a scalar is a list of one. */
static az_err set_list(az_value *value, const az_key *key, const az_node *node, const char *base,
                       az_deck_faults *faults)
{
    az_err err = AZ_OK;
    bool ints = key->type == AZ_TYPE_INTS, right = true;
    value->is_list = node->kind == AZ_NODE_LIST;
    if (node->kind == AZ_NODE_MAP || (value->is_list && node->n == 0))
        return fault(faults, key, node, 0, NULL);
    int n = value->is_list ? node->n : 1;
    if (ints)
        AZ_TRY(AZ_NEW(value->ints, (size_t)n, "deck"));
    else
        AZ_TRY(AZ_NEW(value->items, (size_t)n, "deck"));
    value->n = n;
    for (int i = 0; i < n; i++) {
        const az_node *item = value->is_list ? node->items[i] : node;
        bool fine = ints ? parse_int(&value->ints[i], item) && int_in_range(key, value->ints[i])
                         : is_text(item) && item->text[0] != '\0';
        if (!fine) {
            right = false;
            if (!item->bad)
                AZ_TRY(fault(faults, key, item, value->is_list ? i + 1 : 0, NULL));
            continue;
        }
        if (ints)
            continue;
        value->items[i] = key->type == AZ_TYPE_PATHS ? path_create(base, item->text)
                                                     : az_strdup(item->text, "deck");
        if (value->items[i] == NULL) {
            err = AZ_EENV;
            goto out;
        }
    }
    value->present = right;
out:
    return err;
}

static az_err set_map(az_value *value, const az_key *key, const az_node *node,
                      az_deck_faults *faults)
{
    az_err err = AZ_OK;
    bool right = true;
    if (node->kind != AZ_NODE_MAP)
        return fault(faults, key, node, 0, NULL);
    size_t n = (size_t)node->n / 2;
    AZ_TRY(AZ_NEW(value->items, n, "deck"));
    AZ_TRY(AZ_NEW(value->reals, n, "deck"));
    for (size_t i = 0; i < n; i++) {
        const az_node *name = node->items[2 * i], *number = node->items[2 * i + 1];
        int64_t v = 0;
        if (name->bad || number->bad) {
            right = false;
            continue;
        }
        if (!is_text(name) || name->text[0] == '\0') {
            right = false;
            AZ_TRY(fault(faults, key, name, 0, "name of an entry"));
            continue;
        }
        for (int j = 0; j < value->n; j++)
            if (strcmp(value->items[j], name->text) == 0) {
                right = false;
                AZ_TRY(az_deck_note(faults, name->line, "%s: %.*s: given twice", key->name,
                                    az_deck_cut_text(name->text, 60), name->text));
                break;
            }
        bool fine = key->type == AZ_TYPE_MAP_INT ? parse_int(&v, number) && int_in_range(key, v)
                                                 : parse_real(&value->reals[value->n], number) &&
                                                       real_in_range(key, value->reals[value->n]);
        if (key->type == AZ_TYPE_MAP_INT)
            value->reals[value->n] = (double)v;
        if (!fine) {
            right = false;
            AZ_TRY(fault(faults, key, number, 0, name->text));
        }
        value->items[value->n] = az_strdup(name->text, "deck");
        if (value->items[value->n] == NULL) {
            err = AZ_EENV;
            goto out;
        }
        value->n++;
    }
    value->present = right;
out:
    return err;
}

az_err az_value_set(az_value *value, const az_key *key, const az_node *node, const char *base,
                    az_deck_faults *faults)
{
    bool right = true;
    if (node->bad)
        return AZ_OK;
    switch (key->type) {
    case AZ_TYPE_INT:
        right = parse_int(&value->i, node) && int_in_range(key, value->i);
        break;
    case AZ_TYPE_REAL:
        right = parse_real(&value->r, node) && real_in_range(key, value->r);
        break;
    case AZ_TYPE_SIZE:
        right = parse_size(&value->i, node) && int_in_range(key, value->i);
        break;
    case AZ_TYPE_BOOL:
        right = parse_bool(&value->b, node);
        break;
    case AZ_TYPE_STRING:
    case AZ_TYPE_PATH:
    case AZ_TYPE_CHOICE:
    case AZ_TYPE_CHOICE_OR_PATH:
        return set_text(value, key, node, base, faults);
    case AZ_TYPE_LIST_OR_STRING:
        if (node->kind == AZ_NODE_SCALAR)
            return set_text(value, key, node, base, faults);
        return set_list(value, key, node, base, faults);
    case AZ_TYPE_STRINGS:
    case AZ_TYPE_PATHS:
    case AZ_TYPE_INTS:
        return set_list(value, key, node, base, faults);
    case AZ_TYPE_MAP_INT:
    case AZ_TYPE_MAP_REAL:
        return set_map(value, key, node, faults);
    }
    value->present = right;
    return right ? AZ_OK : fault(faults, key, node, 0, NULL);
}
