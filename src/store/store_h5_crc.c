/* h5: checksums. An array is often held by two ranks or more; its CRC-32 is put together from those
 * of the parts, so that no rank needs the whole. */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "store/h5_priv.h"

/* Values narrowed in one go, on the stack. */
#define PIECE 4096

static int64_t count(const az_h5_array *a)
{
    return a->rows * a->cols;
}

void az_h5_cut(int64_t *out_lo, int64_t *out_hi, const az_h5_array *array, int64_t first,
               int64_t n_own)
{
    *out_lo = az_min_i64(az_max_i64(first - array->off, 0), count(array));
    *out_hi = az_max_i64(az_min_i64(first + n_own - array->off, count(array)), *out_lo);
}

void az_h5_find_touched(int *out_begin, int *out_end, const az_h5_array *arrays, int n,
                        int64_t first, int64_t n_own)
{
    int low = 0, high = n;
    while (low < high) { /* the first array that ends behind first */
        const int mid = low + (high - low) / 2;
        if (arrays[mid].off + count(&arrays[mid]) > first)
            high = mid;
        else
            low = mid + 1;
    }
    *out_begin = *out_end = low;
    while (n_own > 0 && *out_end < n && arrays[*out_end].off < first + n_own)
        ++*out_end;
}

uint32_t az_h5_crc_values(const float *values, int64_t n, az_dtype dtype)
{
    az_bf16 piece[PIECE];
    uint32_t crc = 0;
    if (dtype == AZ_F32)
        return az_crc32(0, values, (size_t)n * sizeof *values);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t m = az_min_i64(n - at, PIECE);
        for (int64_t i = 0; i < m; i++)
            piece[i] = az_f32_to_bf16(values[at + i]);
        crc = az_crc32(crc, piece, (size_t)m * sizeof *piece);
    }
    return crc;
}

/* What a rank has, and where its CRCs are. */
typedef struct {
    int64_t first, n_own;
    const uint32_t *parts;
} range;

static int compare_ranges(const void *a, const void *b)
{
    const range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Add the CRCs of one rank's parts. seen[i]: bytes of array i so far. */
static void add_parts(uint32_t *whole, int64_t *seen, const az_h5_array *arrays, int n,
                      int64_t width, range r)
{
    int begin, end;
    az_h5_find_touched(&begin, &end, arrays, n, r.first, r.n_own);
    for (int i = begin; i < end; i++) {
        int64_t lo, hi;
        const uint32_t part = r.parts[i - begin];
        az_h5_cut(&lo, &hi, &arrays[i], r.first, r.n_own);
        AZ_ASSERT(lo * width == seen[i]);
        whole[i] = lo == 0 ? part : az_crc32_combine(whole[i], part, (hi - lo) * width);
        seen[i] = hi * width;
    }
}

az_err az_h5_join_crcs(uint32_t *whole, const uint32_t *part, const az_h5_array *arrays, int n,
                       az_dtype dtype, int64_t first, int64_t n_own, az_comm *comm)
{
    az_err err;
    const int size = az_comm_size(comm);
    const int64_t width = (int64_t)az_dtype_bytes(dtype);
    range *ranges = NULL;
    size_t *counts = NULL;
    uint32_t *all = NULL;
    int64_t *seen = NULL;
    int begin, end;
    err = AZ_NEW(ranges, (size_t)size, "checkpoint");
    if (err == AZ_OK)
        err = AZ_NEW(counts, 2 * (size_t)size, "checkpoint");
    if (err == AZ_OK) /* a rank adds at most one more part to those of whole arrays */
        err = AZ_NEW(all, (size_t)n + (size_t)size, "checkpoint");
    if (err == AZ_OK)
        err = AZ_NEW(seen, (size_t)n, "checkpoint");
    AZ_TRY(az_comm_agree(comm, err));
    az_comm_allgather(comm, &(range){first, n_own, NULL}, sizeof(range), ranges);
    for (int r = 0; r < size; r++) {
        az_h5_find_touched(&begin, &end, arrays, n, ranges[r].first, ranges[r].n_own);
        counts[r] = (size_t)(end - begin) * sizeof *all;
        counts[size + r] = r > 0 ? counts[size + r - 1] + counts[r - 1] : 0;
        ranges[r].parts = all + counts[size + r] / sizeof *all;
    }
    az_h5_find_touched(&begin, &end, arrays, n, first, n_own);
    az_comm_allgatherv(comm, part + begin, all, counts, counts + size);
    memset(whole, 0, (size_t)n * sizeof *whole);
    qsort(ranges, (size_t)size, sizeof *ranges, compare_ranges);
    for (int r = 0; r < size; r++)
        add_parts(whole, seen, arrays, n, width, ranges[r]);
    for (int i = 0; i < n; i++)
        AZ_ASSERT(seen[i] == count(&arrays[i]) * width);
out:
    az_free(seen);
    az_free(all);
    az_free(counts);
    az_free(ranges);
    return err;
}

uint32_t az_h5_crc_attrs(const az_h5_attr *attrs, int n)
{
    uint32_t crc = 0;
    for (int i = 0; i < n; i++) {
        const az_h5_attr *a = &attrs[i];
        const unsigned char type = (unsigned char)a->type;
        crc = az_crc32(crc, a->name, strlen(a->name) + 1);
        crc = az_crc32(crc, &type, 1);
        if (a->type == AZ_H5_INT)
            crc = az_crc32(crc, &a->i, sizeof a->i);
        else if (a->type == AZ_H5_REAL)
            crc = az_crc32(crc, &a->r, sizeof a->r);
        else
            crc = az_crc32(crc, a->s, strlen(a->s) + 1);
    }
    return crc;
}

int az_h5_compare_attrs(const void *a, const void *b)
{
    return strcmp(((const az_h5_attr *)a)->name, ((const az_h5_attr *)b)->name);
}
