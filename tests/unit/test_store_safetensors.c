/* One safetensors file: what is read, every fault by its message, written and read again, packed
 * and unpacked. */
#include <config.h>

#include "store_util.h"

#include <dirent.h>

#include "store/safetensors.h"

#define FILE_NAME "x.safetensors"

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\\"b\\\"\"},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"h\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
    "\"scalar\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[32,34]},"
    "\"empty\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[34,34]},"
    "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[34,37]},"
    "\"f6\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[37,40]}}   ";

static void test_good(void **state)
{
    (void)state;
    az_tensor_set set;
    put_safetensors(tmp_path(FILE_NAME), good, 40);
    assert_int_equal(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_OK);
    assert_int_equal(set.n_tensors, 6);
    assert_string_equal(set.metadata, "{\"format\": \"pt\", \"note\": \"a \\\"b\\\"\"}");
    for (int i = 1; i < 6; i++)
        assert_true(strcmp(set.tensors[i - 1].name, set.tensors[i].name) < 0);
    const az_tensor *w = az_store_find(&set, "w");
    assert_non_null(w);
    assert_int_equal(w->dtype, AZ_F32);
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->bytes, 24);
    assert_int_equal(az_store_find(&set, "h")->dtype, AZ_BF16);
    assert_int_equal(az_store_find(&set, "scalar")->dtype, AZ_F16);
    assert_int_equal(az_store_find(&set, "scalar")->n_dims, 0);
    assert_int_equal(az_store_find(&set, "empty")->bytes, 0);
    assert_int_equal(az_store_find(&set, "f4")->dtype, -1);
    assert_string_equal(az_store_find(&set, "f6")->dtype_name, "F6_E2M3");
    assert_null(az_store_find(&set, "nothing"));
    assert_null(az_store_find(&set, "__metadata__"));

    /* ranges, across tensors, and an empty one */
    unsigned char b[24];
    int fd = -1, file = -1;
    assert_int_equal(az_store_read(b, &set, w, 0, 24, &fd, &file), AZ_OK);
    for (int i = 0; i < 24; i++)
        assert_int_equal(b[i], 8 + i);
    assert_int_equal(az_store_read(b, &set, w, 5, 7, &fd, &file), AZ_OK);
    for (int i = 0; i < 7; i++)
        assert_int_equal(b[i], 13 + i);
    assert_int_equal(az_store_read(b, &set, az_store_find(&set, "f6"), 2, 1, &fd, &file), AZ_OK);
    assert_int_equal(b[0], 39);
    assert_int_equal(az_store_read(b, &set, w, 24, 0, &fd, &file), AZ_OK);
    /* a file that shrank after it was opened */
    assert_int_equal(truncate(tmp_path(FILE_NAME), 60), 0);
    expect_failure(az_store_read(b, &set, w, 0, 24, &fd, &file), AZ_EINPUT,
                   "the file ends at byte");
    close(fd);
    az_store_close(&set);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_nothing_inside(void **state)
{
    (void)state;
    az_tensor_set set;
    put_safetensors(tmp_path(FILE_NAME), "{}", 0);
    assert_int_equal(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_OK);
    assert_int_equal(set.n_tensors, 0);
    assert_null(az_store_find(&set, "w"));
    assert_null(set.metadata);
    az_store_close(&set);
}

