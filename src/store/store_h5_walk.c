/* h5: what is in a file, seen by rank 0 with HDF5's default driver. Everything is checked: kind,
 * version, "complete", forms of objects, places of datasets, CRCs of attributes, texts and tables.
 * Arrays are not read here. Faults are collected, so that one message names all. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/h5_priv.h"
#include "store/store_priv.h"

/* Limits that no file of adze comes near. */
#define MOST_DEPTH 8
#define MOST_OBJECTS 1000000

typedef struct {
    az_h5_content *content;
    az_faults faults;
    int fd;
    int64_t file_bytes, n_objects;
    hid_t f32, bf16;
} walk;

/* ---- records */

static az_err add_to_pool(int64_t *out_at, az_h5_content *c, const void *bytes, size_t n)
{
    *out_at = (int64_t)c->pool.len;
    return az_str_add_bytes(&c->pool, bytes, n);
}

static az_err add_text(int64_t *out_at, az_h5_content *c, const char *text)
{
    return add_to_pool(out_at, c, text, strlen(text) + 1);
}

/* Call it bad: "what 'name': why". */
static az_err note(walk *w, const char *what, const char *name, const char *why)
{
    return az_faults_add(&w->faults, "%s '%.300s': %s", what, name, why);
}

/* ---- attributes */

static az_err add_attrs(az_h5_content *c, const az_h5_attr_list *l)
{
    az_err err = AZ_OK;
    int64_t group;
    AZ_TRY(add_text(&group, c, l->object));
    for (int i = 0; i < l->n; i++) {
        const az_h5_attr *a = &l->attrs[i];
        az_h5_attr_record rec = {.group = group, .type = (int64_t)a->type, .i = a->i, .r = a->r};
        AZ_TRY(add_text(&rec.name, c, a->name));
        AZ_TRY(add_text(&rec.text, c, a->type == AZ_H5_STRING ? a->s : ""));
        AZ_TRY(az_str_add_bytes(&c->attrs, &rec, sizeof rec));
    }
out:
    return err;
}

/* Attributes of a group, with their CRC. */
static az_err take_group_attrs(walk *w, hid_t group, const char *path)
{
    az_err err;
    az_h5_attr_list l;
    const int64_t before = w->faults.n;
    AZ_TRY(az_h5_read_attrs(&l, &w->faults, group, path));
    if (w->faults.n > before || (l.n == 0 && !l.have_crc))
        goto out;
    if (!l.have_crc)
        AZ_TRY(note(w, "attributes of", path, "there is no checksum (crc32)"));
    else if (az_h5_crc_attrs(l.attrs, l.n) != l.crc)
        AZ_TRY(note(w, "attributes of", path, "damaged: they do not give their checksum"));
    else
        AZ_TRY(add_attrs(w->content, &l));
out:
    az_h5_fini_attrs(&l);
    return err;
}

/* ---- datasets */

/* Kind, type and shape of a dataset. False if it is none of adze's. */
static bool classify(const walk *w, hid_t type, hid_t space, az_h5_set_record *rec)
{
    hsize_t size[2];
    if (H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
        H5Sget_simple_extent_type(space) == H5S_SCALAR) {
        rec->kind = AZ_H5_DATA_TEXT;
        rec->rows = 1;
        rec->cols = rec->bytes = (int64_t)H5Tget_size(type);
        return rec->bytes > 0;
    }
    if (H5Sget_simple_extent_ndims(space) != 2 ||
        H5Sget_simple_extent_dims(space, size, NULL) != 2 || size[0] > INT64_MAX ||
        size[1] > INT64_MAX)
        return false;
    rec->rows = (int64_t)size[0];
    rec->cols = (int64_t)size[1];
    rec->kind = AZ_H5_DATA_ARRAY;
    rec->dtype = AZ_F32;
    if (H5Tequal(type, H5T_STD_I64LE) > 0)
        rec->kind = AZ_H5_DATA_TABLE;
    else if (H5Tequal(type, w->bf16) > 0)
        rec->dtype = AZ_BF16;
    else if (H5Tequal(type, w->f32) <= 0)
        return false;
    const int64_t width =
        rec->kind == AZ_H5_DATA_TABLE ? 8 : (int64_t)az_dtype_bytes((az_dtype)rec->dtype);
    return !__builtin_mul_overflow(rec->rows, rec->cols, &rec->bytes) &&
           !__builtin_mul_overflow(rec->bytes, width, &rec->bytes);
}

