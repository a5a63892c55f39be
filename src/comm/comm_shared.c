/* shared: memory that the ranks of a node share. */
#include <config.h>

#include "comm/comm_priv.h"
#include "comm/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct az_shared {
    az_comm *comm;
    const char *label;
    char *memory;
    size_t bytes;
    int fd; /* of the node's first rank */
};

static az_err no_memory(size_t bytes)
{
    return az_fail(AZ_EENV, "no memory for %s that the ranks of a node share: %s",
                   az_format_bytes((double)bytes), strerror(errno));
}

/* Made by the node's first rank, with all its pages. A signal (a request to stop) interrupts the
 * kernel's work on them, whatever SA_RESTART says. */
static az_err make_file(az_shared *s)
{
    int failed;
    s->fd = memfd_create("adze", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)s->bytes) != 0)
        return no_memory(s->bytes);
    do
        failed = fallocate(s->fd, 0, 0, (off_t)s->bytes);
    while (failed != 0 && errno == EINTR);
    return failed == 0 || errno == EOPNOTSUPP ? AZ_OK : no_memory(s->bytes);
}

/* Where the others find the file of the node's first rank, and by what they know it. */
typedef struct {
    long long pid, fd;
    uint64_t device, inode;
} place;

static az_err find_place(place *p, const az_shared *s)
{
    struct stat st;
    if (fstat(s->fd, &st) != 0)
        return no_memory(s->bytes);
    *p = (place){getpid(), s->fd, st.st_dev, st.st_ino};
    return AZ_OK;
}

static az_err open_file(int *out_fd, const az_shared *s, const place *p)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", p->pid, p->fd);
    *out_fd = open(path, O_RDWR | O_CLOEXEC);
    if (*out_fd < 0 || fstat(*out_fd, &st) != 0)
        return az_fail(AZ_EENV,
                       "rank %d cannot open the memory of its node's first rank, process %lld: %s",
                       s->comm->rank, p->pid, strerror(errno));
    if (st.st_dev != p->device || st.st_ino != p->inode)
        return az_fail(AZ_EENV,
                       "rank %d does not see its node's first rank as process %lld: the ranks of "
                       "this node are in different containers",
                       s->comm->rank, p->pid);
    return AZ_OK;
}

/* fd < 0: memory of this process alone. */
static az_err map_file(az_shared *s, int fd)
{
    const int how = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, how, fd, 0);
    if (s->memory == MAP_FAILED) {
        s->memory = NULL;
        return no_memory(s->bytes);
    }
    madvise(s->memory, s->bytes, MADV_HUGEPAGE); /* where the system has them for shared memory */
    if (s->comm->node_rank == 0)
        az_mem_count(s->label, (int64_t)s->bytes);
    return AZ_OK;
}

az_err az_shared_create(az_shared **out_shared, size_t bytes, const char *label, az_comm *comm)
{
    az_err err;
    az_shared *s = NULL;
    place first = {0};
    int fd = -1;
    *out_shared = NULL;
    err = AZ_NEW(s, 1, "communication");
    if (err == AZ_OK) /* before another rank's failure: it is destroyed then */
        *s = (az_shared){.comm = comm, .label = label, .bytes = bytes > 0 ? bytes : 1, .fd = -1};
    AZ_TRY(az_comm_agree(comm, err));
    if (comm->node_rank == 0 && comm->node_size > 1) {
        err = make_file(s);
        if (err == AZ_OK)
            err = find_place(&first, s);
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (comm->node_size > 1) {
        az_watch_begin(comm->watch, AZ_CALL_BCAST);
        MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm->node);
        az_watch_end(comm->watch);
    }
    if (comm->node_rank == 0)
        err = map_file(s, s->fd);
    else if ((err = open_file(&fd, s, &first)) == AZ_OK)
        err = map_file(s, fd);
    if (fd >= 0)
        close(fd);
    AZ_TRY(az_comm_agree(comm, err));
    *out_shared = s;
    s = NULL;
out:
    az_shared_destroy(s);
    return err;
}

az_err az_shared_protect(az_shared *s)
{
    if (s->comm->node_size > 1) {
        az_watch_begin(s->comm->watch, AZ_CALL_BARRIER);
        MPI_Barrier(s->comm->node);
        az_watch_end(s->comm->watch);
    }
    if (mprotect(s->memory, s->bytes, PROT_READ) != 0)
        return az_fail(AZ_EENV, "cannot protect memory: %s", strerror(errno));
    return AZ_OK;
}

char *az_shared_get(const az_shared *s)
{
    return s->memory;
}

void az_shared_destroy(az_shared *opt_shared)
{
    az_shared *s = opt_shared;
    if (s == NULL)
        return;
    if (s->memory != NULL) {
        munmap(s->memory, s->bytes);
        if (s->comm->node_rank == 0)
            az_mem_count(s->label, -(int64_t)s->bytes);
    }
    if (s->fd >= 0)
        close(s->fd);
    az_free(s);
}
