/* lora: which modules are adapted, how large the pairs are, where they lie, how they start, where
 * they are kept.
 *
 * All pairs lie in one flat f32 buffer, without gaps, in model order: of modules that have the same
 * input first the A [R, in], which so are one matrix, then the B [out, R]. Rules of matching,
 * scaling and init are PEFT's (LoraModel, LoraConfig). Local, except where said. */
#ifndef AZ_LORA_LORA_H
#define AZ_LORA_LORA_H

#include "base/base.h"
#include "lora/params.h"
#include "store/h5.h"
#include "store/peft.h"

/* A linear module that could be adapted, as the model lists them. */
typedef struct {
    char path[160]; /* "model.layers.0.self_attn.q_proj" */
    int64_t in, out;
    int layer; /* decoder layer, or -1 */
    int kind;  /* the model's number of the linear within its layer */
    int input; /* neighbours of a layer with the same number have the same input */
} az_linear;

/* One pair. */
typedef struct {
    int linear; /* index into the model's list */
    int64_t R;
    double alpha, scale;  /* scale = alpha / R, or alpha / sqrt(R) */
    int64_t a_off, b_off; /* of A [R,in] and B [out,R] in the flat buffer, in elements */
} az_pair;

typedef struct {
    const az_linear *linears; /* borrowed */
    int n_linears;
    az_pair *pairs;
    int n_pairs;
    int *pair_of;       /* [n_linears] index of the linear's pair, or -1 */
    int64_t n_elements; /* of the flat buffer */
    double dropout;
} az_lora;

/* Match config against the linears. A target, exclude or pattern entry that matches nothing is an
 * error listing the module names that exist and the family's default (family_default, e.g. "q_proj,
 * v_proj"). A null target: the default. */
az_err az_lora_create(az_lora *lora, const az_peft_config *config, const az_linear *linears,
                      int n_linears, const char *family_default);
void az_lora_fini(az_lora *lora);
/* The lowest adapted decoder layer; -1 if there is none. */
int az_lora_get_lowest_layer(const az_lora *lora);
/* Elements of layer's pairs: [*out_off, *out_off + return value) of the flat buffer. */
int64_t az_lora_get_layer(const az_lora *lora, int layer, int64_t *out_off);
/* The same for n_layers layers, which have all of the pairs: off [n_layers + 1] of az_spans. */
void az_lora_fill_spans(int64_t *off, const az_lora *lora, int n_layers);
/* Fill elements [first, first + n) of the flat buffer, at values, as PEFT initialises
 * (config->init_lora_weights: true, "gaussian", false), from counter-based random numbers: a
 * function of seed, module and element alone. */
void az_lora_fill(float *values, const az_lora *lora, const az_peft_config *config, uint64_t seed,
                  int64_t first, int64_t n);
/* Read DIR/adapter_model.safetensors (f32, f16, bf16) into the flat buffer; missing, unexpected and
 * wrongly shaped tensors are all named in one message; numbers that are not finite are refused. */
az_err az_lora_read(float *flat, const az_lora *lora, const char *dir);
/* The adapter's tensors as PEFT names them, in the order of the flat buffer, [2 * n_pairs]. */
az_err az_lora_list_arrays(az_h5_array **out_arrays, const az_lora *lora);
void az_lora_free_arrays(az_h5_array *opt_arrays, const az_lora *lora);
/* Append the adapter_config.json that belongs to lora, made of config: its targets in PEFT's own
 * terms. */
az_err az_lora_add_config(az_str *out, const az_lora *lora, const az_peft_config *config);
/* Elements [first, first + n) of the flat buffer, at values: numbers that are not finite are
 * refused. opt_path: where they were read; NULL: they were to be written. */
az_err az_lora_check_finite(const float *values, const az_lora *lora, int64_t first, int64_t n,
                            const char *opt_path);
/* Before hours of training: whether az_lora_write will find a place in dir, as far as can be known.
 */
az_err az_lora_check_place(const az_lora *lora, const char *dir);
/* Write a PEFT directory, made if it is not there: adapter_config.json and
 * adapter_model.safetensors (AZ_F32, or rounded to AZ_BF16), read back and compared before they
 * take their place; after a failure dir is as it was. Numbers that are not finite are refused.
 * Called on one rank. */
az_err az_lora_write(const float *flat, const az_lora *lora, const az_peft_config *config,
                     az_dtype dtype, const char *dir);

/* Bytes that az_lora_write takes for a while, at most: rounded numbers, and what is read back.
 * Pure.
 */
size_t az_lora_measure_write(const az_lora *lora);

#endif
