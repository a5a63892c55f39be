/* base: files, paths, strings. Every failure by its message; a failed write leaves the old file and
 * nothing beside it. */
#include <config.h>

#include "base_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/adze-base-XXXXXX");
    return mkdtemp(dir) == NULL || chdir(dir) != 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink("f");
    unlink("g");
    rmdir("a/b/c");
    rmdir("a/b");
    rmdir("a");
    rmdir("d");
    return chdir("/") != 0 || rmdir(dir) != 0;
}

/* Files here, without . and .. */
static int count_files(void)
{
    int n = -2;
    DIR *d = opendir(".");
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static void assert_holds(const char *path, const char *text)
{
    char *data;
    size_t bytes;
    assert_int_equal(az_file_read(&data, &bytes, path), AZ_OK);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(data, text);
    az_free(data);
}

static void write_and_read(void **state)
{
    (void)state;
    int64_t size;
    int fd;
    char part[4] = "";
    assert_int_equal(az_file_write_atomic("f", "hello", 5), AZ_OK);
    assert_holds("f", "hello");
    assert_int_equal(az_file_write_atomic("f", "", 0), AZ_OK);
    assert_holds("f", "");
    const az_part parts[] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    assert_int_equal(az_file_write_parts("g", parts, 3), AZ_OK);
    assert_int_equal(az_file_rename("g", "f"), AZ_OK);
    assert_holds("f", "abcdef");
    assert_int_equal(count_files(), 1);
    assert_int_equal(az_file_size(&size, "f"), AZ_OK);
    assert_int_equal(size, 6);
    assert_int_equal(az_file_open(&fd, "f"), AZ_OK);
    assert_int_equal(az_file_read_at(fd, part, 3, 2, "f"), AZ_OK);
    assert_string_equal(part, "cde");
    assert_int_equal(az_file_read_at(fd, part, 3, 4, "f"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "f: the file ends at byte 6, 3 bytes at 4 were expected");
    close(fd);
    assert_true(az_file_exists("f"));
    assert_false(az_file_exists("."));
    assert_false(az_file_exists("none"));
    assert_true(az_dir_exists("."));
    assert_false(az_dir_exists("f"));
}

static void reading_fails(void **state)
{
    (void)state;
    char *data = (char *)1;
    size_t bytes;
    int64_t size;
    int fd;
    assert_int_equal(az_file_read(&data, &bytes, "none"), AZ_EINPUT);
    assert_null(data);
    assert_string_equal(az_err_message(), "none: cannot open: No such file or directory");
    az_err_clear();
    assert_int_equal(az_file_size(&size, "."), AZ_EINPUT);
    assert_string_equal(az_err_message(), ".: not a regular file");
    az_err_clear();
    assert_int_equal(az_file_open(&fd, "."), AZ_EINPUT);
    assert_string_equal(az_err_message(), ".: cannot read: Is a directory");
    az_err_clear();
    assert_int_equal(az_file_read_at(-1, &size, 1, 0, "f"), AZ_EENV);
    assert_string_equal(az_err_message(), "f: cannot read: Bad file descriptor");
    az_err_clear();
    assert_int_equal(az_file_write_atomic("f", "x", 1), AZ_OK);
    az_mem_set_fault(0);
    assert_int_equal(az_file_read(&data, &bytes, "f"), AZ_EENV);
    assert_null(data);
}

static void writing_into_nowhere_fails(void **state)
{
    (void)state;
    char text[128];
    assert_int_equal(az_file_write_atomic("none/f", "x", 1), AZ_EINPUT);
    snprintf(text, sizeof text, "none/f.tmp-%ld: cannot write: No such file or directory",
             (long)getpid());
    assert_string_equal(az_err_message(), text);
    az_err_clear();
    assert_int_equal(az_file_rename("none", "f"), AZ_EINPUT);
    assert_string_equal(az_err_message(),
                        "f: cannot rename a temporary file to: No such file or directory");
}

/* The name is taken by a directory: the temporary file goes. */
static void renaming_fails(void **state)
{
    (void)state;
    assert_int_equal(az_dir_create("d"), AZ_OK);
    int before = count_files();
    assert_int_equal(az_file_write_atomic("d", "x", 1), AZ_EINPUT);
    assert_string_equal(az_err_message(), "d: cannot rename a temporary file to: Is a directory");
    assert_int_equal(count_files(), before);
    assert_int_equal(rmdir("d"), 0);
}

/* A link stays one; what is no file is written into, not replaced. */
static void writing_to_what_is_no_file(void **state)
{
    (void)state;
    struct stat st;
    char text[8] = "";
    assert_int_equal(az_file_write_atomic("f", "old", 3), AZ_OK);
    assert_int_equal(symlink("f", "link"), 0);
    assert_int_equal(az_file_write_atomic("link", "new", 3), AZ_OK);
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_holds("f", "new");
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    int fd = open("pipe", O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(az_file_write_atomic("pipe", "rows", 4), AZ_OK);
    assert_int_equal(read(fd, text, sizeof text), 4);
    assert_string_equal(text, "rows");
    assert_int_equal(lstat("pipe", &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    close(fd);
    assert_int_equal(unlink("pipe"), 0);
}

static void names_that_cannot_be(void **state)
{
    (void)state;
    static char name[5000];
    int64_t bytes;
    memset(name, 'n', sizeof name - 1);
    assert_int_equal(az_file_size(&bytes, name), AZ_EINPUT);
    assert_non_null(strstr(az_err_message(), "nnn: cannot open: File name too long"));
    az_err_clear();
    assert_int_equal(symlink("circle", "circle"), 0);
    assert_int_equal(az_file_size(&bytes, "circle"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "circle: cannot open: Too many levels of symbolic links");
    assert_int_equal(unlink("circle"), 0);
    az_err_clear();
    assert_int_equal(az_file_size(&bytes, "\x1b[31mred"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "?[31mred: cannot open: No such file or directory");
}

static void room(void **state)
{
    (void)state;
    assert_int_equal(az_dir_check_room(".", 1), AZ_OK);
    assert_int_equal(az_dir_check_room(".", INT64_MAX), AZ_EENV);
    assert_non_null(
        strstr(az_err_message(), " are free on this file system, 8192.00 PiB are needed"));
    az_err_clear();
    assert_int_equal(az_dir_check_room("none", 1), AZ_EINPUT);
    assert_string_equal(az_err_message(),
                        "none: cannot write in directory: No such file or directory");
}

/* A limit on the size of files stands for a full disk: it stops the write in the middle. */
static void a_write_that_does_not_fit(void **state)
{
    (void)state;
    struct rlimit old, small;
    static const char large[100000];
    assert_int_equal(az_file_write_atomic("f", "old", 3), AZ_OK);
    int before = count_files();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 5000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    az_err err = az_file_write_atomic("f", large, sizeof large);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err, AZ_EENV);
    assert_non_null(strstr(az_err_message(), ": cannot write: File too large"));
    assert_holds("f", "old");
    assert_int_equal(count_files(), before);
}

static void writing_without_memory(void **state)
{
    (void)state;
    assert_int_equal(az_file_write_atomic("f", "old", 3), AZ_OK);
    size_t blocks = az_mem_get_total().blocks;
    az_err err = AZ_EENV;
    int n = 0;
    for (; err != AZ_OK; n++) {
        az_err_clear();
        az_mem_set_fault(n);
        err = az_file_write_atomic("f", "new", 3);
        az_mem_set_fault(-1);
        assert_true(err == AZ_OK || err == AZ_EENV);
        assert_int_equal(az_mem_get_total().blocks, blocks);
        assert_true(n < 20);
    }
    assert_true(n > 1);
    assert_holds("f", "new");
    assert_int_equal(count_files(), 1);
}

static void directories(void **state)
{
    (void)state;
    assert_int_equal(az_dir_create("a/b/c"), AZ_OK);
    assert_true(az_dir_exists("a/b/c"));
    assert_int_equal(az_dir_create("a/b/c/"), AZ_OK);
    assert_int_equal(az_dir_create("a"), AZ_OK);
    assert_int_equal(az_file_write_atomic("f", "x", 1), AZ_OK);
    assert_int_equal(az_dir_create("f/x"), AZ_EINPUT);
    assert_string_equal(az_err_message(), "f: cannot create directory: File exists");
    az_err_clear();
    az_mem_set_fault(0);
    assert_int_equal(az_dir_create("a"), AZ_EENV);
}

static void paths(void **state)
{
    (void)state;
    static const char *const joins[][3] = {
        {"a", "b", "a/b"}, {"a", "/b", "/b"}, {".", "b/c", "./b/c"}};
    static const char *const dirs[][2] = {
        {"a/b", "a"}, {"/a", "/"}, {"a", "."}, {"/a/b/c", "/a/b"}};
    for (size_t i = 0; i < 3; i++) {
        char *p = az_path_join(joins[i][0], joins[i][1]);
        assert_string_equal(p, joins[i][2]);
        az_free(p);
    }
    for (size_t i = 0; i < 4; i++) {
        char *p = az_path_dir(dirs[i][0]);
        assert_string_equal(p, dirs[i][1]);
        az_free(p);
    }
    az_mem_set_fault(0);
    assert_null(az_path_join("a", "b"));
    az_mem_set_fault(0);
    assert_null(az_path_dir("a"));
}

static void strings_grow(void **state)
{
    (void)state;
    az_str s = {0};
    assert_int_equal(az_str_add(&s, "%s", ""), AZ_OK);
    assert_string_equal(s.s, "");
    for (int i = 0; i < 1000; i++)
        assert_int_equal(az_str_add(&s, "%03d,", i), AZ_OK);
    assert_int_equal(s.len, 4000);
    assert_memory_equal(s.s + 3996, "999,", 5);
    assert_int_equal(az_str_add_bytes(&s, "a\0b", 3), AZ_OK);
    assert_int_equal(s.len, 4003);
    assert_memory_equal(s.s + 4000, "a\0b", 4);
    assert_int_equal(az_str_add_bytes(&s, NULL, 0), AZ_OK);
    az_str_fini(&s);
    assert_null(s.s);
    az_str_fini(&s);
    az_mem_set_fault(0);
    assert_int_equal(az_str_add(&s, "x"), AZ_EENV);
    az_str_fini(&s);
}

static void numbers_for_people(void **state)
{
    (void)state;
    assert_string_equal(az_format_bytes(0), "0 B");
    assert_string_equal(az_format_bytes(1023), "1023 B");
    assert_string_equal(az_format_bytes(1536), "1.50 KiB");
    assert_string_equal(az_format_bytes(0x1p31), "2.00 GiB");
    assert_string_equal(az_format_bytes(0x1p70), "1048576.00 PiB");
    assert_string_equal(az_format_count(0), "0");
    assert_string_equal(az_format_count(999), "999");
    assert_string_equal(az_format_count(6738415616), "6,738,415,616");
    assert_string_equal(az_format_count(-1000), "-1,000");
    assert_string_equal(az_format_count(LLONG_MAX), "9,223,372,036,854,775,807");
    assert_string_equal(az_format_seconds(12.34), "12.3s");
    assert_string_equal(az_format_seconds(200), "3m20s");
    assert_string_equal(az_format_seconds(7500), "2h05m");
    assert_string_equal(az_format_seconds(864000), "10.0d");
    const char *a = az_format_count(1), *b = az_format_count(2), *c = az_format_count(3),
               *d = az_format_count(4);
    assert_true(a[0] == '1' && b[0] == '2' && c[0] == '3' && d[0] == '4');
}

static void distances(void **state)
{
    (void)state;
    assert_int_equal(az_str_distance("", ""), 0);
    assert_int_equal(az_str_distance("", "abc"), 3);
    assert_int_equal(az_str_distance("abc", ""), 3);
    assert_int_equal(az_str_distance("kitten", "sitting"), 3);
    assert_int_equal(az_str_distance("sitting", "kitten"), 3);
    assert_int_equal(az_str_distance("r", "lr"), 1);
    char x[200], y[200];
    memset(x, 'x', sizeof x);
    memset(y, 'y', sizeof y);
    x[199] = y[199] = '\0';
    assert_int_equal(az_str_distance(x, y), 63); /* only so much is looked at */
}

#define TEST(f) cmocka_unit_test_setup(f, clear_error)

static void lines_are_walked(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf"
                               "one\r\n\n \t\r\n\xef\xbb\xbf\nlast\r";
    static const char *const expected[] = {"one", "", " \t", "\xef\xbb\xbf", "last"};
    const char *line;
    size_t n, at = 0;
    for (int i = 0; i < 5; i++) {
        assert_true(az_str_next_line(&line, &n, text, sizeof text - 1, &at));
        assert_int_equal(n, strlen(expected[i]));
        assert_memory_equal(line, expected[i], n);
        assert_int_equal(az_str_is_blank(line, n), i == 1 || i == 2);
    }
    assert_false(az_str_next_line(&line, &n, text, sizeof text - 1, &at));
    at = 0;
    assert_false(az_str_next_line(&line, &n, text, 0, &at));
    assert_true(az_str_next_line(&line, &n, "x\n", 2, &at));
    assert_false(az_str_next_line(&line, &n, "x\n", 2, &at));
}

static void utf8_is_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t valid;
    } cases[] = {{"", 0},
                 {"a\x7f", 2},
                 {"\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", 10},
                 {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8},
                 {"a\x80", 1},            /* nothing that it continues */
                 {"a\xc1\xbf", 1},        /* overlong */
                 {"\xe0\x9f\xbf", 0},     /* overlong */
                 {"\xf0\x8f\xbf\xbf", 0}, /* overlong */
                 {"\xed\xa0\x80", 0},     /* a surrogate */
                 {"\xf4\x90\x80\x80", 0}, /* beyond U+10FFFF */
                 {"\xf5\x80\x80\x80", 0}, /* likewise */
                 {"ab\xe2\x82", 2},       /* cut */
                 {"ab\xe2\x82z", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(az_str_check_utf8(cases[i].text, strlen(cases[i].text)), cases[i].valid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(write_and_read),
        TEST(reading_fails),
        TEST(writing_into_nowhere_fails),
        TEST(renaming_fails),
        TEST(writing_to_what_is_no_file),
        TEST(names_that_cannot_be),
        TEST(room),
        TEST(a_write_that_does_not_fit),
        TEST(writing_without_memory),
        TEST(directories),
        TEST(paths),
        TEST(strings_grow),
        TEST(numbers_for_people),
        TEST(distances),
        TEST(lines_are_walked),
        TEST(utf8_is_checked),
    };
    return cmocka_run_group_tests_name("base files and strings", tests, setup, teardown) != 0;
}
