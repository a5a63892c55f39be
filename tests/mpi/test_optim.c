/* optim and the adapter's parameters: what ranks on nodes add up to, own and update is bit for bit
 * what one rank alone makes of the same gradients, whenever sums are reduced; memory is what was
 * measured; a step that is not finite changes nothing and leaves nothing behind. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "optim/optim.h"
#include "tests/mpi/check.h"

enum { N = 7 * AZ_PARAMS_BLOCK + 77, N_LAYERS = 6, N_MICRO = 11, N_STEPS = 3 };

/* A layer of nothing, one within a block, one over several. */
static const int64_t off[N_LAYERS + 1] = {
    0, 1500, 1500, 1600, 5 * AZ_PARAMS_BLOCK, 5 * AZ_PARAMS_BLOCK + 33, N};
static const az_spans spans = {N_LAYERS, off};
static az_comm *comm, *self;

typedef struct {
    az_params *params;
    az_optim *optim;
} job;

static void fill(float *g, uint64_t seed, int layer, int step)
{
    for (int64_t i = off[layer]; i < off[layer + 1]; i++) {
        uint32_t u[4];
        az_philox(u, seed, (uint32_t)i, (uint32_t)step, 0, 0);
        g[i - off[layer]] = 2 * az_u32_to_unit(u[0]) - 1;
    }
}

static void open_job(job *j, az_params_placement placement, az_reduce reduce, az_comm *over)
{
    const az_optim_options o = {0.9, 0.99, 1e-8, 0.1, 20.0};
    int64_t first, n;
    CHECK(az_params_create(&j->params, &spans, placement, AZ_PROGRESS_AUTO, az_kern_get_cpu(), NULL,
                           over) == AZ_OK);
    float *slice = az_params_get_slice(j->params, &first, &n);
    for (int64_t i = 0; i < n; i++)
        slice[i] = (float)(first + i) * 1e-3f;
    az_params_share(j->params);
    CHECK(az_optim_create(&j->optim, j->params, &o, reduce, over) == AZ_OK);
}

static void close_job(job *j)
{
    az_optim_destroy(j->optim);
    az_params_destroy(j->params);
}

/* One step of N_MICRO micro-batches in groups of so many rounds, dealt to the ranks in turn. bad:
 * the micro-batch that has an infinite gradient. */
static az_optim_result step(job *j, az_comm *over, int number, int group, int bad)
{
    static float g[N];
    const int size = az_comm_size(over), rank = az_comm_rank(over);
    const int n_rounds = (N_MICRO + size - 1) / size;
    az_optim_begin(j->optim, N_MICRO);
    for (int round = 0; round < n_rounds; round += group)
        for (int l = N_LAYERS - 1; l >= 0; l--) {
            for (int k = round; k < round + group && k < n_rounds; k++) {
                const int micro = k * size + rank;
                if (micro >= N_MICRO)
                    continue;
                fill(g, (uint64_t)micro, l, number);
                if (micro == bad && l == 0)
                    g[7] = INFINITY;
                az_optim_add(j->optim, l, g);
                if (l == 0)
                    az_optim_add_loss(j->optim, 1.0 / (3 + micro));
            }
            az_optim_end_unit(j->optim, l);
        }
    return az_optim_step(j->optim, 0.01);
}

static void compare_layer(const job *a, const job *b, int l)
{
    const size_t bytes = (size_t)(off[l + 1] - off[l]) * sizeof(float);
    CHECK(memcmp(az_params_get_layer(a->params, l), az_params_get_layer(b->params, l), bytes) == 0);
    az_params_release_layer(a->params);
    az_params_release_layer(b->params);
}

/* In a walk there and back, in one that ends early, and whole. */
static void compare(const job *a, const job *b)
{
    const float *all;
    az_params_begin(a->params, true);
    for (int l = 0; l < N_LAYERS; l++)
        compare_layer(a, b, l);
    for (int l = N_LAYERS - 1; l >= 0; l--)
        compare_layer(a, b, l);
    az_params_end(a->params);
    az_params_begin(a->params, true);
    for (int l = 0; l < 4; l++)
        compare_layer(a, b, l);
    az_params_end(a->params);
    CHECK(az_params_gather_all(&all, a->params) == AZ_OK);
    CHECK((all != NULL) == (az_comm_rank(comm) == 0));
    if (all != NULL) {
        CHECK(memcmp(all, az_params_get_layer(b->params, 0), N * sizeof *all) == 0);
        az_params_release_layer(b->params);
    }
    az_params_release_all(a->params);
}

static void check_bits(az_params_placement placement, az_reduce reduce, int group)
{
    job together, alone;
    int64_t first, n, first_alone, n_alone;
    open_job(&together, placement, reduce, comm);
    open_job(&alone, AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP, self);
    compare(&together, &alone);
    az_params_get_slice(together.params, &first, &n);
    const float *m = az_optim_get_exp_avg(together.optim);
    az_params_get_slice(alone.params, &first_alone, &n_alone);
    CHECK(first_alone == 0 && n_alone == N);
    for (int s = 0; s < N_STEPS; s++) {
        if (s == 1) {
            CHECK(!step(&together, comm, s, group, N_MICRO - 1).finite);
            compare(&together, &alone);
        }
        const az_optim_result a = step(&together, comm, s, group, -1);
        const az_optim_result b = step(&alone, self, s, 1, -1);
        CHECK(a.finite && memcmp(&a.loss, &b.loss, sizeof a.loss) == 0);
        CHECK(memcmp(&a.grad_norm, &b.grad_norm, sizeof a.loss) == 0 && a.clip < 1);
        compare(&together, &alone);
        CHECK(n == 0 || az_optim_has_gradient(together.optim, first, n));
        const float *other = az_optim_get_exp_avg(alone.optim) + first;
        CHECK(n == 0 || memcmp(m, other, (size_t)n * sizeof *m) == 0);
    }
    close_job(&together);
    close_job(&alone);
}

