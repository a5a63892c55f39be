/* Memory: every block on the host comes from here, with a label, so that a run can say by
 * category what it holds and tests can count what is left. Local; not for use inside OpenMP
 * regions. */
#ifndef AZ_BASE_MEM_H
#define AZ_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* n elements of size bytes, zeroed, aligned to 64 bytes; NULL after az_fail(AZ_EENV). n may be 0.
 * label: a category of the memory report, a string literal. */
void *az_alloc(size_t n, size_t size, const char *label);
/* Grow or shrink a block of az_alloc to n elements; what is added is zeroed. On failure NULL, p is
 * kept. */
void *az_realloc(void *opt_p, size_t n, size_t size, const char *label);
void az_free(void *opt_p);
/* p = az_alloc(n, sizeof *p, label) as an az_err: AZ_TRY(AZ_NEW(p, n, "what")). */
#define AZ_NEW(p, n, label) (((p) = az_alloc((n), sizeof *(p), (label))) != NULL ? AZ_OK : AZ_EENV)
/* p = az_realloc(p, n, sizeof *p, label) as an az_err; p is kept where it fails. io_p: &p. */
#define AZ_GROW(p, n, label) az_grow(&(p), (n), sizeof *(p), (label))
az_err az_grow(void *io_p, size_t n, size_t size, const char *label);
/* A zero-terminated copy. */
char *az_strdup(const char *s, const char *label);

/* Blocks now live, bytes now live, most bytes ever live, allocations so far. */
typedef struct {
    size_t blocks, bytes, peak_bytes, calls;
} az_mem_total;
az_mem_total az_mem_get_total(void);
/* Category i (0, 1, ...): its label, bytes and peak; false after the last one. */
bool az_mem_get_label(int i, const char **out_label, size_t *out_bytes, size_t *out_peak_bytes);
/* Count memory that does not come from here (shared by processes) in a category; bytes < 0: it is
 * gone. */
void az_mem_count(const char *label, int64_t bytes);
/* The same for memory that is not the host's: it is in no total. */
void az_mem_count_apart(const char *label, int64_t bytes);
/* Make the n-th allocation from now fail (tests); n < 0: none. */
void az_mem_set_fault(long n);

/* Arena: one block carved into pieces. Carve twice with the same calls: first on an arena that
 * holds no block (pieces are NULL, sizes are summed), then after az_arena_init on the block. */
typedef struct {
    char *base;
    size_t size, used;
    bool foreign; /* the block is memory that the host cannot write: a GPU's */
} az_arena;
/* n elements of size bytes at the next multiple of 64 bytes; debug builds add gaps, poisoned where
 * the host can write. */
void *az_arena_take(az_arena *arena, size_t n, size_t size);
/* Allocate what a counting pass has summed up in arena->used, and start again. */
az_err az_arena_init(az_arena *arena, const char *label);
void az_arena_fini(az_arena *arena);

#endif
