/* Hashes. */
#include <config.h>

#include "base/hash.h"

#include <xxhash.h>
#include <zlib.h>

uint64_t az_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint32_t az_crc32(uint32_t crc, const void *data, size_t bytes)
{
    return (uint32_t)crc32_z(crc, data, bytes);
}

uint32_t az_crc32_combine(uint32_t a, uint32_t b, int64_t b_bytes)
{
    return (uint32_t)crc32_combine64(a, b, b_bytes);
}
