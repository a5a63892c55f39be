/* comm: the timetable of a spread, against the best of all timetables, and what it promises. */
#include <config.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "comm/timetable.h"

enum { MAX_N = 64, MAX_ITEMS = 12 };

/* Fewest fetches from positions p on; held: items in slots as bits, before: the item used last
 * (its slot may not be taken if there are two), -1: none yet. */
static int count_best(const int *program, int n, int p, unsigned held, int before, unsigned cut,
                      int n_slots)
{
    while (p < n && ((cut >> program[p] & 1) == 0 || (held >> program[p] & 1) != 0)) {
        if (cut >> program[p] & 1)
            before = program[p];
        p++;
    }
    if (p == n)
        return 0;
    const unsigned item = 1U << program[p];
    if (__builtin_popcount(held) < n_slots)
        return 1 + count_best(program, n, p + 1, held | item, program[p], cut, n_slots);
    int best = n;
    for (unsigned left = held; left != 0; left &= left - 1) {
        const unsigned victim = left & -left;
        if (n_slots > 1 && before >= 0 && victim == 1U << before)
            continue;
        const int more =
            count_best(program, n, p + 1, (held & ~victim) | item, program[p], cut, n_slots);
        best = 1 + more < best ? 1 + more : best;
    }
    return best;
}

static unsigned held_by(const az_timetable *c)
{
    unsigned held = 0;
    for (int s = 0; s < c->n_slots; s++)
        if (c->content[s] >= 0)
            held |= 1U << c->content[s];
    return held;
}

/* Walk as ranks do, and look at every promise. content: moves on. */
static void check_walk(const az_timetable *c, const int *program, int n, int *content)
{
    int last_use[MAX_ITEMS], fetch = 0, recent = -1;
    assert_true(c->n_slots <= MAX_ITEMS && c->n == n);
    for (int s = 0; s < c->n_slots; s++)
        last_use[s] = -1;
    for (int p = 0; p < n; p++) {
        const int slot = c->slot[p];
        if (!c->cut[program[p]]) {
            assert_true(slot == -1 && c->brought[p] == -1);
            continue;
        }
        assert_in_range(slot, 0, c->n_slots - 1);
        if (fetch < c->n_fetches && c->fetches[fetch].position == p) {
            const az_fetch *f = &c->fetches[fetch];
            for (int s = 0; s < c->n_slots; s++)
                assert_true(content[s] != program[p]); /* nothing is brought twice */
            assert_true(f->item == program[p] && f->slot == slot);
            assert_int_equal(f->after, last_use[slot]);
            if (c->n_slots > 1)
                assert_true(slot != recent);
            content[slot] = program[p];
            assert_int_equal(c->brought[p], fetch);
            fetch++;
        }
        assert_int_equal(content[slot], program[p]);
        if (c->brought[p] >= 0)
            assert_true(c->fetches[c->brought[p]].slot == slot &&
                        c->fetches[c->brought[p]].position <= p);
        last_use[slot] = p;
        recent = slot;
    }
    assert_int_equal(fetch, c->n_fetches);
}

static unsigned draw(unsigned *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 16;
}

/* Any program, from whatever the slots hold: no timetable fetches less. */
static void test_best(void **state)
{
    (void)state;
    unsigned random = 7;
    for (int round = 0; round < 400; round++) {
        const int n_items = 1 + (int)(draw(&random) % 6), n_slots = 1 + (int)(draw(&random) % 4);
        az_timetable c;
        unsigned cut = 0;
        assert_int_equal(az_timetable_init(&c, n_items, n_slots, 12), AZ_OK);
        for (int i = 0; i < n_items; i++) {
            c.cut[i] = draw(&random) % 4 != 0;
            cut |= (unsigned)c.cut[i] << i;
        }
        for (int walk = 0; walk < 4; walk++) {
            int program[12], content[MAX_ITEMS], n = (int)(draw(&random) % 13);
            for (int p = 0; p < n; p++)
                program[p] = (int)(draw(&random) % (unsigned)n_items);
            memcpy(content, c.content, (size_t)n_slots * sizeof *content);
            az_timetable_make(&c, program, n);
            assert_int_equal(c.n_fetches, count_best(program, n, 0, held_by(&c), -1, cut, n_slots));
            check_walk(&c, program, n, content);
            assert_int_equal(az_timetable_end(&c, n), c.n_fetches);
            assert_memory_equal(content, c.content, (size_t)n_slots * sizeof *content);
            if (walk == 2)
                az_timetable_forget(&c);
        }
        az_timetable_fini(&c);
    }
}

static int make_zigzag(int *program, int n_items)
{
    for (int i = 0; i < n_items; i++)
        program[i] = program[2 * n_items - 1 - i] = i;
    return 2 * n_items;
}