/* Tied tensors that torch's writer left out. */
static void test_alias(void **state)
{
    (void)state;
    az_tensor_set set;
    put_safetensors(tmp_path(FILE_NAME),
                    "{\"__metadata__\":{\"format\":\"w\",\"head\":\"w\",\"w\":\"w\",\"x\":\"y\"},"
                    "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                    8);
    assert_int_equal(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_OK);
    assert_int_equal(set.n_tensors, 2);
    const az_tensor *t = az_store_find(&set, "head");
    assert_true(t != NULL && t->alias);
    assert_int_equal(t->offset, az_store_find(&set, "w")->offset);
    assert_false(az_store_find(&set, "w")->alias);
    az_store_close(&set);
}

#define W(body) "{\"w\":" body "}"
#define E(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *message;
} bad_headers[] = {
    {W(E("F32", "[2]", "[0,8]")), 5, "truncated: the header says 70 bytes, the file has 67"},
    {W(E("F32", "[2]", "[0,8]")), 9,
     "1 bytes after the last tensor: the header says 70 bytes, the file has 71"},
    {"{}", 3, "3 bytes after the last tensor"},
    {W(E("F33", "[2]", "[0,8]")), 8, "tensor 'w': dtype 'F33' is none of the format"},
    {W(E("F32", "[3]", "[0,8]")), 8,
     "its shape and dtype F32 need 12 bytes, its data_offsets have 8"},
    {W(E("F4", "[3]", "[0,2]")), 2, "3 elements of 4 bits do not fill whole bytes"},
    {W(E("F6_E3M2", "[3]", "[0,2]")), 2, "3 elements of 6 bits do not fill whole bytes"},
    {W(E("F32", "[4611686018427387904,4]", "[0,8]")), 8, "the product of its shape overflows"},
    {W(E("F32", "[4611686018427387904]", "[0,8]")), 8, "the size of its shape overflows"},
    {W(E("F32", "[18446744073709551616]", "[0,8]")), 8, "shape[0] is not an integer of 0 or more"},
    {W(E("F32", "[-2]", "[0,8]")), 8, "shape[0] is not an integer of 0 or more"},
    {W(E("F32", "[2.0]", "[0,8]")), 8, "shape[0] is not an integer of 0 or more"},
    {W(E("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]")), 8, "9 dimensions, at most 8 are read"},
    {W(E("F32", "2", "[0,8]")), 8, "shape is an integer, expected an array"},
    {W(E("F32", "[2]", "[8,0]")), 8, "data_offsets [8, 0] ends before it begins"},
    {W(E("F32", "[2]", "[0]")), 8, "data_offsets is something else, expected two integers"},
    {W(E("F32", "[2]", "[-8,0]")), 8, "data_offsets is something else, expected two integers"},
    {W(E("F32", "[2]", "[9223372036854775799,9223372036854775807]")), 8,
     "hole of 9223372036854775799 bytes before tensor 'w'"},
    {W(E("F32", "[2]", "[9223372036854775799,9223372036854775807]")), 8,
     "truncated: the header says 9223372036854775"},
    {W("{\"dtype\":\"F32\",\"shape\":[2]}"), 8, "data_offsets is missing"},
    {W("{\"dtype\":\"F32\",\"data_offsets\":[0,8]}"), 8, "shape is missing, expected an array"},
    {W("{\"shape\":[2],\"data_offsets\":[0,8]}"), 8, "dtype is missing, expected a string"},
    {W("[1]"), 8, "its entry is an array, expected an object"},
    {"{\"a\":" E("F32", "[2]", "[0,8]") ",\"b\":" E("F32", "[2]", "[4,12]") "}", 12,
     "tensor 'b' overlaps 'a': it begins at 4, the other ends at 8"},
    {"{\"a\":" E("F32", "[2]", "[0,8]") ",\"b\":" E("F32", "[2]", "[0,8]") "}", 8,
     "tensor 'b' overlaps 'a'"},
    {"{\"a\":" E("F32", "[2]", "[0,8]") ",\"b\":" E("F32", "[2]", "[12,20]") "}", 20,
     "hole of 4 bytes before tensor 'b': it begins at 12, expected 8"},
    {"{\"a\":" E("F32", "[2]", "[4,12]") "}", 12, "hole of 4 bytes before tensor 'a'"},
    {"{\"a\":" E("F32", "[2]", "[0,8]") ",\"a\":" E("F32", "[2]", "[0,8]") "}", 8,
     "duplicate object key"},
    {"{\"\xff\":" E("F32", "[2]", "[0,8]") "}", 8, "unable to decode byte 0xff"},
    {"{\"a\\u0000\":" E("F32", "[2]", "[0,8]") "}", 8, "not valid JSON"},
    {"{\"w\":", 0, "header: not valid JSON"},
    {"{} x", 0, "header: not valid JSON"},
    {" {}", 0, "the header begins with byte 0x20, expected '{'"},
    {"[]", 0, "the header begins with byte 0x5b, expected '{'"},
    {"{\"__metadata__\":3}", 0, "__metadata__ is an integer, expected an object of strings"},
    {"{\"__metadata__\":{\"format\":3}}", 0,
     "__metadata__: 'format' is an integer, expected a string"},
    {"{\"a\\nb\":[]}", 0, "tensor 'a?b': its entry is an array"},
};

