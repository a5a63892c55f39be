/* train/device: what a rank computes on: the CPU, or a GPU of its own. */
#ifndef AZ_TRAIN_DEVICE_H
#define AZ_TRAIN_DEVICE_H

#include "comm/comm.h"
#include "comm/fabric.h"
#include "deck/deck.h"
#include "dev/dev.h"
#include "kern/kern.h"

typedef struct {
    az_dev *dev;
    az_kern kern;
    az_fabric *fabric; /* of GPUs; NULL on the CPU */
    int n_gpus;        /* GPUs that the ranks see, of all nodes; on the CPU 0 */
    bool narrow;       /* ranks do not see the GPUs of others of their node */
    int64_t n_far;     /* pairs of GPUs of a node that cannot read each other's memory */
    bool mixed;        /* ranks have GPUs of different models */
    bool chosen;       /* run.device left it to the program */
    char why[512];     /* on the CPU, if it was chosen: what GPUs lack */
} az_device;

/* The device that the deck asks for (run.device, run.compute, comm.*), with its operations and what
 * it needs to exchange data with others. All ranks have the same kind, and each GPU is used by one
 * rank; what cannot be had is refused with the remedy. Work on a GPU that fails later ends the job
 * (comm/watch.h). Start from {0}. Collective. */
az_err az_device_open(az_device *device, const az_deck *deck, az_comm *comm);
/* What the keys comm.* say. Local. */
az_fabric_options az_device_get_fabric(const az_deck *deck);
/* The CPU, whatever the deck says: for what computes nothing. Local. */
az_err az_device_open_cpu(az_device *device);
void az_device_close(az_device *device);
/* "CPU" or the GPU's model, and the type of arithmetic: what bits depend on. Local. */
void az_device_describe(char *text, size_t size, const az_device *device);
/* A line: kind, number, model, memory, versions; warnings of what is worth knowing. Local. */
void az_device_say(const az_device *device, const az_comm *comm);
/* The same and the program's version as lines of a YAML comment. Local. */
az_err az_device_add_comment(az_str *out, const az_device *device, const az_comm *comm);
/* How often the host waited for the GPU so far, by reason, and what of it was for other nodes.
 * Local. */
typedef struct {
    int64_t n[AZ_N_SYNCS];
    az_fabric_stats fabric;
} az_waits;
void az_device_count_waits(const az_device *device, az_waits *out_waits);
/* Lines, on a GPU: by reason, a step, since they were counted; what belongs to no step (loading,
 * saving) in all. Local. */
void az_device_say_waits(const az_device *device, const az_waits *since, int64_t n_steps);
/* Lines, on a GPU whose operations are timed (az_dev_start_times): by operation, the longest first,
 * of this rank's GPU. Local. */
void az_device_say_times(const az_device *device);
/* "2 x NVIDIA H100 (...)" or "none: why": what this process finds, opening nothing. Local. */
az_err az_device_list(az_str *out);

#endif
