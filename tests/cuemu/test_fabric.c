/* The fabric: what is gathered and summed is what must come out, on any places; several calls are
 * under way at once. */
#include <config.h>

#include <string.h>

#include "comm/fabric.h"
#include "comm/spread.h"
#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"

/* Wholes under way at once, and room for each. */
enum { N = 8, MOST = 40000 };

/* No link of the stand-in is slower than this on a busy machine, nor as fast as that. */
#define MIN_SPEED 1e5
#define MAX_SPEED 1e11

/* The same program is built twice: once MPI is given device memory, which the stand-in has in the
 * host's and then leaves open to it; the address sanitizer does not. */
#ifdef DIRECT
static const bool direct = true;
#else
static const bool direct = false;
#endif
#ifdef __SANITIZE_ADDRESS__
static const bool address_sanitizer = true;
#else
static const bool address_sanitizer = false;
#endif

static az_comm *comm;
static az_dev *dev;
static int n_positions, n_nodes, node, lane, position;
static char *host, *device[N], *got; /* host, got: pinned */
static az_event *event;
static const size_t all_bytes[N] = {0, 1, 64, 65, 1000, 4096, 12345, 30001};

static void open_all(int argc, char **argv)
{
    CHECK(az_comm_init(&comm, &argc, &argv) == AZ_OK);
    dev = open_gpu(az_comm_node_rank(comm));
    n_positions = az_comm_n_positions(comm);
    n_nodes = az_comm_get_topology(comm)->n_nodes;
    node = az_comm_node(comm);
    lane = az_comm_lane(comm);
    position = az_comm_position(comm);
    CHECK(az_dev_alloc_host((void **)&host, dev, (size_t)N * MOST, "test") == AZ_OK);
    CHECK(az_dev_alloc_host((void **)&got, dev, MOST, "test") == AZ_OK);
    for (int i = 0; i < N; i++)
        CHECK(az_dev_alloc((void **)&device[i], dev, MOST, "test") == AZ_OK);
    CHECK(az_dev_create_event(&event, dev) == AZ_OK);
}

static void close_all(void)
{
    for (int i = 0; i < N; i++)
        az_dev_free(dev, device[i]);
    az_dev_free_host(dev, host);
    az_dev_free_host(dev, got);
    az_dev_destroy_event(dev, event);
    az_dev_close(dev);
    az_comm_fini(comm);
}

static char byte_of(int i, size_t at)
{
    return (char)(at * 7 + at / 251 * 3 + (size_t)i * 31 + 1);
}

/* Device array i has bytes [begin, end) of whole i, and something else in the rest. */
static void put(int i, size_t begin, size_t end)
{
    char *from = host + (size_t)i * MOST;
    memset(from, 0xee, MOST);
    for (size_t at = begin; at < end; at++)
        from[at] = byte_of(i, at);
    az_dev_copy_in(dev, AZ_QUEUE_COPY, device[i], from, MOST);
    az_dev_record(dev, event, AZ_QUEUE_COPY);
    az_dev_wait(dev, AZ_QUEUE_GATHER, event);
}

/* What is in device array i now, when the gather queue is done. */
static const char *fetch(int i, size_t bytes)
{
    az_dev_record(dev, event, AZ_QUEUE_GATHER);
    az_dev_wait(dev, AZ_QUEUE_COMPUTE, event);
    az_dev_copy_out(dev, AZ_QUEUE_COMPUTE, got, device[i], bytes);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    return got;
}

static int count_wrong(int i, size_t begin, size_t end)
{
    const char *now = fetch(i, end);
    int wrong = 0;
    for (size_t at = begin; at < end; at++)
        wrong += now[at] != byte_of(i, at);
    return wrong;
}

/* Wholes of all sizes, one behind the other. */
static void check_gather(az_fabric *fabric, az_gather how)
{
    for (int i = 0; i < N; i++) {
        const int first = how == AZ_GATHER_ALL ? position : lane * n_nodes;
        const int last = how == AZ_GATHER_ALL ? position : first + n_nodes - 1;
        const size_t b = all_bytes[i];
        CHECK(az_fabric_room(b, n_positions) <= MOST);
        put(i, lane < 0 ? 0 : az_fabric_cut(b, first, n_positions),
            lane < 0 ? 0 : az_fabric_cut(b, last + 1, n_positions));
        az_fabric_gather(fabric, device[i], b, how);
    }
    for (int i = 0; i < N; i++)
        CHECK(count_wrong(i, 0, all_bytes[i]) == 0);
}

