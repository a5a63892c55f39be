/* train/outdir: claiming a directory by DIR/lock.
 *
 * The lock is one of an open file description (F_OFD_SETLK): it ends with the process, whatever
 * kills it, and closing another descriptor of the file does not end it, as it would with the older
 * kind. Only rank 0 has it. What is in the file says who that is:
 *
 *   lock       file                                    then
 *   had        made just now                           it is ours
 *   had        of this kernel, or of an earlier run    its process is gone: taken over
 *              of this Slurm job
 *   had        of another host, or unreadable          watched: the file system's locks may be
 *                                                      those of each host alone
 *   taken      of an earlier run of this job           watched: the lock of a lost node may stay
 *   taken      else                                    refused
 *   none       made just now                           it is ours
 *   none       of a dead process of this host, or of   taken over
 *              an earlier run of this job
 *   none       else                                    watched
 *
 * Watched is the time of change, which the holder sets every BEAT seconds: if it moves the claim is
 * refused. Each look opens the file anew, since network file systems look at their server only
 * then. Where no lock decides between two that take over at the same moment, each writes its name,
 * waits, and has it only if its name still stands there. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch.h"
#include "train/holder.h"
#include "train/outdir.h"

/* Seconds: between two signs of life, of watching for one, for another's name to arrive. */
#define BEAT 2
#define WATCH 8.0
#define SETTLE 2.0
#define LOOK 0.25
/* The file may come and go while it is looked at. */
#define MAX_TRIES 20

struct az_outdir {
    az_comm *comm;
    char *dir, *path;
    int fd; /* -1 on all ranks but 0 */
    az_lock lock;
    bool ours, ticking;
    size_t there; /* bytes of dir that named a directory before; what follows was made here */
    int ticks;
    az_holder self;
    char text[AZ_HOLDER_BYTES];
    size_t bytes;
};

/* What is seen of the file at one moment. */
typedef struct {
    bool there;
    dev_t device;
    ino_t number;
    struct timespec changed;
    char text[AZ_HOLDER_BYTES];
    size_t bytes;
} sight;

/* ---- 1. the file */

static void look(sight *s, const char *path)
{
    struct stat st;
    memset(s, 0, sizeof *s);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0) {
        const ssize_t n = pread(fd, s->text, sizeof s->text, 0);
        s->there = true;
        s->device = st.st_dev;
        s->number = st.st_ino;
        s->changed = st.st_mtim;
        s->bytes = n > 0 ? (size_t)n : 0;
    }
    close(fd);
}

static bool is_same_file(const sight *a, const sight *b)
{
    return a->there && b->there && a->device == b->device && a->number == b->number;
}

static bool is_unchanged(const sight *a, const sight *b)
{
    return is_same_file(a, b) && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec && a->bytes == b->bytes &&
           memcmp(a->text, b->text, a->bytes) == 0;
}

/* The open file still has its name. */
static bool is_in_place(const az_outdir *o)
{
    struct stat mine, named;
    return fstat(o->fd, &mine) == 0 && stat(o->path, &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
}

static bool has_our_text(const az_outdir *o, const sight *s)
{
    return s->there && s->bytes == o->bytes && memcmp(s->text, o->text, o->bytes) == 0;
}

/* Open the file, or make it. */
static az_err open_file(az_outdir *o, bool *out_made)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        *out_made = true;
        o->fd = open(o->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd < 0 && errno == EEXIST) {
            *out_made = false;
            o->fd = open(o->path, O_RDWR | O_CLOEXEC);
        }
        if (o->fd >= 0 || errno != ENOENT)
            break;
    }
    if (o->fd >= 0)
        return AZ_OK;
    const bool mendable = errno == EACCES || errno == EISDIR || errno == ENOENT || errno == ELOOP;
    return az_fail(mendable ? AZ_EINPUT : AZ_EENV, "%s: cannot open: %s", o->path, strerror(errno));
}

static void close_file(az_outdir *o)
{
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
}

static az_lock lock_file(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const char *how = getenv("ADZE_LOCK"); /* tests */
    if (how != NULL && strcmp(how, "heartbeat") == 0)
        return AZ_LOCK_NONE;
    for (;;) {
        if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
            return AZ_LOCK_OURS;
        if (errno != EINTR)
            return errno == EAGAIN || errno == EACCES ? AZ_LOCK_TAKEN : AZ_LOCK_NONE;
    }
}

/* Our name in the file. Where there is a lock it decides, and a name that a full disk does not take
 * is only missing in the message of who is refused. */
static az_err write_text(const az_outdir *o)
{
    const ssize_t n = pwrite(o->fd, o->text, o->bytes, 0);
    if (n == (ssize_t)o->bytes && ftruncate(o->fd, n) == 0) {
        fsync(o->fd);
        return AZ_OK;
    }
    const int e = n < 0 ? errno : ENOSPC;
    if (ftruncate(o->fd, 0) == 0 && o->lock == AZ_LOCK_OURS)
        return AZ_OK;
    return az_fail(AZ_EENV, "%s: cannot write: %s", o->path, strerror(e));
}

