/* optim and the adapter's parameters on GPUs: what several add up to, own and update is bit for bit
 * what one GPU alone makes of the same gradients, wherever values lie and whenever sums are
 * reduced; and what the CPU makes of them, but for the last bits. Memory is what was measured. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "comm/timetable.h"
#include "optim/optim.h"
#include "tests/cuemu/gpu.h"
#include "tests/mpi/check.h"
#include "tests/unit/tol.h"

enum { N = 7 * AZ_PARAMS_BLOCK + 77, N_LAYERS = 6, N_MICRO = 5, N_STEPS = 2 };

/* A layer of nothing, one within a block, one over several. */
static const int64_t off[N_LAYERS + 1] = {
    0, 1500, 1500, 1600, 5 * AZ_PARAMS_BLOCK, 5 * AZ_PARAMS_BLOCK + 33, N};
static const az_spans spans = {N_LAYERS, off};
static az_comm *comm, *self;
static az_dev *dev;
static az_kern kern;
static az_fabric *fabric;
static float *host;   /* [N_MICRO, N] pinned: gradients */
static float *grad;   /* [N_MICRO, N] device */
static float *got[2]; /* [2 N] pinned: what walks have found */

/* Parameters and optimizer of all GPUs, of this one alone, or of this rank's CPU alone. */
typedef struct {
    az_params *params;
    az_optim *optim;
    az_comm *comm;
    bool gpu;
} job;

static const az_optim_options usual = {0.9, 0.99, 1e-8, 0.1, 20.0};

static void open_job(job *j, az_params_placement placement, az_reduce reduce,
                     const az_optim_options *options, bool gpu, az_comm *over)
{
    int64_t first, n;
    j->comm = over;
    j->gpu = gpu;
    CHECK(az_params_create(&j->params, &spans, placement, AZ_PROGRESS_AUTO,
                           gpu ? &kern : az_kern_get_cpu(), over == comm ? fabric : NULL,
                           over) == AZ_OK);
    float *slice = az_params_get_slice(j->params, &first, &n);
    for (int64_t i = 0; i < n; i++)
        slice[i] = (float)(first + i) * 1e-3f;
    az_params_share(j->params);
    CHECK(az_optim_create(&j->optim, j->params, options, reduce, over) == AZ_OK);
}

static void close_job(job *j)
{
    az_optim_destroy(j->optim);
    az_params_destroy(j->params);
}

/* ---- steps ---- */

/* The gradients of a step. opt_bad: what one of the last micro-batch is instead. */
static void fill(int step, const float *opt_bad)
{
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    for (uint32_t i = 0; i < N_MICRO * N; i++) {
        uint32_t u[4];
        az_philox(u, (uint64_t)step, i, 0, 0, 0);
        host[i] = 2 * az_u32_to_unit(u[0]) - 1;
    }
    if (opt_bad != NULL)
        host[(N_MICRO - 1) * N + 7] = *opt_bad;
    az_dev_copy_in(dev, AZ_QUEUE_COMPUTE, grad, host, N_MICRO * N * sizeof *grad);
}

/* The micro-batches of a step in groups of so many rounds, dealt to the ranks in turn, back to the
 * lowest layer that is to be passed. */
static void pass(job *j, int group, int lowest)
{
    const int size = az_comm_size(j->comm), rank = az_comm_rank(j->comm);
    const int n_rounds = (N_MICRO + size - 1) / size;
    const float *from = j->gpu ? grad : host;
    az_optim_begin(j->optim, N_MICRO);
    for (int round = 0; round < n_rounds; round += group)
        for (int l = N_LAYERS - 1; l >= lowest; l--) {
            for (int k = round; k < round + group && k < n_rounds; k++) {
                const int micro = k * size + rank;
                if (micro >= N_MICRO)
                    continue;
                az_optim_add(j->optim, l, from + micro * N + off[l]);
                if (l == 0)
                    az_optim_add_loss(j->optim, 1.0 / (3 + micro));
            }
            az_optim_end_unit(j->optim, l);
        }
}

static az_optim_result step(job *j, int group)
{
    pass(j, group, 0);
    return az_optim_step(j->optim, 0.01);
}

/* ---- what has come of them ---- */

/* All values in a walk there and back, or there up to a layer; which does not hold up the host. */
static void walk(float *out, job *j, bool backward, int n)
{
    az_params_begin(j->params, backward);
    for (int i = 0; i < n; i++) {
        const int l = i < N_LAYERS ? i : 2 * N_LAYERS - 1 - i;
        const float *layer = az_params_get_layer(j->params, l);
        az_dev_copy_out(j->gpu ? dev : az_dev_get_cpu(), AZ_QUEUE_COMPUTE,
                        out + (i < N_LAYERS ? 0 : N) + off[l], layer,
                        (size_t)(off[l + 1] - off[l]) * sizeof *layer);
        az_params_release_layer(j->params);
    }
    az_params_end(j->params);
}

