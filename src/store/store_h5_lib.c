/* h5: the library itself: how it starts, what it says when it fails, types as files store them. */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/h5_priv.h"

void az_h5_start(void)
{
    static bool started;
    if (started)
        return;
    started = true;
    /* Locks keep readers off a file being written; ours is under a temporary name until it is
     * whole. They fail on file systems that have none. */
    setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
    H5dont_atexit(); /* a file that could not be closed is not tried again after MPI's end */
    H5open();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

/* The part of a driver's message that says why: sec2 gives "..., errno = 28, error message = 'No
 * space left on device', ..."; MPI-IO's text has lines "FUNCTION(LINE): what", innermost last. */
static void take_reason(char *out, size_t size, const char *text)
{
    static const char mark[] = "error message = '", line[] = "): ";
    const char *at = strstr(text, mark), *end = text + strlen(text);
    if (at != NULL) {
        at += sizeof mark - 1;
        end = at + strcspn(at, "'");
    } else {
        at = text;
        for (const char *next; (next = strstr(at, line)) != NULL;)
            at = next + sizeof line - 1;
    }
    while (end > at && (end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\''))
        end--;
    snprintf(out, size, "%.*s", (int)(end - at), at);
}

typedef struct {
    char text[300];
    bool from_system;
} reason;

/* From the innermost message outwards: the first, unless one speaks for the system. */
static herr_t see_message(unsigned n, const H5E_error2_t *e, void *data)
{
    reason *r = data;
    const bool system = e->desc != NULL && (strstr(e->desc, "error message = '") != NULL ||
                                            e->min_num == H5E_MPIERRSTR);
    if (e->desc == NULL || r->from_system || (n > 0 && r->text[0] != '\0' && !system))
        return 0;
    take_reason(r->text, sizeof r->text, e->desc);
    r->from_system = system;
    return 0;
}

const char *az_h5_reason(void)
{
    static reason r;
    r = (reason){0};
    if (az_h5_disk_error() != 0)
        return strerror(az_h5_disk_error());
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, see_message, &r);
    if (r.text[0] == '\0')
        snprintf(r.text, sizeof r.text, "HDF5 does not say why");
    return r.text;
}

az_err az_h5_fail(az_err code, const char *path, const char *doing, const char *opt_name)
{
    const char *why = az_h5_reason();
    if (opt_name == NULL)
        return az_fail(code, "%s: cannot %s: %s", path, doing, why);
    return az_fail(code, "%s: cannot %s '%.200s': %s", path, doing, opt_name, why);
}

void az_h5_drop(hid_t id)
{
    if (id >= 0)
        H5Idec_ref(id);
}

/* A 16-bit float with 8 bits of exponent and 7 of mantissa. The fields come before the size, so
 * that they fit at each moment. */
static hid_t make_bf16(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type < 0)
        return type;
    if (H5Tset_fields(type, 15, 7, 8, 0, 7) < 0 || H5Tset_size(type, 2) < 0 ||
        H5Tset_ebias(type, 127) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t az_h5_make_type(az_dtype dtype)
{
    AZ_ASSERT(dtype == AZ_F32 || dtype == AZ_BF16);
    return dtype == AZ_F32 ? H5Tcopy(H5T_IEEE_F32LE) : make_bf16();
}

hid_t az_h5_make_string(size_t size)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type < 0)
        return type;
    if (H5Tset_size(type, size) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}
