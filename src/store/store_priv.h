/* store, inside: what its sources share. */
#ifndef AZ_STORE_PRIV_H
#define AZ_STORE_PRIV_H

#include "store/safetensors.h"

/* Add the tensors of one file to the set, whose files[file] is its path. What is wrong with the
 * file is noted in faults, each line after prefix; it may then have added some of its tensors. */
az_err az_store_add_file(az_tensor_set *set, int file, const char *prefix, az_faults *faults);
/* Append a path to files; *out_file is its index. */
az_err az_store_add_path(az_tensor_set *set, int *out_file, const char *path);
/* Put the tensors in the order of az_store_find. */
void az_store_sort(az_tensor_set *set);
/* What a file is whose first n bytes are those of something that is often found in the place of
 * safetensors or JSON; NULL if it may be what was wanted. */
const char *az_store_guess_kind(const char *head, size_t n);

#endif
