/* A GPU for a test; work that fails on it ends the test with the text. */
#ifndef AZ_TESTS_CUEMU_GPU_H
#define AZ_TESTS_CUEMU_GPU_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dev/dev.h"

static void gpu_failed(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
    exit(1);
}

/* Whether the backend is the one on the stand-in for CUDA; else it is a real GPU's. */
static inline bool is_stand_in(void)
{
    const char *backend = getenv("ADZE_BACKEND");
    return backend != NULL && strstr(backend, "adze-cuemu.so") != NULL;
}

/* index: among those that the process sees. */
static inline az_dev *open_gpu(int index)
{
    az_dev *dev = NULL;
    if (az_dev_open_gpu(&dev, index, gpu_failed, NULL) != AZ_OK) {
        fprintf(stderr, "no GPU: %s\n", az_err_message());
        exit(1);
    }
    return dev;
}

#endif
