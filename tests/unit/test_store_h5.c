/* h5 on one rank, without MPI: what was written is read back bit for bit, by ranges and by arrays;
 * what is no file of adze, or a damaged one, is refused by name. */
#include <config.h>

#include "tests/unit/store_util.h"

#include <hdf5.h>

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
    assert_int_equal(n, H5_DATASETS);
    az_h5_close(r);
}

static void test_round_trip(void **state)
{
    (void)state;
    check_round_trip(AZ_F32);
    check_round_trip(AZ_BF16);
}

/* ---- what is no file of adze */

static void expect_refusal(const char *path, const char *part)
{
    az_h5_reader *r = NULL;
    expect_failure(az_h5_open(&r, path, comm), AZ_EINPUT, part);
    assert_null(r);
}

static void test_foreign(void **state)
{
    char *data;
    size_t n;
    (void)state;
    expect_refusal(tmp_path("none.h5"), "none.h5: cannot open: No such file");
    expect_refusal(tmp_dir, "not a regular file");
    put_text(tmp_path("b.h5"), "");
    expect_refusal(tmp_path("b.h5"), "b.h5: the file is empty");
    put_text(tmp_path("b.h5"), "step 1, loss 2");
    expect_refusal(tmp_path("b.h5"), "b.h5: not an HDF5 file, or its first bytes are damaged");
    put_text(tmp_path("b.h5"), "version https://git-lfs.github.com/spec/v1\noid sha256:1\n");
    expect_refusal(tmp_path("b.h5"), "not an HDF5 file: this is a Git LFS pointer");
    assert_int_equal(az_file_read(&data, &n, write_one("a.h5", AZ_F32)), AZ_OK);
    put_file(tmp_path("b.h5"), data, 20);
    expect_refusal(tmp_path("b.h5"), "b.h5: truncated: the file has 20 bytes");
    put_file(tmp_path("b.h5"), data, n - 1);
    expect_refusal(tmp_path("b.h5"), "b.h5: truncated: the file has ");
    put_file(tmp_path("b.h5"), data, n + 1); /* the terminator of az_file_read */
    expect_refusal(tmp_path("b.h5"), " bytes, its structure says ");
    data[30] ^= 1;
    put_file(tmp_path("b.h5"), data, n);
    expect_refusal(tmp_path("b.h5"), "the file's structure is damaged: ");
    az_free(data);
}

static hid_t access_list(bool new)
{
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (new)
        H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_V18);
    return list;
}

