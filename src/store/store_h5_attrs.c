/* h5: the attributes of one object, as a file has them: whole numbers, reals, strings of fixed
 * length, the checksum. What is none of adze's is noted as a fault. */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "store/h5_priv.h"

/* Bytes of a string that no attribute of adze comes near. */
#define MOST_ATTR ((size_t)1 << 24)

void az_h5_fini_attrs(az_h5_attr_list *l)
{
    for (int i = 0; i < l->n; i++) {
        az_free((char *)(uintptr_t)l->attrs[i].name);
        az_free((char *)(uintptr_t)l->attrs[i].s);
    }
    az_free(l->attrs);
}

static az_err bad_attr(az_h5_attr_list *l, const char *name, const char *why)
{
    return az_faults_add(l->faults, "attribute '%.200s' of '%.300s': %s", name, l->object, why);
}

static az_err read_string(az_h5_attr_list *l, hid_t attr, hid_t type, az_h5_attr *out)
{
    az_err err = AZ_OK;
    const size_t n = H5Tget_size(type);
    char *text = NULL;
    if (n == 0 || n > MOST_ATTR)
        return bad_attr(l, out->name, "it is too long");
    AZ_TRY(AZ_NEW(text, n + 1, "checkpoint"));
    if (H5Aread(attr, type, text) < 0) {
        err = bad_attr(l, out->name, az_h5_reason());
    } else {
        out->s = text;
        text = NULL;
    }
out:
    az_free(text);
    return err;
}

/* An attribute that is open: its value, or a fault. */
static az_err read_value(az_h5_attr_list *l, hid_t attr, hid_t type, az_h5_attr *out)
{
    const bool crc = strcmp(out->name, AZ_H5_CRC) == 0;
    if (crc && H5Tequal(type, H5T_STD_U32LE) > 0) {
        if (H5Aread(attr, H5T_STD_U32LE, &l->crc) < 0)
            return bad_attr(l, out->name, az_h5_reason());
        l->have_crc = true;
    } else if (!crc && H5Tequal(type, H5T_STD_I64LE) > 0) {
        out->type = AZ_H5_INT;
        if (H5Aread(attr, H5T_STD_I64LE, &out->i) < 0)
            return bad_attr(l, out->name, az_h5_reason());
    } else if (!crc && H5Tequal(type, H5T_IEEE_F64LE) > 0) {
        out->type = AZ_H5_REAL;
        if (H5Aread(attr, H5T_IEEE_F64LE, &out->r) < 0)
            return bad_attr(l, out->name, az_h5_reason());
    } else if (!crc && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0) {
        out->type = AZ_H5_STRING;
        return read_string(l, attr, type, out);
    } else {
        return bad_attr(l, out->name, "its type is none of adze's");
    }
    return AZ_OK;
}

/* Take one attribute: into the list, or as crc32 or complete. */
static az_err take_attr(az_h5_attr_list *l, hid_t object, const char *name)
{
    az_err err = AZ_OK;
    az_h5_attr a = {.name = az_strdup(name, "checkpoint")};
    hid_t attr = H5Aopen(object, name, H5P_DEFAULT), type = -1, space = -1;
    const int64_t before = l->faults->n;
    AZ_TRY(a.name != NULL ? AZ_OK : AZ_EENV);
    if (attr < 0 || (type = H5Aget_type(attr)) < 0 || (space = H5Aget_space(attr)) < 0)
        err = bad_attr(l, name, az_h5_reason());
    else if (H5Sget_simple_extent_type(space) != H5S_SCALAR)
        err = bad_attr(l, name, "it is an array");
    else
        err = read_value(l, attr, type, &a);
    if (err != AZ_OK || l->faults->n > before || strcmp(name, AZ_H5_CRC) == 0)
        goto out;
    if (strcmp(l->object, "/") == 0 && strcmp(name, AZ_H5_COMPLETE) == 0) {
        l->have_complete = a.type == AZ_H5_INT;
        l->complete = a.i;
        goto out;
    }
    AZ_TRY(AZ_GROW(l->attrs, (size_t)l->n + 1, "checkpoint"));
    l->attrs[l->n++] = a;
    a = (az_h5_attr){0};
out:
    az_free((char *)(uintptr_t)a.name);
    az_free((char *)(uintptr_t)a.s);
    az_h5_drop(space);
    az_h5_drop(type);
    az_h5_drop(attr);
    return err;
}

static herr_t see_attr(hid_t object, const char *name, const H5A_info_t *info, void *list)
{
    az_h5_attr_list *l = list;
    (void)info;
    l->err = take_attr(l, object, name);
    return l->err != AZ_OK ? 1 : 0;
}

az_err az_h5_read_attrs(az_h5_attr_list *l, az_faults *faults, hid_t object, const char *path)
{
    hsize_t at = 0;
    *l = (az_h5_attr_list){.faults = faults, .object = path};
    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, see_attr, l) < 0)
        return az_faults_add(faults, "attributes of '%.300s': %s", path, az_h5_reason());
    if (l->n > 1)
        qsort(l->attrs, (size_t)l->n, sizeof *l->attrs, az_h5_compare_attrs);
    return l->err;
}

const az_h5_attr *az_h5_find_in(const az_h5_attr_list *list, const char *name, int type)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->attrs[i].name, name) == 0 && (int)list->attrs[i].type == type)
            return &list->attrs[i];
    return NULL;
}