/* Slices of the ranks are all of the elements, once; what rank 0 hands out is everyone's. */
static void check_slices(az_params_placement placement)
{
    static float values[N];
    job j;
    int64_t first, n, total;
    open_job(&j, placement, AZ_REDUCE_STEP, comm);
    az_params_get_slice(j.params, &first, &n);
    CHECK(first % AZ_PARAMS_BLOCK == 0 || n == 0);
    CHECK((first + n) % AZ_PARAMS_BLOCK == 0 || first + n == N);
    total = n;
    az_comm_sum_i64(comm, &total, 1);
    CHECK(total == N);
    for (int i = 0; i < N; i++)
        values[i] = (float)i * 0.5f;
    az_comm_barrier(comm);
    CHECK(az_params_hand_out(j.params, az_comm_rank(comm) == 0 ? values : NULL) == AZ_OK);
    az_params_begin(j.params, false);
    for (int l = 0; l < N_LAYERS; l++) {
        CHECK(memcmp(az_params_get_layer(j.params, l), values + off[l],
                     (size_t)(off[l + 1] - off[l]) * sizeof *values) == 0);
        az_params_release_layer(j.params);
    }
    az_params_end(j.params);
    close_job(&j);
}

static size_t count_bytes(const char *wanted)
{
    const char *label;
    size_t bytes, peak;
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &peak); i++)
        if (strcmp(label, wanted) == 0)
            return bytes;
    return 0;
}

/* The node's first rank counts what is shared, in whole pages. */
static bool is_shared(size_t counted, size_t own, size_t shared)
{
    if (az_comm_node_rank(comm) > 0)
        return counted == own;
    return counted >= own + shared && counted < own + shared + (4 << 20);
}

/* Replicated: all of the buffer; gathered: two of the largest layer, and this rank's slice. What a
 * spread needs for itself is "communication". */
static void check_params_memory(az_params_placement placement, const az_topology *t)
{
    const az_footprint p = az_params_measure(&spans, placement, t);
    const size_t counted = count_bytes("adapter");
    if (placement == AZ_PARAMS_REPLICATED || t->n_nodes == 1) {
        CHECK(p.shared == N * sizeof(float) && is_shared(counted, p.most, p.shared));
        return;
    }
    const int64_t slot = 2 * ((off[4] - off[3] + 31) / 16 * 16) * (int64_t)sizeof(float);
    CHECK((int64_t)p.shared >= slot - 2 * AZ_SPREAD_BLOCK && (int64_t)p.shared <= slot);
    CHECK(p.most >= p.least && p.most > N * sizeof(float) / (size_t)az_comm_n_positions(comm));
    CHECK(az_comm_node_rank(comm) == 0 || counted <= p.most);
}

static void check_memory(az_params_placement placement, az_reduce reduce)
{
    job j;
    int64_t first, n;
    const az_topology *t = az_comm_get_topology(comm);
    const az_optim_sizes s = az_optim_measure(&spans, t, reduce);
    open_job(&j, placement, reduce, comm);
    az_params_get_slice(j.params, &first, &n);
    const int64_t held = (int64_t)count_bytes("moments"), bytes = 2 * n * (int64_t)sizeof(float);
    int64_t most[4] = {held, -held, (int64_t)count_bytes("adapter gradients"), 0};
    if (az_comm_node_rank(comm) == 0)
        most[2] = 0; /* with what is shared */
    CHECK(held == bytes);
    az_comm_max_i64(comm, most, 4);
    CHECK(most[0] == (int64_t)s.moments.most && most[1] == -(int64_t)s.moments.least);
    CHECK(most[2] <= (int64_t)s.gradient.most);
    CHECK(az_comm_node_rank(comm) == 0 || count_bytes("adapter gradients") >= s.gradient.least);
    CHECK(
        s.gradient.shared ==
        (reduce == AZ_REDUCE_STEP ? N * sizeof(int64_t) : 2 * (off[4] - off[3]) * sizeof(int64_t)));
    check_params_memory(placement, t);
    CHECK(is_shared(count_bytes("optimizer"), s.other.most, s.other.shared));
    close_job(&j);
}

int main(void)
{
    if (az_comm_init(&comm, NULL, NULL) != AZ_OK || az_comm_create_self(&self) != AZ_OK)
        return 99;
    check_slices(AZ_PARAMS_REPLICATED);
    check_slices(AZ_PARAMS_GATHERED);
    check_bits(AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP, 1);
    check_bits(AZ_PARAMS_REPLICATED, AZ_REDUCE_UNIT, 1);
    check_bits(AZ_PARAMS_GATHERED, AZ_REDUCE_STEP, 3);
    check_bits(AZ_PARAMS_GATHERED, AZ_REDUCE_UNIT, 3);
    check_memory(AZ_PARAMS_REPLICATED, AZ_REDUCE_STEP);
    check_memory(AZ_PARAMS_GATHERED, AZ_REDUCE_UNIT);
    int64_t failed = n_failed;
    az_comm_sum_i64(comm, &failed, 1);
    az_comm_fini(self);
    az_comm_fini(comm);
    return failed != 0 || az_mem_get_total().blocks != 0;
}
