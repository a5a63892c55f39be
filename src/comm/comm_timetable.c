/* spread: which slot holds what when, and how much has to be brought. No communication.
 *
 * The whole program is known, so the best choice is known too (L. A. Belady, 1966): what is thrown
 * out is the item whose next use is farthest, the program taken as repeated for ever. Where there
 * are two slots or more, the slot used just before is never taken: the next item can then come
 * while that one is still in use. Under this rule too no other choice needs fewer fetches. On a way
 * forth and back it keeps the last items at the turning points, as many as there are slots. */
#include <config.h>

#include "comm/timetable.h"

#include <limits.h>
#include <string.h>

#define NEVER INT_MAX

az_err az_timetable_init(az_timetable *c, int n_items, int n_slots, int longest)
{
    az_err err;
    AZ_ASSERT(n_items >= 0 && n_slots >= 0 && longest >= 0 && longest < NEVER / 2);
    *c = (az_timetable){.n_items = n_items, .n_slots = n_slots, .longest = longest};
    AZ_TRY(AZ_NEW(c->cut, (size_t)n_items, "communication"));
    AZ_TRY(AZ_NEW(c->content, (size_t)n_slots, "communication"));
    AZ_TRY(AZ_NEW(c->slot, (size_t)longest, "communication"));
    AZ_TRY(AZ_NEW(c->brought, (size_t)longest, "communication"));
    AZ_TRY(AZ_NEW(c->fetches, (size_t)longest, "communication"));
    AZ_TRY(AZ_NEW(c->first, (size_t)n_items, "communication"));
    AZ_TRY(AZ_NEW(c->again, (size_t)longest, "communication"));
    AZ_TRY(AZ_NEW(c->now, 4 * (size_t)n_slots, "communication"));
    c->next = c->now + n_slots;
    c->used = c->next + n_slots;
    c->by = c->used + n_slots;
    az_timetable_forget(c);
out:
    return err;
}

void az_timetable_fini(az_timetable *c)
{
    az_free(c->cut);
    az_free(c->content);
    az_free(c->slot);
    az_free(c->brought);
    az_free(c->fetches);
    az_free(c->first);
    az_free(c->again);
    az_free(c->now);
    *c = (az_timetable){0};
}

size_t az_timetable_measure(int n_items, int n_slots, int longest)
{
    return (size_t)n_items * (sizeof(bool) + sizeof(int)) + (size_t)n_slots * 5 * sizeof(int) +
           (size_t)longest * (3 * sizeof(int) + sizeof(az_fetch));
}

void az_timetable_forget(az_timetable *c)
{
    for (int s = 0; s < c->n_slots; s++)
        c->content[s] = -1;
}

/* First position of each item, and the next one of the item at each position; beyond the end the
 * program begins again. */
static void find_uses(az_timetable *c, const int *program, int n)
{
    for (int i = 0; i < c->n_items; i++)
        c->first[i] = NEVER;
    for (int p = n - 1; p >= 0; p--)
        c->first[program[p]] = p;
    for (int p = n - 1; p >= 0; p--) { /* first serves as the next use so far */
        const int item = program[p];
        c->again[p] = c->first[item] + (c->first[item] <= p ? n : 0);
        c->first[item] = p;
    }
}

static int find_slot(const az_timetable *c, int item)
{
    for (int s = 0; s < c->n_slots; s++)
        if (c->now[s] == item)
            return s;
    return -1;
}

/* recent: the slot used just before, or -1. An empty slot counts as never used again. */
static int find_victim(const az_timetable *c, int recent)
{
    int best = -1;
    for (int s = 0; s < c->n_slots; s++)
        if ((s != recent || c->n_slots == 1) && (best < 0 || c->next[s] > c->next[best]))
            best = s;
    return best;
}

void az_timetable_make(az_timetable *c, const int *program, int n)
{
    int recent = -1;
    AZ_ASSERT(n >= 0 && n <= c->longest);
    find_uses(c, program, n);
    for (int s = 0; s < c->n_slots; s++) {
        c->now[s] = c->content[s];
        c->next[s] = c->now[s] >= 0 ? c->first[c->now[s]] : NEVER;
        c->used[s] = c->by[s] = -1;
    }
    c->n = n;
    c->n_fetches = 0;
    for (int p = 0; p < n; p++) {
        c->slot[p] = c->brought[p] = -1;
        if (!c->cut[program[p]])
            continue;
        int s = find_slot(c, program[p]);
        if (s < 0) {
            s = find_victim(c, recent);
            AZ_ASSERT(s >= 0);
            c->by[s] = c->n_fetches;
            c->fetches[c->n_fetches++] = (az_fetch){p, program[p], s, c->used[s]};
            c->now[s] = program[p];
        }
        c->slot[p] = s;
        c->brought[p] = c->by[s];
        c->next[s] = c->again[p];
        c->used[s] = p;
        recent = s;
    }
}

int az_timetable_end(az_timetable *c, int n_released)
{
    int n = 0;
    while (n < c->n_fetches && c->fetches[n].after < n_released) {
        c->content[c->fetches[n].slot] = c->fetches[n].item;
        n++;
    }
    return n;
}

/* ---- traffic of walks ---- */

static void add_fetches(int64_t *io_bytes, int64_t *io_fetches, const az_timetable *c,
                        const size_t *cut_bytes)
{
    for (int f = 0; f < c->n_fetches; f++)
        *io_bytes += (int64_t)cut_bytes[c->fetches[f].item];
    *io_fetches += c->n_fetches;
}

/* Whether the slots hold the items of kept [n_slots], in any order. */
static bool holds(const az_timetable *c, const int *kept)
{
    for (int s = 0; s < c->n_slots; s++) {
        int at = 0;
        while (at < c->n_slots && kept[at] != c->content[s])
            at++;
        if (at == c->n_slots)
            return false;
    }
    return true;
}

/* What slots hold comes back after some walks (mostly one), from when on all repeats itself: the
 * walks between are counted. Brent's way of finding it: compare with what was held after the last
 * power of two of walks. */
az_err az_spread_count(az_spread_traffic *out, const size_t *cut_bytes, int n_items,
                       const int *program, int n, int n_slots)
{
    az_err err;
    az_timetable c = {0};
    int *kept = NULL;
    *out = (az_spread_traffic){0};
    AZ_TRY(az_timetable_init(&c, n_items, n_slots, n));
    AZ_TRY(AZ_NEW(kept, (size_t)n_slots, "communication"));
    for (int i = 0; i < n_items; i++)
        c.cut[i] = cut_bytes[i] > 0;
    az_timetable_make(&c, program, n);
    add_fetches(&out->first_bytes, &out->first_fetches, &c, cut_bytes);
    az_timetable_end(&c, n);
    for (int64_t walks = 0, power = 1;; power *= 2, walks = 0) {
        memcpy(kept, c.content, (size_t)n_slots * sizeof *kept);
        out->bytes = out->fetches = 0;
        do {
            az_timetable_make(&c, program, n);
            add_fetches(&out->bytes, &out->fetches, &c, cut_bytes);
            az_timetable_end(&c, n);
            walks++;
        } while (walks < power && !holds(&c, kept));
        if (holds(&c, kept)) {
            out->bytes /= walks;
            out->fetches /= walks;
            break;
        }
    }
out:
    az_free(kept);
    az_timetable_fini(&c);
    return err;
}
