/* Words seen before and their ids. Natural text repeats its words, so most of them need one look-up
 * instead of merges. A table of fixed size with open addressing; when it is three quarters full it
 * is emptied, which keeps its memory bounded whatever the text is. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

#define SLOTS ((size_t)1 << 16)
/* Longer words are rare and would only fill the pool. */
#define MAX_BYTES 64

az_err az_text_cache_init(az_cache *cache)
{
    return AZ_NEW(cache->slot, SLOTS, "tokenizer");
}

void az_text_cache_fini(az_cache *cache)
{
    az_free(cache->slot);
    az_str_fini(&cache->keys);
    az_ids_fini(&cache->ids);
    *cache = (az_cache){0};
}

const az_word *az_text_cache_find(uint64_t *out_hash, const az_cache *cache, const char *word,
                                  size_t bytes)
{
    if (bytes > MAX_BYTES)
        return NULL;
    uint64_t hash = az_hash64(word, bytes, 0);
    *out_hash = hash;
    for (size_t i = hash & (SLOTS - 1); cache->slot[i].key_bytes > 0; i = (i + 1) & (SLOTS - 1)) {
        const az_word *w = &cache->slot[i];
        if (w->hash == hash && w->key_bytes == bytes &&
            memcmp(cache->keys.s + w->key_off, word, bytes) == 0)
            return w;
    }
    return NULL;
}

az_err az_text_cache_add(az_cache *cache, uint64_t hash, const char *word, size_t bytes,
                         const int32_t *ids, size_t n)
{
    az_err err = AZ_OK;
    if (bytes == 0 || bytes > MAX_BYTES)
        return AZ_OK;
    if (cache->count >= SLOTS / 4 * 3) {
        memset(cache->slot, 0, SLOTS * sizeof *cache->slot);
        cache->count = cache->keys.len = cache->ids.n = 0;
    }
    az_word w = {hash, cache->keys.len, cache->ids.n, (uint32_t)bytes, (uint32_t)n};
    for (size_t i = 0; i < n; i++)
        AZ_TRY(az_ids_add(&cache->ids, ids[i]));
    AZ_TRY(az_str_add_bytes(&cache->keys, word, bytes));
    size_t i = hash & (SLOTS - 1);
    while (cache->slot[i].key_bytes > 0)
        i = (i + 1) & (SLOTS - 1);
    cache->slot[i] = w;
    cache->count++;
out:
    return err;
}
