/* shared: the pages of shared memory: files in memory, huge pages, NUMA domains.
 *
 * Contents: NUMA domains; huge pages; files in memory; what became of them; estimates. */
#include <config.h>

#include "comm/comm_pages.h"
#include "comm/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Memory of fewer pages than this is not rounded up to huge ones: at most 1/64 is lost. */
enum { FEWEST_PAGES = 64 };

/* ---- NUMA domains */

enum { N_DOMAINS = 1024, WORD = 8 * sizeof(unsigned long) };

/* The pages of this mapping's file lie on the domains that the process may use in turn. Where a
 * container forbids to say so, or there is one domain, they lie where the kernel puts them. */
static void spread_domains(char *memory, size_t bytes)
{
    unsigned long mask[N_DOMAINS / WORD] = {0};
    int n = 0;
    if (syscall(SYS_get_mempolicy, NULL, mask, (unsigned long)N_DOMAINS, NULL,
                (unsigned long)MPOL_F_MEMS_ALLOWED) != 0)
        return;
    for (size_t i = 0; i < N_DOMAINS / WORD; i++)
        n += __builtin_popcountl(mask[i]);
    if (n > 1)
        syscall(SYS_mbind, memory, bytes, (unsigned long)MPOL_INTERLEAVE, mask,
                (unsigned long)N_DOMAINS, 0ul);
}

/* ---- huge pages */

/* A number of /proc/meminfo, "Name:   123 [kB]"; 0 without. */
static size_t read_meminfo(const char *name)
{
    char line[200];
    unsigned long long v = 0;
    const size_t n = strlen(name);
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, n) == 0 && line[n] == ':' && sscanf(line + n + 1, "%llu", &v) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return (size_t)v;
}

/* Bytes of a page of the pool; 0: there are none. */
static size_t pool_page(void)
{
    return read_meminfo("HugePages_Total") > 0 ? read_meminfo("Hugepagesize") << 10 : 0;
}

/* How the system gives huge pages to shared memory, "always [advise] never": whether the word in
 * brackets is this one. */
static bool gives(const char *word)
{
    char line[200] = "", wanted[40];
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "r");
    if (f == NULL)
        return false;
    if (fgets(line, sizeof line, f) == NULL)
        line[0] = '\0';
    fclose(f);
    snprintf(wanted, sizeof wanted, "[%s]", word);
    return strstr(line, wanted) != NULL;
}

/* ---- files in memory */

az_err az_pages_fail(size_t bytes)
{
    return az_fail(AZ_EENV, "no memory for %s that the ranks of a node share: %s%s",
                   az_format_bytes((double)bytes), strerror(errno),
                   errno == EFBIG ? " (the limit of file sizes, ulimit -H -f, counts for it)" : "");
}

/* The limit of file sizes counts for files in memory too, for which it is not meant: it is put out
 * of the way as far as may be. Returns what it was. */
static struct rlimit lift_limit(void)
{
    struct rlimit was = {RLIM_INFINITY, RLIM_INFINITY}, lifted;
    getrlimit(RLIMIT_FSIZE, &was);
    lifted = (struct rlimit){was.rlim_max, was.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lifted);
    return was;
}

/* Take all pages. A signal (a request to stop) interrupts the kernel's work on them, whatever
 * SA_RESTART says. Where huge pages come only to those who ask, they come through the mapping that
 * asks, not through the file. */
static bool take_pages(const az_pages *p)
{
    int failed;
    if (gives("advise")) {
        do
            failed = madvise(p->memory, p->bytes, MADV_POPULATE_WRITE);
        while (failed != 0 && (errno == EINTR || errno == EAGAIN));
        if (failed == 0 || errno != EINVAL) {
            errno = errno == EFAULT ? ENOMEM : errno; /* a page could not be had */
            return failed == 0;
        }
    }
    do
        failed = fallocate(p->fd, 0, 0, (off_t)p->bytes);
    while (failed != 0 && errno == EINTR);
    return failed == 0 || errno == EOPNOTSUPP;
}

