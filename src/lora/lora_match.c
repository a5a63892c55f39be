/* lora/match: which modules a config selects, and with which r and alpha. The rules are PEFT's
 * (check_target_module_exists and get_pattern_key), on the module's path in the model:
 *
 *   1. exclude_modules: one string must match the whole path, an entry of a list is the path or
 *      follows a dot at its end.
 *   2. target_modules: likewise; "all-linear" is every linear.
 *   3. layers_to_transform: for modules found by the end of their path, the layer's number must be
 *      in the list. A path given whole is taken in any case.
 *   4. rank_pattern, alpha_pattern: the first key that matches the path or its end behind a dot.
 *
 * What PEFT passes over in silence is a fault here: an entry that matches nothing is a slip of the
 * pen. All faults of a config are listed in one message, with what there is. */
#include <config.h>

#include "lora/lora_priv.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/pyregex.h"

#define MAX_R 65536

typedef struct {
    const az_peft_config *config;
    const az_linear *linears;
    int n;
    az_list defaults; /* the family's targets, if the config has none */
    const az_list *targets;
    az_faults faults;
    bool shows_names; /* a fault calls for the list of modules */
} matcher;

const char *az_lora_short_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

/* Equal, or behind a dot at the end. */
static bool is_end(const char *path, const char *name)
{
    size_t n = strlen(path), m = strlen(name);
    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '.');
}

/* ---- what there is */

/* The nearest short name, "" if none is near. */
static const char *nearest(const matcher *m, const char *name)
{
    const char *best = "", *s = az_lora_short_name(name);
    int least = 3;
    for (int i = 0; i < m->n; i++) {
        const char *there = az_lora_short_name(m->linears[i].path);
        int d = az_str_distance(s, there);
        if (d < least && 2 * d <= (int)strlen(there)) {
            least = d;
            best = there;
        }
    }
    return best;
}

static az_err fault_unmatched(matcher *m, const char *key, const char *name)
{
    const char *near = nearest(m, name);
    m->shows_names = true;
    if (near[0] != '\0' && strcmp(near, name) != 0)
        return az_faults_add(&m->faults, "%s: \"%s\" matches no module; did you mean \"%s\"?", key,
                             name, near);
    return az_faults_add(&m->faults, "%s: \"%s\" matches no module", key, name);
}

/* "q_proj, k_proj, ..." in order of the model, each once. */
static az_err list_names(az_str *out, const matcher *m)
{
    az_err err = AZ_OK;
    for (int i = 0; i < m->n; i++) {
        const char *name = az_lora_short_name(m->linears[i].path);
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = strcmp(az_lora_short_name(m->linears[k].path), name) == 0;
        if (!seen)
            AZ_TRY(az_str_add(out, "%s%s", i > 0 ? ", " : "", name));
        if (i > 0 && m->linears[i].layer > m->linears[0].layer)
            break; /* the layers are alike */
    }
out:
    return err;
}

static az_err fault_names(matcher *m, const char *opt_default)
{
    az_err err;
    az_str names = {0};
    AZ_TRY(list_names(&names, m));
    AZ_TRY(az_faults_add(&m->faults, "the modules are %s, in paths like %s up to %s", names.s,
                         m->linears[0].path, m->linears[m->n - 1].path));
    if (opt_default != NULL && opt_default[0] != '\0')
        AZ_TRY(az_faults_add(&m->faults, "this family's default is %s", opt_default));
out:
    az_str_fini(&names);
    return err;
}

/* ---- exclude_modules */

static az_err mark_regex(bool *marks, matcher *m, const char *pattern, const char *key)
{
    az_err err;
    az_pyregex *regex = NULL;
    bool any = false;
    AZ_TRY(az_pyregex_open(&regex, pattern, key));
    for (int i = 0; i < m->n; i++) {
        AZ_TRY(az_pyregex_fullmatch(&marks[i], regex, m->linears[i].path));
        any = any || marks[i];
    }
    if (!any) {
        m->shows_names = true;
        AZ_TRY(az_faults_add(&m->faults,
                             "%s: \"%s\" matches no module: one string must match the whole path; "
                             "for names or ends of names give a list",
                             key, pattern));
    }
out:
    az_pyregex_close(regex);
    return err;
}