/* How it is stored; NULL if as adze does. */
static const char *check_storage(hid_t how)
{
    if (H5Pget_layout(how) == H5D_CHUNKED)
        return H5Pget_nfilters(how) > 0 ? "it is compressed; adze's files are not"
                                        : "it is stored in chunks; adze's files are not";
    if (H5Pget_layout(how) != H5D_CONTIGUOUS)
        return "it is not stored in one piece";
    return H5Pget_external_count(how) != 0 ? "its data are in another file" : NULL;
}

/* Within the file; a place for every byte. */
static az_err check_place(walk *w, const char *path, const az_h5_set_record *rec)
{
    if (rec->offset < 0)
        return note(w, "dataset", path, "its data were never written");
    if (rec->offset > w->file_bytes || rec->bytes > w->file_bytes - rec->offset)
        return az_faults_add(
            &w->faults, "dataset '%.300s': it needs %lld bytes at %lld, the file ends at %lld",
            path, (long long)rec->bytes, (long long)rec->offset, (long long)w->file_bytes);
    return AZ_OK;
}

static az_err look_at_set(walk *w, hid_t set, const char *path, az_h5_set_record *rec)
{
    az_err err = AZ_OK;
    hid_t type = H5Dget_type(set), space = H5Dget_space(set), how = H5Dget_create_plist(set);
    const char *why = NULL;
    if (type < 0 || space < 0 || how < 0)
        why = az_h5_reason();
    else if (!classify(w, type, space, rec))
        why = "its type or shape is none of adze's";
    else
        why = check_storage(how);
    if (why != NULL) {
        err = note(w, "dataset", path, why);
        goto out;
    }
    const haddr_t at = rec->bytes > 0 ? H5Dget_offset(set) : 0;
    rec->offset = at > INT64_MAX ? -1 : (int64_t)at;
    err = check_place(w, path, rec);
out:
    az_h5_drop(how);
    az_h5_drop(space);
    az_h5_drop(type);
    return err;
}

static az_err take_set_crc(walk *w, hid_t set, const char *path, az_h5_set_record *rec)
{
    az_err err;
    az_h5_attr_list l;
    const int64_t before = w->faults.n;
    AZ_TRY(az_h5_read_attrs(&l, &w->faults, set, path));
    rec->crc = l.crc;
    if (w->faults.n > before)
        goto out;
    if (!l.have_crc)
        AZ_TRY(note(w, "dataset", path, "there is no checksum (crc32)"));
    else if (l.n > 0)
        AZ_TRY(note(w, "dataset", path, "it has attributes that are none of adze's"));
out:
    az_h5_fini_attrs(&l);
    return err;
}

/* The content of a text or a table into the pool, checked. */
static az_err take_content(walk *w, const char *path, az_h5_set_record *rec)
{
    az_err err;
    static const char zeros[8];
    az_str *pool = &w->content->pool;
    char *bytes = NULL;
    AZ_TRY(AZ_NEW(bytes, (size_t)rec->bytes + 1, "checkpoint"));
    AZ_TRY(az_file_read_at(w->fd, bytes, (size_t)rec->bytes, rec->offset, path));
    if ((int64_t)az_crc32(0, bytes, (size_t)rec->bytes) != rec->crc) {
        err = note(w, "dataset", path, "damaged: its bytes do not give its checksum");
        goto out;
    }
    AZ_TRY(az_str_add_bytes(pool, zeros, (8 - pool->len % 8) % 8));
    rec->content = (int64_t)pool->len;
    AZ_TRY(az_str_add_bytes(pool, bytes, (size_t)rec->bytes + 1));
out:
    az_free(bytes);
    return err;
}

static az_err take_set(walk *w, hid_t set, const char *path)
{
    az_err err;
    az_h5_set_record rec = {.content = -1};
    const int64_t before = w->faults.n;
    AZ_TRY(look_at_set(w, set, path, &rec));
    if (w->faults.n == before)
        AZ_TRY(take_set_crc(w, set, path, &rec));
    if (w->faults.n == before && rec.kind != AZ_H5_DATA_ARRAY)
        AZ_TRY(take_content(w, path, &rec));
    if (w->faults.n > before)
        goto out;
    AZ_TRY(add_text(&rec.path, w->content, path));
    AZ_TRY(az_str_add_bytes(&w->content->sets, &rec, sizeof rec));
out:
    return err;
}

/* ---- groups */

typedef struct {
    walk *w;
    const char *path; /* "" is the root */
    int depth;
    az_err err;
} place;

