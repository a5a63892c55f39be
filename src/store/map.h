/* The files of a set as memory: mapped read-only and shared, so that all processes of a node that
 * map them, of other jobs too, read the same pages of the system's cache. A file that becomes
 * shorter underneath ends the process with a message (base/bus.h). Local. */
#ifndef AZ_STORE_MAP_H
#define AZ_STORE_MAP_H

#include "store/safetensors.h"

typedef struct az_store_map az_store_map;

/* Map all files of a set; refuses one that is not as long as its header says. key: of the deck, for
 * messages. The set must stay. */
az_err az_store_map_create(az_store_map **out_map, const az_tensor_set *set, const char *key);
/* The first byte of a tensor; aligned as it is in the file, see az_store_is_aligned. */
const char *az_store_map_get(const az_store_map *map, const az_tensor *tensor);
/* Whether a tensor begins at a multiple of the size of its elements: the format does not ask for
 * it, but what computes does. */
bool az_store_is_aligned(const az_tensor *tensor);
/* Fails with AZ_EENV if a file was written to since it was mapped: what was computed from it is of
 * no model. */
az_err az_store_map_check(const az_store_map *map);
void az_store_map_destroy(az_store_map *opt_map);

#endif
