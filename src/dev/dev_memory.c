/* dev: memory. On the CPU all of it is the host's. */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "dev/dev_priv.h"

enum { MAX_NAMES = 32, NAME_BYTES = 48 };

/* Categories of the memory report are literals: those of a GPU are made once and stay. */
static const char *name_of(const char *category)
{
    static char names[MAX_NAMES][NAME_BYTES];
    static int n_names;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "GPU %s", category);
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    AZ_ASSERT(n_names < MAX_NAMES);
    memcpy(names[n_names], name, sizeof name);
    return names[n_names++];
}

/* A GPU's memory is apart from the host's. */
static void count(az_dev *dev, const char *category, int64_t bytes)
{
    if (strncmp(category, "GPU ", 4) != 0) {
        az_mem_count(category, bytes);
        return;
    }
    az_mem_count_apart(category, bytes);
    dev->held += (size_t)bytes; /* modulo 2^64: less where it is negative */
    if (dev->held > dev->most_held)
        dev->most_held = dev->held;
}

size_t az_dev_get_most(const az_dev *dev)
{
    return dev->most_held;
}

static az_err remember(az_dev *dev, void *p, size_t bytes, const char *category)
{
    az_err err;
    AZ_TRY(AZ_GROW(dev->blocks, dev->n_blocks + 1, "devices"));
    dev->blocks[dev->n_blocks++] = (az_dev_block){p, bytes, category};
    count(dev, category, (int64_t)bytes);
out:
    return err;
}

static void forget(az_dev *dev, const void *p)
{
    for (size_t i = dev->n_blocks; i-- > 0;)
        if (dev->blocks[i].p == p) {
            count(dev, dev->blocks[i].category, -(int64_t)dev->blocks[i].bytes);
            dev->blocks[i] = dev->blocks[--dev->n_blocks];
            return;
        }
    AZ_ASSERT(!"a block of this device");
}

az_err az_dev_alloc(void **out, az_dev *dev, size_t bytes, const char *category)
{
    az_err err;
    char text[256] = "";
    if (dev->backend == NULL)
        return (*out = az_alloc(bytes, 1, category)) != NULL ? AZ_OK : AZ_EENV;
    *out = NULL;
    if (dev->backend->alloc(dev->self, out, bytes > 0 ? bytes : 1, text, sizeof text) != 0)
        return az_fail(AZ_EENV, "GPU %s: no memory for %zu bytes of %s: %s", dev->info.pci, bytes,
                       category, text);
    err = remember(dev, *out, bytes, name_of(category));
    if (err != AZ_OK) {
        dev->backend->free(dev->self, *out);
        *out = NULL;
    }
    return err;
}

void az_dev_free(az_dev *dev, void *opt_p)
{
    if (dev == NULL || dev->backend == NULL) {
        az_free(opt_p);
    } else if (opt_p != NULL) {
        forget(dev, opt_p);
        dev->backend->free(dev->self, opt_p);
    }
}

az_err az_dev_alloc_host(void **out, az_dev *dev, size_t bytes, const char *category)
{
    az_err err;
    char text[256] = "";
    if (dev->backend == NULL)
        return (*out = az_alloc(bytes, 1, category)) != NULL ? AZ_OK : AZ_EENV;
    *out = NULL;
    if (dev->backend->alloc_host(dev->self, out, bytes > 0 ? bytes : 1, text, sizeof text) != 0)
        return az_fail(AZ_EENV, "no pinned memory for %zu bytes of %s: %s", bytes, category, text);
    memset(*out, 0, bytes);
    err = remember(dev, *out, bytes, category);
    if (err != AZ_OK) {
        dev->backend->free_host(dev->self, *out);
        *out = NULL;
    }
    return err;
}

void az_dev_free_host(az_dev *dev, void *opt_p)
{
    if (dev == NULL || dev->backend == NULL) {
        az_free(opt_p);
    } else if (opt_p != NULL) {
        forget(dev, opt_p);
        dev->backend->free_host(dev->self, opt_p);
    }
}

az_err az_dev_pin(az_dev *dev, void *p, size_t bytes)
{
    char text[256] = "";
    if (dev->backend == NULL || bytes == 0 ||
        dev->backend->pin(dev->self, p, bytes, text, sizeof text) == 0)
        return AZ_OK;
    return az_fail(AZ_EENV, "%zu bytes of host memory cannot be pinned for the GPU: %s", bytes,
                   text);
}

void az_dev_unpin(az_dev *dev, void *p)
{
    if (dev->backend != NULL)
        dev->backend->unpin(dev->self, p);
}

az_err az_dev_arena_init(az_dev *dev, az_arena *arena, const char *category)
{
    az_err err;
    void *base;
    const size_t size = arena->used;
    AZ_TRY(az_dev_alloc(&base, dev, size, category));
    *arena = (az_arena){.base = base, .size = size, .foreign = dev->backend != NULL};
out:
    return err;
}

void az_dev_arena_fini(az_dev *dev, az_arena *arena)
{
    az_dev_free(dev, arena->base);
    *arena = (az_arena){0};
}

az_err az_dev_get_memory(az_dev *dev, size_t *out_free, size_t *out_total)
{
    char text[256] = "";
    AZ_ASSERT(dev->backend != NULL);
    if (dev->backend->get_free(dev->self, out_free, out_total, text, sizeof text) == 0)
        return AZ_OK;
    return az_fail(AZ_EENV, "GPU %s does not say what memory is free: %s", dev->info.pci, text);
}
