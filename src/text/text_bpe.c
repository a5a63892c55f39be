/* Byte pair encoding of one word.
 *
 * The word starts as one symbol a byte. The pair of neighbours with the lowest rank (the leftmost
 * of them) is replaced by its merge, until no pair has one. Short words look for that pair by going
 * through the list, which is quickest for a few symbols; longer ones keep the candidates in a heap,
 * O(n log n), because a text without spaces is one word. */
#include <config.h>

#include "text/text_priv.h"

#include <string.h>

/* Above this many symbols the heap is used. */
#define SHORT_WORD 24

/* ---- The byte-level alphabet: printable characters of Latin-1 stand for themselves, the other 68
 * bytes for U+0100 and following, in order. */
static bool is_printable(unsigned c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The other bytes: 0x00-0x20, 0x7f-0xa0, 0xad. */
static uint32_t byte_to_char(uint8_t byte)
{
    if (is_printable(byte))
        return byte;
    return byte <= 0x20 ? 0x100u + byte : byte <= 0xa0 ? 0x100u + 33 + (byte - 0x7fu) : 0x143u;
}

int az_text_char_to_byte(uint32_t c)
{
    if (c < 0x100)
        return is_printable(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

/* ---- Merges: a hash table with open addressing, pair -> rank and merged id */
static size_t get_slot(const az_bpe *bpe, uint64_t pair)
{
    return (size_t)((pair * 0x9e3779b97f4a7c15u) >> 20) & (bpe->merges - 1);
}

static uint64_t get_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static const az_merge *find_merge(const az_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = get_pair(left, right);
    for (size_t i = get_slot(bpe, pair);; i = (i + 1) & (bpe->merges - 1)) {
        if (bpe->merge[i].pair == pair)
            return &bpe->merge[i];
        if (bpe->merge[i].pair == AZ_NO_PAIR)
            return NULL;
    }
}

az_err az_text_bpe_init_merges(az_bpe *bpe, size_t n)
{
    bpe->merges = 16;
    while (bpe->merges < 2 * n)
        bpe->merges *= 2;
    bpe->merge = az_alloc(bpe->merges, sizeof *bpe->merge, "tokenizer");
    if (bpe->merge == NULL)
        return AZ_EENV;
    for (size_t i = 0; i < bpe->merges; i++)
        bpe->merge[i].pair = AZ_NO_PAIR;
    return AZ_OK;
}

/* A pair that comes again takes the later rank, as in the library. */
void az_text_bpe_add_merge(az_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = get_pair(left, right);
    size_t i = get_slot(bpe, pair);
    while (bpe->merge[i].pair != AZ_NO_PAIR && bpe->merge[i].pair != pair)
        i = (i + 1) & (bpe->merges - 1);
    bpe->merge[i] = (az_merge){pair, rank, id};
}

az_err az_text_bpe_init(az_bpe *bpe)
{
    for (int b = 0; b < 256; b++) {
        char c[AZ_UTF8_MAX];
        int n = az_text_fill_char(c, byte_to_char((uint8_t)b));
        bpe->byte_id[b] = az_text_vocab_find(&bpe->vocab, c, (size_t)n);
    }
    return az_text_cache_init(&bpe->cache);
}

void az_text_bpe_fini(az_bpe *bpe)
{
    az_text_vocab_fini(&bpe->vocab);
    az_text_cache_fini(&bpe->cache);
    az_str_fini(&bpe->word);
    az_free(bpe->merge);
    az_free(bpe->sym);
    az_free(bpe->prev);
    az_free(bpe->next);
    az_free(bpe->heap);
}

/* ---- Short words: symbols lie side by side, rank[i] is that of the pair (i, i+1) */
static void merge_short(int32_t *sym, size_t *n, const az_bpe *bpe)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];
    size_t m = *n;
    for (size_t i = 0; i + 1 < m; i++) {
        const az_merge *g = find_merge(bpe, sym[i], sym[i + 1]);
        rank[i] = g != NULL ? g->rank : UINT32_MAX;
        id[i] = g != NULL ? g->id : -1;
    }
    while (m > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < m; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        sym[best] = id[best];
        for (size_t i = best + 1; i + 1 < m; i++) {
            sym[i] = sym[i + 1];
            rank[i] = rank[i + 1];
            id[i] = id[i + 1];
        }
        m--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < m; i++) {
            const az_merge *g = find_merge(bpe, sym[i], sym[i + 1]);
            rank[i] = g != NULL ? g->rank : UINT32_MAX;
            id[i] = g != NULL ? g->id : -1;
        }
    }
    *n = m;
}

