/* comm: items brought together from the nodes, with ranks that come and go at different times: the
 * right bytes at each place of many programs, walks that end early, contents that go out of date,
 * both kinds of progress, messages in many pieces. */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/spread.h"
#include "tests/mpi/check.h"

enum { N_ITEMS = 9, LONGEST = 40 };

static const size_t sizes[N_ITEMS] = {1, 5000, 64, 4096, 777, 0, 12345, 65, 2048};

/* Of all ranks alike (shared), and of each its own (delays). */
static unsigned shared, delays;

static int draw(unsigned *state, int n)
{
    *state = *state * 1664525U + 1013904223U;
    return (int)((*state >> 8) % (unsigned)n);
}

/* Ranks are early and late, by up to 0.3 ms; some now and then by more. */
static void dawdle(void)
{
    const int kind = draw(&delays, 16);
    if (kind < 10)
        return;
    const struct timespec t = {.tv_nsec = kind < 15 ? draw(&delays, 300) * 1000L : 2000000L};
    nanosleep(&t, NULL);
}

static unsigned char byte_of(int item, size_t i, int version)
{
    return (unsigned char)((size_t)item * 31 + i * 7 + i / 251 + (size_t)version * 101);
}

/* The items and what this rank holds of them. */
typedef struct {
    az_spread_item items[N_ITEMS];
    size_t cut[N_ITEMS][64]; /* of odd items, by our own tables */
    char *held[N_ITEMS];
    size_t from[N_ITEMS], bytes[N_ITEMS]; /* of held */
    int n_cut;
} stock;

static size_t blocks_of(size_t bytes)
{
    return (bytes + 63) / 64;
}

static void fill_stock(stock *k, int version)
{
    for (int i = 0; i < N_ITEMS; i++)
        for (size_t b = 0; b < k->bytes[i]; b++)
            k->held[i][b] = (char)byte_of(i, k->from[i] + b, version);
}

/* One in four items is resident; of the others, those with an odd number are cut at random. */
static void make_stock(stock *k, const az_comm *comm)
{
    const int n = az_comm_n_positions(comm), mine = az_comm_position(comm);
    *k = (stock){0};
    for (int i = 0; i < N_ITEMS; i++) {
        az_spread_item *it = &k->items[i];
        const size_t blocks = blocks_of(sizes[i]);
        *it = (az_spread_item){.bytes = sizes[i], .resident = i % 4 == 3};
        for (int p = 0; p <= n; p++)
            k->cut[i][p] = az_cut(blocks, (size_t)p, (size_t)n);
        if (i % 2 == 1 && !it->resident) {
            for (int p = 1; p < n; p++) {
                const size_t more = (size_t)draw(&shared, (int)blocks + 1);
                k->cut[i][p] = k->cut[i][p - 1] + more < blocks ? k->cut[i][p - 1] + more : blocks;
            }
            it->opt_cut = k->cut[i];
        }
        for (int p = 0; p <= n; p++)
            k->cut[i][p] = k->cut[i][p] * 64 < sizes[i] ? k->cut[i][p] * 64 : sizes[i];
        if (it->resident)
            k->bytes[i] = sizes[i];
        else if (mine >= 0) {
            k->from[i] = k->cut[i][mine];
            k->bytes[i] = k->cut[i][mine + 1] - k->from[i];
        }
        k->n_cut += !it->resident && sizes[i] > 0;
        k->held[i] = az_alloc(blocks_of(k->bytes[i]) * 64, 1, "test");
        it->home = k->bytes[i] > 0 || it->resident ? k->held[i] : NULL;
    }
    fill_stock(k, 0);
}

static void free_stock(stock *k)
{
    for (int i = 0; i < N_ITEMS; i++)
        az_free(k->held[i]);
}

static void check_item(const char *p, int item, int version)
{
    size_t wrong = 0;
    CHECK((uintptr_t)p % 64 == 0);
    for (size_t b = 0; b < sizes[item]; b++)
        wrong += (unsigned char)p[b] != byte_of(item, b, version);
    CHECK(wrong == 0);
}

/* What may be called within a walk. All ranks do the same. */
static void talk(az_comm *comm)
{
    switch (draw(&shared, 12)) {
    case 0:
        CHECK(az_comm_poll(comm) == 0);
        break;
    case 1:
        az_comm_node_barrier(comm);
        break;
    case 2: {
        const az_topology *t = az_comm_get_topology(comm);
        int64_t counts[64], send[64], recv[1] = {-1};
        for (int i = 0; i < t->n_nodes; i++) {
            counts[i] = 1;
            send[i] = i;
        }
        az_comm_lane_reduce_scatter_i64(comm, send, recv, counts);
        CHECK(recv[0] == (az_comm_lane(comm) < 0 ? -1 : az_comm_node(comm) * t->n_nodes));
        break;
    }
    case 3: {
        int64_t one = 1;
        az_comm_sum_i64(comm, &one, 1);
        CHECK(one == az_comm_size(comm));
        break;
    }
    default:
        break;
    }
}

