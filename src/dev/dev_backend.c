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

/* Directories that the file was looked for in, and where it is. A program that was moved after it
 * was installed has its libraries in ../lib/adze, and one that was not installed in its own
 * directory. */
typedef struct {
    char text[2048], path[4096];
    bool found;
} search;

static void look_into(search *s, const char *dir, const char *rest)
{
    if (s->found)
        return;
    const size_t len = strlen(s->text);
    snprintf(s->text + len, sizeof s->text - len, "%s%s%s", len > 0 ? ", " : "", dir, rest);
    const int n = snprintf(s->path, sizeof s->path, "%s%s/%s", dir, rest, NAME);
    s->found = n < (int)sizeof s->path && az_file_exists(s->path);
}

static void find_file(search *s)
{
    char own[4096];
    look_into(s, AZ_PKGLIBDIR, "");
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    look_into(s, own, "/../lib/adze");
    look_into(s, own, "");
}

/* Whether the driver's library is there. It is asked first, because without it a backend is of no
 * use, and its libraries take about 95 MB of each process. */
static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver != NULL)
        dlclose(driver);
    return driver != NULL;
}

static const char *find_backend(search *s, char *out_why, size_t size)
{
    const char *named = getenv(VARIABLE);
    if (named == NULL || *named == '\0') {
        find_file(s);
        if (s->found && has_driver())
            return s->path;
        if (s->found)
            snprintf(out_why, size, "no driver of NVIDIA's is loaded");
        else
            snprintf(out_why, size, "adze was built without CUDA (no " NAME " in %s)", s->text);
    } else {
        if (az_file_exists(named))
            return named;
        snprintf(out_why, size, VARIABLE ": %s is not there", named);
    }
    return NULL;
}

const az_dev_backend *az_dev_open_backend(char *out_why, size_t size)
{
    search s = {0};
    const char *file = handle == NULL ? find_backend(&s, out_why, size) : "the backend";
    if (file == NULL)
        return NULL;
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
