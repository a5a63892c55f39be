/* The library below: description, threads, and the remedy for kernels older than the CPU.
 *
 * The remedy is tried for real: this program runs itself under an order for old kernels, forgets
 * the order, and asks for the remedy, as if the library had chosen them by itself. */
#include <config.h>

#include <cblas.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kern_test.h"

#define OLD "OPENBLAS_CORETYPE=Prescott "

/* What this program prints as "self MODE", behind the assignments in env. */
static void run_self(char *text, size_t size, const char *env, const char *mode)
{
    char path[2048], command[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    snprintf(command, sizeof command, "env -u OPENBLAS_CORETYPE -u ADZE_BLAS_REMEDY %s '%s' %s",
             env, path, mode);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    n = (ssize_t)fread(text, 1, size - 1, f);
    text[n] = '\0';
    assert_int_equal(pclose(f), 0);
}

static bool can_order_kernels(void)
{
    char text[512];
    run_self(text, sizeof text, OLD, "describe");
    return strstr(text, "Prescott kernels") != NULL && strstr(text, "older than this CPU") != NULL;
}

static void test_describe(void **state)
{
    (void)state;
    bool slow = true;
    const char *text = az_kern_blas_describe(&slow);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "BLAS"));
    assert_non_null(strstr(text, "kernels"));
    assert_true(slow == (strstr(text, "older than this CPU") != NULL));
    assert_string_equal(az_kern_blas_describe(NULL), text);
}

static void test_remedy(void **state)
{
    (void)state;
    char text[512];
    if (!can_order_kernels())
        skip();
    run_self(text, sizeof text, OLD, "remedy 'two  words' last");
    assert_non_null(strstr(text, "ordered by adze: left alone it takes Prescott"));
    assert_true(strstr(text, "SkylakeX kernels") != NULL ||
                strstr(text, "Haswell kernels") != NULL);
    assert_null(strstr(text, "older than this CPU"));
    /* Arguments survive. */
    assert_non_null(strstr(text, "[two  words][last]"));
}

/* What the user has set stays; a program that was executed again is not executed a third time. */
static void test_left_alone(void **state)
{
    (void)state;
    char text[512];
    if (!can_order_kernels())
        skip();
    run_self(text, sizeof text, OLD, "keep");
    assert_non_null(strstr(text, "Prescott kernels"));
    assert_null(strstr(text, "ordered by adze"));
    run_self(text, sizeof text, OLD "ADZE_BLAS_REMEDY=Prescott", "remedy");
    assert_non_null(strstr(text, "Prescott kernels"));
    assert_non_null(strstr(text, "older than this CPU"));
    run_self(text, sizeof text, "", "keep");
    assert_null(strstr(text, "Prescott kernels"));
}

static void test_threads(void **state)
{
    (void)state;
    int now = az_kern_set_threads(0);
    assert_true(now >= 1);
    assert_int_equal(az_kern_set_threads(-1), now);
    assert_int_equal(az_kern_set_threads(2), 2);
    assert_int_equal(az_kern_set_threads(0), 2);
    assert_int_equal(az_kern_set_threads(1), 1);
}

#ifndef AZ_SANITIZE
/* Leave room for so many bytes beyond what is taken; returns the limit that was there. */
static struct rlimit limit_room(size_t bytes)
{
    struct rlimit old, small;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes;
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    return old;
}

/* Without room for OpenBLAS's buffers there is a message; asked for later they would be tried
 * for ever, and so they are taken at the start. */
static void test_no_room(void **state)
{
    (void)state;
    enum { N = 512 };
    if (strstr(az_kern_blas_describe(NULL), "OpenBLAS") == NULL)
        skip();
    struct rlimit old = limit_room((size_t)64 << 20);
    az_err err = az_kern_start(1);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(err, AZ_EENV);
    assert_string_equal(az_err_message(), "out of memory: 258.00 MiB of address space for the "
                                          "buffers of OpenBLAS (1 thread); see ulimit -v");
    az_err_clear();
    assert_int_equal(az_kern_start(1), AZ_OK);
    float *x = random_floats(N * N, 1), *y = floats(N * N);
    old = limit_room((size_t)1 << 20);
    alarm(30);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, x, N, x, N, 0, y, N);
    alarm(0);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    az_free(x);
    az_free(y);
}
#endif

/* The same bits on any number of threads, for everything that has no BLAS in it. */
static void test_thread_bits(void **state)
{
    (void)state;
    enum { N = 90, D = 1100 };
    static const uint32_t sample[N];
    int32_t pos[N] = {0}, label[N] = {0};
    double *w;
    az_view wv = random_view(AZ_BF16, 1, D, 1, &w);
    float *x = random_floats(N * D, 2), *u = random_floats(N * D, 3);
    float *out[3][5];
    double *sum = doubles(N);
    for (int threads = 1; threads <= 3; threads++) {
        float **o = out[threads - 1], *max = floats(N), *hit = floats(N);
        az_kern_set_threads(threads);
        for (int i = 0; i < 5; i++)
            o[i] = floats(N * D);
        az_kern_silu_gate_forward_cpu(o[0], x, u, N * D);
        az_kern_rmsnorm_forward_cpu(o[1], x, wv, 1e-6, N, D);
        az_kern_rmsnorm_backward_cpu(o[2], u, x, wv, 1e-6, N, D);
        az_kern_dropout_cpu(o[3], x, false, 0.1, 1, 2, 3, sample, pos, N, D);
        memcpy(o[4], x, N * D * sizeof *x);
        az_kern_loss_begin_cpu(max, sum, hit, N);
        az_kern_loss_fold_cpu(max, sum, hit, o[4], label, 0, N, D);
        az_kern_loss_backward_cpu(o[4], max, sum, label, 1e-2, 0, N, D);
        az_free(max);
        az_free(hit);
    }
    for (int threads = 2; threads <= 3; threads++)
        for (int i = 0; i < 5; i++)
            assert_memory_equal(out[0][i], out[threads - 1][i], N * D * sizeof(float));
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 5; i++)
            az_free(out[t][i]);
    az_free((void *)(uintptr_t)wv.data);
    az_free(w);
    az_free(x);
    az_free(u);
    az_free(sum);
    az_kern_set_threads(1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#ifndef AZ_SANITIZE
        cmocka_unit_test(test_no_room), /* first: before the library has taken anything */
#endif
        cmocka_unit_test(test_describe),    cmocka_unit_test(test_remedy),
        cmocka_unit_test(test_left_alone),  cmocka_unit_test(test_threads),
        cmocka_unit_test(test_thread_bits),
    };
    if (argc > 1) {
        if (strcmp(argv[1], "remedy") == 0 && getenv("ADZE_BLAS_REMEDY") == NULL)
            unsetenv("OPENBLAS_CORETYPE");
        if (strcmp(argv[1], "describe") != 0)
            az_kern_blas_remedy(argv);
        printf("%s ", az_kern_blas_describe(NULL));
        for (int i = 2; i < argc; i++)
            printf("[%s]", argv[i]);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, no_blocks_left);
}