static int make_program(int *program)
{
    const int n = draw(&shared, LONGEST + 1);
    if (draw(&shared, 2) == 0) /* forth and back */
        for (int p = 0; p < n; p++)
            program[p] = p % (2 * N_ITEMS) < N_ITEMS ? p % (2 * N_ITEMS)
                                                     : 2 * N_ITEMS - 1 - p % (2 * N_ITEMS);
    else
        for (int p = 0; p < n; p++)
            program[p] = draw(&shared, N_ITEMS);
    return n;
}

static void walk(az_spread *s, az_comm *comm, int version)
{
    int program[LONGEST];
    const int n = make_program(program), end = draw(&shared, 3) == 0 ? draw(&shared, n + 1) : n;
    dawdle();
    az_spread_begin(s, program, n);
    for (int p = 0; p < end; p++) {
        check_item(az_spread_get(s), program[p], version);
        dawdle();
        az_spread_release(s);
        talk(comm);
    }
    az_spread_end(s);
}

/* The base (one spread) and something that changes (another), by the same ranks. */
static void test_walks(az_comm *comm, int n_slots, az_progress_kind progress)
{
    stock base, other;
    az_spread *a, *b;
    make_stock(&base, comm);
    make_stock(&other, comm);
    CHECK(az_spread_create(&a, base.items, N_ITEMS, n_slots, 12345, LONGEST, progress, "slots",
                           comm) == AZ_OK);
    CHECK(az_spread_create(&b, other.items, N_ITEMS, 2, 12345, LONGEST, progress, "slots", comm) ==
          AZ_OK);
    az_comm_barrier(comm);
    const size_t calls = az_mem_get_total().calls;
    for (int round = 0; round < 3; round++) {
        walk(a, comm, 0);
        walk(b, comm, round);
        walk(b, comm, round);
        fill_stock(&other, round + 1); /* at once: nobody reads this rank's parts any more */
        az_spread_forget(b);
    }
    CHECK(az_mem_get_total().calls == calls);
    /* One within the other. */
    const int program[3] = {1, 2, 6};
    az_spread_begin(a, program, 3);
    az_spread_begin(b, program, 3);
    for (int p = 0; p < 3; p++) {
        check_item(az_spread_get(a), program[p], 0);
        check_item(az_spread_get(b), program[p], 3);
        az_spread_release(a);
        dawdle();
        az_spread_release(b);
    }
    az_spread_end(a);
    az_spread_end(b);
    az_spread_begin(a, program, 3); /* a walk is ended by destroy */
    az_spread_get(a);
    az_spread_destroy(a);
    az_spread_destroy(b);
    free_stock(&base);
    free_stock(&other);
}

/* Statistics against the pure count; nothing comes to a node twice. */
static void test_count(az_comm *comm)
{
    stock k;
    az_spread *s;
    int program[2 * N_ITEMS];
    size_t cut[N_ITEMS];
    az_spread_traffic t;
    const az_topology *topology = az_comm_get_topology(comm);
    make_stock(&k, comm);
    for (int i = 0; i < N_ITEMS; i++) {
        program[i] = program[2 * N_ITEMS - 1 - i] = i;
        cut[i] = k.items[i].resident ? 0 : blocks_of(sizes[i]) * 64;
    }
    CHECK(az_spread_create(&s, k.items, N_ITEMS, 3, 12345, 2 * N_ITEMS, AZ_PROGRESS_AUTO, "slots",
                           comm) == AZ_OK);
    CHECK(az_spread_count(&t, cut, N_ITEMS, program, 2 * N_ITEMS, 3) == AZ_OK);
    az_spread_stats last = {0}, now;
    for (int round = 0; round < 3; round++, last = now) {
        az_spread_begin(s, program, 2 * N_ITEMS);
        for (int p = 0; p < 2 * N_ITEMS; p++) {
            check_item(az_spread_get(s), program[p], 0);
            az_spread_release(s);
        }
        az_spread_end(s);
        now = az_spread_get_stats(s);
        int64_t sums[3] = {now.node_bytes - last.node_bytes, now.rank_bytes - last.rank_bytes, 0};
        sums[2] = az_comm_node_rank(comm) == 0 ? sums[0] : 0;
        az_comm_sum_i64(comm, sums, 3);
        /* All that nodes bring: each item once a node, less what the nodes hold, which is once. */
        const int64_t whole = round == 0 ? t.first_bytes : t.bytes;
        CHECK(sums[1] == sums[2] && sums[2] == whole * (topology->n_nodes - 1));
        CHECK(now.gets - last.gets == 2 * N_ITEMS);
    }
    CHECK(now.fetches == t.first_fetches + 2 * t.fetches && now.wait_s >= 0);
    az_spread_destroy(s);
    free_stock(&k);
}

