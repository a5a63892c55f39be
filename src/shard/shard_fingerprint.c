/* shard: the fingerprint of a base, by which a checkpoint knows the model that it belongs to.
 *
 * It says the same of a model on any number of ranks, cut into any units, however its tensors are
 * spread over files and ordered in them. It is a sum of hashes of blocks: a tensor's bytes are cut
 * at multiples of BLOCK from the tensor's start (the last block may be short), each block is hashed
 * with a seed made of its tensor and its number, and the hashes are added modulo 2^64. So it does
 * not matter who adds which block. A block belongs to the rank that holds its first byte; where the
 * rank's bytes end within a block, the rest is read from the file, once a slice or piece at most.
 * Names, types and shapes of the tensors, and what of the config has a part in the numbers, are
 * hashed over the sum.
 *
 * Hashing costs 0.05 s a GB on one core (XXH3, bound by memory). */
#include <config.h>

#include <string.h>
#include <unistd.h>

#include "shard/shard_priv.h"

enum { BLOCK = 4096 };

_Static_assert(AZ_SHARD_CHUNK % BLOCK == 0, "chunks end where blocks end");

static az_err add_tensor(az_str *out, const az_weight *w, const az_tensor *t)
{
    az_err err;
    AZ_TRY(az_str_add(out, "%s %s ", w->name, az_dtype_name((az_dtype)t->dtype)));
    AZ_TRY(az_store_add_shape(out, t));
    err = az_str_add(out, "\n");
out:
    return err;
}

/* What has a part in the numbers. */
static az_err add_config(az_str *out, const az_config *c)
{
    return az_str_add(out, "%s %lld %lld %lld %lld %d %d %lld %a %d %d %d %a %s %a %a %a %a\n",
                      c->model_type, (long long)c->D, (long long)c->F, (long long)c->V,
                      (long long)c->L, c->H, c->G, (long long)c->K, c->norm_eps, c->tied,
                      c->attention_bias, c->mlp_bias, c->rope_theta, az_config_rope_name(c),
                      c->rope_factor, c->rope_low_freq_factor, c->rope_high_freq_factor,
                      c->rope_original_max_position);
}

az_err az_shard_seed_tensor(uint64_t *out_seed, const az_weight *weight, const az_tensor *tensor)
{
    az_err err;
    az_str text = {0};
    AZ_TRY(add_tensor(&text, weight, tensor));
    *out_seed = az_hash64(text.s, text.len, 0);
out:
    az_str_fini(&text);
    return err;
}

static uint64_t hash_block(const void *data, size_t bytes, uint64_t seed, int64_t number)
{
    return az_hash64(data, bytes, seed + (uint64_t)number * 0x9e3779b97f4a7c15u);
}

az_err az_shard_hash_blocks(uint64_t *io_sum, uint64_t seed, const char *data, int64_t start,
                            int64_t bytes, const az_tensor *tensor, const az_tensor_set *set,
                            int *io_fd, int *io_file)
{
    az_err err = AZ_OK;
    const int64_t end = start + bytes;
    for (int64_t b = az_ceil_div(start, BLOCK); b * BLOCK < end; b++) {
        char whole[BLOCK];
        const int64_t lo = b * BLOCK, n = az_min_i64(BLOCK, tensor->bytes - lo);
        const char *block = data + (lo - start);
        if (lo + n > end) {
            memcpy(whole, block, (size_t)(end - lo));
            AZ_TRY(
                az_store_read(whole + (end - lo), set, tensor, end, lo + n - end, io_fd, io_file));
            block = whole;
        }
        *io_sum += hash_block(block, (size_t)n, seed, b);
    }
out:
    return err;
}

az_err az_shard_seal(uint64_t *io_sum, const az_config *config, const az_table *table,
                     const az_tensor_set *set)
{
    az_err err;
    az_str text = {0};
    AZ_TRY(add_config(&text, config));
    for (int i = 0; i < table->n_weights; i++)
        AZ_TRY(add_tensor(&text, &table->weights[i], &set->tensors[table->weights[i].index]));
    *io_sum = az_hash64(io_sum, sizeof *io_sum, az_hash64(text.s, text.len, 0));
out:
    az_str_fini(&text);
    return err;
}

az_err az_shard_fingerprint_files(uint64_t *out, const az_config *config, const az_table *table,
                                  const az_tensor_set *set)
{
    az_err err;
    char *chunk = NULL;
    int fd = -1, file = -1;
    uint64_t sum = 0, seed;
    AZ_TRY(AZ_NEW(chunk, (size_t)AZ_SHARD_CHUNK, "base index"));
    for (int i = 0; i < table->n_weights; i++) {
        const az_tensor *t = &set->tensors[table->weights[i].index];
        AZ_TRY(az_shard_seed_tensor(&seed, &table->weights[i], t));
        for (int64_t at = 0; at < t->bytes; at += AZ_SHARD_CHUNK) {
            const int64_t n = az_min_i64(AZ_SHARD_CHUNK, t->bytes - at);
            AZ_TRY(az_stop_check());
            AZ_TRY(az_store_read(chunk, set, t, at, n, &fd, &file));
            AZ_TRY(az_shard_hash_blocks(&sum, seed, chunk, at, n, t, set, &fd, &file));
        }
    }
    AZ_TRY(az_shard_seal(&sum, config, table, set));
    *out = sum;
out:
    if (fd >= 0)
        close(fd);
    az_free(chunk);
    return err;
}