static az_err take_group(walk *w, hid_t group, const char *path, int depth);

/* An object that could be opened. */
static az_err take_object(const place *p, hid_t object, const char *path)
{
    const H5I_type_t kind = H5Iget_type(object);
    if (kind == H5I_DATASET)
        return take_set(p->w, object, path);
    if (kind == H5I_GROUP && p->depth < MOST_DEPTH)
        return take_group(p->w, object, path, p->depth + 1);
    if (kind == H5I_GROUP)
        return note(p->w, "group", path, "it lies too deep; adze's files do not have such groups");
    return note(p->w, "object", path, "it is none of adze's");
}

static az_err take_member(const place *p, hid_t group, const char *name, H5L_type_t link)
{
    az_err err;
    az_str path = {0};
    hid_t object = -1;
    AZ_TRY(az_str_add(&path, "%s/%s", p->path, name));
    if (link != H5L_TYPE_HARD)
        err = note(p->w, "link", path.s, "it leads elsewhere; adze's files have no such links");
    else if ((object = H5Oopen(group, name, H5P_DEFAULT)) < 0)
        err = note(p->w, "object", path.s, az_h5_reason());
    else
        err = take_object(p, object, path.s);
out:
    az_h5_drop(object);
    az_str_fini(&path);
    return err;
}

static herr_t see_member(hid_t group, const char *name, const H5L_info_t *info, void *where)
{
    place *p = where;
    if (++p->w->n_objects > MOST_OBJECTS)
        p->err = az_fail(AZ_EINPUT, "more than %d objects: none of adze's files", MOST_OBJECTS);
    else
        p->err = take_member(p, group, name, info->type);
    return p->err != AZ_OK ? 1 : 0;
}

/* A group, its attributes and its members. path: "" for the root. */
static az_err take_group(walk *w, hid_t group, const char *path, int depth)
{
    az_err err;
    hsize_t at = 0;
    place p = {w, path, depth, AZ_OK};
    const char *name = path[0] != '\0' ? path : "/";
    AZ_TRY(take_group_attrs(w, group, name));
    if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, see_member, &p) < 0)
        AZ_TRY(note(w, "group", name, az_h5_reason()));
    err = p.err;
out:
    return err;
}

/* ---- the file */

