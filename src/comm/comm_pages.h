/* comm, inside: the pages of shared memory. Local. */
#ifndef AZ_COMM_PAGES_H
#define AZ_COMM_PAGES_H

#include "comm/comm.h"

/* A file in memory with all its pages, mapped for writing. bytes: rounded up where its pages are
 * from the pool of huge pages. Start from {.fd = -1}. */
typedef struct {
    int fd;
    char *memory;
    size_t bytes;
} az_pages;

az_err az_pages_create(az_pages *pages, size_t bytes, const char *name);
/* Map the file of another process. protection: as of mmap. */
az_err az_pages_map(char **out_memory, int fd, size_t bytes, int protection);
void az_pages_fini(az_pages *pages);
az_err az_pages_fail(size_t bytes);

#endif
