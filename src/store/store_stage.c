/* Staging: which files, the lock, the copy.
 *
 * Contents: the list; names; what is there; begin; copy; end. */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/stage.h"

/* Bytes that are read and written at a time, and of a directory's name in that of its copy. */
enum { PIECE = 4 << 20, NAME_BYTES = 100 };

static az_err fail_errno(const char *doing, const char *path)
{
    return az_fail(AZ_EENV, "%s: cannot %s: %s", path, doing, strerror(errno));
}

/* ---- the list */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static az_err list_file(az_str *out, const char *dir, const char *name, bool needed)
{
    az_err err = AZ_OK;
    struct stat st;
    char *path = az_path_join(dir, name);
    if (path == NULL)
        return AZ_EENV;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        err = az_str_add(out, "%lld %lld %lld %s\n", (long long)st.st_size,
                         (long long)st.st_mtim.tv_sec, (long long)st.st_mtim.tv_nsec, name);
    else if (needed)
        err = az_fail(AZ_EINPUT, "%s: cannot be staged: not a regular file", path);
    az_free(path);
    return err;
}

az_err az_stage_list(az_str *out, const char *model_dir, const az_tensor_set *set)
{
    static const char *const small[] = {
        "config.json",        "generation_config.json", "model.safetensors.index.json",
        "tokenizer.json",     "tokenizer_config.json",  "special_tokens_map.json",
        "chat_template.json", "chat_template.jinja",
    };
    az_err err;
    char absolute[PATH_MAX];
    if (realpath(model_dir, absolute) == NULL)
        return fail_errno("find", model_dir);
    AZ_TRY(az_str_add(out, "%s\n", absolute));
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        AZ_TRY(list_file(out, model_dir, small[i], false));
    for (int i = 0; i < set->n_files; i++)
        AZ_TRY(list_file(out, model_dir, base_name(set->files[i]), true));
out:
    return err;
}

/* ---- names */

static void fill_host(char host[65])
{
    host[64] = '\0';
    if (gethostname(host, 64) != 0)
        strcpy(host, "host");
}

static az_err parse_line(az_stage *s, const char *line, size_t n)
{
    az_err err;
    int at = 0;
    long long bytes, seconds, ns;
    char *text = NULL;
    az_str copy = {0};
    AZ_TRY(az_str_add_bytes(&copy, line, n));
    text = copy.s;
    AZ_ASSERT(sscanf(text, "%lld %lld %lld %n", &bytes, &seconds, &ns, &at) == 3 && at > 0);
    AZ_TRY(AZ_GROW(s->files, (size_t)s->n_files + 1, "text"));
    az_stage_file *f = &s->files[s->n_files];
    *f = (az_stage_file){az_strdup(text + at, "text"), bytes, seconds, ns};
    AZ_TRY(f->name != NULL ? AZ_OK : AZ_EENV);
    s->n_files++;
    s->bytes += bytes;
out:
    az_str_fini(&copy);
    return err;
}

static az_err add_path(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static az_err add_path(char **out, const char *fmt, ...)
{
    char path[PATH_MAX];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    if (n >= PATH_MAX)
        return az_fail(AZ_EINPUT, "%.80s...: the name is too long", path);
    *out = az_strdup(path, "text");
    return *out != NULL ? AZ_OK : AZ_EENV;
}

az_err az_stage_init(az_stage *s, const char *dir, const char *model_dir, const char *list,
                     size_t list_bytes, int64_t maker)
{
    az_err err = AZ_OK;
    const char *line, *path;
    char host[65];
    size_t n, at = 0, path_bytes;
    s->from = model_dir;
    s->dir = dir;
    const uint64_t hash = az_hash64(list, list_bytes, 0);
    AZ_ASSERT(az_str_next_line(&path, &path_bytes, list, list_bytes, &at));
    while (az_str_next_line(&line, &n, list, list_bytes, &at))
        AZ_TRY(parse_line(s, line, n));
    while (path_bytes > 0 && path[path_bytes - 1] == '/')
        path_bytes--;
    const char *name = path + path_bytes;
    while (name > path && name[-1] != '/')
        name--;
    n = path_bytes - (size_t)(name - path);
    AZ_TRY(add_path(&s->target, "%s/%.*s-%016" PRIx64, dir, (int)(n < NAME_BYTES ? n : NAME_BYTES),
                    name, hash));
    fill_host(host);
    AZ_TRY(add_path(&s->work, "%s.tmp-%s-%lld", s->target, host, (long long)maker));
    err = add_path(&s->lock_path, "%s.lock", s->target);
out:
    return err;
}

/* ---- what is there */

static bool is_whole(const az_stage *s)
{
    char path[PATH_MAX + NAME_MAX + 2];
    struct stat st;
    for (int i = 0; i < s->n_files; i++) {
        const az_stage_file *f = &s->files[i];
        snprintf(path, sizeof path, "%s/%s", s->target, f->name);
        if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != f->bytes ||
            st.st_mtim.tv_sec != f->s)
            return false;
    }
    return true;
}