static bool make_file(az_pages *p, size_t bytes, const char *name, unsigned flags)
{
    p->bytes = bytes;
    p->fd = memfd_create(name, MFD_CLOEXEC | flags);
    if (p->fd < 0 || ftruncate(p->fd, (off_t)bytes) != 0)
        return false;
    p->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (p->memory == MAP_FAILED) {
        p->memory = NULL;
        return false;
    }
    madvise(p->memory, bytes, MADV_HUGEPAGE);
    spread_domains(p->memory, bytes);
    return take_pages(p);
}

void az_pages_fini(az_pages *p)
{
    if (p->memory != NULL)
        munmap(p->memory, p->bytes);
    if (p->fd >= 0)
        close(p->fd);
    *p = (az_pages){.fd = -1};
}

az_err az_pages_create(az_pages *p, size_t bytes, const char *name)
{
    const size_t page = pool_page();
    const struct rlimit limit = lift_limit();
    bool made = page > 0 && bytes / page >= FEWEST_PAGES &&
                make_file(p, (bytes + page - 1) / page * page, name, MFD_HUGETLB);
    if (!made) { /* the pool is too small, or not for this process */
        az_pages_fini(p);
        made = make_file(p, bytes, name, 0);
    }
    const az_err err = made ? AZ_OK : az_pages_fail(bytes);
    setrlimit(RLIMIT_FSIZE, &limit);
    return err;
}

az_err az_pages_map(char **out_memory, int fd, size_t bytes, int protection)
{
    *out_memory = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (*out_memory == MAP_FAILED) {
        *out_memory = NULL;
        return az_pages_fail(bytes);
    }
    madvise(*out_memory, bytes, MADV_HUGEPAGE);
    return AZ_OK;
}

/* ---- what became of them */

/* What this process has touched of a mapping. */
typedef struct {
    size_t bytes, huge; /* all, and of them in huge pages */
    size_t page;        /* of the file: larger than usual if it is from the pool */
} touched;

static void add_touched(touched *t, const char *memory)
{
    char line[400], name[40];
    unsigned long from, to;
    unsigned long long kib;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (unsigned long)memory >= from && (unsigned long)memory < to;
        else if (here && sscanf(line, "%39[^:]: %llu kB", name, &kib) == 2) {
            if (strcmp(name, "KernelPageSize") == 0)
                t->page = (size_t)kib << 10;
            else if (strcmp(name, "ShmemPmdMapped") == 0)
                t->huge += (size_t)kib << 10;
            else if (strcmp(name, "Rss") == 0)
                t->bytes += (size_t)kib << 10;
        }
    }
    if (f != NULL)
        fclose(f);
}

const char *az_shared_describe_pages(const az_shared *shared)
{
    static char text[80];
    touched t = {0};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    add_touched(&t, az_shared_get(shared));
    if (az_shared_get_readonly(shared) != NULL)
        add_touched(&t, az_shared_get_readonly(shared));
    if (t.page > page || (t.huge > 0 && (double)t.huge > 0.995 * (double)t.bytes))
        snprintf(text, sizeof text, "huge pages");
    else if (t.huge > 0)
        snprintf(text, sizeof text, "%.0f %% huge pages, the rest %zu KiB pages",
                 100.0 * (double)t.huge / (double)t.bytes, page / 1024);
    else
        snprintf(text, sizeof text, "%zu KiB pages", page / 1024);
    return text;
}

/* ---- estimates */

size_t az_shared_guess_page(size_t bytes)
{
    const size_t page = pool_page(), huge = read_meminfo("Hugepagesize") << 10;
    if (page > 0 && bytes / page >= FEWEST_PAGES &&
        read_meminfo("HugePages_Free") >= bytes / page + 1)
        return page;
    const bool asked = gives("always") || gives("within_size") || gives("advise") || gives("force");
    return asked && huge > 0 && bytes >= huge ? huge : (size_t)sysconf(_SC_PAGESIZE);
}

size_t az_shared_measure_tables(size_t bytes, size_t page)
{
    return (bytes + page - 1) / page * sizeof(void *);
}
