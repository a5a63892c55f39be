/* How items come from other nodes while a rank computes: which transport really goes on. Not a
 * test:
 *
 *   mpiexec -n N -hosts ... bench_spread [ITEMS [KIB [MS [WALKS [WAYS]]]]]
 *
 * One rank a node, ITEMS items of KIB KiB, cut over the nodes, two slots; each is used for MS
 * milliseconds of the main thread's processor time, in which it calls no MPI; for -MS it sleeps so
 * long, as if there were a core for the transport alone. Ways:
 *
 *   none      no transfers: the computation alone
 *   serial    one slot: an item comes when the one before is done with
 *   poll      az_spread, asked about by the main thread between items and while it waits
 *   thread    az_spread with its thread
 *   get       MPI_Rget from a window that is locked once for all, two slots, tested as in poll
 *   get+      the same with a thread that looks into MPI every 30 us
 *
 * Items are used in a circle, so each use is a transfer but for those that stay in the slots. The
 * medians over WALKS walks count, and the slowest rank. MS = 0 gives the time of the transfers
 * alone. */
#include <config.h>

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/spread.h"

#define MAX_ITEMS 256
#define MAX_WALKS 64

static az_comm *comm;
static int n_items = 12, n_walks = 5;
static size_t bytes = (size_t)2048 << 10;
static double work_s = 0.05;
static char *held; /* this rank's parts of all items, one after the other */
static size_t part;
static volatile double sink;

