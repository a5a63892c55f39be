/* Preloaded by tests of what goes on while ranks compute: matrix products take as long as on a core
 * of SLOW_FLOPS operations a second. The rest of the time the rank sleeps, so that what else the
 * machine has to do changes little: what a product took too long, later ones make good. */
#define _GNU_SOURCE
#include <config.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

/* Below this, sleeping is not worth its own error, and is left to a later product. */
#define SHORTEST_S 0.002

typedef void gemm(int, int, int, int, int, int, float, const float *, int, const float *, int,
                  float, float *, int);
gemm cblas_sgemm;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    static gemm *next;
    static double flops;
    static __thread double owed;
    if (next == NULL) {
        const char *text = getenv("SLOW_FLOPS");
        flops = text != NULL ? atof(text) : 0;
        next = (gemm *)dlsym(RTLD_NEXT, "cblas_sgemm");
    }
    double begin = now();
    next(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (flops <= 0)
        return;
    double end = now();
    owed += 2.0 * m * n * k / flops - (end - begin);
    if (owed < SHORTEST_S)
        return;
    struct timespec rest = {(time_t)owed, (long)(1e9 * (owed - (double)(time_t)owed))};
    nanosleep(&rest, NULL);
    owed -= now() - end;
}
