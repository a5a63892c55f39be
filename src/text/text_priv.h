/* Inside of text: the parts of a tokenizer and what its sources offer to each other. Local.
 *
 * A text becomes ids in these steps, in the order of the tokenizers library:
 *   1. added tokens that are not normalized are cut out of the text (text_added.c)
 *   2. each piece between them is normalized (text_norm.c)
 *   3. added tokens that are normalized are cut out of the pieces
 *   4. what remains is split into words by the pre-tokenizers (text_pretok.c, text_regex.c)
 *   5. each word, as bytes, is merged into ids by BPE (text_bpe.c)
 *   6. the template of the post-processor puts its ids around (text_encode.c) */
#ifndef AZ_TEXT_PRIV_H
#define AZ_TEXT_PRIV_H

#include "store/json.h"
#include "text/text.h"

/* ---- Unicode (text_unicode.c): the sets are those of the tokenizers library */
#define AZ_UTF8_MAX 4
/* The code point at s and its length; s holds valid UTF-8. */
uint32_t az_text_get_char(int *out_bytes, const char *s);
/* Write a code point, return its length. */
int az_text_fill_char(char *out, uint32_t c);
bool az_text_is_space(uint32_t c);   /* White_Space */
bool az_text_is_numeric(uint32_t c); /* categories Nd, Nl, No */
bool az_text_is_word(uint32_t c);    /* \w of the library's own regular expressions */
/* Ranges of characters with their general category that younger versions of Unicode added: PCRE2
 * and utf8proc may carry older tables than the library does. */
typedef struct {
    uint32_t lo, hi;
    char category[3];
} az_ucd_range;
extern const az_ucd_range az_ucd_additions[];
extern const size_t az_ucd_n_additions;

/* ---- Normalization (text_norm.c) */
typedef enum { AZ_NFC, AZ_NFD, AZ_NFKC, AZ_NFKD } az_norm_form;
/* Scratch of the normalization; start from {0}. */
typedef struct {
    int32_t *c;
    size_t cap;
} az_norm_work;
/* Append the normal form of n bytes of valid UTF-8. */
az_err az_text_normalize(az_str *out, az_norm_work *work, az_norm_form form, const char *s,
                         size_t n);

/* ---- Regular expressions (text_regex.c, text_onig.c) */
typedef struct az_regex az_regex;
/* pattern: in the syntax that the library gives to Oniguruma; what would mean something else to
 * PCRE2 is translated or refused. literal: the pattern is plain text. where: for messages. */
az_err az_text_regex_create(az_regex **out_regex, const char *pattern, size_t bytes, bool literal,
                            const char *where);
void az_text_regex_destroy(az_regex *opt_regex);
/* The first match in s[0, n) that starts at from or later; *out_found says whether there is one. */
az_err az_text_regex_find(bool *out_found, size_t *out_start, size_t *out_end, az_regex *regex,
                          const char *s, size_t n, size_t from);
/* Append the pattern in PCRE2's syntax. */
az_err az_text_translate_regex(az_str *out, const char *pattern, size_t bytes, const char *where);

/* ---- Vocabulary: contents and ids (text_vocab.c) */
typedef struct {
    size_t off;
    uint32_t len;
    bool used;
} az_token;
typedef struct {
    az_str pool;     /* contents, one after another */
    az_token *token; /* by id */
    int32_t size, cap, count;
    int32_t *slot; /* hash table of ids, -1: free */
    size_t slots;
} az_vocab;
/* Room for n tokens; more can be added. */
az_err az_text_vocab_init(az_vocab *vocab, size_t n);
void az_text_vocab_fini(az_vocab *vocab);
az_err az_text_vocab_add(az_vocab *vocab, const char *content, size_t bytes, int32_t id);
int32_t az_text_vocab_find(const az_vocab *vocab, const char *content, size_t bytes);
/* The content of an id, NULL if it has none. */
const char *az_text_vocab_get(const az_vocab *vocab, int32_t id, size_t *out_bytes);

/* ---- BPE (text_bpe.c, text_cache.c) */
typedef struct {
    uint64_t hash;
    size_t key_off, ids_off;
    uint32_t key_bytes, n_ids;
} az_word;
/* Words seen before and their ids. */
typedef struct {
    az_word *slot;
    size_t count;
    az_str keys;
    az_ids ids;
} az_cache;
az_err az_text_cache_init(az_cache *cache);
void az_text_cache_fini(az_cache *cache);
/* The word's entry, or NULL; *out_hash is what az_text_cache_add wants. */
const az_word *az_text_cache_find(uint64_t *out_hash, const az_cache *cache, const char *word,
                                  size_t bytes);
az_err az_text_cache_add(az_cache *cache, uint64_t hash, const char *word, size_t bytes,
                         const int32_t *ids, size_t n);

