/* Bus: memory that stands for a file (mmap). A file that becomes shorter, or whose disk fails,
 * cannot be told to whoever reads the memory but by SIGBUS. What is noted here ends the process
 * with one message and code AZ_EENV instead of a core dump; a SIGBUS elsewhere is what it was.
 * Local. */
#ifndef AZ_BASE_BUS_H
#define AZ_BASE_BUS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Note bytes bytes at start; message: what is said when they cannot be read. It is copied. */
az_err az_bus_add(const void *start, size_t bytes, const char *message);
/* The memory is about to go. */
void az_bus_remove(const void *start);
/* Whether a thread looks at az_bus_get_failure at least every second, and ends the process. Without
 * one (or if it does not come) the message is written where the signal is caught. Calls with true
 * and false are counted. */
void az_bus_set_watched(bool watched);
/* The message of memory that could not be read, NULL as long as there is none. For any thread. */
const char *az_bus_get_failure(void);

#endif