/* Where nothing is cut nothing is made: no slot, no thread. */
static void test_resident(az_comm *comm)
{
    stock k;
    az_spread *s;
    const int program[2] = {3, 7};
    make_stock(&k, comm);
    for (int i = 0; i < N_ITEMS; i++)
        k.items[i].resident = true;
    CHECK(az_spread_create(&s, k.items, N_ITEMS, 0, 0, 2, AZ_PROGRESS_AUTO, "slots", comm) ==
          AZ_OK);
    az_spread_begin(s, program, 2);
    CHECK(az_spread_get(s) == k.held[3]);
    az_comm_barrier(comm); /* even this: nothing is under way */
    az_spread_release(s);
    CHECK(az_spread_get(s) == k.held[7]);
    az_spread_release(s);
    az_spread_end(s);
    CHECK(az_spread_get_stats(s).fetches == 0);
    az_spread_destroy(s);
    free_stock(&k);
}

/* What is measured is what is allocated, but for what belongs to all spreads together. */
static void test_measure(az_comm *comm)
{
    stock k;
    az_spread *s;
    az_spread_sizes sizes_of;
    make_stock(&k, comm);
    const size_t before = az_mem_get_total().bytes;
    CHECK(az_spread_create(&s, k.items, N_ITEMS, 4, 12345, 10000, AZ_PROGRESS_POLL, "slots",
                           comm) == AZ_OK);
    const size_t own = az_mem_get_total().bytes - before;
    az_spread_measure(&sizes_of, N_ITEMS, k.n_cut, 4, 12345, 10000, az_comm_get_topology(comm));
    CHECK(sizes_of.slot_bytes == (size_t)4 * 12352);
    CHECK(own >= sizes_of.own_bytes &&
          own <= sizes_of.own_bytes + sizes_of.slot_bytes + ((size_t)4 << 20));
    if (az_comm_node_rank(comm) > 0)
        CHECK(own <= sizes_of.own_bytes + 4096);
    az_spread_destroy(s);
    CHECK(az_mem_get_total().bytes == before);
    free_stock(&k);
}

/* No memory on one rank is a failure on all, and nothing is left. */
static void test_no_memory(az_comm *comm)
{
    stock k;
    az_spread *s;
    int n = 0;
    az_err err;
    make_stock(&k, comm);
    az_comm_barrier(comm);
    const size_t blocks = az_mem_get_total().blocks;
    do {
        if (az_comm_rank(comm) == az_comm_size(comm) - 1)
            az_mem_set_fault(n++);
        err = az_spread_create(&s, k.items, N_ITEMS, 2, 12345, LONGEST, AZ_PROGRESS_AUTO, "slots",
                               comm);
        az_mem_set_fault(-1);
        az_err_clear();
        CHECK((err == AZ_OK) == (s != NULL));
        az_spread_destroy(s);
        CHECK(az_mem_get_total().blocks == blocks);
    } while (err != AZ_OK);
    CHECK(az_comm_rank(comm) < az_comm_size(comm) - 1 || n > 10);
    free_stock(&k);
}

static void run(void)
{
    az_comm *comm;
    CHECK(az_comm_init(&comm, NULL, NULL) == AZ_OK);
    shared = 5;
    delays = 77U * (unsigned)az_comm_rank(comm);
    for (int n_slots = 1; n_slots <= 4; n_slots += n_slots) {
        test_walks(comm, n_slots, AZ_PROGRESS_AUTO);
        test_walks(comm, n_slots, AZ_PROGRESS_POLL);
    }
    test_count(comm);
    test_resident(comm);
    test_measure(comm);
    test_no_memory(comm);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    n_failed = (int)failed;
    az_comm_fini(comm);
}

int main(void)
{
    az_comm *keep, *self;
    CHECK(az_comm_init(&keep, NULL, NULL) == AZ_OK); /* starts MPI; the others do not */
    run();
    setenv("ADZE_COMM_LIMIT", "1000", 1); /* a few blocks a message */
    run();
    CHECK(az_comm_create_self(&self) == AZ_OK);
    test_walks(self, 2, AZ_PROGRESS_AUTO);
    az_comm_fini(self);
    int64_t failed = n_failed;
    az_comm_sum_i64(keep, &failed, 1);
    az_comm_fini(keep);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
