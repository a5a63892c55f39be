/* The step loop allocates nothing after the first step: malloc and its kin and mmap are interposed
 * by this program, for every library that it loads. A run of 12 steps must make exactly as many
 * calls as one of 2 steps, by callers outside of the MPI library and what lies below it, whose own
 * message buffers are not adze's. */
#define _GNU_SOURCE
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "deck/deck.h"
#include "tests/mpi/files.h"
#include "train/train.h"

/* glibc's own entries, which the names below hide. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static long counted, foreign;
static __thread int inside;

/* Whether the code at this address belongs to the transport, the BLAS, or HDF5, which writes the
 * checkpoint after the last step, with memory by chance (skip lists). */
static int is_library(const void *caller)
{
    static const char *const names[] = {"libopenblas", "libmpi",   "libmpich", "libuc",
                                        "libfabric",   "libhwloc", "libpmi",   "libibverbs",
                                        "librdmacm",   "libhdf5"};
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(info.dli_fname, names[i]) != NULL)
            return 1;
    return 0;
}

static void count(const void *caller)
{
    if (inside)
        return;
    inside = 1;
    if (is_library(caller))
        foreign++;
    else
        counted++;
    inside = 0;
}

void *malloc(size_t n)
{
    count(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    count(__builtin_return_address(0));
    *out = __libc_memalign(align, n);
    return *out != NULL ? 0 : ENOMEM;
}

void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t off)
{
    count(__builtin_return_address(0));
    return (void *)syscall(SYS_mmap, p, n, prot, flags, fd, off);
}

/* Calls during one training of so many steps. */
static long run(az_comm *comm, const char *deck_path, int steps)
{
    static int n_runs;
    char s[40], out[80];
    snprintf(s, sizeof s, "train.max_steps=%d", steps);
    /* A directory for each run, or it would go on from the one before. */
    snprintf(out, sizeof out, "output.dir=tests/runs/out-allocations-%d-%d", az_comm_size(comm),
             n_runs++);
    char *overrides[] = {s, out, "eval.steps=1000"};
    az_deck *deck = NULL;
    if (az_comm_rank(comm) == 0)
        remove_files(strchr(out, '=') + 1);
    az_comm_barrier(comm);
    long before = counted;
    if (az_deck_open(&deck, deck_path, overrides, 3) != AZ_OK ||
        az_train_run(deck, comm) != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        exit(99);
    }
    az_deck_close(deck);
    return counted - before;
}

int main(void)
{
    const char *src = getenv("srcdir");
    char path[400];
    az_comm *comm;
    snprintf(path, sizeof path, "%s/tests/runs/exact.yaml", src != NULL ? src : ".");
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK)
        return 99;
    run(comm, path, 2); /* libraries set themselves up */
    const long two = run(comm, path, 2), twelve = run(comm, path, 12);
    const int rank = az_comm_rank(comm), failed = two != twelve || two == 0;
    fprintf(stderr,
            "rank %d: %ld calls in 2 steps, %ld in 12, %ld by transport, BLAS and HDF5 in all\n",
            rank, two, twelve, foreign);
    int64_t any = failed;
    az_comm_max_i64(comm, &any, 1);
    az_comm_fini(comm);
    return any != 0;
}
