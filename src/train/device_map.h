/* train/device_map: which rank of a node uses which GPU. Pure, so that it can be tested without
 * any.
 *
 * Each rank has one GPU to itself. It is one that the rank sees, near its cores where there is a
 * choice, and the ranks' order is the GPUs' as far as that allows. */
#ifndef AZ_TRAIN_DEVICE_MAP_H
#define AZ_TRAIN_DEVICE_MAP_H

#include "base/base.h"

/* A GPU as one rank sees it. */
typedef struct {
    char uuid[48];
    int numa; /* node of memory that it is near to; -1: not known */
} az_seen_gpu;

/* What one rank sees. */
typedef struct {
    int n; /* GPUs, in the order of their numbers */
    const az_seen_gpu *gpus;
    uint64_t numa; /* a bit for each of the first 64 nodes of memory that its cores belong to; 0:
                      not known */
} az_gpu_view;

typedef struct {
    int n_gpus;  /* that any rank of the node sees */
    bool narrow; /* a rank does not see the GPU of another one */
} az_mapping;

/* Fill index [n_ranks]: the number of each rank's GPU among those that it sees. host: the node's
 * name, for messages: more ranks than GPUs and ranks that would have to share one are refused. */
az_err az_device_map(int *index, az_mapping *out_mapping, const az_gpu_view *views, int n_ranks,
                     const char *host);
/* The bits of az_gpu_view.numa that this process's cores belong to, and the node of a GPU by its
 * name on the PCI bus, as Linux tells them. */
uint64_t az_device_find_numa(void);
int az_device_get_numa(const char *pci);

#endif
