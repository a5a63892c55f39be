/* dev: the backend, a shared object that is opened when a GPU is asked for. */
#include <config.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dev/dev_priv.h"

/* Names another file as the backend: for tests, which use one that computes on the CPU. */
#define VARIABLE "ADZE_BACKEND"
#define NAME "adze-cuda.so"

static void *handle;

/* Beside an installed program's library directory, or beside a program that was built and not
 * installed. */
static const char *find_file(char *path, size_t size)
{
    const char *named = getenv(VARIABLE);
    if (named != NULL && *named != '\0')
        return named;
    snprintf(path, size, "%s/%s", AZ_PKGLIBDIR, NAME);
    if (az_file_exists(path))
        return path;
    const ssize_t n = readlink("/proc/self/exe", path, size - sizeof "/" NAME);
    char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
    if (slash != NULL)
        memcpy(slash, "/" NAME, sizeof "/" NAME);
    return path;
}

const az_dev_backend *az_dev_open_backend(char *out_why, size_t size)
{
    char path[4096];
    const char *file = find_file(path, sizeof path);
    if (handle == NULL && !az_file_exists(file)) {
        snprintf(out_why, size, "adze was built without CUDA (%s is not there)", file);
        return NULL;
    }
    if (handle == NULL)
        handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(out_why, size, "%s", dlerror());
        return NULL;
    }
    const az_dev_backend *backend = dlsym(handle, AZ_BACKEND_DEV);
    if (backend == NULL || backend->version != AZ_BACKEND_VERSION) {
        snprintf(out_why, size, "%s does not belong to this version of adze: install both anew",
                 file);
        return NULL;
    }
    return backend;
}

const void *az_dev_find_table(const char *name)
{
    return handle != NULL ? dlsym(handle, name) : NULL;
}

az_err az_dev_list_gpus(az_gpu_info **out_gpus, int *out_n, char *out_why, size_t size)
{
    az_err err = AZ_OK;
    char text[256] = "";
    az_gpu_info *gpus = NULL;
    int n = 0;
    *out_gpus = NULL;
    *out_n = 0;
    const az_dev_backend *backend = az_dev_open_backend(out_why, size);
    if (backend == NULL)
        return AZ_OK;
    if (backend->count(&n, out_why, size) != 0 || n == 0)
        return AZ_OK;
    AZ_TRY(AZ_NEW(gpus, (size_t)n, "devices"));
    for (int i = 0; i < n; i++)
        if (backend->describe(i, &gpus[i], text, sizeof text) != 0)
            AZ_TRY(az_fail(AZ_EENV, "GPU %d cannot be asked what it is: %s", i, text));
    *out_gpus = gpus;
    *out_n = n;
    gpus = NULL;
out:
    az_free(gpus);
    return err;
}

void az_dev_describe_backend(char *text, size_t size)
{
    char why[512];
    const az_dev_backend *backend = az_dev_open_backend(why, sizeof why);
    *text = '\0';
    if (backend != NULL)
        backend->get_versions(text, size);
}