static void test_bad_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        az_tensor_set set;
        put_safetensors(tmp_path(FILE_NAME), bad_headers[i].header, bad_headers[i].data_bytes);
        expect_failure(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_EINPUT,
                       bad_headers[i].message);
        assert_null(set.tensors);
        assert_int_equal(az_mem_get_total().blocks, 0);
    }
}

static const struct {
    const char *bytes;
    size_t n;
    const char *message;
} bad_files[] = {
    {"", 0, "x.safetensors: too short: 0 bytes"},
    {"\2\0\0", 3, "too short: 3 bytes"},
    {"\0\0\0\0\0\0\0\x80{}", 10,
     "header length 9223372036854775808 is above the limit of 100000000 bytes"},
    {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "header length 100000001 is above the limit"},
    {"\x00\xe1\xf5\x05\0\0\0\0{}", 10,
     "truncated: the header alone needs 100000008 bytes, the file has 10"},
    {"\x03\0\0\0\0\0\0\0{}", 10, "truncated: the header alone needs 11 bytes, the file has 10"},
    {"\0\0\0\0\0\0\0\0", 8, "header length 0: too short"},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", 64,
     "this is a Git LFS pointer"},
    {"PK\x03\x04..........", 14, "this is a zip archive"},
    {"GGUF\3\0\0\0........", 16, "this is a GGUF file"},
    {"<!DOCTYPE html>", 15, "this is a web page"},
};

static void test_bad_files(void **state)
{
    (void)state;
    az_tensor_set set;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        put_file(tmp_path(FILE_NAME), bad_files[i].bytes, bad_files[i].n);
        expect_failure(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_EINPUT,
                       bad_files[i].message);
    }
    expect_failure(az_store_open_file(&set, tmp_path("none")), AZ_EINPUT, "none: cannot open");
    expect_failure(az_store_open_file(&set, tmp_dir), AZ_EINPUT, "is a directory");
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_all_faults(void **state)
{
    (void)state;
    az_tensor_set set;
    put_safetensors(
        tmp_path(FILE_NAME),
        "{\"a\":" E("F99", "[2]", "[0,8]") ",\"b\":" E("F32", "[3]", "[8,16]") ",\"c\":" E(
            "F32", "[1]", "[20,24]") ",\"__metadata__\":{\"x\":1}}",
        20);
    az_err err = az_store_open_file(&set, tmp_path(FILE_NAME));
    assert_int_equal(err, AZ_EINPUT);
    const char *m = az_err_message();
    assert_non_null(strstr(m, "x.safetensors: 5 faults:\n  tensor 'a': dtype"));
    assert_non_null(strstr(m, "\n  tensor 'b': its shape"));
    assert_non_null(strstr(m, "\n  hole of 4 bytes before tensor 'c'"));
    assert_non_null(strstr(m, "\n  truncated: "));
    assert_non_null(strstr(m, "\n  __metadata__: 'x'"));
    az_err_clear();

    /* more than fit a message are counted */
    az_str header = {0};
    for (int i = 0; i < 100; i++)
        assert_int_equal(az_str_add(&header, "%s\"t%d\":3", i == 0 ? "{" : ",", i), AZ_OK);
    assert_int_equal(az_str_add(&header, "}"), AZ_OK);
    put_safetensors(tmp_path(FILE_NAME), header.s, 0);
    expect_failure(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_EINPUT, "\n  and 60 more");
    az_str_fini(&header);
}

