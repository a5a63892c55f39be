/* model/config: config.json of a Hugging Face directory in one normal form. Local. */
#ifndef AZ_MODEL_CONFIG_H
#define AZ_MODEL_CONFIG_H

#include "base/base.h"
#include "lora/lora.h"
#include "store/json.h"
#include "store/safetensors.h"

typedef enum { AZ_ROPE_DEFAULT, AZ_ROPE_LINEAR, AZ_ROPE_LLAMA3 } az_rope_kind;

#define AZ_MAX_EOS 16

/* Plain data: can be handed on as bytes. */
typedef struct {
    char model_type[32]; /* "llama" */
    int64_t D, F, V, L;  /* hidden_size, intermediate_size, vocab_size, num_hidden_layers */
    int H, G;            /* num_attention_heads, num_key_value_heads */
    int64_t K;           /* head_dim */
    int64_t max_position;
    double norm_eps;
    bool tied; /* tie_word_embeddings */
    bool attention_bias, mlp_bias;
    double rope_theta;
    az_rope_kind rope;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_original_max_position;
    int32_t eos[AZ_MAX_EOS]; /* generation_config.json's list if there is one, else config.json's */
    int n_eos;
    int32_t bos; /* -1: none */
    int stored;  /* az_dtype that the weights are said to have (BF16 where nothing says), -1: one
                    that adze does not compute with; the headers of the files decide */
} az_config;

/* Read DIR/config.json (v4 and v5 spellings) and generation_config.json. What adze does not do
 * (other model types, activations, rope types, quantization_config, ...) is refused by name with
 * what is supported. All faults at once. */
az_err az_config_read(az_config *config, const char *dir);

/* The linears of a decoder layer, in model order. */
enum { AZ_Q, AZ_K, AZ_V, AZ_O, AZ_GATE, AZ_UP, AZ_DOWN, AZ_N_LINEARS };
/* Their inputs, from the layer's own up; linears of one input are neighbours. */
enum { AZ_IN_QKV, AZ_IN_O, AZ_IN_GATE_UP, AZ_IN_DOWN, AZ_N_INPUTS };
int az_config_get_input(int kind);

/* Roles of tensors. Per layer: norms, weights and biases of the linears. */
typedef enum {
    AZ_ROLE_EMBED,  /* [V,D] */
    AZ_ROLE_NORM1,  /* [D] */
    AZ_ROLE_NORM2,  /* [D] */
    AZ_ROLE_WEIGHT, /* [out,in] of linear kind */
    AZ_ROLE_BIAS,   /* [out] of linear kind */
    AZ_ROLE_NORM,   /* [D], final */
    AZ_ROLE_HEAD    /* [V,D] */
} az_role;

/* One tensor that the model consists of. */
typedef struct {
    char name[160];
    az_role role;
    int layer;          /* or -1 */
    int kind;           /* linear of the layer for WEIGHT and BIAS, else 0 */
    int64_t rows, cols; /* a vector is one row */
    int index;          /* of the tensor in the opened set */
} az_weight;

typedef struct {
    /* In model order: embedding, layer by layer, final norm, head (absent if tied). */
    az_weight *weights;
    int n_weights;
} az_table;

/* Every tensor that config asks for, found in set and checked: missing, unexpected and wrongly
 * shaped or typed ones are all named in one message. Known leftovers (rotary_emb.inv_freq) are
 * passed over; so is lm_head.weight in a tied model. */
az_err az_table_create(az_table *table, const az_config *config, const az_tensor_set *set);
void az_table_fini(az_table *table);
/* The tensors of a model of which only config.json is there: their names, shapes and the type that
 * it says, in no file. az_table_create takes such a set too. */
az_err az_config_imply(az_tensor_set *set, const az_config *config);
/* The linears of all layers, in model order (index = layer * AZ_N_LINEARS + kind). Free with
 * az_free. */
az_err az_config_list_linears(az_linear **out_linears, int *out_n, const az_config *config);
/* PEFT's default targets of the family, "q_proj, v_proj". */
const char *az_config_default_targets(const az_config *config);
/* Parameters of the base. */
int64_t az_config_count(const az_config *config);
/* "default", "linear", "llama3", as config.json spells them. */
const char *az_config_rope_name(const az_config *config);
/* Table of rotary angles [P, K]: cos of K/2 angles, then sin, for positions 0 .. P-1; frequencies
 * in f32 as transformers computes them. */
void az_config_fill_rope(float *table, const az_config *config, int64_t P);

#endif
