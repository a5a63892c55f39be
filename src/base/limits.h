/* Limits: how much memory this node has for the job. Local. */
#ifndef AZ_BASE_LIMITS_H
#define AZ_BASE_LIMITS_H

#include <stdint.h>

/* The smallest of what the kernel has available, what control groups (v1 and v2, up the tree) allow
 * and what Slurm has allocated, in bytes; *out_source: which it was, for people ("cgroup
 * /a/b/memory.max", "SLURM_MEM_PER_NODE", "available memory"), static. INT64_MAX if nothing says.
 */
int64_t az_limits_get_memory(const char **out_source);
/* What of such a limit is left to the kernel, to files in its cache and to other programs: 5 %, at
 * least 128 MiB and at most 8 GiB. */
int64_t az_limits_get_reserve(int64_t bytes);

#endif
