/* A GPU's operations for a test, and arrays that go there and back. What is given to an operation
 * is rounded to the type of the activations on the host, so that the plain twin is given the same
 * numbers. */
#ifndef AZ_TESTS_CUEMU_KERN_GPU_H
#define AZ_TESTS_CUEMU_KERN_GPU_H

#include "tests/cuemu/gpu.h"
#include "tests/unit/kern_test.h"

static const az_dtype acts[] = {AZ_F32, AZ_BF16};

/* Opened once for each type; closed by close_kerns. */
static az_dev *gpu_dev;
static az_kern gpu_kerns[2];

static inline az_kern *open_kern(az_dtype act)
{
    az_kern *kern = &gpu_kerns[act == AZ_BF16];
    if (gpu_dev == NULL)
        gpu_dev = open_gpu(0);
    if (kern->op == NULL)
        assert_int_equal(az_kern_open(kern, gpu_dev, act), AZ_OK);
    return kern;
}

static inline int close_kerns(void **state)
{
    az_kern_close(&gpu_kerns[0]);
    az_kern_close(&gpu_kerns[1]);
    az_dev_close(gpu_dev);
    gpu_dev = NULL;
    return no_blocks_left(state);
}

/* What is left of x in type t. */
static inline void round_floats(float *x, size_t n, az_dtype t)
{
    for (size_t i = 0; t == AZ_BF16 && i < n; i++)
        x[i] = az_bf16_to_f32(az_f32_to_bf16(x[i]));
}

static inline float *random_acts(size_t n, uint32_t stream, az_dtype act)
{
    float *x = random_floats(n, stream);
    round_floats(x, n, act);
    return x;
}

static inline void *to_gpu(const void *x, size_t bytes)
{
    void *d;
    assert_int_equal(az_dev_alloc(&d, gpu_dev, bytes, "test"), AZ_OK);
    az_dev_copy_in(gpu_dev, AZ_QUEUE_COMPUTE, d, x, bytes);
    return d;
}

/* An array in device memory with x's numbers in type t; they must be of that type. */
static inline void *floats_to_gpu(const float *x, size_t n, az_dtype t)
{
    az_bf16 *narrow = az_alloc(n + 1, sizeof *narrow, "test");
    for (size_t i = 0; i < n; i++)
        narrow[i] = az_f32_to_bf16(x[i]);
    void *d = to_gpu(t == AZ_F32 ? (const void *)x : narrow, n * az_dtype_bytes(t));
    az_dev_sync(gpu_dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    az_free(narrow);
    return d;
}

/* What lies there, as f32; the device's array is freed. */
static inline float *floats_from_gpu(void *d, size_t n, az_dtype t)
{
    float *x = floats(n);
    void *copy = az_alloc(n + 1, az_dtype_bytes(t), "test");
    az_dev_copy_out(gpu_dev, AZ_QUEUE_COMPUTE, copy, d, n * az_dtype_bytes(t));
    az_dev_sync(gpu_dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    az_widen(x, copy, t, n);
    az_free(copy);
    az_dev_free(gpu_dev, d);
    return x;
}

static inline az_view view_to_gpu(az_view v)
{
    v.data = to_gpu(v.data, (size_t)(v.rows * v.cols) * az_dtype_bytes(v.dtype));
    return v;
}

static inline void free_gpu(const void *d)
{
    az_dev_free(gpu_dev, (void *)(uintptr_t)d);
}

#endif
