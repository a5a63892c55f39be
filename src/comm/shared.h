/* shared: memory that the ranks of a node share.
 *
 * It is an anonymous file in memory (memfd_create) made by the node's first rank and opened by the
 * others, so it does not depend on the size of /dev/shm, which is 64 MiB in many containers; all
 * its pages are reserved at once, so that want of memory is a message and not a SIGBUS later. A
 * rank that is alone on its node has the same kind of memory.
 *
 * Pages are large where the system has them, as the tables of small ones add up: every process that
 * reads 140 GB in pages of 4 KiB has tables of 280 MB. Large ones come from the pool of huge pages
 * if the memory fits there, else they are asked for (transparent huge pages). On a node of several
 * NUMA domains the pages lie on them in turn, so that all cores read at the speed of all memory. */
#ifndef AZ_COMM_SHARED_H
#define AZ_COMM_SHARED_H

#include "comm/comm.h"

typedef struct az_shared az_shared;

/* What else the memory is mapped for. */
enum { AZ_SHARED_READONLY = 1 };

/* bytes bytes for each node, zero, mapped by all of its ranks; the same on all nodes. name: what
 * /proc/PID/maps shows, as memfd:NAME. label: a category of the memory report, counted by the
 * node's first rank, with what huge pages round up. flags: 0, or AZ_SHARED_READONLY for a second
 * mapping through which nothing can be written. Fails with AZ_EENV, on all ranks, where a node has
 * no such memory or its ranks cannot open each other's. Collective. */
az_err az_shared_create(az_shared **out_shared, size_t bytes, const char *name, const char *label,
                        unsigned flags, az_comm *comm);
/* From now on nobody may write. Collective over the node (waits for its ranks). */
az_err az_shared_protect(az_shared *shared);
/* The memory, aligned to a page. Local. */
char *az_shared_get(const az_shared *shared);
/* The same memory through the second mapping; NULL if that was not asked for. Local. */
const char *az_shared_get_readonly(const az_shared *shared);
/* Local, on all ranks. */
void az_shared_destroy(az_shared *opt_shared);

/* ---- pages (comm_pages.c) */

/* Which pages this process sees, by what the kernel says of those that it has touched: "huge
 * pages", "4 KiB pages", or both with shares. Borrowed until the next call. Local; reads the page
 * tables. */
const char *az_shared_describe_pages(const az_shared *shared);
/* Bytes of a page that this machine is likely to give to so much shared memory. Local. */
size_t az_shared_guess_page(size_t bytes);
/* Bytes of page tables of a process that maps so many bytes in pages of page bytes and touches all
 * of them. Pure. */
size_t az_shared_measure_tables(size_t bytes, size_t page);

#endif
