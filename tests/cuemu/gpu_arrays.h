/* What the tests of a GPU's kernels share: the operations on GPU 0 for a type of activations, and
 * arrays on it. Every array is followed by a zone that no kernel may write; a test's arrays can be
 * made to begin off the boundary that fast accesses need. */
#ifndef AZ_TESTS_CUEMU_GPU_ARRAYS_H
#define AZ_TESTS_CUEMU_GPU_ARRAYS_H

#include "tests/unit/kern_test.h"

#include "tests/cuemu/gpu.h"

enum { GPU_ARRAYS = 64, GPU_ZONE = 256, GPU_ZONE_BYTE = 0x5a };

static struct {
    az_dev *dev;
    az_kern kern;
    const az_kern_ops *op;
    az_kern_self *self;
    size_t shift; /* arrays begin so many of their elements after a boundary */
    struct {
        char *base;
        size_t bytes;
    } array[GPU_ARRAYS];
    int n_arrays;
} gpu;

static inline void gpu_use(az_dtype act)
{
    if (gpu.dev == NULL)
        gpu.dev = open_gpu(0);
    if (gpu.self != NULL)
        az_kern_close(&gpu.kern);
    if (az_kern_open(&gpu.kern, gpu.dev, act) != AZ_OK)
        gpu_failed(NULL, az_err_message());
    gpu.op = gpu.kern.op;
    gpu.self = gpu.kern.self;
}

/* Closes all; nothing may be left. */
static inline int gpu_end(void **state)
{
    az_kern_close(&gpu.kern);
    az_dev_close(gpu.dev);
    return no_blocks_left(state);
}

static inline void gpu_wait(void)
{
    az_dev_sync(gpu.dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
}

/* n elements of size bytes on the device: those at host, or 0xff. */
static inline void *gpu_put(const void *opt_host, size_t n, size_t size)
{
    const size_t bytes = (n + gpu.shift) * size;
    char *base, zone[GPU_ZONE];
    assert_true(gpu.n_arrays < GPU_ARRAYS);
    assert_int_equal(az_dev_alloc((void **)&base, gpu.dev, bytes + GPU_ZONE, "test"), AZ_OK);
    memset(zone, GPU_ZONE_BYTE, sizeof zone);
    az_dev_fill(gpu.dev, AZ_QUEUE_COMPUTE, base, 0xff, bytes);
    if (opt_host != NULL && n > 0)
        az_dev_copy_in(gpu.dev, AZ_QUEUE_COMPUTE, base + gpu.shift * size, opt_host, n * size);
    az_dev_copy_in(gpu.dev, AZ_QUEUE_COMPUTE, base + bytes, zone, sizeof zone);
    gpu.array[gpu.n_arrays].base = base;
    gpu.array[gpu.n_arrays++].bytes = bytes;
    return base + gpu.shift * size;
}

static inline void gpu_get(void *host, const void *device, size_t bytes)
{
    if (bytes > 0)
        az_dev_copy_out(gpu.dev, AZ_QUEUE_COMPUTE, host, device, bytes);
    gpu_wait();
}

/* Gives all arrays back; their zones must be as they were. */
static inline void gpu_free_all(void)
{
    char zone[GPU_ZONE];
    for (int i = 0; i < gpu.n_arrays; i++) {
        gpu_get(zone, gpu.array[i].base + gpu.array[i].bytes, sizeof zone);
        for (int j = 0; j < GPU_ZONE; j++)
            assert_int_equal(zone[j], GPU_ZONE_BYTE);
        az_dev_free(gpu.dev, gpu.array[i].base);
    }
    gpu.n_arrays = 0;
}

/* ---- activations ---- */

static inline size_t act_bytes(void)
{
    return az_dtype_bytes(gpu.kern.numeric.act);
}

/* x as the activations' type holds it. */
static inline void round_act(float *x, size_t n)
{
    if (gpu.kern.numeric.act == AZ_BF16)
        for (size_t i = 0; i < n; i++)
            x[i] = az_bf16_to_f32(az_f32_to_bf16(x[i]));
}

/* Normal values that the activations' type holds. */
static inline float *random_act(size_t n, uint32_t stream)
{
    float *x = random_floats(n, stream);
    round_act(x, n);
    return x;
}

/* n activations on the device, with the values of x, or NaN. */
static inline void *put_act(const float *opt_x, size_t n)
{
    if (gpu.kern.numeric.act == AZ_F32 || opt_x == NULL)
        return gpu_put(opt_x, n, act_bytes());
    az_bf16 *half = az_alloc(n + 1, sizeof *half, "test");
    for (size_t i = 0; i < n; i++)
        half[i] = az_f32_to_bf16(opt_x[i]);
    void *device = gpu_put(half, n, sizeof *half);
    gpu_wait();
    az_free(half);
    return device;
}

static inline void get_act(float *x, const void *device, size_t n)
{
    if (gpu.kern.numeric.act == AZ_F32) {
        gpu_get(x, device, n * sizeof *x);
        return;
    }
    az_bf16 *half = az_alloc(n + 1, sizeof *half, "test");
    gpu_get(half, device, n * sizeof *half);
    for (size_t i = 0; i < n; i++)
        x[i] = az_bf16_to_f32(half[i]);
    az_free(half);
}

/* A view's copy on the device. */
static inline az_view put_view(az_view w)
{
    if (w.data != NULL)
        w.data = gpu_put(w.data, (size_t)(w.rows * w.cols), az_dtype_bytes(w.dtype));
    return w;
}

/* The device's activations against exact values: the largest error beyond what rounding the result
 * to the activations' type costs, relative to the largest value. NaN if one is. */
static inline double act_error(const void *device, const double *ref, size_t n)
{
    const double unit = gpu.kern.numeric.act == AZ_BF16 ? TOL_ROUND_BF16 : 0;
    float *got = floats(n);
    double err = 0, top = 0;
    get_act(got, device, n);
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - ref[i]) - unit * fabs(ref[i]);
        if (isnan(d))
            err = NAN;
        err = d > err ? d : err;
        top = fmax(top, fabs(ref[i]));
    }
    az_free(got);
    return top > 0 ? err / top : err;
}

/* Runs test for both types of activations, with arrays at a boundary and off it. */
static inline void for_all_kinds(void (*test)(void))
{
    for (int act = AZ_F32; act <= AZ_BF16; act += AZ_BF16 - AZ_F32) {
        gpu_use((az_dtype)act);
        for (size_t shift = 0; shift < 2; shift++) {
            gpu.shift = shift;
            test();
        }
        gpu.shift = 0;
    }
}

#endif
