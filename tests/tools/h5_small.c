/* h5_small PATH f32|bf16 [ROWS HINT]: write one of adze's HDF5 files on all ranks: the small one of
 * tests/unit/h5_util.h, or one array of ROWS rows of 64 whose size is said to be HINT bytes. Says
 * what went wrong as adze does.
 * h5_small values f32|bf16 SET ARRAY: the values of an array of the small file, one a line. */
#include <config.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/h5_util.h"

#define COLS 64

static void print_values(az_dtype dtype, int set, int array)
{
    const az_h5_array *a = &h5_arrays[array];
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        float v = h5_value(set, a->off + i);
        if (dtype == AZ_BF16)
            v = az_bf16_to_f32(az_f32_to_bf16(v));
        printf("%.9g\n", (double)v);
    }
}

static az_err write_large(const char *path, az_dtype dtype, int64_t rows, int64_t hint,
                          az_comm *comm)
{
    az_err err;
    const az_h5_array array = {"large", rows, COLS, 0};
    const int64_t n = rows * COLS, first = n * az_comm_rank(comm) / az_comm_size(comm),
                  end = n * (az_comm_rank(comm) + 1) / az_comm_size(comm);
    float *own = NULL;
    az_h5_writer *w = NULL;
    az_h5_times times;
    AZ_TRY(az_comm_agree(comm, AZ_NEW(own, (size_t)(end - first), "test")));
    for (int64_t i = first; i < end; i++)
        own[i - first] = (float)i;
    AZ_TRY(az_h5_create(&w, path, "checkpoint", hint, NULL, comm));
    AZ_TRY(az_h5_put_arrays(w, "/adapter", &array, 1, dtype, own, first, end - first));
    AZ_TRY(az_h5_finish(w, &times));
out:
    az_h5_destroy(w);
    az_free(own);
    return err;
}

static az_err write_small(const char *path, az_dtype dtype, az_comm *comm)
{
    az_h5_times times;
    const int64_t first = H5_ELEMENTS * az_comm_rank(comm) / az_comm_size(comm),
                  end = H5_ELEMENTS * (az_comm_rank(comm) + 1) / az_comm_size(comm);
    return h5_write(path, dtype, first, end - first, comm, &times);
}

int main(int argc, char **argv)
{
    az_comm *comm = NULL;
    if (argc < 3)
        return 99;
    const az_dtype dtype = strcmp(argv[2], "bf16") == 0 ? AZ_BF16 : AZ_F32;
    if (strcmp(argv[1], "values") == 0 && argc == 5) {
        print_values(dtype, atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    signal(SIGXFSZ, SIG_IGN);
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK)
        return 99;
    az_err err = argc == 5 ? write_large(argv[1], dtype, atoll(argv[3]), atoll(argv[4]), comm)
                           : write_small(argv[1], dtype, comm);
    if (err != AZ_OK && az_comm_rank(comm) == 0)
        fprintf(stderr, "adze: error: %s\n", az_err_message());
    az_comm_fini(comm);
    return err != AZ_OK ? err : az_mem_get_total().blocks != 0;
}
