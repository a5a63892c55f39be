/* inspect, inside: what was found in a file or directory, and its two forms of output. Local. */
#ifndef AZ_CMD_INSPECT_H
#define AZ_CMD_INSPECT_H

#include "base/base.h"
#include "model/config.h"
#include "store/h5.h"
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
    const char *kind; /* "safetensors", "model", "adapter", "checkpoint", "adapter file" */
    az_tensor_set set;
    const az_tensor **order; /* [set.n_tensors] for people: layers.2 before layers.10 */
    az_dtype_total totals[AZ_MAX_TOTALS];
    int n_totals;
    bool has_config; /* of a model, read without faults */
    az_config config;
    bool has_peft; /* of an adapter, likewise */
    az_peft_config peft;
    az_comm *self; /* of the last two kinds, with the file */
    az_h5_reader *h5;
    az_str note; /* why adze cannot use it, if it cannot */
} az_inspection;

/* A failure that only means "adze cannot use this" becomes the note. */
az_err az_inspect_note(az_inspection *found, az_err err);
/* Open found->path as one of adze's own HDF5 files. */
az_err az_inspect_open_h5(az_inspection *found);
/* What such a file holds besides tensors. */
az_err az_inspect_add_h5_text(az_str *out, const az_inspection *found);
az_err az_inspect_add_h5_json(az_str *out, const az_inspection *found);

/* Append a foreign text; in quotes if it holds control characters, which would reach the terminal.
 */
az_err az_inspect_add_clean(az_str *out, const char *s);
az_err az_inspect_add_text(az_str *out, const az_inspection *found);
az_err az_inspect_add_json(az_str *out, const az_inspection *found);

#endif