/* The way forth and back: as many items as there are slots stay at each turning point. */
static void test_zigzag(void **state)
{
    (void)state;
    const int n_items = 9;
    for (int n_slots = 1; n_slots <= n_items + 1; n_slots++) {
        az_timetable c;
        int program[MAX_N];
        const int n = make_zigzag(program, n_items);
        assert_int_equal(az_timetable_init(&c, n_items, n_slots, n), AZ_OK);
        memset(c.cut, true, (size_t)n_items);
        for (int walk = 0; walk < 3; walk++) {
            az_timetable_make(&c, program, n);
            const int k = n_slots < n_items ? n_slots : n_items;
            assert_int_equal(c.n_fetches, walk == 0 ? 2 * n_items - k : 2 * (n_items - k));
            for (int p = n_items; p < n_items + k; p++) /* the first ones backward are there */
                assert_true(c.brought[p] < 0 || c.fetches[c.brought[p]].position < n_items);
            if (n_slots == 1) /* no overlap: each comes when the one before is released */
                for (int f = 1; f < c.n_fetches; f++)
                    assert_int_equal(c.fetches[f].after, c.fetches[f].position - 1);
            if (n_slots == 2) /* while one is in use, the next one comes */
                for (int f = 0; f < c.n_fetches; f++)
                    assert_true(c.fetches[f].after < az_max_i64(c.fetches[f].position - 1, 0));
            az_timetable_end(&c, n);
        }
        az_timetable_fini(&c);
    }
}

/* A walk that ends early: what could begin is brought, and the next walk builds on it. */
static void test_abandoned(void **state)
{
    (void)state;
    unsigned random = 3;
    for (int round = 0; round < 300; round++) {
        const int n_items = 6, n_slots = 1 + (int)(draw(&random) % 4);
        int program[MAX_N], content[MAX_ITEMS];
        const int n = make_zigzag(program, n_items);
        az_timetable c;
        assert_int_equal(az_timetable_init(&c, n_items, n_slots, n), AZ_OK);
        memset(c.cut, true, (size_t)n_items);
        for (int walk = 0; walk < 4; walk++) {
            const int released = (int)(draw(&random) % (unsigned)(n + 1));
            memcpy(content, c.content, (size_t)n_slots * sizeof *content);
            az_timetable_make(&c, program, n);
            check_walk(&c, program, n, content);
            const int n_begun = az_timetable_end(&c, released);
            for (int f = 0; f < c.n_fetches; f++) /* needed ones have begun; freed slots only */
                assert_true(f < n_begun ? c.fetches[f].after < released
                                        : c.fetches[f].position >= released);
            int n_distinct = 0;
            for (int s = 0; s < n_slots; s++)
                if (c.content[s] >= 0) {
                    n_distinct++;
                    for (int other = 0; other < s; other++)
                        assert_true(c.content[other] != c.content[s]);
                }
            assert_true(released == 0 || n_distinct > 0);
        }
        az_timetable_fini(&c);
    }
}

/* The count is what many walks give. */
static void test_count(void **state)
{
    (void)state;
    unsigned random = 11;
    for (int round = 0; round < 200; round++) {
        const int n_items = 1 + (int)(draw(&random) % 10), n_slots = 1 + (int)(draw(&random) % 5);
        const int n = (int)(draw(&random) % 30), n_walks = 5040;
        int program[MAX_N];
        size_t bytes[MAX_ITEMS];
        int64_t sum = 0, fetches = 0;
        az_timetable c;
        az_spread_traffic t;
        for (int i = 0; i < n_items; i++)
            bytes[i] = draw(&random) % 5 * 1000;
        for (int p = 0; p < n; p++)
            program[p] = (int)(draw(&random) % (unsigned)n_items);
        assert_int_equal(az_spread_count(&t, bytes, n_items, program, n, n_slots), AZ_OK);
        assert_int_equal(az_timetable_init(&c, n_items, n_slots, n), AZ_OK);
        for (int i = 0; i < n_items; i++)
            c.cut[i] = bytes[i] > 0;
        for (int walk = -20; walk < n_walks; walk++) {
            int64_t of_walk = 0;
            az_timetable_make(&c, program, n);
            for (int f = 0; f < c.n_fetches; f++)
                of_walk += (int64_t)bytes[c.fetches[f].item];
            if (walk == -20)
                assert_true(of_walk == t.first_bytes && c.n_fetches == t.first_fetches);
            if (walk >= 0) {
                sum += of_walk;
                fetches += c.n_fetches;
            }
            az_timetable_end(&c, n);
        }
        assert_int_equal(sum / n_walks, t.bytes);
        assert_int_equal(fetches / n_walks, t.fetches);
        az_timetable_fini(&c);
    }
    /* Nothing is cut: nothing is fetched, and no slot is needed. */
    const size_t none[2] = {0, 0};
    const int program[3] = {0, 1, 0};
    az_spread_traffic t;
    assert_int_equal(az_spread_count(&t, none, 2, program, 3, 0), AZ_OK);
    assert_true(t.first_bytes == 0 && t.bytes == 0 && t.fetches == 0);
    assert_int_equal(az_mem_get_total().blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_zigzag),
        cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
