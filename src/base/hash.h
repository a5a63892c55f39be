/* Hashes: XXH3, 64 bits, and CRC-32, which can be put together from parts. Local. */
#ifndef AZ_BASE_HASH_H
#define AZ_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t az_hash64(const void *data, size_t bytes, uint64_t seed);
/* CRC-32 as zlib's crc32 (ISO 3309), of any number of bytes. Start from crc = 0. */
uint32_t az_crc32(uint32_t crc, const void *data, size_t bytes);
/* CRC-32 of a and b one behind the other, from those of both; b_bytes: length of b. */
uint32_t az_crc32_combine(uint32_t a, uint32_t b, int64_t b_bytes);

#endif
