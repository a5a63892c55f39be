/* Help and doc/inputs.md, from the table of keys. */
#include <config.h>

#include "deck/deck_priv.h"

#include <string.h>

/* Text in lines of at most width, each behind indent spaces; the first line continues what stands
 * there. */
static az_err add_wrapped(az_str *out, const char *text, int indent, int width)
{
    az_err err = AZ_OK;
    int column = indent;
    for (const char *w = text; *w != '\0';) {
        int n = (int)strcspn(w, " ");
        if (column > indent && column + 1 + n > width) {
            AZ_TRY(az_str_add(out, "\n%*s", indent, ""));
            column = indent;
        }
        AZ_TRY(az_str_add(out, "%s%.*s", column > indent ? " " : "", n, w));
        column += n + (column > indent);
        w += n + (w[n] == ' ');
    }
out:
    return err;
}

static const char *default_of(const az_key *key)
{
    return key->fallback != NULL ? key->fallback : "none";
}

az_err az_deck_help_sections(az_str *out)
{
    az_err err = AZ_OK;
    for (int s = 0; s < az_n_sections; s++) {
        AZ_TRY(az_str_add(out, "  %-10s ", az_sections[s].name));
        AZ_TRY(add_wrapped(out, az_sections[s].text, 13, 100));
        AZ_TRY(az_str_add(out, "\n"));
    }
out:
    return err;
}

static az_err add_section(az_str *out, const az_section *section)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%s: ", section->name));
    AZ_TRY(add_wrapped(out, section->text, 0, 100 - (int)strlen(section->name)));
    AZ_TRY(az_str_add(out, "\n"));
    for (int i = 0; i < az_n_keys; i++) {
        const az_key *key = &az_keys[i];
        if (!az_key_in_section(key, section->name))
            continue;
        AZ_TRY(az_str_add(out, "  %-28s %-9s ", key->name, default_of(key)));
        AZ_TRY(add_wrapped(out, key->text, 41, 100));
        AZ_TRY(az_str_add(out, "\n"));
    }
out:
    return err;
}

az_err az_deck_help(az_str *out)
{
    az_err err = AZ_OK;
    for (int s = 0; s < az_n_sections; s++) {
        AZ_TRY(az_str_add(out, s > 0 ? "\n" : ""));
        AZ_TRY(add_section(out, &az_sections[s]));
    }
out:
    return err;
}

static const char *exclusive_of(const az_key *key)
{
    for (int p = 0; p < az_n_exclusive; p++)
        for (int side = 0; side < 2; side++)
            if (strcmp(az_exclusive[p][side], key->name) == 0)
                return az_exclusive[p][1 - side];
    return NULL;
}

static az_err add_key(az_str *out, const az_key *key)
{
    az_err err;
    const char *other = exclusive_of(key);
    AZ_TRY(az_str_add(out, "%s\n  ", key->name));
    AZ_TRY(add_wrapped(out, key->text, 2, 100));
    AZ_TRY(az_str_add(out, "\n  value    "));
    AZ_TRY(az_key_add_expected(out, key));
    if (key->unit != NULL)
        AZ_TRY(az_str_add(out, " (%s)", key->unit));
    if (key->fallback != NULL)
        AZ_TRY(az_str_add(out, "\n  default  %s\n", key->fallback));
    else
        AZ_TRY(az_str_add(out, "\n  default  none: %s\n", key->absent));
    if (other != NULL)
        AZ_TRY(az_str_add(out, "  excludes %s\n", other));
    err = az_str_add(out, "  resume   %s\n",
                     key->resume ? "may change when a run is resumed"
                                 : "must stay the same when a run is resumed");
out:
    return err;
}

az_err az_deck_help_key(az_str *out, const char *key, bool *out_found)
{
    az_err err = AZ_OK;
    int i = az_key_find(key), s = az_section_find(key), n = 0;
    *out_found = true;
    if (i >= 0)
        return add_key(out, &az_keys[i]);
    if (s >= 0)
        return add_section(out, &az_sections[s]);
    for (i = 0; i < az_n_keys; i++)
        if (strcmp(az_key_short(&az_keys[i]), key) == 0) {
            AZ_TRY(az_str_add(out, n++ > 0 ? "\n" : ""));
            AZ_TRY(add_key(out, &az_keys[i]));
        }
    if (n > 0)
        return AZ_OK;
    *out_found = false;
    const az_key *near = az_key_nearest(key);
    const az_section *near_section = az_section_nearest(key);
    if (near_section != NULL)
        err = az_str_add(out, "did you mean %s?", near_section->name);
    else if (near != NULL)
        err = az_str_add(out, "did you mean %s?", near->name);
    else
        err = az_str_add(out, "`adze help keys` lists all keys");
out:
    return err;
}

