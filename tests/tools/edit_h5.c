/* edit_h5 FILE GROUP ATTRIBUTE VALUE: changes one attribute of adze's own files, of the type that
 * it has, and puts the group's checksum right: files that nobody has damaged and that are wrong all
 * the same. */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/h5_priv.h"

static bool put(hid_t group, const char *name, hid_t type, const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR), attr;
    if (H5Aexists(group, name) > 0 && H5Adelete(group, name) < 0)
        return false;
    attr = H5Acreate2(group, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool done = attr >= 0 && H5Awrite(attr, type, value) >= 0;
    H5Aclose(attr);
    H5Sclose(space);
    return done;
}

/* The value in the list and in the file. */
static bool change(az_h5_attr *a, hid_t group, const char *value)
{
    if (a->type == AZ_H5_INT) {
        a->i = strtoll(value, NULL, 10);
        return put(group, a->name, H5T_STD_I64LE, &a->i);
    }
    if (a->type == AZ_H5_REAL) {
        a->r = strtod(value, NULL);
        return put(group, a->name, H5T_IEEE_F64LE, &a->r);
    }
    hid_t type = az_h5_make_string(strlen(value) > 0 ? strlen(value) : 1);
    a->s = value;
    const bool done = put(group, a->name, type, value);
    H5Tclose(type);
    return done;
}

static bool edit(hid_t group, const char *path, const char *name, const char *value)
{
    az_faults faults = {0};
    az_h5_attr_list list;
    bool done = false;
    const az_err err = az_h5_read_attrs(&list, &faults, group, path);
    for (int i = 0; err == AZ_OK && i < list.n && !done; i++) {
        const az_h5_attr before = list.attrs[i];
        if (strcmp(before.name, name) == 0 && change(&list.attrs[i], group, value)) {
            const uint32_t crc = az_h5_crc_attrs(list.attrs, list.n);
            done = put(group, AZ_H5_CRC, H5T_STD_U32LE, &crc);
        }
        list.attrs[i] = before; /* its text is the list's */
    }
    az_h5_fini_attrs(&list);
    az_faults_fini(&faults);
    return done;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 99;
    az_h5_start();
    hid_t file = H5Fopen(argv[1], H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t group = file >= 0 ? H5Gopen2(file, argv[2], H5P_DEFAULT) : -1;
    const bool done = group >= 0 && edit(group, argv[2], argv[3], argv[4]);
    if (group >= 0)
        H5Gclose(group);
    return file >= 0 && H5Fclose(file) >= 0 && done ? 0 : 99;
}
