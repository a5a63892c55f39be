/* A GPU for a test; work that fails on it ends the test with the text. */
#ifndef AZ_TESTS_CUEMU_GPU_H
#define AZ_TESTS_CUEMU_GPU_H

#include <stdio.h>
#include <stdlib.h>

#include "dev/dev.h"

static void gpu_failed(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
    exit(1);
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
