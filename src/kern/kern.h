/* kern: the numeric operations of training and generation.
 *
 * ops.h lists them. What a rank computes on, and in which type of activations, is an az_kern; its
 * table is filled by the CPU's kernels (kern_cpu.h, _cpu) or by a backend's (backend.h, _cuda).
 * Each has a plain twin in double precision, NAME_ref in kern_ref.h, that the tests hold against it
 * and differentiate by differences. All Local. */
#ifndef AZ_KERN_KERN_H
#define AZ_KERN_KERN_H

#include "base/base.h"
#include "dev/dev.h"
#include "kern/ops.h"

/* What decides the sizes and the bits of what is computed: the kind of device, and the type of
 * activations. The CPU has f32 alone. */
typedef struct {
    bool gpu;
    az_dtype act;
} az_numeric;

typedef struct {
    az_numeric numeric;
    az_dev *dev;           /* borrowed */
    const az_kern_ops *op; /* call: kern->op->add(kern->self, y, x, n) */
    az_kern_self *self;
} az_kern;

/* The operations on dev for activations of type act. Start from {0}. Refuses a type that the device
 * has no operations for. */
az_err az_kern_open(az_kern *kern, az_dev *dev, az_dtype act);
void az_kern_close(az_kern *kern);
/* Those of the CPU; need not be closed. */
const az_kern *az_kern_get_cpu(void);
/* Element i of an array of activations. */
static inline void *az_kern_at(const az_kern *kern, const void *x, int64_t i)
{
    return (char *)(uintptr_t)x + (size_t)i * az_dtype_bytes(kern->numeric.act);
}

/* Bytes of scratch that the linear operations want, whatever the sizes. Pure. */
size_t az_kern_linear_scratch(az_numeric numeric);
/* Bytes of scratch for attention over sequences of at most longest keys. Linear in longest. Pure.
 */
size_t az_kern_attention_scratch(az_numeric numeric, int64_t longest, int H, int G, int64_t K);
/* Tokens whose logits are held at a time: constants, so that no setting changes how a sum is split.
 */
static inline int64_t az_kern_head_tokens(az_numeric numeric)
{
    return numeric.gpu ? 1024 : 128;
}

/* The same for one double; returns the fixed-point value. */
int64_t az_kern_to_fixed(double x, double limit, int64_t *overflow);

/* ---- the library below (kern_blas.c) ---- */

/* To be called first in main, before MPI starts: an OpenBLAS that took kernels older than this CPU
 * (it does not know new CPUs) is remedied by setting OPENBLAS_CORETYPE to a core type whose
 * instructions the CPU has been checked for and executing the program again. Returns if nothing is
 * to be done or exec fails. A value set by the user is left alone. */
void az_kern_blas_remedy(char **argv);
/* "OpenBLAS 0.3.21, SkylakeX kernels, OpenMP" for the banner; *out_slow: the kernels are older than
 * the CPU. */
const char *az_kern_blas_describe(bool *out_slow);
/* Threads of OpenMP and the BLAS. n <= 0: leave as it is. Returns what is used. Warns of a BLAS
 * with threads of its own kind (pthreads) beside OpenMP. */
int az_kern_set_threads(int n);
/* The same at the start of a job, and the BLAS takes its buffers now: where there is no room for
 * them that is a failure here, not a hang later. */
az_err az_kern_start(int threads);

#endif
