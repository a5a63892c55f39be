/* deck: what the user asks for: YAML keys, command-line overrides, one table of keys. Local. */
#ifndef AZ_DECK_DECK_H
#define AZ_DECK_DECK_H

#include "base/base.h"

typedef struct az_deck az_deck;

/* Read a deck and overrides "section.key=value" (value in YAML flow syntax). Unknown key, wrong
 * type, out of range, given twice: one message with file and line (or the override), what was
 * found, what is allowed, the nearest key. */
az_err az_deck_open(az_deck **out_deck, const char *path, char *const *overrides, int n_overrides);
void az_deck_close(az_deck *opt_deck);
/* The keys that a command cannot do without ("train", ...) are there, or one message names all that
 * are not. */
az_err az_deck_check(const az_deck *deck, const char *command);
/* The deck's path, as it was given. */
const char *az_deck_path(const az_deck *deck);
/* Whether the user gave the key. Keys asked for must be in the table (AZ_ASSERT). */
bool az_deck_has(const az_deck *deck, const char *key);
/* Values, or the table's defaults. A number or bool without default must be asked for only if
 * az_deck_has (AZ_ASSERT). Of two keys that exclude each other (train.micro_batch_size and
 * _tokens, train.warmup_steps and _ratio) at most one was given: ask az_deck_has for the one that
 * is not the default. */
int64_t az_deck_int(const az_deck *deck, const char *key);
int64_t az_deck_size(const az_deck *deck, const char *key); /* bytes */
double az_deck_real(const az_deck *deck, const char *key);
bool az_deck_bool(const az_deck *deck, const char *key);
/* String, choice or path; NULL if not given and without default. A path is relative to the deck's
 * directory; from an override, to the working directory. */
const char *az_deck_string(const az_deck *deck, const char *key);
/* Which of words [n] a choice is; -1: none of them. */
int az_deck_find(const az_deck *deck, const char *key, const char *const *words, int n);
/* A list of strings (or paths): n and item i. A single scalar is a list of one. */
int az_deck_count(const az_deck *deck, const char *key);
const char *az_deck_item(const az_deck *deck, const char *key, int i);
/* Item i of a list of integers (lora.layers_to_transform). */
int64_t az_deck_item_int(const az_deck *deck, const char *key, int i);
/* Whether a key that may be a list or a scalar was given as a list (lora.target_modules). */
bool az_deck_is_list(const az_deck *deck, const char *key);
/* A map of names to numbers (rank_pattern): entry i in file order. */
const char *az_deck_map_key(const az_deck *deck, const char *key, int i);
double az_deck_map_value(const az_deck *deck, const char *key, int i);
/* A failure about the value of a key, with its place: "deck.yaml:12: lora.r: ...". */
az_err az_deck_fail(const az_deck *deck, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The deck as understood: every key with its value, as YAML that reads back to the same values.
 * Paths are written absolute. */
az_err az_deck_write(az_str *out, const az_deck *deck);
/* Whether a run that was made with an earlier deck (text from az_deck_write of this or another
 * version) can go on with this one. Keys that must stay the same are compared by value; all that
 * differ are named in one message with both values. earlier_name: where the earlier deck is kept
 * (a checkpoint's path). What changes the last bits only is said (az_say). Local. */
az_err az_deck_check_resume(const az_deck *deck, const char *earlier_text,
                            const char *earlier_name);
/* The value of one key as plain text, for scripts: text and paths without quotes, paths absolute,
 * lists and maps as YAML, nothing for a key without a value. A name that is no key fails, naming
 * the nearest. */
az_err az_deck_add_text(az_str *out, const az_deck *deck, const char *key);

/* Help, from the table: the sections; all keys; one key or section, or a word that is a key in some
 * section (*out_found: false if there is none; out then suggests the nearest); doc/inputs.md,
 * whole. */
az_err az_deck_help_sections(az_str *out);
az_err az_deck_help(az_str *out);
az_err az_deck_help_key(az_str *out, const char *key, bool *out_found);
az_err az_deck_help_markdown(az_str *out);

#endif
