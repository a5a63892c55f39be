/* Units: sizes, speeds and rates as people write them, "24GiB", "10Gbit/s", "1.5TFLOP/s". Local. */
#ifndef AZ_BASE_UNITS_H
#define AZ_BASE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* What a message says of a size that was not understood. */
#define AZ_SIZE_FORM "a size such as 24GiB, 512 MB or 2000000 (bytes)"
/* Bytes: a number, then B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024) or
 * nothing. A space may stand between. False if it is nothing of the kind or beyond 2^62. */
bool az_parse_size(int64_t *out_bytes, const char *text);

#define AZ_SPEED_FORM "a speed such as 25GB/s or 10Gbit/s"
/* Bytes a second: a size with a unit, or bit, kbit, Mbit, Gbit, Tbit, and "/s" behind it. */
bool az_parse_speed(double *out_bytes_per_s, const char *text);

#define AZ_RATE_FORM "operations a second such as 300GFLOP/s or 1.5e12"
/* Operations a second: a number, then k, M, G, T, P or nothing, then "FLOP/s", "FLOPS" or nothing.
 */
bool az_parse_rate(double *out_per_s, const char *text);

#endif