static void test_other_programs(void **state)
{
    (void)state;
    for (int new = 0; new < 2; new ++) {
        hid_t list = access_list(new),
              file = H5Fcreate(tmp_path("b.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, list);
        assert_true(file >= 0 && H5Fclose(file) >= 0);
        H5Pclose(list);
        expect_refusal(tmp_path("b.h5"),
                       new ? "b.h5: an HDF5 file that adze has not written: it has "
                             "no attributes 'kind' and 'format_version'"
                           : "b.h5: an HDF5 file that adze has not written "
                             "(superblock version 0");
    }
}

/* ---- files of adze that another program has changed */

static hid_t file; /* open for changes */

static void add_plain(const char *path, hid_t type, int dims, hid_t how)
{
    const hsize_t size[3] = {4, 2, 1};
    hid_t space = dims == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(dims, size, NULL),
          set = H5Dcreate2(file, path, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    assert_true(set >= 0);
    H5Dclose(set);
    H5Sclose(space);
}

static void add_stored(const char *path, int kind)
{
    const hsize_t chunk[2] = {2, 2};
    hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    if (kind == 0 || kind == 1)
        H5Pset_chunk(how, 2, chunk);
    if (kind == 1)
        H5Pset_shuffle(how);
    if (kind == 2)
        H5Pset_layout(how, H5D_COMPACT);
    if (kind == 3)
        H5Pset_external(how, "elsewhere", 0, 32);
    if (kind == 4)
        H5Pset_alloc_time(how, H5D_ALLOC_TIME_LATE);
    add_plain(path, H5T_IEEE_F32LE, 2, how);
    H5Pclose(how);
}

static void add_attr(const char *path, const char *name, hid_t type, const void *value)
{
    hid_t object = H5Oopen(file, path, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    if (H5Aexists(object, name) > 0)
        H5Adelete(object, name);
    hid_t attr = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(attr >= 0 && H5Awrite(attr, type, value) >= 0);
    H5Aclose(attr);
    H5Sclose(space);
    H5Oclose(object);
}

static void remove_attr(const char *path, const char *name)
{
    hid_t object = H5Oopen(file, path, H5P_DEFAULT);
    assert_true(H5Adelete(object, name) >= 0);
    H5Oclose(object);
}

static void chunk_it(void)
{
    add_stored("/adapter/x", 0);
}
static void filter_it(void)
{
    add_stored("/adapter/x", 1);
}
static void compact_it(void)
{
    add_stored("/adapter/x", 2);
}
static void put_outside(void)
{
    add_stored("/adapter/x", 3);
}
static void never_write(void)
{
    add_stored("/adapter/x", 4);
}
static void add_integers(void)
{
    add_plain("/numbers", H5T_STD_I32LE, 2, H5P_DEFAULT);
}
static void add_vector(void)
{
    add_plain("/adapter/vector", H5T_IEEE_F32LE, 1, H5P_DEFAULT);
}
static void add_big_endian(void)
{
    add_plain("/adapter/big", H5T_IEEE_F32BE, 2, H5P_DEFAULT);
}
static void add_half(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    add_plain("/adapter/half", type, 2, H5P_DEFAULT);
    H5Tclose(type);
}
static void link_softly(void)
{
    H5Lcreate_soft("/adapter/one", file, "/again", H5P_DEFAULT, H5P_DEFAULT);
}
static void link_outside(void)
{
    H5Lcreate_external("a.h5", "/adapter", file, "/other", H5P_DEFAULT, H5P_DEFAULT);
}
static void link_in_a_circle(void)
{
    H5Lcreate_hard(file, "/", file, "/optimizer/all", H5P_DEFAULT, H5P_DEFAULT);
}
static void name_a_type(void)
{
    hid_t type = H5Tcopy(H5T_NATIVE_INT);
    H5Tcommit2(file, "/type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
}
static void drop_crc(void)
{
    remove_attr("/adapter/one", "crc32");
}
static void drop_crc_of_group(void)
{
    remove_attr("/trainer", "crc32");
}
static void add_to_dataset(void)
{
    const int64_t v = 1;
    add_attr("/adapter/one", "unit", H5T_STD_I64LE, &v);
}
static void change_step(void)
{
    const int64_t v = 121;
    add_attr("/trainer", "step", H5T_STD_I64LE, &v);
}
static void change_type_of_step(void)
{
    const int32_t v = 120;
    add_attr("/trainer", "step", H5T_STD_I32LE, &v);
}
static void add_long_text(void)
{
    const char *v = "x";
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    add_attr("/trainer", "base", type, &v);
    H5Tclose(type);
}
static void change_deck(void)
{
    hid_t set = H5Dopen2(file, "/deck", H5P_DEFAULT), type = H5Dget_type(set);
    char text[sizeof h5_deck] = "train:\n  steps: 99\n";
    assert_true(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) >= 0);
    H5Tclose(type);
    H5Dclose(set);
}
static void make_newer(void)
{
    const int64_t v = 2;
    add_attr("/", "format_version", H5T_STD_I64LE, &v);
}
static void change_kind(void)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, 5);
    add_attr("/", "kind", type, "merge");
    H5Tclose(type);
}
static void forget_complete(void)
{
    remove_attr("/", "complete");
}
static void not_complete(void)
{
    const int64_t v = 0;
    add_attr("/", "complete", H5T_STD_I64LE, &v);
}
static void two_things(void)
{
    change_step();
    chunk_it();
}

static void test_changed(void **state)
{
    static const struct {
        void (*change)(void);
        const char *said;
    } cases[] = {
        {chunk_it, "b.h5: dataset '/adapter/x': it is stored in chunks"},
        {filter_it, "dataset '/adapter/x': it is compressed"},
        {compact_it, "dataset '/adapter/x': it is not stored in one piece"},
        {put_outside, "dataset '/adapter/x': its data are in another file"},
        {never_write, "dataset '/adapter/x': its data were never written"},
        {add_integers, "dataset '/numbers': its type or shape is none of adze's"},
        {add_vector, "dataset '/adapter/vector': its type or shape is none of adze's"},
        {add_big_endian, "dataset '/adapter/big': its type or shape is none of adze's"},
        {add_half, "dataset '/adapter/half': its type or shape is none of adze's"},
        {link_softly, "link '/again': it leads elsewhere"},
        {link_outside, "link '/other': it leads elsewhere"},
        {link_in_a_circle, "it lies too deep"},
        {name_a_type, "object '/type': it is none of adze's"},
        {drop_crc, "dataset '/adapter/one': there is no checksum (crc32)"},
        {drop_crc_of_group, "attributes of '/trainer': there is no checksum (crc32)"},
        {add_to_dataset, "dataset '/adapter/one': it has attributes that are none of adze's"},
        {change_step, "attributes of '/trainer': damaged: they do not give their checksum"},
        {change_type_of_step, "attribute 'step' of '/trainer': its type is none of adze's"},
        {add_long_text, "attribute 'base' of '/trainer': its type is none of adze's"},
        {change_deck, "dataset '/deck': damaged: its bytes do not give its checksum"},
        {make_newer, "b.h5: format version 2; this adze ("},
        {change_kind, "b.h5: kind 'merge'; this adze knows checkpoint and adapter"},
        {forget_complete, "b.h5: not complete: the attribute 'complete', which is written last"},
        {not_complete, "b.h5: not complete"},
        {two_things, "b.h5: 2 faults"},
    };
    char *data;
    size_t n;
    (void)state;
    assert_int_equal(az_file_read(&data, &n, write_one("a.h5", AZ_F32)), AZ_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_file(tmp_path("b.h5"), data, n);
        hid_t list = access_list(true);
        file = H5Fopen(tmp_path("b.h5"), H5F_ACC_RDWR, list);
        assert_true(file >= 0);
        cases[i].change();
        assert_true(H5Fclose(file) >= 0);
        H5Pclose(list);
        expect_refusal(tmp_path("b.h5"), cases[i].said);
    }
    az_free(data);
}

/* ---- one adapter in the place of another */

static void test_other_set(void **state)
{
    az_h5_reader *r = NULL;
    float got[H5_ELEMENTS];
    az_h5_array other[H5_ARRAYS + 1];
    (void)state;
    assert_int_equal(az_h5_open(&r, write_one("a.h5", AZ_F32), comm), AZ_OK);
    memcpy(other, h5_arrays, sizeof h5_arrays);
    other[H5_ARRAYS] = (az_h5_array){"more", 1, 1, H5_ELEMENTS};
    expect_failure(az_h5_read_arrays(r, "/adapter", other, H5_ARRAYS + 1, got, 0, H5_ELEMENTS + 1),
                   AZ_EINPUT, "a.h5: dataset '/adapter/more' is missing");
    expect_failure(az_h5_read_arrays(r, "/adapter", other, H5_ARRAYS - 1, got, 0, H5_ELEMENTS - 1),
                   AZ_EINPUT, "a.h5: dataset '/adapter/one' was not expected");
    other[1].rows = 3, other[1].cols = 5;
    expect_failure(az_h5_read_arrays(r, "/adapter", other, H5_ARRAYS, got, 0, H5_ELEMENTS),
                   AZ_EINPUT, "shape [5, 3], [3, 5] was expected");
    expect_failure(az_h5_read_arrays(r, "/none", h5_arrays, H5_ARRAYS, got, 0, H5_ELEMENTS),
                   AZ_EINPUT, "5 faults");
    az_h5_close(r);
}

/* ---- want of memory */

static az_err write_and_read(void *context)
{
    az_err err;
    az_h5_reader *r = NULL;
    az_h5_times times;
    float got[H5_ELEMENTS];
    const char *path = context;
    AZ_TRY(h5_write(path, AZ_BF16, 0, H5_ELEMENTS, comm, &times));
    AZ_TRY(az_h5_open(&r, path, comm));
    AZ_TRY(az_h5_verify(r));
    AZ_TRY(az_h5_read_arrays(r, "/adapter", h5_arrays, H5_ARRAYS, got, 0, H5_ELEMENTS));
out:
    az_h5_close(r);
    return err;
}

static void test_memory(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s", tmp_path("m.h5"));
    try_all_allocations(write_and_read, path);
    assert_int_not_equal(access(tmp_path("m.h5.tmp"), F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_other_programs), cmocka_unit_test(test_changed),
        cmocka_unit_test(test_other_set),      cmocka_unit_test(test_memory),
    };
    if (az_comm_create_self(&comm) != AZ_OK)
        return 99;
    int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
