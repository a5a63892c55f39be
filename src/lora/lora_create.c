/* lora/create: the pairs of an adapter, where they lie in the flat buffer, and how they start. */
#include <config.h>

#include "lora/lora_priv.h"

#include <math.h>
#include <string.h>

/* Pairs of the linears from first on that have the same input. Returns the linear after them. */
static int place_group(az_lora *lora, const az_choice *choices, int first, bool use_rslora)
{
    const az_linear *x = lora->linears;
    const int first_pair = lora->n_pairs;
    int i = first;
    for (; i < lora->n_linears && x[i].layer == x[first].layer && x[i].input == x[first].input;
         i++) {
        const az_choice *c = &choices[i];
        lora->pair_of[i] = c->adapted ? lora->n_pairs : -1;
        if (!c->adapted)
            continue;
        az_pair *p = &lora->pairs[lora->n_pairs++];
        *p = (az_pair){.linear = i,
                       .R = (int64_t)c->r,
                       .alpha = c->alpha,
                       .scale = c->alpha / (use_rslora ? sqrt(c->r) : c->r),
                       .a_off = lora->n_elements};
        lora->n_elements += p->R * x[i].in;
    }
    for (az_pair *p = lora->pairs + first_pair; p < lora->pairs + lora->n_pairs; p++) {
        p->b_off = lora->n_elements;
        lora->n_elements += p->R * x[p->linear].out;
    }
    return i;
}

az_err az_lora_create(az_lora *lora, const az_peft_config *config, const az_linear *linears,
                      int n_linears, const char *family_default)
{
    az_err err;
    az_choice *choices = NULL;
    *lora = (az_lora){.linears = linears, .n_linears = n_linears, .dropout = config->lora_dropout};
    AZ_TRY(AZ_NEW(choices, (size_t)n_linears, "LoRA matching"));
    AZ_TRY(az_lora_match(choices, config, linears, n_linears, family_default));
    AZ_TRY(AZ_NEW(lora->pair_of, (size_t)n_linears, "LoRA pairs"));
    AZ_TRY(AZ_NEW(lora->pairs, (size_t)n_linears, "LoRA pairs"));
    for (int i = 0; i < n_linears; i = place_group(lora, choices, i, config->use_rslora))
        ;
out:
    if (err != AZ_OK)
        az_lora_fini(lora);
    az_free(choices);
    return err;
}

void az_lora_fini(az_lora *lora)
{
    az_free(lora->pairs);
    az_free(lora->pair_of);
    *lora = (az_lora){0};
}

int az_lora_get_lowest_layer(const az_lora *lora)
{
    int lowest = -1;
    for (int k = 0; k < lora->n_pairs; k++) {
        int layer = lora->linears[lora->pairs[k].linear].layer;
        if (layer >= 0 && (lowest < 0 || layer < lowest))
            lowest = layer;
    }
    return lowest;
}

int64_t az_lora_get_layer(const az_lora *lora, int layer, int64_t *out_off)
{
    int64_t end = 0, n = 0;
    *out_off = 0;
    for (int k = 0; k < lora->n_pairs; k++) {
        const az_pair *p = &lora->pairs[k];
        const az_linear *x = &lora->linears[p->linear];
        if (x->layer != layer)
            continue;
        if (n == 0)
            *out_off = p->a_off;
        n += p->R * (x->in + x->out);
        end = p->b_off + p->R * x->out;
    }
    AZ_ASSERT(n == 0 || end - *out_off == n); /* a layer's linears lie together */
    return n;
}

void az_lora_fill_spans(int64_t *off, const az_lora *lora, int n_layers)
{
    off[n_layers] = lora->n_elements;
    for (int l = n_layers - 1; l >= 0; l--) {
        int64_t begin;
        const int64_t n = az_lora_get_layer(lora, l, &begin);
        off[l] = n > 0 ? begin : off[l + 1];
        AZ_ASSERT(off[l] + n == off[l + 1]); /* layers lie in order */
    }
    AZ_ASSERT(off[0] == 0);
}

typedef enum { UNIFORM, NORMAL } law;

/* What of the flat buffer is to be filled: elements [first, end), at values. */
typedef struct {
    float *values;
    int64_t first, end;
} part;

/* The n elements from off on = uniform in (-width, width), or normal with deviation width. Element
 * e of them is word e % 4 of Philox at (e / 4, module, which); which tells A from B. */
static void fill_random(const part *p, int64_t off, int64_t n, law how, double width, uint64_t seed,
                        uint32_t module, uint32_t which)
{
    const int64_t from = az_max_i64(p->first - off, 0), to = az_min_i64(p->end - off, n);
    for (int64_t e = from / 4 * 4; e < to; e += 4) {
        uint32_t words[4];
        double v[4];
        const uint64_t block = (uint64_t)e / 4;
        az_philox(words, seed, (uint32_t)block, module, which | (uint32_t)(block >> 32) << 1,
                  az_rng_word(AZ_RNG_INIT, 0));
        if (how == NORMAL) {
            az_u32_to_normal(v, words[0], words[1]);
            az_u32_to_normal(v + 2, words[2], words[3]);
        } else {
            for (int w = 0; w < 4; w++)
                v[w] = ((double)(words[w] >> 8) + 0.5) * 0x1p-23 - 1;
        }
        for (int64_t w = 0; w < 4; w++)
            if (e + w >= from && e + w < to)
                p->values[off + e + w - p->first] = (float)(width * v[w]);
    }
}

static void fill_zero(const part *p, int64_t off, int64_t n)
{
    const int64_t from = az_max_i64(p->first, off), to = az_min_i64(p->end, off + n);
    if (from < to)
        memset(p->values + (from - p->first), 0, (size_t)(to - from) * sizeof *p->values);
}

void az_lora_fill(float *values, const az_lora *lora, const az_peft_config *config, uint64_t seed,
                  int64_t first, int64_t n)
{
    const part to = {values, first, first + n};
    const char *init = config->init_lora_weights;
    const bool normal = strcmp(init, "gaussian") == 0, both = strcmp(init, "false") == 0;
    AZ_ASSERT(normal || both || strcmp(init, "true") == 0);
    for (int k = 0; k < lora->n_pairs; k++) {
        const az_pair *p = &lora->pairs[k];
        const az_linear *x = &lora->linears[p->linear];
        const int64_t n_a = p->R * x->in, n_b = p->R * x->out;
        const uint32_t module = (uint32_t)p->linear;
        /* torch's Linear: kaiming_uniform with a = sqrt 5 is U(-1/sqrt(in), 1/sqrt(in)). */
        if (normal)
            fill_random(&to, p->a_off, n_a, NORMAL, 1 / (double)p->R, seed, module, 0);
        else
            fill_random(&to, p->a_off, n_a, UNIFORM, 1 / sqrt((double)x->in), seed, module, 0);
        if (both)
            fill_random(&to, p->b_off, n_b, UNIFORM, 1 / sqrt((double)p->R), seed, module, 1);
        else
            fill_zero(&to, p->b_off, n_b);
    }
}
