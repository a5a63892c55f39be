/* text: tokenizer.json, byte-level BPE: text to ids and back. Format: the tokenizers library.
 * Local. */
#ifndef AZ_TEXT_TEXT_H
#define AZ_TEXT_TEXT_H

#include "base/base.h"

typedef struct az_tokenizer az_tokenizer;

/* Token ids that grow; start from {0}. */
typedef struct {
    int32_t *v;
    size_t n, cap;
} az_ids;
az_err az_ids_add(az_ids *ids, int32_t id);
void az_ids_fini(az_ids *ids);

/* Read DIR/tokenizer.json (and tokenizer_config.json for the names of special tokens). What the
 * file asks for and adze does not do (other models than BPE, unknown normalizers, ...) is refused
 * by name. */
az_err az_text_open(az_tokenizer **out_tokenizer, const char *dir);
void az_text_close(az_tokenizer *opt_tokenizer);
/* Append the ids of text (UTF-8, not zero-terminated). Invalid UTF-8 is a failure that gives the
 * byte offset. add_special: apply the file's post-processor (e.g. a leading <|begin_of_text|>). O(n
 * log n) in the length. Not for several threads at once. */
az_err az_text_encode(az_ids *ids, az_tokenizer *tokenizer, const char *text, size_t bytes,
                      bool add_special);
/* Append the ids of text with the special tokens that the post-processor puts in front of it,
 * unless it begins with them already; what it puts behind is left out. */
az_err az_text_encode_front(az_ids *ids, az_tokenizer *tokenizer, const char *text, size_t bytes);
/* Append the text of ids; bytes that are not UTF-8 come out as U+FFFD, as in the tokenizers
 * library. */
az_err az_text_decode(az_str *out, const az_tokenizer *tokenizer, const int32_t *ids, size_t n,
                      bool skip_special);
/* One more than the largest id. */
int32_t az_text_get_size(const az_tokenizer *tokenizer);
/* The id of a token (added tokens first, then the vocabulary), -1 if there is none. */
int32_t az_text_get_id(const az_tokenizer *tokenizer, const char *content);
/* The id of tokenizer_config.json's eos_token (bos_token), -1 if it names none. */
int32_t az_text_get_eos(const az_tokenizer *tokenizer);
int32_t az_text_get_bos(const az_tokenizer *tokenizer);

#endif