static az_err mark_list(bool *marks, matcher *m, const az_list *list, const char *key)
{
    az_err err = AZ_OK;
    for (int k = 0; k < list->n; k++) {
        bool any = false;
        for (int i = 0; i < m->n; i++)
            if (is_end(m->linears[i].path, list->items[k]))
                any = marks[i] = true;
        if (!any && strcasecmp(list->items[k], "all-linear") == 0)
            AZ_TRY(az_faults_add(&m->faults, "%s: \"%s\" must stand alone, not in a list", key,
                                 list->items[k]));
        else if (!any)
            AZ_TRY(fault_unmatched(m, key, list->items[k]));
    }
out:
    return err;
}

/* ---- target_modules and layers */

/* The layer's number in a path: the first segment of digits that has two before it and one behind
 * it; -1 if there is none. */
static long find_layer(const char *path)
{
    int before = 0;
    for (const char *s = path; s != NULL; s = strchr(s, '.'), before++) {
        s += before > 0;
        size_t digits = strspn(s, "0123456789");
        if (before >= 2 && digits > 0 && s[digits] == '.')
            return strtol(s, NULL, 10);
    }
    return -1;
}

/* The same by layers_pattern: the number behind the first pattern that matches. */
static az_err find_layer_by_pattern(long *out_layer, int *out_pattern, az_pyregex *const *patterns,
                                    int n, const char *path)
{
    az_err err = AZ_OK;
    *out_layer = *out_pattern = -1;
    for (int k = 0; k < n; k++) {
        bool matches;
        size_t bytes;
        AZ_TRY(az_pyregex_match_prefix(&matches, patterns[k], path));
        if (!matches)
            continue;
        const char *digits = az_pyregex_get_group(&bytes, patterns[k], path, "idx");
        *out_pattern = k;
        *out_layer = digits != NULL ? strtol(digits, NULL, 10) : -1;
        break;
    }
out:
    return err;
}

static az_err open_patterns(az_pyregex ***out_patterns, const az_list *list)
{
    az_err err;
    az_str text = {0};
    AZ_TRY(AZ_NEW(*out_patterns, (size_t)list->n, "LoRA matching"));
    for (int k = 0; k < list->n; k++) {
        text.len = 0;
        AZ_TRY(az_str_add(&text, "(?:^|.*?\\.)%s\\.(?P<idx>\\d+)\\.", list->items[k]));
        AZ_TRY(az_pyregex_open(&(*out_patterns)[k], text.s, "layers_pattern"));
    }
out:
    az_str_fini(&text);
    return err;
}

static bool is_whole_path(const az_list *targets, const char *path)
{
    for (int k = 0; k < targets->n; k++)
        if (strcmp(targets->items[k], path) == 0)
            return true;
    return false;
}

/* Take the mark from modules of other layers. used_layer, used_pattern: entries that found one. */
static az_err filter_layers(bool *marks, matcher *m, az_pyregex *const *patterns, bool *used_layer,
                            bool *used_pattern)
{
    az_err err = AZ_OK;
    const az_peft_config *c = m->config;
    for (int i = 0; i < m->n; i++) {
        const char *path = m->linears[i].path;
        long layer = -1;
        int pattern = -1;
        if (!marks[i] || is_whole_path(m->targets, path))
            continue;
        if (c->layers_pattern.n == 0)
            layer = find_layer(path);
        else
            AZ_TRY(find_layer_by_pattern(&layer, &pattern, patterns, c->layers_pattern.n, path));
        if (pattern >= 0)
            used_pattern[pattern] = true;
        marks[i] = false;
        for (int k = 0; k < c->n_layers_to_transform; k++)
            if (layer >= 0 && c->layers_to_transform[k] == layer)
                marks[i] = used_layer[k] = true;
    }
out:
    return err;
}

