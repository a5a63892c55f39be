/* shared: memory that the ranks of a node share.
 *
 * It is an anonymous file in memory (memfd_create) made by the node's first rank and opened by the
 * others, so it does not depend on the size of /dev/shm, which is 64 MiB in many containers; all
 * its pages are reserved at once, so that want of memory is a message and not a SIGBUS later. A
 * rank that is alone on its node has memory of its own. */
#ifndef AZ_COMM_SHARED_H
#define AZ_COMM_SHARED_H

#include "comm/comm.h"

typedef struct az_shared az_shared;

/* bytes bytes for each node, zero, mapped by all of its ranks; the same on all nodes. label: a
 * category of the memory report, counted by the node's first rank. Fails with AZ_EENV, on all
 * ranks, where a node has no such memory or its ranks cannot open each other's. Collective. */
az_err az_shared_create(az_shared **out_shared, size_t bytes, const char *label, az_comm *comm);
/* From now on nobody may write. Collective over the node (waits for its ranks). */
az_err az_shared_protect(az_shared *shared);
/* The memory, aligned to a page. Local. */
char *az_shared_get(const az_shared *shared);
/* Local, on all ranks. */
void az_shared_destroy(az_shared *opt_shared);

#endif
