/* HDF5: release at build time against release at run time; what is an HDF5 file. */
#include <config.h>

#include "store/hdf5.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/h5_priv.h"

az_err az_hdf5_check(const char **out_version)
{
    static char version[40];
    unsigned major = 0, minor = 0, release = 0;
    *out_version = version;
    az_h5_start();
    if (H5get_libversion(&major, &minor, &release) < 0)
        return az_fail(AZ_EENV, "HDF5: the library does not tell its version");
    snprintf(version, sizeof version, "%u.%u.%u", major, minor, release);
    if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR || release != H5_VERS_RELEASE)
        return az_fail(AZ_EENV,
                       "HDF5: adze was built with %d.%d.%d, but the library that is loaded is %s; "
                       "load the module it was built with, or build it again",
                       H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, version);
    return AZ_OK;
}

bool az_hdf5_is(const char *path)
{
    static const char magic[8] = "\x89HDF\r\n\x1a\n";
    char head[sizeof magic];
    const size_t n = strlen(path);
    const int fd = az_file_exists(path) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0)
        return false;
    const bool same =
        read(fd, head, sizeof head) == sizeof head && memcmp(head, magic, sizeof magic) == 0;
    close(fd);
    return same || (n > 3 && strcmp(path + n - 3, ".h5") == 0);
}