/* ---- 2. other holders */

static az_err refuse(const az_outdir *o, const sight *s)
{
    az_err err;
    az_str name = {0};
    az_holder holder;
    const bool named = az_holder_parse(&holder, s->text, s->bytes);
    AZ_TRY(az_holder_add_name(&name, named ? &holder : NULL));
    err = az_fail(AZ_EINPUT, "output.dir %s is in use by %s; give another output.dir", o->dir,
                  name.s);
out:
    az_str_fini(&name);
    return err;
}

static void pause_for(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static az_err say_watched(const az_outdir *o, const az_holder *opt_holder)
{
    az_err err;
    az_str name = {0};
    AZ_TRY(az_holder_add_name(&name, opt_holder));
    az_say("output    %s may be in use by %s: watching up to %.0f s for a sign of life", o->dir,
           name.s, WATCH + SETTLE);
out:
    az_str_fini(&name);
    return err;
}

/* Watch a file that was seen as first. *out_free: it was given up. Refused if it changes. */
static az_err watch(az_outdir *o, const sight *first, const az_holder *opt_holder, bool *out_free)
{
    az_err err;
    sight now;
    const double end = az_now() + WATCH;
    *out_free = false;
    AZ_TRY(say_watched(o, opt_holder));
    while (az_now() < end) {
        AZ_TRY(az_stop_check());
        pause_for(LOOK);
        az_watch_mark(o->comm, "lock", 0);
        look(&now, o->path);
        *out_free = !now.there;
        if (*out_free)
            break;
        if (!is_unchanged(first, &now)) {
            pause_for(LOOK); /* the time of a file that is written changes before its text */
            look(&now, o->path);
            err = refuse(o, &now);
            break;
        }
    }
out:
    return err;
}

/* Our name is still there after a while. */
static az_err settle(az_outdir *o)
{
    az_err err;
    sight now;
    for (double waited = 0; waited < SETTLE; waited += LOOK) {
        AZ_TRY(az_stop_check());
        pause_for(LOOK);
    }
    look(&now, o->path);
    if (!has_our_text(o, &now))
        err = refuse(o, &now);
out:
    return err;
}

/* ---- 3. the claim */

/* Of another program: it would be written over and removed. After a power failure a file of ours
 * may hold zeros. */
static bool is_foreign(const sight *s)
{
    static const char begin[] = "host: ";
    const size_t n = sizeof begin - 1 < s->bytes ? sizeof begin - 1 : s->bytes;
    return n > 0 && s->text[0] != '\0' && memcmp(s->text, begin, n) != 0;
}

/* One try. *out_again: the file went away or was put aside. */
static az_err claim_once(az_outdir *o, bool *out_again)
{
    az_err err;
    sight seen;
    az_holder holder;
    bool made;
    AZ_TRY(open_file(o, &made));
    o->lock = lock_file(o->fd);
    look(&seen, o->path);
    *out_again = !is_in_place(o);
    if (*out_again)
        return AZ_OK;
    if (!made && is_foreign(&seen))
        return az_fail(AZ_EINPUT,
                       "%s: this file is not adze's, and the run needs its place: move it away, or "
                       "give another output.dir",
                       o->path);
    const bool named = az_holder_parse(&holder, seen.text, seen.bytes);
    az_verdict verdict = AZ_HOLDER_GONE;
    if (!made || o->lock == AZ_LOCK_TAKEN)
        verdict = az_holder_judge(named ? &holder : NULL, &o->self, o->lock,
                                  named && az_holder_is_dead(&holder, &o->self));
    if (verdict == AZ_HOLDER_THERE)
        return refuse(o, &seen);
    if (verdict == AZ_HOLDER_UNSURE)
        AZ_TRY(watch(o, &seen, named ? &holder : NULL, out_again));
    if (!*out_again && o->lock == AZ_LOCK_TAKEN) {
        unlink(o->path); /* its lock is a lost node's: a new file has a new one */
        *out_again = true;
    }
    if (*out_again)
        return AZ_OK;
    o->ours = true;
    AZ_TRY(write_text(o));
    if (!made && (o->lock == AZ_LOCK_NONE || verdict == AZ_HOLDER_UNSURE)) {
        o->ours = false;
        AZ_TRY(settle(o));
        o->ours = true;
    }
out:
    return err;
}

static az_err claim(az_outdir *o)
{
    az_err err = AZ_OK;
    bool again = true;
    az_holder_set_self(&o->self);
    o->bytes = az_holder_write(o->text, &o->self);
    for (int i = 0; again && i < MAX_TRIES; i++) {
        close_file(o);
        AZ_TRY(claim_once(o, &again));
    }
    if (again)
        err = az_fail(AZ_EENV, "%s: other jobs make and remove this file all the time", o->path);
out:
    return err;
}

/* A sign of life, from another thread. It may fail: the directory may be gone, the disk full. */
static void touch(void *context)
{
    az_outdir *o = context;
    if (++o->ticks % BEAT == 0)
        (void)futimens(o->fd, NULL);
}

/* Bytes of the longest beginning of a path that is a directory. */
static size_t count_existing(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    for (; n > 0 && n < sizeof part; n--) {
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        if ((path[n] == '/' || path[n] == '\0') && az_dir_exists(part))
            break;
    }
    return n;
}

/* Directories that were made here and in which nothing was written go again. */
static void remove_empty(const az_outdir *o)
{
    char part[PATH_MAX];
    for (size_t n = strlen(o->dir); n > o->there && n < sizeof part; n--) {
        snprintf(part, sizeof part, "%.*s", (int)n, o->dir);
        if ((o->dir[n] == '/' || o->dir[n] == '\0') && rmdir(part) != 0 && errno != ENOENT)
            break;
    }
}

static az_err open_dir(az_outdir *o, const char *dir)
{
    az_err err;
    AZ_TRY((o->dir = az_strdup(dir, "text")) != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY((o->path = az_path_join(dir, "lock")) != NULL ? AZ_OK : AZ_EENV);
    o->there = count_existing(dir);
    AZ_TRY(az_dir_create(dir));
    AZ_TRY(claim(o));
    AZ_TRY(az_watch_set_tick(o->comm, touch, o));
    o->ticking = true;
    az_outdir_sweep(dir);
    err = az_outdir_check(dir);
out:
    return err;
}

az_err az_outdir_open(az_outdir **out_outdir, const char *dir, az_comm *comm)
{
    az_err err;
    az_outdir *o = NULL;
    *out_outdir = NULL;
    AZ_TRY(AZ_NEW(o, 1, "text"));
    o->comm = comm;
    o->fd = -1;
    if (az_comm_rank(comm) == 0)
        AZ_TRY(open_dir(o, dir));
out:
    err = az_comm_agree(comm, err);
    if (err != AZ_OK)
        az_outdir_close(o);
    else
        *out_outdir = o;
    return err;
}

/* Not that of a job that took over while this one stood still. */
static bool is_still_ours(const az_outdir *o)
{
    sight now;
    if (!o->ours || !is_in_place(o))
        return false;
    look(&now, o->path);
    return o->lock == AZ_LOCK_OURS || has_our_text(o, &now);
}

/* Make the lock again, in a directory that was made anew or copied. False if another job was
 * quicker. */
static bool claim_again(az_outdir *o)
{
    const int old = o->fd;
    if (o->ticking)
        az_watch_set_tick(o->comm, NULL, NULL);
    o->ticking = false;
    int fd = open(o->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const az_lock lock = fd >= 0 ? lock_file(fd) : AZ_LOCK_NONE;
    sight now;
    look(&now, o->path);
    const bool free_again = !now.there || now.bytes == 0 || has_our_text(o, &now);
    const bool ours = fd >= 0 && lock != AZ_LOCK_TAKEN && free_again;
    if (ours) {
        o->fd = fd;
        o->lock = lock;
        fd = old;
        if (write_text(o) != AZ_OK)
            az_err_clear(); /* a disk that is full is found by what comes next */
    }
    if (fd >= 0)
        close(fd);
    if (az_watch_set_tick(o->comm, touch, o) == AZ_OK)
        o->ticking = true;
    else
        az_err_clear();
    return ours || (fd < 0 && free_again);
}

az_err az_outdir_keep(az_outdir *o)
{
    sight now;
    az_holder holder;
    az_str name = {0};
    if (is_still_ours(o))
        return AZ_OK;
    if (!az_dir_exists(o->dir)) /* what is to be written there says so */
        return AZ_OK;
    look(&now, o->path);
    if ((!now.there || now.bytes == 0 || has_our_text(o, &now)) && claim_again(o))
        return AZ_OK;
    o->ours = false;
    look(&now, o->path);
    const bool named = az_holder_parse(&holder, now.text, now.bytes);
    if (az_holder_add_name(&name, named ? &holder : NULL) != AZ_OK)
        az_err_clear();
    az_fail(AZ_EENV,
            "output.dir %s was taken over by %s: this run ends, and writes nothing more there",
            o->dir, name.s != NULL ? name.s : "another job");
    az_str_fini(&name);
    return AZ_EENV;
}

/* The name goes first, while the lock is held: who waits for it finds that the file is another. */
void az_outdir_close(az_outdir *opt_outdir)
{
    az_outdir *o = opt_outdir;
    if (o == NULL)
        return;
    if (o->ticking)
        az_watch_set_tick(o->comm, NULL, NULL);
    if (is_still_ours(o))
        unlink(o->path);
    close_file(o);
    if (o->path != NULL)
        remove_empty(o);
    az_free(o->path);
    az_free(o->dir);
    az_free(o);
}