static az_err keep_layers(bool *marks, matcher *m)
{
    az_err err;
    const az_peft_config *c = m->config;
    az_pyregex **patterns = NULL;
    bool *used_layer = NULL, *used_pattern = NULL;
    AZ_TRY(AZ_NEW(used_layer, (size_t)c->n_layers_to_transform, "LoRA matching"));
    AZ_TRY(AZ_NEW(used_pattern, (size_t)c->layers_pattern.n, "LoRA matching"));
    AZ_TRY(open_patterns(&patterns, &c->layers_pattern));
    AZ_TRY(filter_layers(marks, m, patterns, used_layer, used_pattern));
    for (int k = 0; k < c->n_layers_to_transform; k++)
        if (!used_layer[k]) {
            m->shows_names = true;
            AZ_TRY(az_faults_add(&m->faults,
                                 "layers_to_transform: %lld is the layer of no targeted module",
                                 (long long)c->layers_to_transform[k]));
        }
    for (int k = 0; k < c->layers_pattern.n; k++)
        if (!used_pattern[k]) {
            m->shows_names = true;
            AZ_TRY(az_faults_add(&m->faults,
                                 "layers_pattern: \"%s\" stands before the layer's number in no "
                                 "targeted module",
                                 c->layers_pattern.items[k]));
        }
out:
    for (int k = 0; patterns != NULL && k < c->layers_pattern.n; k++)
        az_pyregex_close(patterns[k]);
    az_free(patterns);
    az_free(used_layer);
    az_free(used_pattern);
    return err;
}

static az_err mark_targets(bool *marks, matcher *m)
{
    az_err err = AZ_OK;
    const az_peft_config *c = m->config;
    if (c->layers_pattern.n > 0 && c->n_layers_to_transform == 0)
        AZ_TRY(az_faults_add(&m->faults, "layers_pattern: means nothing without "
                                         "layers_to_transform"));
    if (c->target_regex == NULL) {
        AZ_TRY(mark_list(marks, m, m->targets, "target_modules"));
        if (c->n_layers_to_transform > 0)
            AZ_TRY(keep_layers(marks, m));
        goto out;
    }
    if (c->n_layers_to_transform > 0)
        AZ_TRY(az_faults_add(&m->faults, "layers_to_transform: only with a list of target_modules, "
                                         "not with one string"));
    if (strcasecmp(c->target_regex, "all-linear") == 0)
        for (int i = 0; i < m->n; i++)
            marks[i] = true;
    else
        AZ_TRY(mark_regex(marks, m, c->target_regex, "target_modules"));
out:
    return err;
}

/* The family's targets, "q_proj, v_proj". */
static az_err split_default(az_list *list, const char *names)
{
    az_err err = AZ_OK;
    az_str name = {0};
    while (names != NULL && *names != '\0') {
        size_t n = strcspn(names, ", ");
        name.len = 0;
        AZ_TRY(az_str_add_bytes(&name, names, n));
        if (n > 0)
            AZ_TRY(az_list_add(list, name.s));
        names += n + strspn(names + n, ", ");
    }
out:
    az_str_fini(&name);
    return err;
}

/* ---- rank_pattern, alpha_pattern */

typedef enum { RANK, ALPHA } which_pattern;

