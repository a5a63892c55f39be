/* shard: units of a model, which of them stay resident, what they take of memory: pure functions
 * of sizes and of where ranks are. */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/shard.h"

static int n_failed;
#define CHECK(cond)                                                    \
    do {                                                               \
        if (!(cond)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
            n_failed++;                                                \
        }                                                              \
    } while (0)

/* An embedding, 8 layers, a norm, a head in two pieces; the norm is small. */
enum { N = 12, LAYERS = 8 };

static void fill(az_unit_list *list, az_unit_info *units)
{
    *list = (az_unit_list){.units = units, .n_units = N, .n_members = 3 * N};
    for (int u = 0; u < N; u++) {
        units[u] = (az_unit_info){AZ_UNIT_LAYER, 2, 64 * 1000};
        if (u == 0)
            units[u] = (az_unit_info){AZ_UNIT_EMBED, 1, 64 * 700};
        if (u == 1 + LAYERS)
            units[u] = (az_unit_info){AZ_UNIT_NORM, 1, 64 * 8};
        if (u > 1 + LAYERS)
            units[u] = (az_unit_info){AZ_UNIT_HEAD, 2, 64 * 900};
        list->bytes += units[u].bytes;
    }
}

static size_t held(const az_unit_list *list, const bool *resident, const az_topology *t)
{
    size_t sum = 0;
    for (int u = 0; u < N; u++)
        sum += az_shard_count_held(&list->units[u], resident[u], t);
    return sum;
}

static void check_choice(const az_unit_list *list, const az_topology *t)
{
    bool resident[N], none[N] = {false};
    const size_t excess = az_shard_count_excess(list, t), cut = held(list, none, t);
    size_t last = 0;
    for (int i = 0; i <= 100; i++) {
        const size_t spend = (size_t)((double)excess * i / 100);
        az_shard_choose_resident(resident, list, spend, t);
        const size_t now = held(list, resident, t);
        int n = 0;
        for (int u = 0; u < N; u++)
            n += resident[u];
        /* No more than asked for; no less than by one unit; more memory is never less held. */
        CHECK(now <= cut + spend && now + 64 * 1000 >= cut + spend && now >= last);
        CHECK(i < 100 || n == N);
        CHECK(i > 0 || n == resident[1 + LAYERS]);
        CHECK(i == 0 || resident[1 + LAYERS]); /* the norm first */
        last = now;
    }
    CHECK(last == list->bytes);
    az_shard_sizes s = az_shard_measure(list, none, 2, false, t);
    CHECK(s.held == cut && s.n_slots == 2 && s.slots == 2 * s.slot_each);
    CHECK(s.slot_each == 64 * 1000);
    const az_shard_sizes p = az_shard_measure(list, none, 2, true, t);
    CHECK(p.own == s.own + 64 * 1000 && p.held == s.held);
    s = az_shard_measure(list, none, 64, false, t);
    CHECK(s.n_slots == N);
    s = az_shard_measure(list, resident, 64, false, t);
    CHECK(s.n_slots == 0 && s.slots == 0 && s.held == list->bytes);
}

/* Half of the layers and head pieces: never three of one kind in a row. */
static void check_spread(const az_unit_list *list, const az_topology *t)
{
    bool resident[N];
    az_shard_choose_resident(resident, list, az_shard_count_excess(list, t) / 2, t);
    for (int u = 1; u + 2 < 1 + LAYERS; u++)
        CHECK(resident[u] + resident[u + 1] + resident[u + 2] < 3 &&
              resident[u] + resident[u + 1] + resident[u + 2] > 0);
}

/* A model of the golden suite. */
static void check_list(const char *name)
{
    const char *src = getenv("srcdir");
    char dir[400];
    az_config c;
    az_tensor_set set = {0};
    az_table table = {0};
    az_unit_list list = {0};
    snprintf(dir, sizeof dir, "%s/tests/golden/llama-%s/model", src != NULL ? src : ".", name);
    CHECK(az_config_read(&c, dir) == AZ_OK && az_store_open_model(&set, dir) == AZ_OK);
    CHECK(az_table_create(&table, &c, &set) == AZ_OK);
    CHECK(az_shard_list_units(&list, &c, &table, &set) == AZ_OK);
    CHECK(list.n_members == table.n_weights && list.n_units == 2 + (int)c.L + !c.tied);
    CHECK(list.count[AZ_UNIT_LAYER] == c.L && list.first[AZ_UNIT_LAYER] == 1);
    CHECK(list.units[list.first[AZ_UNIT_LAYER]].uses == 2);
    CHECK(list.count[AZ_UNIT_HEAD] == 1 && list.head_rows == c.V);
    CHECK(list.units[list.first[AZ_UNIT_HEAD]].uses == 1 + c.tied);
    CHECK(list.units[0].bytes / 64 ==
          (size_t)az_ceil_div(set.tensors[table.weights[0].index].bytes, 64));
    az_shard_free_units(&list);
    az_table_fini(&table);
    az_store_close(&set);
}

int main(void)
{
    static const int ranks[2] = {5, 4}, many[3] = {64, 64, 64}, alone[1] = {3};
    const az_topology two = {9, 2, 4, ranks}, three = {192, 3, 64, many}, one = {3, 1, 3, alone};
    az_unit_list list;
    az_unit_info units[N];
    bool resident[N];
    fill(&list, units);
    check_choice(&list, &two);
    check_choice(&list, &three);
    check_spread(&list, &two);
    /* One node holds all of everything. */
    CHECK(az_shard_count_excess(&list, &one) == 0);
    az_shard_choose_resident(resident, &list, 0, &one);
    CHECK(resident[0] && resident[N - 1] && held(&list, resident, &one) == list.bytes);
    check_list("gqa");
    check_list("tied");
    return n_failed != 0 || az_mem_get_total().blocks != 0;
}
