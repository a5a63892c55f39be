/* Memory: labelled blocks with a small head, and arenas. */
#include <config.h>

#include "base/mem.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64
#define MAX_LABELS 64
#define MAGIC 0xad2eb10cu
#define GAP 64
#define GAP_BYTE 0xa5

/* Stands in the 64 bytes before each block. */
typedef struct {
    uint32_t magic;
    int label;
    size_t bytes;
} head;

static struct {
    const char *name;
    size_t bytes, peak_bytes;
} labels[MAX_LABELS];
static int n_labels;
static az_mem_total total;
static long fault = -1;

static int find_label(const char *name)
{
    for (int i = 0; i < n_labels; i++)
        if (strcmp(labels[i].name, name) == 0)
            return i;
    AZ_ASSERT(n_labels < MAX_LABELS);
    labels[n_labels].name = name;
    return n_labels++;
}

static void add_to_label(int label, size_t bytes)
{
    labels[label].bytes += bytes;
    if (labels[label].bytes > labels[label].peak_bytes)
        labels[label].peak_bytes = labels[label].bytes;
}

static void add_bytes(int label, size_t bytes)
{
    add_to_label(label, bytes);
    total.bytes += bytes;
    if (total.bytes > total.peak_bytes)
        total.peak_bytes = total.bytes;
}

static void count(int label, size_t bytes)
{
    add_bytes(label, bytes);
    total.blocks++;
    total.calls++;
}

static void discount(const head *h)
{
    labels[h->label].bytes -= h->bytes;
    total.blocks--;
    total.bytes -= h->bytes;
}

static head *head_of(void *p)
{
    head *h = (head *)((char *)p - ALIGN);
    AZ_ASSERT(h->magic == MAGIC);
    return h;
}

static bool fault_now(void)
{
    return fault >= 0 && fault-- == 0;
}

/* A block of bytes with its head, not zeroed; NULL if there is none. */
static void *block_create(size_t bytes, const char *label)
{
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    char *raw = whole < bytes || fault_now() ? NULL : aligned_alloc(ALIGN, whole);
    if (raw == NULL)
        return NULL;
    *(head *)raw = (head){MAGIC, find_label(label), bytes};
    count(((head *)raw)->label, bytes);
    return raw + ALIGN;
}

void *az_alloc(size_t n, size_t size, const char *label)
{
    return az_realloc(NULL, n, size, label);
}

void *az_realloc(void *opt_p, size_t n, size_t size, const char *label)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(n, size, &bytes) && bytes <= PTRDIFF_MAX - 2 * ALIGN)
        p = block_create(bytes, label);
    if (p == NULL) {
        az_fail(AZ_EENV, "out of memory: %zu x %zu bytes for %s (%zu bytes are in use)", n, size,
                label, total.bytes);
        return NULL;
    }
    size_t keep = 0;
    if (opt_p != NULL) {
        keep = head_of(opt_p)->bytes < bytes ? head_of(opt_p)->bytes : bytes;
        memcpy(p, opt_p, keep);
        az_free(opt_p);
    }
    memset((char *)p + keep, 0, bytes - keep);
    return p;
}

az_err az_grow(void *io_p, size_t n, size_t size, const char *label)
{
    void *p;
    memcpy(&p, io_p, sizeof p);
    p = az_realloc(p, n, size, label);
    if (p == NULL)
        return AZ_EENV;
    memcpy(io_p, &p, sizeof p);
    return AZ_OK;
}

void az_free(void *opt_p)
{
    if (opt_p == NULL)
        return;
    head *h = head_of(opt_p);
    discount(h);
    h->magic = 0;
    free(h);
}

char *az_strdup(const char *s, const char *label)
{
    size_t n = strlen(s) + 1;
    char *copy = az_alloc(n, 1, label);
    if (copy != NULL)
        memcpy(copy, s, n);
    return copy;
}

az_mem_total az_mem_get_total(void)
{
    return total;
}

bool az_mem_get_label(int i, const char **out_label, size_t *out_bytes, size_t *out_peak_bytes)
{
    if (i < 0 || i >= n_labels)
        return false;
    *out_label = labels[i].name;
    *out_bytes = labels[i].bytes;
    *out_peak_bytes = labels[i].peak_bytes;
    return true;
}

void az_mem_count(const char *label, int64_t bytes)
{
    add_bytes(find_label(label), (size_t)bytes); /* modulo 2^64: less where it is negative */
}

void az_mem_count_apart(const char *label, int64_t bytes)
{
    add_to_label(find_label(label), (size_t)bytes);
}

void az_mem_set_fault(long n)
{
    fault = n;
}

#ifdef AZ_DEBUG
static const size_t gap = GAP;
#else
static const size_t gap = 0;
#endif

void *az_arena_take(az_arena *arena, size_t n, size_t size)
{
    size_t bytes;
    AZ_ASSERT(!__builtin_mul_overflow(n, size, &bytes) && bytes < PTRDIFF_MAX / 2);
    size_t start = (arena->used + ALIGN - 1) / ALIGN * ALIGN;
    arena->used = start + bytes + gap;
    if (arena->base == NULL)
        return NULL;
    AZ_ASSERT(arena->used <= arena->size);
    if (!arena->foreign)
        memset(arena->base + start + bytes, GAP_BYTE, gap);
    return arena->base + start;
}

az_err az_arena_init(az_arena *arena, const char *label)
{
    size_t size = arena->used;
    *arena = (az_arena){.base = az_alloc(size, 1, label), .size = size};
    return arena->base != NULL ? AZ_OK : AZ_EENV;
}

void az_arena_fini(az_arena *arena)
{
    az_free(arena->base);
    *arena = (az_arena){0};
}
