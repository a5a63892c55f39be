/* shared: memory that the ranks of a node share. */
#include <config.h>

#include "comm/comm_pages.h"
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
    az_pages pages; /* the file is open on the node's first rank alone */
    char *view;     /* the second mapping, or NULL */
};

/* Where the others find the file of the node's first rank, by what they know it, and its size. */
typedef struct {
    long long pid, fd;
    uint64_t device, inode, bytes;
} place;

static az_err find_place(place *p, const az_pages *pages)
{
    struct stat st;
    if (fstat(pages->fd, &st) != 0)
        return az_pages_fail(pages->bytes);
    *p = (place){getpid(), pages->fd, st.st_dev, st.st_ino, pages->bytes};
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

/* The mappings of this rank. Local. */
static az_err map_file(az_shared *s, const place *p, unsigned flags)
{
    az_err err = AZ_OK;
    int fd = s->pages.fd;
    if (s->comm->node_rank > 0) {
        AZ_TRY(open_file(&fd, s, p));
        s->pages.bytes = p->bytes;
        AZ_TRY(az_pages_map(&s->pages.memory, fd, p->bytes, PROT_READ | PROT_WRITE));
    }
    if ((flags & AZ_SHARED_READONLY) != 0)
        AZ_TRY(az_pages_map(&s->view, fd, p->bytes, PROT_READ));
out:
    if (fd >= 0 && s->comm->node_rank > 0)
        close(fd);
    return err;
}

az_err az_shared_create(az_shared **out_shared, size_t bytes, const char *name, const char *label,
                        unsigned flags, az_comm *comm)
{
    az_err err;
    az_shared *s = NULL;
    place first = {0};
    *out_shared = NULL;
    err = AZ_NEW(s, 1, "communication");
    if (err == AZ_OK) /* before another rank's failure: it is destroyed then */
        *s = (az_shared){.comm = comm, .label = label, .pages = {.fd = -1}};
    AZ_TRY(az_comm_agree(comm, err));
    if (comm->node_rank == 0) {
        err = az_pages_create(&s->pages, bytes > 0 ? bytes : 1, name);
        if (s->pages.memory != NULL)
            az_mem_count(label, (int64_t)s->pages.bytes);
        if (err == AZ_OK)
            err = find_place(&first, &s->pages);
    }
    AZ_TRY(az_comm_agree(comm, err));
    if (comm->node_size > 1) {
        az_watch_begin(comm->watch, AZ_CALL_BCAST);
        MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm->node);
        az_watch_end(comm->watch);
    }
    AZ_TRY(az_comm_agree(comm, map_file(s, &first, flags)));
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
    if (mprotect(s->pages.memory, s->pages.bytes, PROT_READ) != 0)
        return az_fail(AZ_EENV, "cannot protect memory: %s", strerror(errno));
    return AZ_OK;
}

char *az_shared_get(const az_shared *s)
{
    return s->pages.memory;
}

const char *az_shared_get_readonly(const az_shared *s)
{
    return s->view;
}

void az_shared_destroy(az_shared *opt_shared)
{
    az_shared *s = opt_shared;
    if (s == NULL)
        return;
    if (s->pages.memory != NULL && s->comm->node_rank == 0)
        az_mem_count(s->label, -(int64_t)s->pages.bytes);
    if (s->view != NULL)
        munmap(s->view, s->pages.bytes);
    az_pages_fini(&s->pages);
    az_free(s);
}