/* ---- Long words: a heap of rank << 32 | position; entries whose pair has gone are passed over.
 * Four children a node: half the levels of a binary heap, and the children share a cache line. */
static void sift_up(uint64_t *h, size_t i, uint64_t v)
{
    for (; i > 0 && h[(i - 1) / 4] > v; i = (i - 1) / 4)
        h[i] = h[(i - 1) / 4];
    h[i] = v;
}

static void sift_down(uint64_t *h, size_t n, size_t i, uint64_t v)
{
    for (;;) {
        size_t c = 4 * i + 1, best = c, end = c + 4 < n ? c + 4 : n;
        if (c >= n)
            break;
        for (size_t k = c + 1; k < end; k++)
            if (h[k] < h[best])
                best = k;
        if (h[best] >= v)
            break;
        h[i] = h[best];
        i = best;
    }
    h[i] = v;
}

static az_err reserve_heap(az_bpe *bpe, size_t n)
{
    az_err err = AZ_OK;
    if (n <= bpe->heap_cap)
        return AZ_OK;
    size_t cap = n + n / 2 + 512;
    AZ_TRY(AZ_GROW(bpe->heap, cap, "tokenizer"));
    bpe->heap_cap = cap;
out:
    return err;
}

static uint64_t pop(az_bpe *bpe)
{
    uint64_t top = bpe->heap[0], last = bpe->heap[--bpe->heap_n];
    if (bpe->heap_n > 0)
        sift_down(bpe->heap, bpe->heap_n, 0, last);
    return top;
}

static az_err push_pair(az_bpe *bpe, int32_t left, int32_t right)
{
    az_err err;
    const az_merge *g = find_merge(bpe, bpe->sym[left], bpe->sym[right]);
    if (g == NULL)
        return AZ_OK;
    AZ_TRY(reserve_heap(bpe, bpe->heap_n + 1));
    sift_up(bpe->heap, bpe->heap_n++, (uint64_t)g->rank << 32 | (uint32_t)left);
out:
    return err;
}

/* The list of symbols, and the heap of all its pairs. */
static az_err fill_heap(az_bpe *bpe, int32_t n)
{
    az_err err;
    AZ_TRY(reserve_heap(bpe, (size_t)n));
    bpe->heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        bpe->prev[i] = i - 1;
        bpe->next[i] = i + 1 < n ? i + 1 : -1;
        const az_merge *g = i + 1 < n ? find_merge(bpe, bpe->sym[i], bpe->sym[i + 1]) : NULL;
        if (g != NULL)
            bpe->heap[bpe->heap_n++] = (uint64_t)g->rank << 32 | (uint32_t)i;
    }
    for (size_t i = bpe->heap_n; i-- > 0;)
        sift_down(bpe->heap, bpe->heap_n, i, bpe->heap[i]);
out:
    return err;
}

