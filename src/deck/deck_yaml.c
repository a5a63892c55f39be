/* YAML to a small tree, through libyaml's events.
 *
 * Events rather than libyaml's documents, because a document has forgotten anchors, and a deck
 * refuses them: a value must be readable where it stands. */
#include <config.h>

#include "deck/deck_priv.h"

#include <string.h>
#include <yaml.h>

#define MAX_DEPTH 16

typedef struct {
    yaml_parser_t parser;
    const char *text;
    size_t bytes;
    az_deck_faults *faults;
    bool broken; /* not to be read on */
} reader;

void az_node_destroy(az_node *opt_node)
{
    if (opt_node == NULL)
        return;
    for (int i = 0; i < opt_node->n; i++)
        az_node_destroy(opt_node->items[i]);
    az_free(opt_node->items);
    az_free(opt_node->text);
    az_free(opt_node);
}

static az_err node_create(az_node **out_node, az_node_kind kind, int line)
{
    az_err err;
    AZ_TRY(AZ_NEW(*out_node, 1, "deck"));
    (*out_node)->kind = kind;
    (*out_node)->line = line;
out:
    return err;
}

static az_err node_add(az_node *node, az_node *take_item)
{
    az_err err = AZ_OK;
    if (node->n == node->cap) {
        int cap = 2 * node->cap + 4;
        AZ_TRY(AZ_GROW(node->items, (size_t)cap, "deck"));
        node->cap = cap;
    }
    node->items[node->n++] = take_item;
    take_item = NULL;
out:
    az_node_destroy(take_item);
    return err;
}

/* What libyaml says, with the line; a tab gets a word of its own, since it cannot be seen. */
static az_err fault_of_parser(reader *in)
{
    az_err err;
    yaml_parser_t *p = &in->parser;
    az_str what = {0};
    int line = (int)p->problem_mark.line + 1;
    size_t at = p->problem_mark.index;
    in->broken = true;
    if (p->error == YAML_MEMORY_ERROR) {
        err = az_fail(AZ_EENV, "%s: out of memory", in->faults->where);
        goto out;
    }
    if (p->error == YAML_READER_ERROR) { /* no mark yet: only the offset of the byte is known */
        line = 1;
        for (size_t i = 0; i < p->problem_offset && i < in->bytes; i++)
            line += in->text[i] == '\n';
    }
    AZ_TRY(az_str_add(&what, "not valid YAML: %s", p->problem != NULL ? p->problem : "unreadable"));
    if (p->context != NULL)
        AZ_TRY(az_str_add(&what, " (%s that begins on line %zu)", p->context,
                          p->context_mark.line + 1));
    if (p->error == YAML_SCANNER_ERROR && at < in->bytes && in->text[at] == '\t')
        AZ_TRY(az_str_add(&what, "; there is a tab, YAML indents with spaces"));
    err = az_deck_note(in->faults, line, "%s", what.s);
out:
    az_str_fini(&what);
    return err;
}

static az_err next_event(reader *in, yaml_event_t *event)
{
    if (yaml_parser_parse(&in->parser, event))
        return AZ_OK;
    memset(event, 0, sizeof *event);
    return fault_of_parser(in);
}

/* Anchors and tags make a node bad. */
static az_err check_extras(reader *in, az_node *node, const yaml_char_t *anchor,
                           const yaml_char_t *tag)
{
    az_err err = AZ_OK;
    node->bad = anchor != NULL || tag != NULL;
    if (anchor != NULL)
        AZ_TRY(az_deck_note(in->faults, node->line,
                            "anchors and aliases (&name, *name) are not part of a deck"));
    if (tag != NULL)
        AZ_TRY(az_deck_note(in->faults, node->line, "tags (!name) are not part of a deck"));
out:
    return err;
}

static az_err read_scalar(reader *in, az_node *node, const yaml_event_t *event)
{
    az_err err;
    const char *text = (const char *)event->data.scalar.value;
    AZ_TRY(check_extras(in, node, event->data.scalar.anchor, event->data.scalar.tag));
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (strlen(text) != event->data.scalar.length) {
        node->bad = true;
        AZ_TRY(az_deck_note(in->faults, node->line,
                            "a string with a zero byte is not part of a deck"));
    }
    node->text = az_strdup(text, "deck");
    err = node->text != NULL ? AZ_OK : AZ_EENV;
out:
    return err;
}

static az_err read_node(reader *in, az_node **out_node, const yaml_event_t *event, int depth);

/* The items of a list, or keys and values of a map, up to its end. */
static az_err read_items(reader *in, az_node *node, int depth)
{
    az_err err = AZ_OK;
    while (!in->broken) {
        yaml_event_t event;
        az_node *item = NULL;
        AZ_TRY(next_event(in, &event));
        bool end = in->broken || event.type == YAML_MAPPING_END_EVENT ||
                   event.type == YAML_SEQUENCE_END_EVENT;
        if (!end)
            err = read_node(in, &item, &event, depth + 1);
        yaml_event_delete(&event);
        if (end)
            break;
        if (err == AZ_OK)
            err = node_add(node, item);
        else
            az_node_destroy(item);
        AZ_TRY(err);
    }
out:
    return err;
}

