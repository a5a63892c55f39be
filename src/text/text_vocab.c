/* Contents of tokens and their ids, both ways: contents in one pool, an array by id, and a hash
 * table with open addressing by content. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

static az_err grow_slots(az_vocab *vocab, size_t slots)
{
    int32_t *slot = az_alloc(slots, sizeof *slot, "tokenizer");
    if (slot == NULL)
        return AZ_EENV;
    for (size_t i = 0; i < slots; i++)
        slot[i] = -1;
    for (int32_t id = 0; id < vocab->size; id++) {
        const az_token *t = &vocab->token[id];
        if (!t->used)
            continue;
        size_t i = az_hash64(vocab->pool.s + t->off, t->len, 0) & (slots - 1);
        while (slot[i] >= 0)
            i = (i + 1) & (slots - 1);
        slot[i] = id;
    }
    az_free(vocab->slot);
    vocab->slot = slot;
    vocab->slots = slots;
    return AZ_OK;
}

az_err az_text_vocab_init(az_vocab *vocab, size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return grow_slots(vocab, slots);
}

void az_text_vocab_fini(az_vocab *vocab)
{
    az_str_fini(&vocab->pool);
    az_free(vocab->token);
    az_free(vocab->slot);
    *vocab = (az_vocab){0};
}

az_err az_text_vocab_add(az_vocab *vocab, const char *content, size_t bytes, int32_t id)
{
    az_err err;
    AZ_ASSERT(id >= 0 && bytes <= UINT32_MAX);
    if (id >= vocab->cap) {
        int32_t cap = id < 1000 ? 2000 : id + id / 2;
        AZ_TRY(AZ_GROW(vocab->token, (size_t)cap, "tokenizer"));
        vocab->cap = cap;
    }
    AZ_ASSERT(!vocab->token[id].used);
    if ((size_t)vocab->count * 2 >= vocab->slots)
        AZ_TRY(grow_slots(vocab, vocab->slots * 2));
    size_t off = vocab->pool.len;
    AZ_TRY(az_str_add_bytes(&vocab->pool, content, bytes));
    vocab->token[id] = (az_token){off, (uint32_t)bytes, true};
    if (id >= vocab->size)
        vocab->size = id + 1;
    vocab->count++;
    size_t i = az_hash64(content, bytes, 0) & (vocab->slots - 1);
    while (vocab->slot[i] >= 0)
        i = (i + 1) & (vocab->slots - 1);
    vocab->slot[i] = id;
out:
    return err;
}

int32_t az_text_vocab_find(const az_vocab *vocab, const char *content, size_t bytes)
{
    size_t i = az_hash64(content, bytes, 0) & (vocab->slots - 1);
    for (; vocab->slot[i] >= 0; i = (i + 1) & (vocab->slots - 1)) {
        const az_token *t = &vocab->token[vocab->slot[i]];
        if (t->len == bytes && memcmp(vocab->pool.s + t->off, content, bytes) == 0)
            return vocab->slot[i];
    }
    return -1;
}

const char *az_text_vocab_get(const az_vocab *vocab, int32_t id, size_t *out_bytes)
{
    if (id < 0 || id >= vocab->size || !vocab->token[id].used)
        return NULL;
    *out_bytes = vocab->token[id].len;
    return vocab->pool.s + vocab->token[id].off;
}