/* A directory of files, as copies are. What cannot be removed is left. */
static void remove_dir(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d != NULL)
        closedir(d);
    rmdir(path);
}

/* With the lock: temporary directories of this copy and host are of jobs that were killed. */
static void remove_remains(const az_stage *s)
{
    const char *prefix = base_name(s->work), *dash = strrchr(prefix, '-');
    const size_t n = (size_t)(dash - prefix) + 1; /* all but the maker */
    char path[PATH_MAX + NAME_MAX + 2];
    DIR *d = opendir(s->dir);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, prefix, n) == 0) {
            snprintf(path, sizeof path, "%s/%s", s->dir, e->d_name);
            remove_dir(path);
        }
    if (d != NULL)
        closedir(d);
}

/* ---- begin */

/* *out_got: false while another process has it. A file system without locks gives none: true. */
static az_err take_lock(az_stage *s, bool *out_got)
{
    *out_got = true;
    if (s->lock >= 0)
        return AZ_OK;
    const int fd = open(s->lock_path, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno("write", s->lock_path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        s->lock = fd;
        return AZ_OK;
    }
    *out_got = errno != EWOULDBLOCK && errno != EINTR;
    close(fd);
    return AZ_OK;
}

static void leave_lock(az_stage *s)
{
    if (s->lock >= 0)
        close(s->lock);
    s->lock = -1;
}

static az_err check_room(const az_stage *s)
{
    struct statvfs fs;
    char host[65];
    if (statvfs(s->dir, &fs) != 0 || fs.f_blocks == 0) /* some file systems do not tell */
        return AZ_OK;
    const double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (free_bytes >= (double)s->bytes)
        return AZ_OK;
    fill_host(host);
    return az_fail(AZ_EENV, "model.stage: %s on %s: %s are free, the copy of %s needs %s", s->dir,
                   host, az_format_bytes(free_bytes), s->from, az_format_bytes((double)s->bytes));
}

/* The files with their sizes, so that a disk that is full says so now. */
static az_err make_files(az_stage *s)
{
    char path[PATH_MAX + NAME_MAX + 2];
    if (mkdir(s->work, 0777) != 0)
        return fail_errno("create directory", s->work);
    s->making = true;
    for (int i = 0; i < s->n_files; i++) {
        const az_stage_file *f = &s->files[i];
        snprintf(path, sizeof path, "%s/%s", s->work, f->name);
        const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0)
            return fail_errno("write", path);
        int failed = f->bytes > 0 ? fallocate(fd, 0, 0, (off_t)f->bytes) : 0;
        if (failed != 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR))
            failed = ftruncate(fd, (off_t)f->bytes);
        if (failed != 0)
            fail_errno("reserve space", path);
        close(fd);
        if (failed != 0)
            return AZ_EENV;
    }
    return AZ_OK;
}

az_err az_stage_begin(az_stage *s, az_stage_state *out_state)
{
    az_err err;
    bool got;
    *out_state = AZ_STAGE_WHOLE;
    if (is_whole(s))
        return AZ_OK;
    *out_state = AZ_STAGE_WAIT;
    AZ_TRY(az_dir_create(s->dir));
    AZ_TRY(take_lock(s, &got));
    if (!got)
        return AZ_OK;
    *out_state = AZ_STAGE_WHOLE;
    if (is_whole(s)) { /* made by the one who had the lock */
        leave_lock(s);
        return AZ_OK;
    }
    *out_state = AZ_STAGE_COPY;
    if (s->lock >= 0)
        remove_remains(s);
    AZ_TRY(check_room(s));
    err = make_files(s);
out:
    return err;
}

/* ---- copy */

static az_err write_at(int fd, const char *data, size_t bytes, int64_t offset, const char *path)
{
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_errno("write", path);
        data += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return AZ_OK;
}