static void compute(void)
{
    struct timespec t;
    if (work_s < 0) {
        const double begin = az_now();
        t = (struct timespec){.tv_nsec = (long)(-work_s * 1e9)};
        while (az_now() - begin < -work_s)
            nanosleep(&t, NULL);
        return;
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    const double end = (double)t.tv_sec + (double)t.tv_nsec * 1e-9 + work_s;
    if (work_s == 0)
        return;
    do {
        double x = 1;
        for (int i = 0; i < 2000; i++)
            x = x * 1.0000001 + 1e-9;
        sink = x;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    } while ((double)t.tv_sec + (double)t.tv_nsec * 1e-9 < end);
}

/* A walk's seconds, and how many of them the main thread waited. */
typedef struct {
    double all, wait;
} times;

static times walk_none(void)
{
    times t = {0, 0};
    const double begin = az_now();
    for (int i = 0; i < n_items; i++)
        compute();
    t.all = az_now() - begin;
    return t;
}

/* ---- the spread */

static az_spread *spread;

static az_err make_spread(int n_slots, az_progress_kind progress)
{
    az_spread_item items[MAX_ITEMS];
    for (int i = 0; i < n_items; i++)
        items[i] = (az_spread_item){.bytes = bytes, .home = held + (size_t)i * part};
    return az_spread_create(&spread, items, n_items, n_slots, bytes, n_items, progress, "slots",
                            comm);
}

static times walk_spread(void)
{
    int program[MAX_ITEMS];
    times t = {0, 0};
    for (int i = 0; i < n_items; i++)
        program[i] = i;
    az_spread_forget(spread);
    const double begin = az_now(), waited = az_spread_get_stats(spread).wait_s;
    az_spread_begin(spread, program, n_items);
    for (int i = 0; i < n_items; i++) {
        az_spread_get(spread);
        compute();
        az_spread_release(spread);
    }
    az_spread_end(spread);
    t.all = az_now() - begin;
    t.wait = az_spread_get_stats(spread).wait_s - waited;
    return t;
}

/* ---- one-sided gets */

static MPI_Win window;
static char *slots[2];
static MPI_Request *gets[2]; /* [n_ranks] of each slot */
static MPI_Status *statuses; /* [n_ranks] */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stop;

static void start_get(int i)
{
    const int n = az_comm_size(comm);
    pthread_mutex_lock(&lock);
    for (int r = 0; r < n; r++)
        MPI_Rget(slots[i % 2] + (size_t)r * part, (int)part, MPI_BYTE, r,
                 (MPI_Aint)((size_t)i * part), (int)part, MPI_BYTE, window, &gets[i % 2][r]);
    pthread_mutex_unlock(&lock);
}

static bool test_get(int i)
{
    int done;
    pthread_mutex_lock(&lock);
    MPI_Testall(az_comm_size(comm), gets[i % 2], &done, statuses);
    pthread_mutex_unlock(&lock);
    return done;
}

static void *look(void *context)
{
    MPI_Comm world;
    const struct timespec nap = {.tv_nsec = 30000};
    (void)context;
    az_comm_get_mpi(comm, &world);
    while (!stop) {
        int found;
        pthread_mutex_lock(&lock);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world, &found, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&lock);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static times walk_get(void)
{
    times t = {0, 0};
    const double begin = az_now();
    start_get(0);
    for (int i = 0; i < n_items; i++) {
        if (i + 1 < n_items)
            start_get(i + 1);
        const double from = az_now();
        while (!test_get(i))
            ;
        t.wait += az_now() - from;
        compute();
        if (i + 1 < n_items)
            test_get(i + 1);
    }
    t.all = az_now() - begin;
    return t;
}

/* ---- all ways */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *ways = "none serial poll thread get get+";

static void measure(const char *name, times (*walk)(void))
{
    if (strstr(ways, name) == NULL)
        return;
    double all[MAX_WALKS], wait[MAX_WALKS];
    for (int w = -1; w < n_walks; w++) { /* the first one warms up */
        pthread_mutex_lock(&lock);       /* of the thread of get+ */
        az_comm_barrier(comm);
        pthread_mutex_unlock(&lock);
        const times t = walk();
        double v[2] = {t.all, t.wait};
        pthread_mutex_lock(&lock);
        az_comm_max_f64(comm, v, 2);
        pthread_mutex_unlock(&lock);
        if (w >= 0) {
            all[w] = v[0];
            wait[w] = v[1];
        }
    }
    qsort(all, (size_t)n_walks, sizeof *all, compare);
    qsort(wait, (size_t)n_walks, sizeof *wait, compare);
    if (az_comm_rank(comm) == 0)
        printf("%-8s %8.3f s   waited %8.3f s   fastest %8.3f s\n", name, all[n_walks / 2],
               wait[n_walks / 2], all[0]);
}

static void measure_get(void)
{
    MPI_Comm world;
    pthread_t thread;
    az_comm_get_mpi(comm, &world);
    for (int s = 0; s < 2; s++) {
        slots[s] = az_alloc(bytes, 1, "slots");
        gets[s] = az_alloc((size_t)az_comm_size(comm), sizeof **gets, "slots");
    }
    statuses = az_alloc((size_t)az_comm_size(comm), sizeof *statuses, "slots");
    MPI_Win_create(held, (MPI_Aint)(part * (size_t)n_items), 1, MPI_INFO_NULL, world, &window);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    measure("get", walk_get);
    if (pthread_create(&thread, NULL, look, NULL) == 0) {
        measure("get+", walk_get);
        stop = true;
        pthread_join(thread, NULL);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    az_free(statuses);
    for (int s = 0; s < 2; s++) {
        az_free(slots[s]);
        az_free(gets[s]);
    }
}

static void measure_spread(const char *name, int n_slots, az_progress_kind progress)
{
    if (make_spread(n_slots, progress) != AZ_OK) {
        if (az_comm_rank(comm) == 0)
            printf("%-8s %s\n", name, az_err_message());
        az_err_clear();
        return;
    }
    measure(name, walk_spread);
    az_spread_destroy(spread);
}

int main(int argc, char **argv)
{
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK)
        return 1;
    n_items = argc > 1 ? atoi(argv[1]) : n_items;
    bytes = argc > 2 ? (size_t)atoll(argv[2]) << 10 : bytes;
    work_s = argc > 3 ? atof(argv[3]) / 1e3 : work_s;
    n_walks = argc > 4 ? atoi(argv[4]) : n_walks;
    ways = argc > 5 ? argv[5] : ways;
    part = bytes / (size_t)az_comm_size(comm) / 64 * 64;
    bytes = part * (size_t)az_comm_size(comm);
    held = az_alloc((size_t)n_items, part, "items");
    if (n_items < 1 || n_items > MAX_ITEMS || n_walks < 1 || n_walks > MAX_WALKS || held == NULL)
        return 1;
    memset(held, 1 + az_comm_rank(comm), (size_t)n_items * part);
    if (az_comm_rank(comm) == 0)
        printf("%d items of %zu bytes, %.3f s each, on %d nodes\n", n_items, bytes, work_s,
               az_comm_get_topology(comm)->n_nodes);
    measure("none", walk_none);
    measure_spread("serial", 1, AZ_PROGRESS_POLL);
    measure_spread("poll", 2, AZ_PROGRESS_POLL);
    measure_spread("thread", 2, AZ_PROGRESS_THREAD);
    measure_get();
    az_free(held);
    az_comm_fini(comm);
    return 0;
}
