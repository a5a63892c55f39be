/* kern: the table that belongs to a device, and the scratch that its operations want. */
#include <config.h>

#include "kern/backend.h"
#include "kern/cuda.h"
#include "kern/kern_priv.h"

az_err az_kern_open(az_kern *kern, az_dev *dev, az_dtype act)
{
    char text[256] = "";
    *kern = (az_kern){.numeric = {az_dev_is_gpu(dev), act}, .dev = dev};
    if (!az_dev_is_gpu(dev)) {
        if (act != AZ_F32)
            return az_fail(AZ_EINPUT, "run.compute: the CPU computes in f32, not in %s",
                           az_dtype_name(act));
        kern->op = &az_kern_ops_cpu;
        return AZ_OK;
    }
    const az_kern_backend *backend = az_dev_get_table(dev, AZ_BACKEND_KERN);
    if (backend == NULL)
        return az_fail(AZ_EENV, "the backend for GPUs has no kernels: install adze anew");
    const az_kern_ops *ops = backend->get_ops(act);
    if (ops == NULL)
        return az_fail(AZ_EINPUT, "run.compute: GPUs compute in bf16 or f32, not in %s",
                       az_dtype_name(act));
    if (backend->open(&kern->self, az_dev_get_self(dev), az_dev_get_host(dev), act, text,
                      sizeof text) != 0)
        return az_fail(AZ_EENV, "GPU %s: its kernels cannot be loaded: %s",
                       az_dev_get_info(dev)->pci, text);
    kern->op = ops;
    return AZ_OK;
}

const az_kern *az_kern_get_cpu(void)
{
    static az_kern cpu;
    if (cpu.op == NULL)
        (void)az_kern_open(&cpu, az_dev_get_cpu(), AZ_F32);
    return &cpu;
}

void az_kern_close(az_kern *kern)
{
    const az_kern_backend *backend =
        kern->self != NULL ? az_dev_get_table(kern->dev, AZ_BACKEND_KERN) : NULL;
    if (backend != NULL)
        backend->close(kern->self);
    *kern = (az_kern){0};
}

size_t az_kern_linear_scratch(az_numeric numeric)
{
    return numeric.gpu ? AZ_CUDA_LINEAR_ELEMENTS * az_dtype_bytes(numeric.act)
                       : az_kern_linear_scratch_cpu() * sizeof(float);
}

size_t az_kern_attention_scratch(az_numeric numeric, int64_t longest, int H, int G, int64_t K)
{
    return numeric.gpu ? az_cuda_attention_scratch(numeric.act, longest, H, G, K)
                       : az_kern_attention_scratch_cpu(longest, H, G, K) * sizeof(float);
}
