/* HDF5: the library that is there at run time. Local. */
#ifndef AZ_STORE_HDF5_H
#define AZ_STORE_HDF5_H

#include "base/base.h"

/* Fails if the library loaded is not the release that adze was built with (HDF5's structures differ
 * between releases), naming both. *out_version: "1.10.8", static. */
az_err az_hdf5_check(const char **out_version);

/* Whether path is to be read as an HDF5 file: by its first bytes, or else by its name, so that a
 * damaged one is called damaged. */
bool az_hdf5_is(const char *path);

#endif
