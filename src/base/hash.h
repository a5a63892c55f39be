/* Hashes: XXH3, 64 bits. Local. */
#ifndef AZ_BASE_HASH_H
#define AZ_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t az_hash64(const void *data, size_t bytes, uint64_t seed);

#endif
