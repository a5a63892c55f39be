/* The files of a set as memory: the bytes are the file's; a file that was cut before is refused,
 * one that is written to is noticed, one that is cut while it is in use ends the process with one
 * message and code 3; a SIGBUS of other memory is what it was. */
#include <config.h>

#include "store_util.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "store/map.h"

static const char header[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                             "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]}}";

static void open_set(az_tensor_set *set, const char *name, int spaces)
{
    char text[200];
    const int n = snprintf(text, sizeof text, "%s%*s", header, spaces, "");
    assert_true(n > 0);
    put_safetensors(tmp_path(name), text, 32);
    assert_int_equal(az_store_open_file(set, tmp_path(name)), AZ_OK);
}

static void test_bytes(void **state)
{
    (void)state;
    az_tensor_set set;
    az_store_map *map;
    bool aligned[2] = {false, false};
    for (int spaces = 0; spaces < 8; spaces++) {
        open_set(&set, "x.safetensors", spaces);
        assert_int_equal(az_store_map_create(&map, &set, "key"), AZ_OK);
        const az_tensor *a = az_store_find(&set, "a"), *b = az_store_find(&set, "b");
        for (int i = 0; i < 8; i++)
            assert_int_equal(az_store_map_get(map, a)[i], i);
        for (int i = 0; i < 24; i++)
            assert_int_equal(az_store_map_get(map, b)[i], 8 + i);
        assert_int_equal(az_store_is_aligned(b), (uintptr_t)az_store_map_get(map, b) % 4 == 0);
        assert_int_equal(az_store_is_aligned(a), (uintptr_t)az_store_map_get(map, a) % 2 == 0);
        aligned[az_store_is_aligned(b)] = true;
        assert_int_equal(az_store_map_check(map), AZ_OK);
        az_store_map_destroy(map);
        az_store_close(&set);
    }
    assert_true(aligned[0] && aligned[1]);
}

static az_err create_map(void *set)
{
    az_store_map *map;
    const az_err err = az_store_map_create(&map, set, "key");
    az_store_map_destroy(map);
    return err;
}

static void test_refused(void **state)
{
    (void)state;
    az_tensor_set set;
    az_store_map *map;
    open_set(&set, "y.safetensors", 0);
    try_all_allocations(create_map, &set);
    assert_int_equal(truncate(tmp_path("y.safetensors"), 100), 0);
    expect_failure(create_map(&set), AZ_EINPUT, "y.safetensors: truncated: the header says ");
    assert_int_equal(unlink(tmp_path("y.safetensors")), 0);
    expect_failure(create_map(&set), AZ_EINPUT, "y.safetensors: cannot open: No such file");
    az_store_close(&set);

    open_set(&set, "z.safetensors", 0);
    assert_int_equal(az_store_map_create(&map, &set, "key"), AZ_OK);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, tmp_path("z.safetensors"), times, 0), 0);
    expect_failure(az_store_map_check(map), AZ_EENV, "z.safetensors: was written to while");
    az_store_map_destroy(map);
    az_store_close(&set);
}

/* Cut a file and read it where it was mapped, in a process of its own. What it wrote to standard
 * error is in text. */
static int read_cut(char *text, size_t bytes, bool ours)
{
    int status;
    const int fd = open(tmp_path("stderr"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    const pid_t pid = fork();
    if (pid == 0) {
        az_tensor_set set;
        az_store_map *map;
        dup2(fd, STDERR_FILENO);
        signal(SIGBUS, SIG_DFL); /* cmocka's */
        open_set(&set, "cut.safetensors", 0);
        const int other = open(tmp_path("other"), O_RDWR | O_CREAT, 0600);
        const int code = ftruncate(other, 5000) != 0 || az_store_map_create(&map, &set, "key");
        const volatile char *foreign = mmap(NULL, 5000, PROT_READ, MAP_SHARED, other, 0);
        if (code != 0 || foreign == MAP_FAILED)
            _exit(99);
        if (truncate(tmp_path("cut.safetensors"), 0) != 0 || ftruncate(other, 0) != 0)
            _exit(99);
        const char c = ours ? *(volatile const char *)az_store_map_get(map, set.tensors) : *foreign;
        _exit(c == 1 ? 98 : 97);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    const ssize_t n = pread(fd, text, bytes - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return status;
}

static void test_cut(void **state)
{
    (void)state;
    char text[1000], expected[1000];
    int status = read_cut(text, sizeof text, true);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), AZ_EENV);
    snprintf(expected, sizeof expected,
             "adze: error: %s: cannot be read any more: the file was cut or its disk fails, while "
             "it is in use in place (key)\n",
             tmp_path("cut.safetensors"));
    assert_string_equal(text, expected);
    status = read_cut(text, sizeof text, false);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_cut)};
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
