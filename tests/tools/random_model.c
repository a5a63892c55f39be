/* random_model DIR D F L H G K V DTYPE TIED SEED [PAD]: a Hugging Face directory of a Llama with
 * random weights, for tests of size and speed. Values are uniform, scaled so that activations keep
 * their size. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "store/safetensors.h"

enum { MAX = 4096 };
static az_tensor_out tensors[MAX];
static int n;

/* [rows + pad_rows, cols + pad_cols], zero beyond rows and cols: what lies within does not depend
 * on the padding. */
static void add(const char *name, int64_t rows, int64_t cols, int64_t pad_rows, int64_t pad_cols,
                az_dtype dtype, uint64_t seed)
{
    const int64_t all_rows = rows + pad_rows, all_cols = cols + pad_cols;
    char *data = az_alloc((size_t)(all_rows * all_cols), az_dtype_bytes(dtype), "weights");
    if (data == NULL || n == MAX)
        exit(1);
    const float scale = rows == 1 ? 0.1f : sqrtf(3.0f / (float)cols), shift = rows == 1 ? 1 : 0;
#pragma omp parallel for if (rows * cols > 1 << 20)
    for (int64_t row = 0; row < rows; row++) {
        uint32_t u[4];
        for (int64_t col = 0; col < cols; col++) {
            const int64_t to = row * all_cols + col;
            if (col % 4 == 0)
                az_philox(u, seed, (uint32_t)(col / 4), (uint32_t)row, (uint32_t)n, 0);
            const float x = shift + scale * (2 * az_u32_to_unit(u[col % 4]) - 1);
            if (dtype == AZ_F32)
                ((float *)data)[to] = x;
            else if (dtype == AZ_F16)
                ((az_f16 *)data)[to] = az_f32_to_f16(x);
            else
                ((az_bf16 *)data)[to] = az_f32_to_bf16(x);
        }
    }
    tensors[n++] = (az_tensor_out){.name = az_strdup(name, "names"),
                                   .dtype = dtype,
                                   .n_dims = rows == 1 ? 1 : 2,
                                   .shape = {rows == 1 ? all_cols : all_rows, all_cols},
                                   .data = data};
}

static void drop(void)
{
    while (n-- > 0) {
        az_free((void *)(uintptr_t)tensors[n].name);
        az_free((void *)(uintptr_t)tensors[n].data);
    }
}

int main(int argc, char **argv)
{
    if (argc != 12 && argc != 13) {
        fprintf(stderr, "usage: %s DIR D F L H G K V f32|f16|bf16 0|1 SEED [PAD]\n", argv[0]);
        return 2;
    }
    const char *dir = argv[1];
    const int64_t D = atoll(argv[2]), F = atoll(argv[3]), H = atoll(argv[5]), G = atoll(argv[6]);
    const int64_t K = atoll(argv[7]), V = atoll(argv[8]);
    const int L = atoi(argv[4]), tied = atoi(argv[10]);
    const az_dtype t = strcmp(argv[9], "f32") == 0   ? AZ_F32
                       : strcmp(argv[9], "f16") == 0 ? AZ_F16
                                                     : AZ_BF16;
    const uint64_t seed = (uint64_t)atoll(argv[11]);
    const int64_t pad = argc == 13 ? atoll(argv[12]) : 0;
    static const char *const linears[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    const int64_t shape[7][2] = {{H * K, D}, {G * K, D}, {G * K, D}, {D, H * K},
                                 {F, D},     {F, D},     {D, F}};
    char name[200];
    add("model.embed_tokens.weight", V, D, 0, 0, t, seed);
    for (int l = 0; l < L; l++) {
        for (int i = 0; i < 7; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, linears[i]);
            add(name, shape[i][0], shape[i][1], i == 4 || i == 5 ? pad : 0, i == 6 ? pad : 0, t,
                seed);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        add(name, 1, D, 0, 0, t, seed);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        add(name, 1, D, 0, 0, t, seed);
    }
    add("model.norm.weight", 1, D, 0, 0, t, seed);
    if (!tied)
        add("lm_head.weight", V, D, 0, 0, t, seed);
    az_str text = {0};
    az_err err = az_dir_create(dir);
    if (err == AZ_OK)
        err = az_str_add(&text,
                         "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n"
                         " \"hidden_size\": %lld, \"intermediate_size\": %lld, "
                         "\"num_hidden_layers\": %d,\n"
                         " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, "
                         "\"head_dim\": %lld,\n"
                         " \"vocab_size\": %lld, \"max_position_embeddings\": 4096, "
                         "\"rms_norm_eps\": 1e-5,\n"
                         " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
                         "\"tie_word_embeddings\": %s,\n"
                         " \"bos_token_id\": 1, \"eos_token_id\": 2, \"torch_dtype\": "
                         "\"bfloat16\"}\n",
                         (long long)D, (long long)(F + pad), L, (long long)H, (long long)G,
                         (long long)K, (long long)V, tied ? "true" : "false");
    char *config = az_path_join(dir, "config.json"),
         *model = az_path_join(dir, "model.safetensors");
    if (err == AZ_OK)
        err = az_file_write_atomic(config, text.s, text.len);
    if (err == AZ_OK)
        err = az_store_write(model, tensors, n);
    if (err != AZ_OK)
        fprintf(stderr, "%s\n", az_err_message());
    az_free(config);
    az_free(model);
    az_str_fini(&text);
    drop();
    return err;
}