static void test_write(void **state)
{
    (void)state;
    static const float a[6] = {1, -2, 0.5f, 3e30f, -0.0f, 7};
    static const uint16_t b[3] = {0x3f80, 0x7fc0, 0x8000};
    const char *path = tmp_path("written.safetensors");
    az_tensor_out out[] = {
        {"z", AZ_BF16, 1, {3}, b},      {"a\"\xc3\xa9", AZ_F16, 2, {1, 3}, b},
        {"m", AZ_F32, 2, {2, 3}, a},    {"s", AZ_F32, 0, {0}, a},
        {"e", AZ_F32, 2, {0, 5}, NULL},
    };
    az_tensor_set set;
    assert_int_equal(az_store_write(path, out, 5), AZ_OK);
    assert_int_equal(az_store_open_file(&set, path), AZ_OK);
    assert_int_equal(set.n_tensors, 5);
    assert_string_equal(set.metadata, "{\"format\": \"pt\"}");
    float got[6];
    int fd = -1, file = -1;
    const az_tensor *t = az_store_find(&set, "m");
    assert_int_equal(t->offset % 8, 0); /* header padded, wide types first */
    assert_int_equal(az_store_read(got, &set, t, 0, 24, &fd, &file), AZ_OK);
    assert_memory_equal(got, a, 24);
    assert_int_equal(az_store_find(&set, "a\"\xc3\xa9")->dtype, AZ_F16);
    close(fd);
    az_store_close(&set);
    /* none at all */
    assert_int_equal(az_store_write(path, NULL, 0), AZ_OK);
    assert_int_equal(az_store_open_file(&set, path), AZ_OK);
    az_store_close(&set);
    /* the read-back refuses a name given twice, and the old file stays */
    out[3].name = "m";
    expect_failure(az_store_write(path, out, 5), AZ_EINPUT, "duplicate object key");
    assert_int_equal(az_store_open_file(&set, path), AZ_OK);
    assert_int_equal(set.n_tensors, 0);
    az_store_close(&set);
    out[0].name = "\xff";
    expect_failure(az_store_write(path, out, 1), AZ_EINPUT, "not valid UTF-8");
    expect_failure(az_store_write(tmp_path("no/x"), out + 1, 1), AZ_EINPUT, "cannot write");
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static void test_pack(void **state)
{
    (void)state;
    az_tensor_set set, copy;
    az_str packed = {0};
    put_safetensors(tmp_path(FILE_NAME), good, 40);
    assert_int_equal(az_store_open_file(&set, tmp_path(FILE_NAME)), AZ_OK);
    assert_int_equal(az_store_pack(&packed, &set), AZ_OK);
    assert_int_equal(az_store_unpack(&copy, packed.s, packed.len), AZ_OK);
    assert_int_equal(copy.n_files, 1);
    assert_string_equal(copy.files[0], set.files[0]);
    assert_string_equal(copy.metadata, set.metadata);
    assert_int_equal(copy.n_tensors, set.n_tensors);
    for (int i = 0; i < 6; i++) {
        const az_tensor *x = &set.tensors[i], *y = &copy.tensors[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->dtype_name, y->dtype_name);
        assert_int_equal(x->offset, y->offset);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
    }
    az_store_close(&copy);
    for (size_t n = 0; n < packed.len; n++)
        expect_failure(az_store_unpack(&copy, packed.s, n), AZ_EINPUT, "is damaged");
    az_store_close(&set);
    az_str_fini(&packed);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

static az_err open_and_close(void *context)
{
    az_tensor_set set, copy = {0};
    az_str packed = {0};
    (void)context;
    az_err err = az_store_open_file(&set, tmp_path(FILE_NAME));
    if (err == AZ_OK)
        err = az_store_pack(&packed, &set);
    if (err == AZ_OK)
        err = az_store_unpack(&copy, packed.s, packed.len);
    az_store_close(&copy);
    az_store_close(&set);
    az_str_fini(&packed);
    return err;
}

static az_err write_one(void *context)
{
    static const float a[2] = {1, 2};
    az_tensor_out out[] = {{"a", AZ_F32, 1, {2}, a}, {"b", AZ_F32, 1, {1}, a}};
    return az_store_write(context, out, 2);
}

/* A file of several faults: they fail in memory, or in what they say. */
static az_err open_bad(void *context)
{
    az_tensor_set set;
    az_err err = az_store_open_file(&set, context);
    assert_int_not_equal(err, AZ_OK);
    if (err == AZ_EINPUT) {
        az_err_clear();
        err = AZ_OK;
    }
    return err;
}

static void test_allocations(void **state)
{
    (void)state;
    put_safetensors(tmp_path(FILE_NAME), good, 40);
    try_all_allocations(open_and_close, NULL);
    char path[300];
    snprintf(path, sizeof path, "%s/w.safetensors", tmp_dir);
    try_all_allocations(write_one, path);
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        put_safetensors(path, bad_headers[i].header, bad_headers[i].data_bytes);
        try_all_allocations(open_bad, path);
    }
    /* no temporary file is left */
    DIR *d = opendir(tmp_dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        assert_null(strstr(e->d_name, ".tmp-"));
    closedir(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_nothing_inside),
        cmocka_unit_test(test_alias),       cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_files),   cmocka_unit_test(test_all_faults),
        cmocka_unit_test(test_write),       cmocka_unit_test(test_pack),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
