/* Rotary angles. Every step is rounded to f32 in the order in which transformers does it: an angle
 * is a position times a frequency, so that a last digit of a frequency is a visible part of the
 * angle a few thousand tokens on. */
#include <config.h>

#include <math.h>

#include "model/config.h"

const char *az_config_rope_name(const az_config *config)
{
    static const char *const names[] = {"default", "linear", "llama3"};
    return names[config->rope];
}

/* f_j = theta^(-2j/K), as 1 / theta^(2j/K) */
static float base_frequency(const az_config *c, int64_t j)
{
    float exponent = (float)(2 * j) / (float)c->K;
    return 1.0f / powf((float)c->rope_theta, exponent);
}

/* The law of Llama 3.1 (transformers, modeling_rope_utils): long waves are slowed down by factor,
 * short ones kept, those between mixed. */
static float llama3_frequency(const az_config *c, float f)
{
    const float two_pi = 6.283185307179586f;
    float factor = (float)c->rope_factor, original = (float)c->rope_original_max_position;
    float low = (float)c->rope_low_freq_factor;
    float longest = (float)(c->rope_original_max_position / c->rope_low_freq_factor);
    float shortest = (float)(c->rope_original_max_position / c->rope_high_freq_factor);
    float length = 1.0f / f * two_pi; /* torch divides a number by a tensor in these two steps */
    if (length > longest)
        return f / factor;
    if (length < shortest)
        return f;
    float smooth = (1.0f / length * original - low) /
                   (float)(c->rope_high_freq_factor - c->rope_low_freq_factor);
    return (1.0f - smooth) * f / factor + smooth * f;
}

static float frequency(const az_config *c, int64_t j)
{
    float f = base_frequency(c, j);
    switch (c->rope) {
    case AZ_ROPE_DEFAULT:
        return f;
    case AZ_ROPE_LINEAR:
        return f / (float)c->rope_factor;
    case AZ_ROPE_LLAMA3:
        return llama3_frequency(c, f);
    }
    AZ_ASSERT(!"a kind of rotary law that is not in the list");
    return f;
}

void az_config_fill_rope(float *table, const az_config *config, int64_t P)
{
    int64_t half = config->K / 2;
    for (int64_t j = 0; j < half; j++) {
        float f = frequency(config, j);
        for (int64_t p = 0; p < P; p++) {
            float angle = (float)p * f;
            table[p * config->K + j] = cosf(angle);
            table[p * config->K + half + j] = sinf(angle);
        }
    }
}
