/* h5: the driver with which rank 0 makes the structure: plain calls on a file descriptor. A write
 * that fails is kept and the library is told that it went well, as the library does not get over a
 * failure while it closes a file: it keeps handles to memory that it has freed, and falls over them
 * later. The caller asks for the failure after the file is closed. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/h5_priv.h"

/* The library sees its own part only. */
typedef struct {
    H5FD_t base;
    int fd;
    haddr_t eoa, eof;
    dev_t device;
    ino_t inode;
} disk;

/* The first failure since az_h5_disk_start. One file is written at a time. */
static int first_error;

static void keep_error(void)
{
    if (first_error == 0)
        first_error = errno;
}

static H5FD_t *open_disk(const char *name, unsigned flags, hid_t access, haddr_t maxaddr)
{
    struct stat st;
    disk *d = NULL;
    (void)access, (void)maxaddr;
    const int how = (flags & H5F_ACC_RDWR) != 0 ? O_RDWR : O_RDONLY,
              make = (flags & H5F_ACC_CREAT) != 0 ? O_CREAT : 0,
              empty = (flags & H5F_ACC_TRUNC) != 0 ? O_TRUNC : 0;
    int fd = open(name, how | make | empty | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st) != 0)
        keep_error();
    else
        d = az_alloc(1, sizeof *d, "checkpoint");
    if (d == NULL) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    d->fd = fd;
    d->eof = (haddr_t)st.st_size;
    d->device = st.st_dev;
    d->inode = st.st_ino;
    return &d->base;
}

static herr_t close_disk(H5FD_t *file)
{
    disk *d = (disk *)file;
    if (close(d->fd) != 0)
        keep_error();
    az_free(d);
    return 0;
}

static int compare_disks(const H5FD_t *a, const H5FD_t *b)
{
    const disk *x = (const disk *)a, *y = (const disk *)b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->inode == y->inode ? 0 : x->inode < y->inode ? -1 : 1;
}

static herr_t query_disk(const H5FD_t *file, unsigned long *out_flags)
{
    (void)file;
    *out_flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
                 H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const disk *)file)->eoa;
}

static herr_t set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t at)
{
    (void)type;
    ((disk *)file)->eoa = at;
    return 0;
}

static haddr_t get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const disk *)file)->eof;
}

/* What lies behind the end is zero. */
static herr_t read_disk(H5FD_t *file, H5FD_mem_t type, hid_t how, haddr_t at, size_t n, void *data)
{
    const disk *d = (const disk *)file;
    char *p = data;
    (void)type, (void)how;
    while (n > 0) {
        ssize_t got = pread(d->fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            keep_error();
            return -1;
        }
        if (got == 0) {
            memset(p, 0, n);
            return 0;
        }
        p += got;
        at += (haddr_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static herr_t write_disk(H5FD_t *file, H5FD_mem_t type, hid_t how, haddr_t at, size_t n,
                         const void *data)
{
    disk *d = (disk *)file;
    const char *p = data;
    (void)type, (void)how;
    while (n > 0 && first_error == 0) {
        errno = ENOSPC; /* what a write of nothing means */
        ssize_t put = pwrite(d->fd, p, n, (off_t)at);
        if (put == 0 || (put < 0 && errno != EINTR))
            keep_error();
        if (put <= 0)
            continue;
        p += put;
        at += (haddr_t)put;
        n -= (size_t)put;
    }
    if (at + n > d->eof)
        d->eof = at + n;
    return 0;
}

static herr_t truncate_disk(H5FD_t *file, hid_t how, hbool_t closing)
{
    disk *d = (disk *)file;
    (void)how, (void)closing;
    if (d->eoa == d->eof)
        return 0;
    if (ftruncate(d->fd, (off_t)d->eoa) != 0)
        keep_error();
    d->eof = d->eoa;
    return 0;
}

/* Nothing is kept back. */
static herr_t flush_disk(H5FD_t *file, hid_t how, hbool_t closing)
{
    (void)file, (void)how, (void)closing;
    return 0;
}

static const H5FD_class_t driver = {
#ifdef H5FD_CLASS_VERSION
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)500, /* of the range that needs no registration */
#endif
    .name = "adze",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .open = open_disk,
    .close = close_disk,
    .cmp = compare_disks,
    .query = query_disk,
    .get_eoa = get_eoa,
    .set_eoa = set_eoa,
    .get_eof = get_eof,
    .read = read_disk,
    .write = write_disk,
    .flush = flush_disk,
    .truncate = truncate_disk,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

void az_h5_disk_forget(void)
{
    first_error = 0;
}

bool az_h5_disk_start(hid_t access)
{
    static hid_t id = -1;
    az_h5_disk_forget();
    if (id < 0)
        id = H5FDregister(&driver);
    return id >= 0 && H5Pset_driver(access, id, NULL) >= 0;
}

int az_h5_disk_error(void)
{
    return first_error;
}