/* A cut that gives some positions much and some nothing. */
static int64_t make_cut(int64_t *cut, int64_t most, int turn)
{
    cut[0] = 0;
    for (int p = 0; p < n_positions; p++) {
        const int64_t n =
            (p + turn) % 3 == 0 ? 0 : (p * 37 + turn * 411 + 1) % (most / n_positions);
        cut[p + 1] = cut[p] + n;
    }
    return cut[n_positions];
}

static void check_gather_cut(az_fabric *fabric)
{
    static const size_t sizes[4] = {1, 4, 8, 12};
    int64_t cuts[N][65];
    for (int i = 0; i < N; i++) {
        const size_t size = sizes[i % 4];
        make_cut(cuts[i], (int64_t)(MOST / size), i);
        put(i, lane < 0 ? 0 : (size_t)cuts[i][position] * size,
            lane < 0 ? 0 : (size_t)cuts[i][position + 1] * size);
        az_fabric_gather_cut(fabric, device[i], size, cuts[i]);
    }
    for (int i = 0; i < N; i++)
        CHECK(count_wrong(i, 0, (size_t)cuts[i][n_positions] * sizes[i % 4]) == 0);
}

static int64_t term_of(int i, int64_t at, int rank)
{
    return (at * 1000003 + i) * (rank % 2 == 0 ? 1 : -3) + ((int64_t)rank << 50);
}

static int count_wrong_sums(int i, const int64_t *cut)
{
    const int64_t *now =
        (const int64_t *)(const void *)fetch(i, (size_t)cut[n_positions] * sizeof *now);
    int wrong = 0;
    if (lane < 0)
        return 0;
    for (int64_t at = cut[position]; at < cut[position + 1]; at++) {
        int64_t want = 0;
        for (int r = 0; r < az_comm_size(comm); r++)
            want += term_of(i, at, r);
        wrong += now[at] != want;
    }
    return wrong;
}

static void check_reduce(az_fabric *fabric)
{
    int64_t cuts[N][65];
    for (int i = 0; i < N; i++) {
        int64_t *from = (int64_t *)(void *)(host + (size_t)i * MOST);
        const int64_t n = make_cut(cuts[i], MOST / (int64_t)sizeof *from, i);
        for (int64_t at = 0; at < n; at++)
            from[at] = term_of(i, at, az_comm_rank(comm));
        az_dev_copy_in(dev, AZ_QUEUE_COMPUTE, device[i], from, (size_t)n * sizeof *from);
        az_dev_record(dev, event, AZ_QUEUE_COMPUTE);
        az_dev_wait(dev, AZ_QUEUE_GATHER, event);
        az_fabric_reduce_i64(fabric, (int64_t *)(void *)device[i], cuts[i]);
    }
    for (int i = 0; i < N; i++)
        CHECK(count_wrong_sums(i, cuts[i]) == 0);
}

static size_t count_pinned(void)
{
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (strcmp(label, AZ_FABRIC_LABEL) == 0)
            return bytes;
    return 0;
}

/* The text for the banner. */
static void check_text(az_fabric *fabric, bool nccl)
{
    char text[256];
    az_fabric_describe(fabric, text, sizeof text);
    CHECK((strstr(text, "NCCL 2.") != NULL) == (nccl || az_comm_size(comm) > n_nodes));
    CHECK((strstr(text, "between nodes NCCL") != NULL) == nccl);
    CHECK((strstr(text, "between nodes MPI, through the host") != NULL) == (n_nodes > 1 && !nccl));
    CHECK(az_fabric_uses_nccl_between_nodes(fabric) == nccl);
}

static bool is_speed(double bytes_per_s)
{
    return bytes_per_s > MIN_SPEED && bytes_per_s < MAX_SPEED;
}

static void check_links(az_fabric *fabric)
{
    az_fabric_links links;
    CHECK(az_fabric_measure_links(fabric, &links) == AZ_OK);
    CHECK(is_speed(links.host));
    CHECK(az_comm_size(comm) > n_nodes ? is_speed(links.node) : links.node == 0);
    CHECK(n_nodes > 1 ? is_speed(links.between) : links.between == 0);
}

