/* What the tests of adze's HDF5 files share: a small file of every kind of content. */
#ifndef AZ_TESTS_H5_UTIL_H
#define AZ_TESTS_H5_UTIL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "store/h5.h"

/* Arrays of a set, by hand: a row, a column, one element, and rows that no cut respects. */
static const az_h5_array h5_arrays[] = {
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 3, 7, 0},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 5, 3, 21},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", 1, 9, 36},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", 11, 1, 45},
    {"one", 1, 1, 56},
};
#define H5_ARRAYS ((int)(sizeof h5_arrays / sizeof *h5_arrays))
#define H5_ELEMENTS 57

static const char *const h5_groups[] = {"/adapter", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};
#define H5_GROUPS 3

/* A group of so many members that HDF5 keeps their names in a heap; rank 0 has all of it. */
#define H5_MANY 10
static const az_h5_array h5_many[H5_MANY] = {
    {"n0", 1, 1, 0}, {"n1", 1, 1, 1}, {"n2", 1, 1, 2}, {"n3", 1, 1, 3}, {"n4", 1, 1, 4},
    {"n5", 1, 1, 5}, {"n6", 1, 1, 6}, {"n7", 1, 1, 7}, {"n8", 1, 1, 8}, {"n9", 1, 1, 9},
};
/* The sets, /many, /deck and /shards. */
#define H5_DATASETS (H5_GROUPS * H5_ARRAYS + H5_MANY + 2)

/* Element i of set s: different everywhere; some values that 16 bits round up, some that they
 * cannot hold. */
static inline float h5_value(int s, int64_t i)
{
    static const float odd[] = {0.0f, -0.0f, 1e-40f, 3.4e38f, 1.00390625f, 1.01171875f, -65504.0f};
    return i % 8 < 7 ? (float)(s + 1) * 0.37f + (float)i * 1.0009f : odd[(i / 8) % 7];
}

static const int64_t h5_table[] = {0, 0, 20, 1, 20, 57, -1, INT64_MAX, INT64_MIN};
static const az_h5_attr h5_attrs[] = {
    {.name = "step", .type = AZ_H5_INT, .i = 120},
    {.name = "loss", .type = AZ_H5_REAL, .r = 0.1},
    {.name = "base", .type = AZ_H5_STRING, .s = "/models/\xc3\xa4/llama"},
    {.name = "note", .type = AZ_H5_STRING, .s = ""},
    {.name = "a", .type = AZ_H5_INT, .i = -1},
    {.name = "b", .type = AZ_H5_INT, .i = 2},
    {.name = "c", .type = AZ_H5_INT, .i = 3},
    {.name = "d", .type = AZ_H5_INT, .i = 4},
    {.name = "e", .type = AZ_H5_INT, .i = 5},
    {.name = "f", .type = AZ_H5_REAL, .r = 1e300},
};
#define H5_ATTRS ((int)(sizeof h5_attrs / sizeof *h5_attrs))
static const char h5_deck[] = "train:\n  steps: 10\nmodel: {path: \"x\"}\n";

/* Options of the writer, if a test sets them. */
static const az_h5_options *h5_options;

/* All of it, written by the ranks of comm, each of which owns [first, first + n_own). */
static inline az_err h5_write(const char *path, az_dtype dtype, int64_t first, int64_t n_own,
                              az_comm *comm, az_h5_times *times)
{
    az_err err;
    az_h5_writer *w = NULL;
    float own[H5_ELEMENTS + 1];
    AZ_TRY(az_h5_create(&w, path, "checkpoint", 4 * H5_GROUPS * H5_ELEMENTS, h5_options, comm));
    AZ_TRY(az_h5_put_text(w, "/deck", h5_deck));
    for (int s = 0; s < H5_GROUPS; s++) {
        for (int64_t i = 0; i < n_own; i++)
            own[i] = h5_value(s, first + i);
        AZ_TRY(az_h5_put_arrays(w, h5_groups[s], h5_arrays, H5_ARRAYS, dtype, own, first, n_own));
    }
    for (int64_t i = 0; i < H5_MANY; i++)
        own[i] = (float)i;
    const bool has = az_comm_rank(comm) == 0;
    AZ_TRY(az_h5_put_arrays(w, "/many", h5_many, H5_MANY, AZ_F32, own, has ? 0 : H5_MANY,
                            has ? H5_MANY : 0));
    AZ_TRY(az_h5_put_table(w, "/shards", h5_table, 3, 3));
    AZ_TRY(az_h5_put_attrs(w, "/trainer", h5_attrs, H5_ATTRS));
    AZ_TRY(az_h5_put_attrs(w, "/adapter", h5_attrs, 2));
    AZ_TRY(az_h5_finish(w, times));
out:
    az_h5_destroy(w);
    return err;
}

/* Whether elements [first, first + n) of set s are what was written. */
static inline bool h5_same(const float *got, int s, az_dtype dtype, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = h5_value(s, first + i);
        if (dtype == AZ_BF16)
            v = az_bf16_to_f32(az_f32_to_bf16(v));
        if (memcmp(&v, &got[i], sizeof v) != 0)
            return false;
    }
    return true;
}

static inline bool h5_same_many(az_h5_reader *r)
{
    for (int i = 0; i < H5_MANY; i++) {
        char path[20];
        float v = -1;
        snprintf(path, sizeof path, "/many/n%d", i);
        const az_h5_dataset *d = az_h5_find(r, path);
        if (d == NULL || d->rows != 1 || d->cols != 1 || az_h5_read_array(r, d, &v) != AZ_OK ||
            v != (float)i)
            return false;
    }
    return true;
}

/* Whether the rest is: texts, table, attributes, /many. */
static inline bool h5_same_rest(az_h5_reader *r)
{
    const char *deck = az_h5_get_text(r, "/deck");
    const int64_t *table = az_h5_get_table(r, "/shards");
    if (deck == NULL || strcmp(deck, h5_deck) != 0 || table == NULL ||
        memcmp(table, h5_table, sizeof h5_table) != 0 ||
        strcmp(az_h5_get_kind(r), "checkpoint") != 0)
        return false;
    for (int i = 0; i < H5_ATTRS; i++) {
        const az_h5_attr *a = &h5_attrs[i], *b = az_h5_find_attr(r, "/trainer", a->name);
        if (b == NULL || b->type != a->type || b->i != a->i || memcmp(&b->r, &a->r, 8) != 0 ||
            (a->type == AZ_H5_STRING && strcmp(a->s, b->s) != 0))
            return false;
    }
    return h5_same_many(r) && az_h5_get_attr(r, "/trainer", H5_ATTRS - 1) != NULL &&
           az_h5_get_attr(r, "/trainer", H5_ATTRS) == NULL &&
           az_h5_get_attr(r, "/adapter", 1) != NULL && az_h5_get_attr(r, "/adapter", 2) == NULL;
}

#endif