static int64_t little64(const unsigned char *p)
{
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Superblock, version 2 or 3: its version at 8, address of the file's base at 12 and end at 28. */
typedef struct {
    unsigned char bytes[48];
} superblock;

static az_err read_superblock(superblock *s, walk *w, const char *path)
{
    az_err err;
    static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    const size_t n = (size_t)az_min_i64(w->file_bytes, sizeof s->bytes);
    if (n == 0)
        return az_fail(AZ_EINPUT, "%s: the file is empty", path);
    AZ_TRY(az_file_read_at(w->fd, s->bytes, n, 0, path));
    const char *kind = az_store_guess_kind((const char *)s->bytes, n);
    if (n < sizeof magic || memcmp(s->bytes, magic, sizeof magic) != 0)
        return kind == NULL ? az_fail(AZ_EINPUT,
                                      "%s: not an HDF5 file, or its first bytes are damaged", path)
                            : az_fail(AZ_EINPUT, "%s: not an HDF5 file: this is %s", path, kind);
    if (n < sizeof s->bytes)
        return az_fail(AZ_EINPUT, "%s: truncated: the file has %zu bytes", path, n);
    if (s->bytes[8] != 2 && s->bytes[8] != 3)
        return az_fail(AZ_EINPUT,
                       "%s: an HDF5 file that adze has not written (superblock version %d; adze's "
                       "is 2), or a damaged one",
                       path, s->bytes[8]);
out:
    return err;
}

/* HDF5 has refused to open it. */
static az_err refuse_file(const superblock *s, const walk *w, const char *path)
{
    const char *why = az_h5_reason();
    const int64_t end = little64(s->bytes + 28);
    if (strstr(why, "truncated") != NULL && end > w->file_bytes)
        return az_fail(AZ_EINPUT, "%s: truncated: the file has %lld bytes of %lld", path,
                       (long long)w->file_bytes, (long long)end);
    return az_fail(AZ_EINPUT, "%s: the file's structure is damaged: %s", path, why);
}

static az_err fail_foreign(const char *path)
{
    return az_fail(AZ_EINPUT,
                   "%s: an HDF5 file that adze has not written: it has no attributes '%s' and '%s'",
                   path, AZ_H5_KIND, AZ_H5_FORMAT);
}

/* The checks that come before all others: the version says how to read the rest. */
static az_err check_root(walk *w, hid_t root, const char *path)
{
    az_err err;
    az_h5_attr_list l;
    if (H5Aexists(root, AZ_H5_KIND) == 0)
        return fail_foreign(path);
    AZ_TRY(az_h5_read_attrs(&l, &w->faults, root, "/"));
    const az_h5_attr *kind = az_h5_find_in(&l, AZ_H5_KIND, AZ_H5_STRING),
                     *version = az_h5_find_in(&l, AZ_H5_FORMAT, AZ_H5_INT);
    if (w->faults.n > 0)
        err = az_faults_report(&w->faults, path);
    else if (kind == NULL || version == NULL)
        err = fail_foreign(path);
    else if (version->i != AZ_H5_VERSION)
        err = az_fail(AZ_EINPUT, "%s: format version %lld; this adze (%s) reads version %d", path,
                      (long long)version->i, PACKAGE_VERSION, AZ_H5_VERSION);
    else if (strcmp(kind->s, "checkpoint") != 0 && strcmp(kind->s, "adapter") != 0)
        err = az_fail(AZ_EINPUT, "%s: kind '%.100s'; this adze knows checkpoint and adapter", path,
                      kind->s);
    else if (!l.have_complete || l.complete != 1)
        err = az_fail(AZ_EINPUT,
                      "%s: not complete: the attribute '%s', which is written last, is missing",
                      path, AZ_H5_COMPLETE);
out:
    az_h5_fini_attrs(&l);
    return err;
}

static az_err walk_file(walk *w, hid_t file, const superblock *s, const char *path)
{
    az_err err;
    hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
    if (root < 0)
        return az_fail(AZ_EINPUT, "%s: the file's structure is damaged: %s", path, az_h5_reason());
    const int64_t base = little64(s->bytes + 12), end = little64(s->bytes + 28);
    if (base != 0 || end != w->file_bytes) {
        err = az_fail(AZ_EINPUT, "%s: the file has %lld bytes, its structure says %lld", path,
                      (long long)w->file_bytes, (long long)end);
        goto out;
    }
    AZ_TRY(check_root(w, root, path));
    AZ_TRY(take_group(w, root, "", 0));
    AZ_TRY(az_faults_report(&w->faults, path));
out:
    az_h5_drop(root);
    return err;
}

static bool make_types(walk *w)
{
    w->f32 = az_h5_make_type(AZ_F32);
    w->bf16 = az_h5_make_type(AZ_BF16);
    return w->f32 >= 0 && w->bf16 >= 0;
}

az_err az_h5_walk(az_h5_content *content, const char *path)
{
    az_err err;
    walk w = {.content = content, .fd = -1};
    superblock s;
    hid_t file = -1, access = H5Pcreate(H5P_FILE_ACCESS);
    az_h5_disk_forget();
    if (!make_types(&w) || access < 0 || H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0) {
        err = az_h5_fail(AZ_EENV, path, "open", NULL);
        goto out;
    }
    AZ_TRY(az_file_size(&w.file_bytes, path));
    AZ_TRY(az_file_open(&w.fd, path));
    AZ_TRY(read_superblock(&s, &w, path));
    file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0) {
        err = refuse_file(&s, &w, path);
        goto out;
    }
    AZ_TRY(walk_file(&w, file, &s, path));
out:
    if (file >= 0)
        H5Fclose(file);
    if (w.fd >= 0)
        close(w.fd);
    az_h5_drop(access);
    az_h5_drop(w.bf16);
    az_h5_drop(w.f32);
    az_faults_fini(&w.faults);
    return err;
}

bool az_h5_is_other_version(const char *path)
{
    int64_t version = AZ_H5_VERSION;
    hid_t attr = -1, type = -1, space = -1, wanted = H5Tcopy(H5T_STD_I64LE);
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file >= 0)
        attr = H5Aopen_by_name(file, "/", AZ_H5_FORMAT, H5P_DEFAULT, H5P_DEFAULT);
    if (attr >= 0 && (type = H5Aget_type(attr)) >= 0 && (space = H5Aget_space(attr)) >= 0 &&
        H5Tequal(type, wanted) > 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR &&
        H5Aread(attr, wanted, &version) < 0)
        version = AZ_H5_VERSION;
    az_h5_drop(space);
    az_h5_drop(type);
    az_h5_drop(attr);
    az_h5_drop(wanted);
    if (file >= 0)
        H5Fclose(file);
    return version != AZ_H5_VERSION;
}