static void check_stats(az_fabric *fabric)
{
    const az_fabric_stats before = az_fabric_get_stats(fabric);
    const size_t b = 30001;
    put(0, lane < 0 ? 0 : az_fabric_cut(b, position, n_positions),
        lane < 0 ? 0 : az_fabric_cut(b, position + 1, n_positions));
    az_fabric_gather(fabric, device[0], b, AZ_GATHER_ALL);
    const az_fabric_stats after = az_fabric_get_stats(fabric);
    size_t want = 0;
    for (int i = 0; lane >= 0 && i < n_nodes; i++)
        if (i != node)
            want += az_fabric_cut(b, lane * n_nodes + i + 1, n_positions) -
                    az_fabric_cut(b, lane * n_nodes + i, n_positions);
    CHECK((size_t)(after.received_bytes - before.received_bytes) == want);
    CHECK(after.waited_s >= before.waited_s);
    az_dev_sync(dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
}

/* Everything may be called while parts of a model are brought. */
static void check_beside_a_walk(az_fabric *fabric)
{
    enum { ITEMS = 4, BYTES = 4096 };
    static char whole[BYTES];
    static const int program[ITEMS] = {0, 1, 2, 3};
    az_spread *spread;
    az_spread_item items[ITEMS];
    size_t cut[65];
    for (int p = 0; p <= n_positions; p++)
        cut[p] = az_fabric_cut(BYTES, p, n_positions);
    memset(whole, 5, sizeof whole);
    for (int i = 0; i < ITEMS; i++)
        items[i] = (az_spread_item){BYTES, n_nodes == 1,
                                    n_nodes == 1 ? whole
                                    : lane < 0   ? NULL
                                                 : whole + cut[position],
                                    cut};
    CHECK(az_spread_create(&spread, items, ITEMS, n_nodes == 1 ? 0 : 2, BYTES, ITEMS,
                           AZ_PROGRESS_AUTO, "test", comm) == AZ_OK);
    az_spread_begin(spread, program, ITEMS);
    for (int i = 0; i < ITEMS; i++) {
        const char *item = az_spread_get(spread);
        check_gather(fabric, i % 2 == 0 ? AZ_GATHER_ALL : AZ_GATHER_NODE);
        check_reduce(fabric);
        CHECK(item[0] == 5 && item[BYTES - 1] == 5);
        az_spread_release(spread);
    }
    az_spread_end(spread);
    az_spread_destroy(spread);
}

/* What is under way when the fabric goes is done. */
static void check_end(az_fabric *fabric)
{
    const int64_t waits = az_dev_count_syncs(dev, AZ_SYNC_START);
    const size_t b = all_bytes[N - 1];
    put(0, lane < 0 ? 0 : az_fabric_cut(b, position, n_positions),
        lane < 0 ? 0 : az_fabric_cut(b, position + 1, n_positions));
    az_fabric_gather(fabric, device[0], b, AZ_GATHER_ALL);
    az_fabric_destroy(fabric);
    CHECK(az_dev_count_syncs(dev, AZ_SYNC_START) == waits + 1);
    CHECK(count_wrong(0, 0, b) == 0);
    CHECK(count_pinned() == 0);
}

static void check_fabric(const az_fabric_options *options)
{
    az_fabric *fabric;
    const int64_t waits = az_dev_count_syncs(dev, AZ_SYNC_START);
    CHECK(count_pinned() == 0);
    const az_err err = az_fabric_create(&fabric, dev, options, comm);
    CHECK(az_dev_count_syncs(dev, AZ_SYNC_START) == waits + 1);
    CHECK(err == AZ_OK);
    if (err != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        return;
    }
    CHECK(count_pinned() ==
          (lane < 0 ? 0 : az_fabric_measure(az_comm_get_topology(comm), options)));
    check_gather(fabric, AZ_GATHER_NODE);
    check_gather(fabric, AZ_GATHER_ALL);
    check_gather_cut(fabric);
    check_reduce(fabric);
    check_stats(fabric);
    check_text(fabric, options->internode == AZ_INTERNODE_NCCL && n_nodes > 1);
    check_links(fabric);
    if (options->piece > 0)
        check_beside_a_walk(fabric);
    check_end(fabric);
}

/* Takes the place of the MPI's own. */
int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void)
{
    return direct;
}

static void check_direct(void)
{
    az_fabric *fabric;
    char text[256];
    CHECK(az_fabric_create(&fabric, dev, &(az_fabric_options){.direct = true}, comm) == AZ_OK);
    az_fabric_describe(fabric, text, sizeof text);
    CHECK(strstr(text, "between nodes MPI, from and to the GPUs' memory") != NULL);
    check_gather(fabric, AZ_GATHER_ALL);
    check_gather_cut(fabric);
    check_reduce(fabric);
    check_end(fabric);
}

static void check_staged(void)
{
    check_fabric(&(az_fabric_options){AZ_INTERNODE_AUTO, true, 0});
    if (n_nodes > 1)
        check_fabric(&(az_fabric_options){AZ_INTERNODE_MPI, false, 2048});
    if (n_nodes > 1)
        check_fabric(&(az_fabric_options){AZ_INTERNODE_NCCL, false, 1});
}

int main(int argc, char **argv)
{
    if (direct && address_sanitizer)
        return 77;
    if (direct)
        setenv("CUEMU_PROTECT", "0", 1);
    open_all(argc, argv);
    if (direct)
        check_direct();
    else
        check_staged();
    close_all();
    return n_failed != 0;
}