/* The node that begins with event; *out_node may be partly built after a failure. */
static az_err read_node(reader *in, az_node **out_node, const yaml_event_t *event, int depth)
{
    az_err err;
    az_node *node;
    az_node_kind kind = event->type == YAML_MAPPING_START_EVENT    ? AZ_NODE_MAP
                        : event->type == YAML_SEQUENCE_START_EVENT ? AZ_NODE_LIST
                                                                   : AZ_NODE_SCALAR;
    AZ_TRY(node_create(out_node, kind, (int)event->start_mark.line + 1));
    node = *out_node;
    if (event->type == YAML_SCALAR_EVENT) {
        err = read_scalar(in, node, event);
    } else if (event->type == YAML_ALIAS_EVENT) {
        AZ_TRY(check_extras(in, node, event->data.alias.anchor, NULL));
        node->text = az_strdup("", "deck");
        err = node->text != NULL ? AZ_OK : AZ_EENV;
    } else if (depth >= MAX_DEPTH) {
        in->broken = true;
        err = az_deck_note(in->faults, node->line, "nested too deep for a deck");
    } else {
        AZ_TRY(kind == AZ_NODE_MAP ? check_extras(in, node, event->data.mapping_start.anchor,
                                                  event->data.mapping_start.tag)
                                   : check_extras(in, node, event->data.sequence_start.anchor,
                                                  event->data.sequence_start.tag));
        err = read_items(in, node, depth);
    }
out:
    return err;
}

static az_err read_document(reader *in, az_node **out_root)
{
    az_err err = AZ_OK;
    int documents = 0;
    for (bool end = false; !end && !in->broken;) {
        yaml_event_t event;
        AZ_TRY(next_event(in, &event));
        if (in->broken)
            break;
        if (event.type == YAML_STREAM_END_EVENT) {
            end = true;
        } else if (event.type == YAML_DOCUMENT_START_EVENT && documents++ > 0) {
            end = true;
            err = az_deck_note(in->faults, (int)event.start_mark.line + 1,
                               "a second document begins here; a deck is one document");
        } else if (event.type == YAML_SCALAR_EVENT || event.type == YAML_ALIAS_EVENT ||
                   event.type == YAML_SEQUENCE_START_EVENT ||
                   event.type == YAML_MAPPING_START_EVENT) {
            err = read_node(in, out_root, &event, 0);
        }
        yaml_event_delete(&event);
        AZ_TRY(err);
    }
out:
    return err;
}

az_err az_yaml_read(az_node **out_root, bool *out_broken, const char *text, size_t bytes,
                    az_deck_faults *faults)
{
    az_err err;
    reader in = {.text = text, .bytes = bytes, .faults = faults};
    *out_root = NULL;
    *out_broken = false;
    if (!yaml_parser_initialize(&in.parser))
        return az_fail(AZ_EENV, "%s: out of memory", faults->where);
    yaml_parser_set_input_string(&in.parser, (const unsigned char *)text, bytes);
    err = read_document(&in, out_root);
    yaml_parser_delete(&in.parser);
    *out_broken = in.broken;
    if (err != AZ_OK || in.broken) {
        az_node_destroy(*out_root);
        *out_root = NULL;
    }
    return err;
}

bool az_node_is_null(const az_node *opt_node)
{
    if (opt_node == NULL)
        return true;
    if (opt_node->kind != AZ_NODE_SCALAR || opt_node->quoted)
        return false;
    const char *t = opt_node->text;
    return *t == '\0' || strcmp(t, "~") == 0 || strcmp(t, "null") == 0 || strcmp(t, "Null") == 0 ||
           strcmp(t, "NULL") == 0;
}

az_err az_node_add_found(az_str *out, const az_node *opt_node)
{
    if (az_node_is_null(opt_node))
        return az_str_add(out, opt_node == NULL || opt_node->text[0] == '\0' ? "nothing" : "null");
    if (opt_node->kind == AZ_NODE_MAP)
        return az_str_add(out, "a map");
    if (opt_node->kind == AZ_NODE_LIST && opt_node->n == 0)
        return az_str_add(out, "an empty list");
    if (opt_node->kind == AZ_NODE_LIST)
        return az_str_add(out, "a list of %d", opt_node->n);
    int cut = az_deck_cut_text(opt_node->text, 60);
    const char *more = opt_node->text[cut] != '\0' ? "..." : "";
    if (opt_node->quoted)
        return az_str_add(out, "the string \"%.*s%s\"", cut, opt_node->text, more);
    return az_str_add(out, "%.*s%s", cut, opt_node->text, more);
}