static const char head[] =
    "# Inputs\n"
    "\n"
    "<!-- Made by `adze help --markdown` from the table in src/deck/deck_table.c. -->\n"
    "\n"
    "A deck is a YAML file that says what `adze` is to do: sections, and keys within them.\n"
    "`adze COMMAND DECK [section.key=value ...]` reads it; keys may be given, or given anew, on\n"
    "the command line.\n"
    "\n"
    "```yaml\n"
    "model:\n"
    "  path: Llama-2-7b-hf\n"
    "data:\n"
    "  files: [train.jsonl]\n"
    "lora:\n"
    "  r: 8\n"
    "  lora_alpha: 16\n"
    "  target_modules: [q_proj, v_proj]\n"
    "train:\n"
    "  learning_rate: 1e-4\n"
    "output:\n"
    "  dir: out\n"
    "```\n"
    "\n"
    "- A value on the command line is YAML too: `lora.target_modules='[q_proj, v_proj]'`,\n"
    "  `lora.rank_pattern='{q_proj: 16}'`, `lora.target_modules=all-linear`. A value that begins\n"
    "  with `[`, `{`, `*` or another sign of YAML needs quotes of YAML within those of the shell:\n"
    "  `lora.target_modules='\"[qv]_proj\"'`.\n"
    "- An empty value or `null` on the command line takes a key out of the deck:\n"
    "  `train.max_steps=null`. In a deck `null` may stand only where there is no default.\n"
    "- Paths in a deck are relative to the directory of the deck, those on the command line to "
    "the\n"
    "  working directory. `~` and variables are the shell's; in a deck they are plain characters.\n"
    "- Numbers are decimal: `8`, `0.05`, `1e-4`. `\"8\"` is a string, not a number. Bools are\n"
    "  `true` and `false`.\n"
    "- Two keys that exclude each other may not both be given; one on the command line takes the\n"
    "  other out of the deck.\n"
    "- Anchors, aliases, tags, merge keys and several documents are not part of a deck.\n"
    "- Whatever is wrong is said at once, each fault with its file and line.\n"
    "\n"
    "`adze help KEY` shows one key, `adze help SECTION` a section, `adze help keys` all. The "
    "column\n"
    "*resume* says whether a key may change when a run is resumed.\n";

/* | cannot stand in a cell as it is. */
static az_err add_cell(az_str *out, const char *text)
{
    az_err err = AZ_OK;
    for (const char *c = text; *c != '\0' && err == AZ_OK; c++)
        err = *c == '|' ? az_str_add(out, "\\|") : az_str_add_bytes(out, c, 1);
    return err;
}

static az_err add_row(az_str *out, const az_key *key)
{
    az_err err;
    const char *other = exclusive_of(key);
    AZ_TRY(az_str_add(out, "| `%s` | ", key->name));
    AZ_TRY(az_key_add_expected(out, key));
    if (key->unit != NULL)
        AZ_TRY(az_str_add(out, " (%s)", key->unit));
    if (key->fallback != NULL)
        AZ_TRY(az_str_add(out, " | `%s` | ", key->fallback));
    else
        AZ_TRY(az_str_add(out, " | none: %s | ", key->absent));
    AZ_TRY(az_str_add(out, "%s | ", key->resume ? "yes" : "no"));
    AZ_TRY(add_cell(out, key->text));
    if (other != NULL)
        AZ_TRY(az_str_add(out, " Excludes `%s`.", other));
    err = az_str_add(out, " |\n");
out:
    return err;
}

az_err az_deck_help_markdown(az_str *out)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%s", head));
    for (int s = 0; s < az_n_sections; s++) {
        AZ_TRY(az_str_add(out,
                          "\n## %s: %s\n\n| key | value | default | resume | meaning |\n"
                          "| --- | --- | --- | --- | --- |\n",
                          az_sections[s].name, az_sections[s].text));
        for (int i = 0; i < az_n_keys; i++)
            if (az_key_in_section(&az_keys[i], az_sections[s].name))
                AZ_TRY(add_row(out, &az_keys[i]));
    }
out:
    return err;
}
