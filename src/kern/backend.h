/* kern/backend: what a backend's table of operations is opened with. C and C++. */
#ifndef AZ_KERN_BACKEND_H
#define AZ_KERN_BACKEND_H

#include "dev/backend.h"
#include "kern/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exported under the name AZ_BACKEND_KERN. */
typedef struct {
    /* Operations for activations of a type, on a device that the backend has opened; NULL: there
     * are none for it. */
    const az_kern_ops *(*get_ops)(az_dtype act);
    /* Handles and the fixed workspace of the products; every kernel is loaded, so that memory which
     * is free afterwards stays free. Returns 0, or has described the failure in text. */
    int (*open)(az_kern_self **out_self, void *dev_self, const az_backend_host *host, az_dtype act,
                char *text, size_t size);
    void (*close)(az_kern_self *self);
} az_kern_backend;

#ifdef __cplusplus
}
#endif
#endif
