/* What the tests of kern share: arrays of reproducible numbers in f32 and double, and errors that
 * are NaN as soon as one element is. */
#ifndef AZ_TESTS_KERN_TEST_H
#define AZ_TESTS_KERN_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kern/kern.h"
#include "kern/kern_ref.h"
#include "tol.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Fail with numbers; NaN fails. */
#define CHECK_ERROR(err, tol)                                                                \
    do {                                                                                     \
        double err_ = (err), tol_ = (tol);                                                   \
        if (!(err_ <= tol_)) {                                                               \
            print_error("%s:%d: %s = %g, limit %g\n", __FILE__, __LINE__, #err, err_, tol_); \
            fail();                                                                          \
        }                                                                                    \
    } while (0)

static inline float *floats(size_t n)
{
    float *p = az_alloc(n + 1, sizeof *p, "test");
    assert_non_null(p);
    return p;
}

static inline double *doubles(size_t n)
{
    double *p = az_alloc(n + 1, sizeof *p, "test");
    assert_non_null(p);
    return p;
}

/* Element i of a stream of standard normal values. */
static inline double normal(uint32_t stream, size_t i)
{
    uint32_t w[4];
    double z[2];
    az_philox(w, 1234, (uint32_t)i, stream, 0, 99);
    az_u32_to_normal(z, w[0], w[1]);
    return z[0];
}

/* Normal values rounded to f32. */
static inline float *random_floats(size_t n, uint32_t stream)
{
    float *p = floats(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)normal(stream, i);
    return p;
}

static inline double *widened(const float *x, size_t n)
{
    double *p = doubles(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (double)x[i];
    return p;
}

/* A weight of type t with its exact values in *out_exact. Free both. */
static inline az_view random_view(az_dtype t, int64_t rows, int64_t cols, uint32_t stream,
                                  double **out_exact)
{
    size_t n = (size_t)(rows * cols);
    uint16_t *half = az_alloc(n + 1, 4, "test");
    float *full = (float *)(void *)half;
    assert_non_null(half);
    *out_exact = doubles(n);
    for (size_t i = 0; i < n; i++) {
        float x = (float)normal(stream, i);
        if (t == AZ_F32) {
            full[i] = x;
        } else if (t == AZ_BF16) {
            half[i] = az_f32_to_bf16(x).bits;
            x = az_bf16_to_f32((az_bf16){half[i]});
        } else {
            half[i] = az_f32_to_f16(x).bits;
            x = az_f16_to_f32((az_f16){half[i]});
        }
        (*out_exact)[i] = (double)x;
    }
    return (az_view){.data = half, .dtype = t, .rows = rows, .cols = cols};
}

/* max|got - ref| / max|ref|; NaN if any element is. */
static inline double error_of(const float *got, const double *ref, size_t n)
{
    double err = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - ref[i]);
        if (!(d <= err))
            err = d;
        if (isnan(d))
            return NAN;
        top = fmax(top, fabs(ref[i]));
    }
    return top > 0 ? err / top : err;
}

/* The same for two arrays in double. */
static inline double error_of_doubles(const double *got, const double *ref, size_t n)
{
    double err = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs(got[i] - ref[i]);
        if (isnan(d))
            return NAN;
        err = fmax(err, d);
        top = fmax(top, fabs(ref[i]));
    }
    return top > 0 ? err / top : err;
}

static inline double inner(const double *x, const double *y, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * y[i];
    return s;
}

/* Central differences: what must equal d (out . w) / d x[i]. f(out, ctx) computes out [n_out] from
 * the x that ctx holds. grad [n] is overwritten. */
static inline void differences(double *grad, double *x, size_t n, void (*f)(double *, void *),
                               void *ctx, const double *w, size_t n_out)
{
    const double h = 1e-5;
    double *out = doubles(n_out);
    for (size_t i = 0; i < n; i++) {
        double x0 = x[i];
        x[i] = x0 + h;
        f(out, ctx);
        double up = inner(out, w, n_out);
        x[i] = x0 - h;
        f(out, ctx);
        grad[i] = (up - inner(out, w, n_out)) / (2 * h);
        x[i] = x0;
    }
    az_free(out);
}

/* Nothing that the test allocated is left. */
static inline int no_blocks_left(void **state)
{
    (void)state;
    return az_mem_get_total().blocks == 0 ? 0 : -1;
}

#endif
