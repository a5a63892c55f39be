/* Preloaded by tests/fault/hung.sh and stage.sh: makes one rank, or all, stand still.
 *
 *   AZ_HANG=finalize   MPI_Finalize does not return
 *   AZ_HANG=pread      the read number AZ_HANG_AT does not, with the locks of stdio held, and
 * whoever asks for memory from then on stands still too: what the watchdog does must need neither
 *   AZ_HANG=pwrite     the first write at a place of a file does not
 *   AZ_HANG_RANK=1     where; all ranks without it */
#include <config.h>

#include <mpi.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_bool still;

static bool is_here(const char *what)
{
    const char *hang = getenv("AZ_HANG"), *where = getenv("AZ_HANG_RANK");
    const char *rank = getenv("PMI_RANK");
    return hang != NULL && rank != NULL && strcmp(hang, what) == 0 &&
           (where == NULL || strcmp(where, rank) == 0);
}

static void stand_still(void)
{
    still = true;
    for (;;)
        pause();
}

int MPI_Finalize(void)
{
    if (is_here("finalize"))
        stand_still();
    return PMPI_Finalize();
}

static ssize_t read_at(int fd, void *buffer, size_t n, off_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    static int calls;
    if (next == NULL)
        next = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    if (is_here("pread") && ++calls == atoi(getenv("AZ_HANG_AT"))) {
        flockfile(stdout);
        flockfile(stderr);
        stand_still();
    }
    return next(fd, buffer, n, offset);
}

ssize_t pread(int fd, void *buffer, size_t n, off_t offset)
{
    return read_at(fd, buffer, n, offset);
}

ssize_t pread64(int fd, void *buffer, size_t n, off_t offset)
{
    return read_at(fd, buffer, n, offset);
}

static ssize_t write_at(int fd, const void *buffer, size_t n, off_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (next == NULL)
        next = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    if (is_here("pwrite"))
        stand_still();
    return next(fd, buffer, n, offset);
}

ssize_t pwrite(int fd, const void *buffer, size_t n, off_t offset)
{
    return write_at(fd, buffer, n, offset);
}

ssize_t pwrite64(int fd, const void *buffer, size_t n, off_t offset)
{
    return write_at(fd, buffer, n, offset);
}

/* glibc's own names, as dlsym would ask for memory itself. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

void *malloc(size_t n)
{
    if (still)
        stand_still();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    if (still)
        stand_still();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    if (still)
        stand_still();
    return __libc_realloc(p, n);
}

void free(void *p)
{
    if (still)
        stand_still();
    __libc_free(p);
}
