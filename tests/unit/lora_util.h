/* What the tests of adapters share: the linears of a small Llama of eleven layers. */
#ifndef AZ_TESTS_LORA_UTIL_H
#define AZ_TESTS_LORA_UTIL_H

#include "lora/lora.h"
#include "tests/unit/store_util.h"

enum { LAYERS = 11, PER_LAYER = 7, N_LINEARS = LAYERS * PER_LAYER, HIDDEN = 8, KV = 4, FFN = 12 };

static az_linear linears[N_LINEARS];

static inline void make_linears(void)
{
    static const struct {
        const char *name;
        int in, out, input;
    } names[] = {{"self_attn.q_proj", HIDDEN, HIDDEN, 0}, {"self_attn.k_proj", HIDDEN, KV, 0},
                 {"self_attn.v_proj", HIDDEN, KV, 0},     {"self_attn.o_proj", HIDDEN, HIDDEN, 1},
                 {"mlp.gate_proj", HIDDEN, FFN, 2},       {"mlp.up_proj", HIDDEN, FFN, 2},
                 {"mlp.down_proj", FFN, HIDDEN, 3}};
    for (int i = 0; i < N_LINEARS; i++) {
        const int k = i % PER_LAYER;
        linears[i] = (az_linear){.in = names[k].in,
                                 .out = names[k].out,
                                 .layer = i / PER_LAYER,
                                 .kind = k,
                                 .input = names[k].input};
        snprintf(linears[i].path, sizeof linears[i].path, "model.layers.%d.%s", i / PER_LAYER,
                 names[k].name);
    }
}

/* A directory NAME with this adapter_config.json. */
static inline const char *put_config(const char *name, const char *json)
{
    const char *dir = fresh_dir(name);
    char path[600];
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    put_text(path, json);
    return dir;
}

/* The config that adapter_config.json of this text gives. */
static inline void read_config(az_peft_config *config, const char *json)
{
    *config = (az_peft_config){0};
    if (az_peft_read_config(config, put_config("config", json)) != AZ_OK)
        fail_msg("%s: %s", json, az_err_message());
}

/* The message of az_lora_create holds part. */
static inline void expect_refused(const char *json, const char *part)
{
    az_peft_config config;
    az_lora lora;
    read_config(&config, json);
    expect_failure(az_lora_create(&lora, &config, linears, N_LINEARS, "q_proj, v_proj"), AZ_EINPUT,
                   part);
    assert_null(lora.pairs);
    az_peft_config_fini(&config);
}

#endif
