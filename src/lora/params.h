/* params: the adapter's parameters in memory.
 *
 * The pairs of all layers lie in one flat f32 buffer (lora.h). It is cut into slices by position
 * (comm.h), on boundaries of blocks of AZ_PARAMS_BLOCK elements: who has a position owns its slice
 * and is the only one who changes it; ranks without a position own nothing, and so may others where
 * there are fewer blocks than positions. Everyone reads, and where from is a choice that changes no
 * bit:
 *
 *   AZ_PARAMS_REPLICATED   the buffer is there once a node, in memory that the node's ranks share
 *   AZ_PARAMS_GATHERED     owners hold their slices alone, and a layer is brought together when it
 *                          is needed (comm/spread.h), once a node; on one node there is nothing to
 *                          bring, and it is the same as the other
 *
 * On GPUs it is each GPU, not each node, that has the buffer, or a slice and two layers; parts are
 * brought together over the fabric (comm/fabric.h). Operations read and update values in the
 * device's memory; the host sees and writes this rank's slice through a copy of it.
 *
 * Nobody may read while owners write. Owners write outside of walks, after a call in which all
 * ranks have met and before az_params_share, after which all may read what they have written. */
#ifndef AZ_LORA_PARAMS_H
#define AZ_LORA_PARAMS_H

#include "base/base.h"
#include "comm/comm.h"
#include "comm/fabric.h"
#include "comm/spread.h"
#include "kern/kern.h"

/* Elements of a block: slices are cut on these, and squares of the gradient are summed on these
 * (optim.h). Part of the numeric definition. */
#define AZ_PARAMS_BLOCK 1024

/* Where layers' pairs lie: those of layer l are elements [off[l], off[l + 1]). */
typedef struct {
    int n;
    const int64_t *off; /* [n + 1], from 0 to the number of elements */
} az_spans;

typedef enum { AZ_PARAMS_REPLICATED, AZ_PARAMS_GATHERED } az_params_placement;

typedef struct az_params az_params;

/* Memory of the flat buffer, zeros. spans is copied. progress: of gathers. kern, and on a GPU
 * opt_fabric, are borrowed. Collective. */
az_err az_params_create(az_params **out_params, const az_spans *spans,
                        az_params_placement placement, az_progress_kind progress,
                        const az_kern *kern, az_fabric *opt_fabric, az_comm *comm);
/* Local, on all ranks. */
void az_params_destroy(az_params *opt_params);
const az_spans *az_params_get_spans(const az_params *params);
/* Seconds that this rank has waited for layers. */
double az_params_get_waited(const az_params *params);
/* What was handed to az_params_create. */
const az_kern *az_params_get_kern(const az_params *params);
az_fabric *az_params_get_fabric(const az_params *params);

/* ---- writing */

/* What this rank owns: elements [*out_first, *out_first + *out_n), to be written by it alone. In
 * the host's memory: on a GPU a copy, which az_params_pull makes anew. */
float *az_params_get_slice(const az_params *params, int64_t *out_first, int64_t *out_n);
/* The same elements where operations find them: in the device's memory. */
float *az_params_get_slice_d(const az_params *params);
/* The host's copy is what operations have made of the slice. Local. */
void az_params_pull(az_params *params);
/* All see what owners have written, on the host. Collective. */
void az_params_share(az_params *params);
/* All see what owners' operations have written, in the device's memory. Collective. */
void az_params_share_updated(az_params *params);
/* Values on rank 0, flat [n elements], become everyone's. Fails for want of memory only.
 * Collective. */
az_err az_params_hand_out(az_params *params, const float *opt_flat);

/* ---- reading */

/* Begin a walk: the layers will be wanted in order, and with backward those from the last to the
 * lowest one that has pairs once more. Collective. */
void az_params_begin(az_params *params, bool backward);
/* The elements of the next layer's pairs in the device's memory, valid until they are released.
 * Local, but gathers wait for other ranks. */
const float *az_params_get_layer(az_params *params, int layer);
void az_params_release_layer(az_params *params);
/* End a walk, after its last layer or, on all ranks, after the same earlier one. Collective. */
void az_params_end(az_params *params);
/* All elements, on rank 0 in the host's memory (*out_flat is NULL elsewhere), valid until they are
 * released. Not within a walk. Collective. */
az_err az_params_gather_all(const float **out_flat, az_params *params);
void az_params_release_all(az_params *params);

/* ---- pure */

/* The element with which the slice of a position begins; of position n_positions: n. */
int64_t az_params_cut(int64_t n, int position, int n_positions);
/* Elements of the largest and of the smallest slice; a rank without a position has none. */
void az_params_find_slices(int64_t *out_most, int64_t *out_least, int64_t n,
                           const az_topology *topology);
/* Elements of the largest layer. */
int64_t az_params_find_largest(const az_spans *spans);
/* Bytes as they are allocated: shared by a node's ranks, and of the rank that holds the most and
 * the least of its own. */
typedef struct {
    size_t shared, most, least;
} az_footprint;
az_footprint az_params_measure(const az_spans *spans, az_params_placement placement,
                               const az_topology *topology);
/* The same for GPUs: of a GPU's memory, and of the host's. topology: of the job's ranks. */
typedef struct {
    az_footprint device, host;
} az_params_sizes;
az_params_sizes az_params_measure_gpu(const az_spans *spans, az_params_placement placement,
                                      const az_topology *topology);
/* What a walk there and back brings where parameters are gathered (comm/spread.h): the first one
 * after an update finds the slots empty. Local; fails for want of memory only. */
az_err az_params_count_walk(az_spread_traffic *out, const az_spans *spans);

#endif