static az_err merge_long(az_bpe *bpe, size_t *n)
{
    az_err err;
    int32_t *sym = bpe->sym, *prev = bpe->prev, *next = bpe->next;
    AZ_TRY(fill_heap(bpe, (int32_t)*n));
    while (bpe->heap_n > 0) {
        uint64_t top = pop(bpe);
        int32_t i = (int32_t)(uint32_t)top, j = next[i];
        if (sym[i] < 0 || j < 0)
            continue;
        const az_merge *g = find_merge(bpe, sym[i], sym[j]);
        if (g == NULL || g->rank != top >> 32)
            continue;
        sym[i] = g->id;
        sym[j] = -1; /* gone */
        next[i] = next[j];
        if (next[i] >= 0)
            prev[next[i]] = i;
        if (prev[i] >= 0)
            AZ_TRY(push_pair(bpe, prev[i], i));
        if (next[i] >= 0)
            AZ_TRY(push_pair(bpe, i, next[i]));
    }
    size_t k = 0;
    for (int32_t i = 0; i >= 0; i = next[i])
        sym[k++] = sym[i];
    *n = k;
out:
    return err;
}

/* ---- One word */
static az_err reserve(az_bpe *bpe, size_t n)
{
    az_err err;
    if (n <= bpe->sym_cap)
        return AZ_OK;
    size_t cap = n + n / 2 + 256;
    az_free(bpe->sym);
    az_free(bpe->prev);
    az_free(bpe->next);
    bpe->sym = bpe->prev = bpe->next = NULL;
    bpe->sym_cap = 0;
    AZ_TRY(AZ_NEW(bpe->sym, cap, "tokenizer"));
    AZ_TRY(AZ_NEW(bpe->prev, cap, "tokenizer"));
    AZ_TRY(AZ_NEW(bpe->next, cap, "tokenizer"));
    bpe->sym_cap = cap;
out:
    return err;
}

/* Bytes that the vocabulary lacks become the unknown token, several in a row only one if fuse_unk,
 * or nothing if the file names none. */
static size_t fill_symbols(az_bpe *bpe, const uint8_t *word, size_t bytes)
{
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_id[word[i]];
        bool unk = id < 0;
        if (unk)
            id = bpe->fuse_unk && after_unk ? -1 : bpe->unk;
        if (id >= 0)
            bpe->sym[n++] = id;
        after_unk = unk;
    }
    return n;
}

/* The id of a word that is a token as a whole, -1 if it is none. */
static az_err find_whole(int32_t *out_id, az_bpe *bpe, const uint8_t *word, size_t bytes)
{
    az_err err = AZ_OK;
    bpe->word.len = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c[AZ_UTF8_MAX];
        int n = az_text_fill_char(c, byte_to_char(word[i]));
        AZ_TRY(az_str_add_bytes(&bpe->word, c, (size_t)n));
    }
    *out_id = az_text_vocab_find(&bpe->vocab, bpe->word.s, bpe->word.len);
out:
    return err;
}

az_err az_text_bpe_encode(az_ids *ids, az_bpe *bpe, const char *word, size_t bytes)
{
    az_err err = AZ_OK;
    uint64_t hash = 0;
    size_t n = 0;
    int32_t whole = -1;
    if (bytes == 0)
        return AZ_OK;
    const az_word *known = az_text_cache_find(&hash, &bpe->cache, word, bytes);
    if (known != NULL) {
        const int32_t *v = bpe->cache.ids.v + known->ids_off;
        for (uint32_t i = 0; i < known->n_ids; i++)
            AZ_TRY(az_ids_add(ids, v[i]));
        return AZ_OK;
    }
    AZ_TRY(reserve(bpe, bytes));
    if (bpe->ignore_merges)
        AZ_TRY(find_whole(&whole, bpe, (const uint8_t *)word, bytes));
    if (whole >= 0) {
        bpe->sym[0] = whole;
        n = 1;
    } else {
        n = fill_symbols(bpe, (const uint8_t *)word, bytes);
        if (n > 1 && n <= SHORT_WORD)
            merge_short(bpe->sym, &n, bpe);
        else if (n > 1)
            AZ_TRY(merge_long(bpe, &n));
    }
    for (size_t i = 0; i < n; i++)
        AZ_TRY(az_ids_add(ids, bpe->sym[i]));
    AZ_TRY(az_text_cache_add(&bpe->cache, hash, word, bytes, bpe->sym, n));
out:
    return err;
}