static bool is_same(const float *a, const float *b, int64_t n)
{
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static bool is_near(const float *a, const float *b, int64_t n, bool same)
{
    bool near = true;
    if (same)
        return is_same(a, b, n);
    for (int64_t i = 0; i < n; i++)
        near &= fabsf(a[i] - b[i]) <= TOL_UPDATE * (1 + fabsf(b[i]));
    return near;
}

/* Values and moments; b: of one rank. The same bits on the same kind of device. */
static void compare(job *a, job *b)
{
    const bool same = a->gpu == b->gpu;
    int64_t first, n;
    const float *all;
    walk(got[0], a, true, 2 * N_LAYERS);
    walk(got[1], b, true, 2 * N_LAYERS);
    az_dev_sync(dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
    CHECK(is_near(got[0], got[1], 2 * N, same));
    CHECK(is_same(got[0], got[0] + N, N));
    CHECK(az_params_gather_all(&all, a->params) == AZ_OK);
    CHECK((all != NULL) == (az_comm_rank(comm) == 0) && (all == NULL || is_same(all, got[0], N)));
    az_params_release_all(a->params);
    const float *slice = az_params_get_slice(a->params, &first, &n);
    az_params_pull(a->params);
    CHECK(is_same(slice, got[0] + first, n));
    az_optim_pull(a->optim);
    az_optim_pull(b->optim);
    CHECK(is_near(az_optim_get_exp_avg(a->optim), az_optim_get_exp_avg(b->optim) + first, n, same));
    CHECK(is_near(az_optim_get_exp_avg_sq(a->optim), az_optim_get_exp_avg_sq(b->optim) + first, n,
                  same));
}

static void check_sums(job *a, job *b)
{
    static int64_t sums[N], expected[N];
    az_optim_copy_sums(sums, a->optim);
    az_optim_copy_sums(expected, b->optim);
    az_comm_sum_i64(comm, sums, N);
    CHECK(memcmp(sums, expected, sizeof sums) == 0);
}

/* Steps, one that is given up, one that is not finite. reference: on the CPU, without clipping; or
 * on this GPU. */
static void check_bits(az_params_placement placement, az_reduce reduce, int group, bool reference)
{
    job together, alone;
    int64_t first, n;
    const az_optim_options unclipped = {0.9, 0.99, 1e-8, 0.1, 0};
    const az_optim_options *options = reference ? &unclipped : &usual;
    static const float bad[] = {INFINITY, NAN, -(float)AZ_FIXED_RANGE, -INFINITY};
    open_job(&together, placement, reduce, options, true, comm);
    open_job(&alone, AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP, options, !reference, self);
    compare(&together, &alone);
    az_params_get_slice(together.params, &first, &n);
    for (int s = 0; s < N_STEPS; s++) {
        if (s == 1) {
            fill(100, &bad[(int)placement + 2 * (int)reduce]);
            CHECK(!step(&together, group).finite);
            compare(&together, &alone);
            pass(&together, group, 3);
        }
        fill(s, NULL);
        pass(&together, group, 0);
        pass(&alone, 1, 0);
        if (reduce == AZ_REDUCE_STEP && s == 0)
            check_sums(&together, &alone);
        const az_optim_result a = az_optim_step(together.optim, 0.01);
        const az_optim_result b = az_optim_step(alone.optim, 0.01);
        CHECK(a.finite && memcmp(&a.loss, &b.loss, sizeof a.loss) == 0);
        CHECK(fabs(a.grad_norm - b.grad_norm) <= (reference ? 1e-14 * b.grad_norm : 0));
        CHECK(reference ? a.clip == 1 : a.clip < 1);
        compare(&together, &alone);
        CHECK(n == 0 || az_optim_has_gradient(together.optim, first, n));
    }
    close_job(&together);
    close_job(&alone);
}

/* Values that come from the host, also after a walk that ended early; moments likewise. */
static void check_values(az_params_placement placement)
{
    job j;
    int64_t first, n;
    static float values[N];
    open_job(&j, placement, AZ_REDUCE_STEP, &usual, true, comm);
    float *slice = az_params_get_slice(j.params, &first, &n);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < N; i++)
            values[i] = (float)(i + turn) * 0.5f;
        CHECK(az_params_hand_out(j.params, az_comm_rank(comm) == 0 ? values : NULL) == AZ_OK);
        for (int64_t i = 0; i < n; i++)
            slice[i] = -1; /* on the host alone */
        walk(got[0], &j, false, N_LAYERS);
        walk(got[1], &j, true, turn == 0 ? 1 : N_LAYERS - 2 + turn);
    }
    az_params_pull(j.params);
    CHECK(is_same(got[0], values, N) && is_same(slice, values + first, n));
    float *m = az_optim_get_exp_avg(j.optim), *v = az_optim_get_exp_avg_sq(j.optim);
    for (int64_t i = 0; i < n; i++) {
        m[i] = (float)i;
        v[i] = (float)-i;
    }
    az_optim_push(j.optim);
    for (int64_t i = 0; i < n; i++)
        m[i] = v[i] = 0;
    az_optim_pull(j.optim);
    for (int64_t i = 0; i < n; i++)
        CHECK(m[i] == (float)i && v[i] == (float)-i);
    CHECK(!az_optim_has_gradient(j.optim, 0, 0));
    close_job(&j);
}

