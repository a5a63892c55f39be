/* deck, inside: the table of keys, the tree that YAML is read into, the values. */
#ifndef AZ_DECK_PRIV_H
#define AZ_DECK_PRIV_H

#include "deck/deck.h"

/* ---- the table of keys (deck_table.c) ---- */

typedef enum {
    AZ_TYPE_INT,
    AZ_TYPE_REAL,
    AZ_TYPE_BOOL,
    AZ_TYPE_STRING,
    AZ_TYPE_PATH,
    AZ_TYPE_SIZE, /* bytes, with or without a unit */
    AZ_TYPE_CHOICE,
    AZ_TYPE_CHOICE_OR_PATH, /* a file of that name is written ./auto */
    AZ_TYPE_STRINGS,        /* a list; a scalar is a list of one */
    AZ_TYPE_PATHS,          /* likewise */
    AZ_TYPE_INTS,           /* likewise */
    AZ_TYPE_LIST_OR_STRING, /* the two mean different things */
    AZ_TYPE_MAP_INT,        /* name -> integer */
    AZ_TYPE_MAP_REAL        /* name -> number */
} az_type;

enum { AZ_LO_OPEN = 1, AZ_HI_OPEN = 2 }; /* the bound itself is not allowed */

typedef struct {
    const char *name; /* "section.key" */
    az_type type;
    int open;             /* AZ_LO_OPEN | AZ_HI_OPEN */
    int64_t ilo, ihi;     /* range of integers */
    double lo, hi;        /* range of numbers */
    const char *choices;  /* "a|b|c"; of a choice or path its words */
    const char *fallback; /* the default as YAML text; NULL: none */
    const char *absent;   /* without a default: what a missing key means */
    const char *unit;
    const char *also;   /* what other programs call it, for suggestions: words */
    const char *text;   /* one sentence */
    const char *needed; /* commands that cannot do without it, "train data"; "*": every deck */
    bool resume;        /* may change when a run is resumed */
} az_key;

typedef struct {
    const char *name, *text;
    bool computes; /* its keys have a part in what is computed by training */
} az_section;

extern const az_key az_keys[];
extern const int az_n_keys;
extern const az_section az_sections[];
extern const int az_n_sections;

/* Two keys of which only one may be given. */
extern const char *const az_exclusive[][2];
extern const int az_n_exclusive;

/* Index of a key or section by name, -1 if there is none. */
int az_key_find(const char *name);
int az_section_find(const char *name);
/* The section of a key, compared by name. */
bool az_key_in_section(const az_key *key, const char *section);
/* "learning_rate" of "train.learning_rate". */
const char *az_key_short(const az_key *key);
/* Whether choices, with | between, hold a word. */
bool az_choices_hold(const char *choices, const char *word);
/* The key nearest to a wrong name ("section.key" or a bare word), NULL if none is near. */
const az_key *az_key_nearest(const char *name);
const az_section *az_section_nearest(const char *name);
/* Whether words, with a space between, hold a word. */
bool az_words_hold(const char *opt_words, const char *word);
/* What a value must be: "an integer from 1 to 8". */
az_err az_key_add_expected(az_str *out, const az_key *key);

/* ---- faults: all that is wrong with a deck, a line each (deck_faults.c) ---- */

typedef struct {
    const char *where; /* what is being read: a path, or "argument KEY=VALUE"; borrowed */
    bool one_line;     /* line numbers say nothing there */
    az_str text;
    int n;
} az_deck_faults;
/* Note a fault as "WHERE:LINE: ..."; line 0: "WHERE: ...", line < 0: no such head. Beyond a limit
 * faults are only counted. Fails only for want of memory. */
az_err az_deck_note(az_deck_faults *faults, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* AZ_OK if there are none, else the failure that holds all of them. */
az_err az_deck_report(const az_deck_faults *faults);
/* Bytes of the first line of s, at most max, not ending within a UTF-8 character. */
int az_deck_cut_text(const char *s, int max);

/* ---- the tree (deck_yaml.c) ---- */

typedef enum { AZ_NODE_SCALAR, AZ_NODE_LIST, AZ_NODE_MAP } az_node_kind;

typedef struct az_node {
    az_node_kind kind;
    bool quoted; /* a scalar in quotes or a block scalar: never null, bool or number */
    bool bad;    /* a fault was noted: say no more about it */
    int line;
    char *text;             /* of a scalar */
    struct az_node **items; /* of a list; of a map key, value, key, value */
    int n, cap;
} az_node;

/* Read one YAML document. *out_root is NULL for an empty one, and for one that cannot be read
 * (*out_broken). What is no YAML, and what YAML can and a deck cannot (anchors, aliases, tags,
 * several documents), is added to faults. */
az_err az_yaml_read(az_node **out_root, bool *out_broken, const char *text, size_t bytes,
                    az_deck_faults *faults);
void az_node_destroy(az_node *opt_node);
bool az_node_is_null(const az_node *opt_node);
/* The node as a message shows it: cut to a readable length, strings that look like something else
 * in quotes. */
az_err az_node_add_found(az_str *out, const az_node *opt_node);

/* ---- values (deck_value.c) ---- */

typedef struct {
    bool given;   /* by the user */
    bool present; /* given and right, or the default */
    bool is_list;
    int line;          /* in the deck, or 0 */
    const char *place; /* the argument, or NULL: the deck; borrowed from the deck */
    int64_t i;
    double r;
    bool b;
    char *s;
    int n; /* of a list or map */
    char **items;
    int64_t *ints;
    double *reals;
} az_value;

/* A value from a node: type and range checked. What is wrong is added to faults, and the value is
 * then not present. base: the directory that paths are relative to. */
az_err az_value_set(az_value *value, const az_key *key, const az_node *node, const char *base,
                    az_deck_faults *faults);
void az_value_fini(az_value *value);

struct az_deck {
    char *path, *dir;
    char **places; /* "argument KEY=VALUE" */
    int n_places;
    az_value *values; /* [az_n_keys] */
};

/* "deck.yaml:12" or "argument lora.r=8": where the value of key i came from; the deck's path if it
 * was not given. */
az_err az_deck_add_place(az_str *out, const az_deck *deck, int i);
/* Combinations that contradict themselves (deck_rules.c). Of two exclusive keys an argument wins
 * over the deck's. */
az_err az_deck_check_rules(az_deck *deck, az_deck_faults *faults);
/* Whether the default of key i is not in force because it excludes a key that is, or because what
 * it speaks of is not there. */
bool az_deck_is_excluded(const az_deck *deck, int i);
/* Whether the adapter of lora.init_from says key i, if it is not given beside it. */
bool az_deck_is_said_by_adapter(int i);
/* Give every key that was not given its default (deck_open.c). */
az_err az_deck_set_defaults(az_deck *deck);
/* A value as YAML, paths absolute; "null" if it is not present (deck_write.c). */
az_err az_value_add_yaml(az_str *out, const az_key *key, const az_value *v);

#endif