/* Bytes [start, end) of a file. */
static az_err copy_range(const az_stage *s, const az_stage_file *f, int64_t start, int64_t end,
                         char *piece)
{
    az_err err;
    char to[PATH_MAX + NAME_MAX + 2];
    int in = -1, out = -1;
    char *from = az_path_join(s->from, f->name);
    snprintf(to, sizeof to, "%s/%s", s->work, f->name);
    AZ_TRY(from != NULL ? AZ_OK : AZ_EENV);
    AZ_TRY(az_file_open(&in, from));
    out = open(to, O_WRONLY | O_CLOEXEC);
    if (out < 0) {
        err = fail_errno("write", to);
        goto out;
    }
    for (int64_t at = start; at < end; at += PIECE) {
        const size_t n = (size_t)az_min_i64(PIECE, end - at);
        AZ_TRY(az_stop_check());
        AZ_TRY(az_file_read_at(in, piece, n, at, from));
        AZ_TRY(write_at(out, piece, n, at, to));
    }
out:
    if (in >= 0)
        close(in);
    if (out >= 0 && close(out) != 0 && err == AZ_OK)
        err = fail_errno("write", to);
    az_free(from);
    return err;
}

az_err az_stage_copy(const az_stage *s, int64_t lo, int64_t hi)
{
    az_err err;
    char *piece = NULL;
    int64_t first = 0;
    AZ_TRY(AZ_NEW(piece, (size_t)PIECE, "text"));
    for (int i = 0; i < s->n_files; i++) {
        const az_stage_file *f = &s->files[i];
        const int64_t start = az_max_i64(lo - first, 0), end = az_min_i64(hi - first, f->bytes);
        if (start < end)
            AZ_TRY(copy_range(s, f, start, end, piece));
        first += f->bytes;
    }
out:
    az_free(piece);
    return err;
}

/* ---- end */

/* The copy is on the disk before its name is, or a crash would leave a copy that looks whole. The
 * file that was copied must still be what was listed. */
static az_err seal_file(const az_stage *s, const az_stage_file *f)
{
    az_err err = AZ_OK;
    struct stat st;
    char to[PATH_MAX + NAME_MAX + 2];
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)f->s}};
    char *from = az_path_join(s->from, f->name);
    if (from == NULL)
        return AZ_EENV;
    snprintf(to, sizeof to, "%s/%s", s->work, f->name);
    const int fd = open(to, O_WRONLY | O_CLOEXEC);
    if (stat(from, &st) != 0 || st.st_size != f->bytes || st.st_mtim.tv_sec != f->s)
        err = az_fail(AZ_EENV, "%s: changed while it was staged", from);
    else if (fd < 0 || futimens(fd, times) != 0 || (fsync(fd) != 0 && errno != EINVAL))
        err = fail_errno("write", to);
    if (fd >= 0)
        close(fd);
    az_free(from);
    return err;
}

/* Under its name, in the place of one that is not whole. One that another job has made meanwhile
 * (where there are no locks) is as good. */
static az_err move_in(az_stage *s)
{
    char *aside = NULL;
    az_err err = AZ_OK;
    if (rename(s->work, s->target) == 0)
        s->making = false;
    else if ((errno == ENOTEMPTY || errno == EEXIST) && !is_whole(s)) {
        AZ_TRY(add_path(&aside, "%s-old", s->work));
        if (rename(s->target, aside) != 0 || rename(s->work, s->target) != 0)
            err = fail_errno("rename a temporary directory to", s->target);
        else
            s->making = false;
        remove_dir(aside);
    } else if (!is_whole(s))
        err = fail_errno("rename a temporary directory to", s->target);
out:
    az_free(aside);
    return err;
}

static az_err sync_dir(const char *path)
{
    az_err err = AZ_OK;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        err = fail_errno("sync", path);
    if (fd >= 0)
        close(fd);
    return err;
}

az_err az_stage_seal(az_stage *s)
{
    az_err err = AZ_OK;
    for (int i = 0; i < s->n_files; i++)
        AZ_TRY(seal_file(s, &s->files[i]));
    AZ_TRY(sync_dir(s->work));
    AZ_TRY(move_in(s));
    AZ_TRY(sync_dir(s->dir));
    leave_lock(s);
out:
    return err;
}

az_err az_stage_redirect(az_tensor_set *set, const az_stage *s)
{
    for (int i = 0; i < set->n_files; i++) {
        char *path = az_path_join(s->target, base_name(set->files[i]));
        if (path == NULL)
            return AZ_EENV;
        az_free(set->files[i]);
        set->files[i] = path;
    }
    return AZ_OK;
}

void az_stage_fini(az_stage *s)
{
    if (s->making)
        remove_dir(s->work);
    leave_lock(s);
    for (int i = 0; i < s->n_files; i++)
        az_free(s->files[i].name);
    az_free(s->files);
    az_free(s->target);
    az_free(s->work);
    az_free(s->lock_path);
    *s = (az_stage){.lock = -1};
}
