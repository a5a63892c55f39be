/* inspect, inside: what was found in a file or directory, and its two forms of output. Local. */
#ifndef AZ_CMD_INSPECT_H
#define AZ_CMD_INSPECT_H

#include "base/base.h"
#include "model/config.h"
#include "store/peft.h"
#include "store/safetensors.h"

/* Tensors of one type. */
typedef struct {
    const char *dtype_name;
    int64_t n_tensors, elements, bytes;
} az_dtype_total;

#define AZ_MAX_TOTALS 32

typedef struct {
    const char *path;
    const char *kind; /* "safetensors", "model", "adapter" */
    az_tensor_set set;
    const az_tensor **order; /* [set.n_tensors] for people: layers.2 before layers.10 */
    az_dtype_total totals[AZ_MAX_TOTALS];
    int n_totals;
    bool has_config; /* of a model, read without faults */
    az_config config;
    bool has_peft; /* of an adapter, likewise */
    az_peft_config peft;
    az_str note; /* why adze cannot use it, if it cannot */
} az_inspection;

az_err az_inspect_add_text(az_str *out, const az_inspection *found);
az_err az_inspect_add_json(az_str *out, const az_inspection *found);

#endif