static az_err apply_key(az_choice *choices, bool *done, matcher *m, const az_pattern *pattern,
                        int k, which_pattern which)
{
    az_err err;
    az_pyregex *regex = NULL;
    az_str text = {0};
    const char *name = which == RANK ? "rank_pattern" : "alpha_pattern", *key = pattern->keys[k];
    const double v = pattern->values[k];
    bool any = false;
    AZ_TRY(az_str_add(&text, "(.*\\.)?(%s)$", key));
    AZ_TRY(az_pyregex_open(&regex, text.s, name));
    for (int i = 0; i < m->n; i++) {
        bool matches;
        if (!choices[i].adapted)
            continue;
        AZ_TRY(az_pyregex_match_prefix(&matches, regex, m->linears[i].path));
        any = any || matches;
        if (!matches || done[i])
            continue;
        done[i] = true;
        *(which == RANK ? &choices[i].r : &choices[i].alpha) = v;
    }
    if (!any) {
        m->shows_names = true;
        AZ_TRY(az_faults_add(&m->faults, "%s: \"%s\" matches no adapted module", name, key));
    }
    if (which == RANK && !(v >= 1 && v <= MAX_R && v == floor(v)))
        AZ_TRY(az_faults_add(&m->faults, "%s: \"%s\": found %g, expected an integer from 1 to %d",
                             name, key, v, MAX_R));
    if (which == ALPHA && !isfinite(v))
        AZ_TRY(az_faults_add(&m->faults, "%s: \"%s\": found %g, expected a number", name, key, v));
out:
    az_pyregex_close(regex);
    az_str_fini(&text);
    return err;
}

static az_err apply_pattern(az_choice *choices, matcher *m, const az_pattern *pattern,
                            which_pattern which)
{
    az_err err;
    bool *done = NULL;
    AZ_TRY(AZ_NEW(done, (size_t)m->n, "LoRA matching"));
    for (int k = 0; k < pattern->n; k++)
        AZ_TRY(apply_key(choices, done, m, pattern, k, which));
out:
    az_free(done);
    return err;
}

/* ---- all together */

static az_err choose(az_choice *choices, matcher *m, bool *excluded, bool *marks)
{
    az_err err;
    const az_peft_config *c = m->config;
    int n_adapted = 0, n_targeted = 0;
    if (c->exclude_regex != NULL)
        AZ_TRY(mark_regex(excluded, m, c->exclude_regex, "exclude_modules"));
    else
        AZ_TRY(mark_list(excluded, m, &c->exclude_modules, "exclude_modules"));
    AZ_TRY(mark_targets(marks, m));
    for (int i = 0; i < m->n; i++) {
        choices[i] = (az_choice){marks[i] && !excluded[i], (double)c->r, c->lora_alpha};
        n_targeted += marks[i];
        n_adapted += choices[i].adapted;
    }
    if (n_adapted == 0 && n_targeted > 0)
        AZ_TRY(az_faults_add(&m->faults,
                             "exclude_modules: leaves none of the %d modules that target_modules "
                             "matches",
                             n_targeted));
    if (n_adapted > 0) {
        AZ_TRY(apply_pattern(choices, m, &c->rank_pattern, RANK));
        AZ_TRY(apply_pattern(choices, m, &c->alpha_pattern, ALPHA));
    }
    if (c->r < 1 || c->r > MAX_R)
        AZ_TRY(
            az_faults_add(&m->faults, "r: found %lld, expected 1 to %d", (long long)c->r, MAX_R));
out:
    return err;
}

az_err az_lora_match(az_choice *choices, const az_peft_config *config, const az_linear *linears,
                     int n, const char *opt_default)
{
    az_err err;
    matcher m = {.config = config, .linears = linears, .n = n, .targets = &config->target_modules};
    bool *excluded = NULL, *marks = NULL;
    AZ_ASSERT(n > 0);
    AZ_TRY(AZ_NEW(excluded, (size_t)n, "LoRA matching"));
    AZ_TRY(AZ_NEW(marks, (size_t)n, "LoRA matching"));
    if (config->target_regex == NULL && config->target_modules.n == 0) {
        AZ_TRY(split_default(&m.defaults, opt_default));
        m.targets = &m.defaults;
    }
    AZ_TRY(choose(choices, &m, excluded, marks));
    if (m.shows_names)
        AZ_TRY(fault_names(&m, opt_default));
    AZ_TRY(az_faults_report(&m.faults, "lora"));
out:
    az_faults_fini(&m.faults);
    az_list_fini(&m.defaults);
    az_free(excluded);
    az_free(marks);
    return err;
}