/* ---- memory ---- */

/* Bytes of a category of all of this rank now. */
static int64_t count(const char *wanted)
{
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (strcmp(label, wanted) == 0)
            return (int64_t)bytes;
    return 0;
}

/* Some rank holds the most and one the least. The node's first rank counts what is shared, in whole
 * pages. */
static void check_footprint(const char *label, az_footprint f)
{
    const int64_t held = count(label), most = (int64_t)f.most, least = (int64_t)f.least;
    int64_t bounds[2] = {held, -held};
    az_comm_max_i64(comm, bounds, 2);
    if (f.shared == 0)
        CHECK(bounds[0] == most && -bounds[1] == least);
    else if (az_comm_node_rank(comm) == 0)
        CHECK(held >= least + (int64_t)f.shared && held < most + (int64_t)f.shared + (4 << 20));
    else
        CHECK(held >= least && held <= most);
}

static void check_memory(az_params_placement placement, az_reduce reduce)
{
    job j;
    const az_topology *t = az_comm_get_topology(comm);
    az_params_sizes p = az_params_measure_gpu(&spans, placement, t);
    const az_optim_gpu_sizes o = az_optim_measure_gpu(&spans, t, reduce);
    open_job(&j, placement, reduce, &usual, true, comm);
    if (placement == AZ_PARAMS_GATHERED && az_comm_n_positions(comm) > 1) {
        const size_t timetable = az_timetable_measure(N_LAYERS, 2, 2 * (N_LAYERS - 1));
        p.host.most -= timetable; /* is "communication" */
        p.host.least -= timetable;
    }
    check_footprint("GPU adapter", p.device);
    check_footprint("adapter", p.host);
    check_footprint("GPU adapter gradients", o.device.gradient);
    check_footprint("GPU moments", o.device.moments);
    check_footprint("GPU optimizer", o.device.other);
    check_footprint("moments", o.host.moments);
    check_footprint("optimizer", o.host.other);
    CHECK(o.host.gradient.most == 0 && count("adapter gradients") == 0);
    close_job(&j);
}

/* ---- all ---- */

static void open_fabric(az_internode internode)
{
    /* Messages of several pieces. */
    const az_fabric_options options = {.internode = internode, .piece = 4096};
    CHECK(az_fabric_create(&fabric, dev, &options, comm) == AZ_OK);
}

static void check_all(void)
{
    check_bits(AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP, 1, true);
    check_bits(AZ_PARAMS_GATHERED, AZ_REDUCE_UNIT, 3, true);
    check_bits(AZ_PARAMS_REPLICATED, AZ_REDUCE_UNIT, 1, false);
    check_bits(AZ_PARAMS_GATHERED, AZ_REDUCE_STEP, 3, false);
    check_values(AZ_PARAMS_REPLICATED);
    check_values(AZ_PARAMS_GATHERED);
}

static void open_all(void)
{
    CHECK(az_comm_init(&comm, NULL, NULL) == AZ_OK && az_comm_create_self(&self) == AZ_OK);
    dev = open_gpu(az_comm_rank(comm) % 4);
    CHECK(az_kern_open(&kern, dev, AZ_F32) == AZ_OK);
    CHECK(az_dev_alloc_host((void **)&host, dev, N_MICRO * N * sizeof *host, "test") == AZ_OK);
    CHECK(az_dev_alloc((void **)&grad, dev, N_MICRO * N * sizeof *grad, "test") == AZ_OK);
    for (int i = 0; i < 2; i++)
        CHECK(az_dev_alloc_host((void **)&got[i], dev, 2 * N * sizeof *host, "test") == AZ_OK);
}

static void close_all(void)
{
    az_dev_free_host(dev, got[0]);
    az_dev_free_host(dev, got[1]);
    az_dev_free_host(dev, host);
    az_dev_free(dev, grad);
    az_kern_close(&kern);
    az_dev_close(dev);
    az_comm_fini(self);
    az_comm_fini(comm);
}

int main(void)
{
    open_all();
    const bool one = az_comm_get_topology(comm)->n_nodes == 1;
    for (int way = AZ_INTERNODE_MPI; way <= (one ? AZ_INTERNODE_MPI : AZ_INTERNODE_NCCL); way++) {
        open_fabric((az_internode)way);
        check_all();
        if (way == AZ_INTERNODE_MPI) {
            check_memory(AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP);
            check_memory(AZ_PARAMS_GATHERED, AZ_REDUCE_UNIT);
        }
        az_fabric_destroy(fabric);
    }
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    close_all();
    return failed != 0 || az_mem_get_total().blocks != 0;
}
