/* h5 on one rank, without MPI: what was written is read back bit for bit, by ranges and by arrays;
 * what is no file of adze, or a damaged one, is refused by name. */
#include <config.h>

#include "tests/unit/store_util.h"

#include "tests/unit/h5_util.h"

static az_comm *comm;

static const char *write_one(const char *name, az_dtype dtype)
{
    const char *path = tmp_path(name);
    az_h5_times times;
    if (h5_write(path, dtype, 0, H5_ELEMENTS, comm, &times) != AZ_OK)
        fail_msg("%s", az_err_message());
    int64_t bytes;
    assert_int_equal(az_file_size(&bytes, path), AZ_OK);
    assert_int_equal(bytes, times.bytes);
    return path;
}

static void check_round_trip(az_dtype dtype)
{
    az_h5_reader *r = NULL;
    float got[H5_ELEMENTS];
    const char *path = write_one("a.h5", dtype);
    assert_int_equal(az_h5_open(&r, path, comm), AZ_OK);
    assert_true(h5_same_rest(r));
    assert_int_equal(az_h5_verify(r), AZ_OK);
    for (int s = 0; s < H5_GROUPS; s++) {
        memset(got, 0, sizeof got);
        assert_int_equal(
            az_h5_read_arrays(r, h5_groups[s], h5_arrays, H5_ARRAYS, got, 0, H5_ELEMENTS), AZ_OK);
        assert_true(h5_same(got, s, dtype, 0, H5_ELEMENTS));
        for (int i = 0; i < H5_ARRAYS; i++) {
            char name[300];
            snprintf(name, sizeof name, "%s/%s", h5_groups[s], h5_arrays[i].name);
            const az_h5_dataset *d = az_h5_find(r, name);
            assert_true(d != NULL && d->dtype == dtype && d->rows == h5_arrays[i].rows);
            memset(got, 0, sizeof got);
            assert_int_equal(az_h5_read_array(r, d, got), AZ_OK);
            assert_true(h5_same(got, s, dtype, h5_arrays[i].off, d->rows * d->cols));
        }
    }
    int n = 0;
    for (const az_h5_dataset *d, *last = NULL; (d = az_h5_get_dataset(r, n)) != NULL; n++, last = d)
        assert_true(last == NULL || strcmp(last->path, d->path) < 0);
    assert_int_equal(n, H5_GROUPS * H5_ARRAYS + 2);
    az_h5_close(r);
}

static void test_round_trip(void **state)
{
    (void)state;
    check_round_trip(AZ_F32);
    check_round_trip(AZ_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
    };
    if (az_comm_create_self(&comm) != AZ_OK)
        return 99;
    int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