typedef struct {
    uint64_t pair; /* left id << 32 | right id; AZ_NO_PAIR: free */
    uint32_t rank;
    int32_t id;
} az_merge;
#define AZ_NO_PAIR UINT64_MAX
typedef struct {
    az_vocab vocab;
    az_merge *merge; /* hash table */
    size_t merges;   /* its size, a power of two */
    int32_t byte_id[256];
    int32_t unk; /* -1: unknown bytes vanish, as in the library */
    bool fuse_unk, ignore_merges;
    az_cache cache;
    az_str word;                /* scratch: a word in the vocabulary's alphabet */
    int32_t *sym, *prev, *next; /* scratch: the symbols of a word as a list */
    size_t sym_cap;
    uint64_t *heap;
    size_t heap_n, heap_cap;
} az_bpe;
/* Room for n merges. */
az_err az_text_bpe_init_merges(az_bpe *bpe, size_t n);
void az_text_bpe_add_merge(az_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* After vocabulary and merges: the ids of single bytes, the cache. */
az_err az_text_bpe_init(az_bpe *bpe);
void az_text_bpe_fini(az_bpe *bpe);
/* Append the ids of one word, given as bytes. */
az_err az_text_bpe_encode(az_ids *ids, az_bpe *bpe, const char *word, size_t bytes);
/* The byte that a character of the byte-level alphabet stands for, -1: none. */
int az_text_char_to_byte(uint32_t c);

/* ---- Added tokens (text_added.c) */
typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} az_added;
typedef struct {
    size_t off, len;
    int added; /* index into az_tokenizer.added */
} az_match;
/* Contents to look for, sorted. */
typedef struct {
    az_str pool;
    az_match *pattern;
    size_t n;
    bool first[256];
} az_match_set;
az_err az_text_match_add(az_match_set *set, const char *content, size_t bytes, int added);
void az_text_match_sort(az_match_set *set);
void az_text_match_fini(az_match_set *set);
/* A piece of text between added tokens. */
typedef az_err az_piece_fn(az_ids *ids, az_tokenizer *tok, const char *s, size_t n);
/* Append the ids of s: of each added token found, and what fn makes of the text between. */
az_err az_text_match_split(az_ids *ids, az_tokenizer *tok, const az_match_set *set, const char *s,
                           size_t n, az_piece_fn *fn);

/* ---- Pre-tokenizers (text_pretok.c) */
typedef enum { AZ_PRETOK_SPLIT, AZ_PRETOK_DIGITS, AZ_PRETOK_BYTES } az_pretok_kind;
typedef enum {
    AZ_SPLIT_REMOVED,
    AZ_SPLIT_ISOLATED,
    AZ_SPLIT_WITH_PREVIOUS,
    AZ_SPLIT_WITH_NEXT,
    AZ_SPLIT_CONTIGUOUS
} az_split_behavior;
typedef struct {
    az_pretok_kind kind;
    az_split_behavior behavior;
    bool invert;       /* what does not match is what matches */
    bool prefix_space; /* BYTES: put a space before a piece that starts with none */
    az_regex *regex;   /* SPLIT, and BYTES if it splits too */
    az_str work;       /* the piece with its space */
} az_pretok;
/* Split a piece into words and append their ids. */
az_err az_text_pretok_encode(az_ids *ids, az_tokenizer *tok, const char *s, size_t n);

/* ---- The tokenizer */
#define AZ_TEXT_MAX_STEPS 16
#define AZ_TEMPLATE_TEXT (-1)
typedef enum { AZ_DECODE_JOIN, AZ_DECODE_BYTES } az_decoder;
struct az_tokenizer {
    az_bpe bpe;
    az_vocab added_vocab; /* contents as in the file */
    az_vocab shown;       /* contents as decoded: normalized ones in their normal form */
    az_added *added;
    size_t n_added;
    bool *special; /* by id */
    az_match_set raw, normalized;
    az_norm_form norm[AZ_TEXT_MAX_STEPS];
    int n_norm;
    az_norm_work norm_work;
    az_str norm_text[2];
    az_pretok pretok[AZ_TEXT_MAX_STEPS];
    int n_pretok;
    az_ids template[AZ_TEXT_MAX_STEPS]; /* ids and AZ_TEMPLATE_TEXT */
    int n_template;
    az_ids work[2];
    az_decoder decoder;
    int32_t size, bos, eos;
};
/* The normal form of s by all normalizers of the file: s itself, or scratch of the tokenizer. */
az_err az_text_apply_norm(const char **out, size_t *out_n, az_tokenizer *tok, const char *s,
                          size_t n);

/* Reading (text_json.c, text_pipe.c) */
az_err az_text_read_model(az_tokenizer *tok, const az_json_doc *doc);
az_err az_text_read_added(az_tokenizer *tok, const az_json_doc *doc);
az_err az_text_read_normalizer(az_tokenizer *tok, const az_json_doc *doc);
az_err az_text_read_pretok(az_tokenizer *tok, const az_json_doc *doc);
az_err az_text_read_template(az_tokenizer *tok, const az_json_doc *doc);
az_err az_text_read_decoder(az_tokenizer *tok, const az_json_doc *doc);

#endif
