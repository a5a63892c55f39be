/* fabric: communicators and pinned buffers, their beginning and their end.
 *
 * A communicator's id goes from its first rank to the others by an MPI broadcast. NCCL's own start
 * blocks outside MPI, so a barrier comes between the two: else a rank that MPI needs to pass the id
 * on might wait in NCCL for one that has not got it. */
#include <config.h>

#include <stdio.h>
#include <string.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#include "comm/fabric_priv.h"

/* Seconds between two looks at what NCCL does in the background. */
#define LOOK 1.0
/* Bytes of the wholes on which each kind of collective is tried. */
#define TRIED_FEW ((size_t)4096)
#define TRIED_MANY ((size_t)1 << 20)

static int count_most_ranks(const az_topology *t)
{
    int most = 0;
    for (int i = 0; i < t->n_nodes; i++)
        most = t->node_ranks[i] > most ? t->node_ranks[i] : most;
    return most;
}

static bool wants_all(const az_topology *t, const az_fabric_options *options)
{
    return t->n_nodes > 1 && options->internode == AZ_INTERNODE_NCCL;
}

static size_t measure_slot(const az_topology *t, const az_fabric_options *options)
{
    const size_t piece = options->piece > 0 ? options->piece : AZ_FABRIC_PIECE;
    const size_t blocks = piece / (size_t)t->n_nodes / 64;
    return 64 * (blocks > 0 ? blocks : 1);
}

size_t az_fabric_measure(const az_topology *topology, const az_fabric_options *options)
{
    if (topology->n_nodes == 1 || wants_all(topology, options))
        return 0;
    return 2 * ((size_t)topology->n_nodes + 1) * measure_slot(topology, options);
}

/* Whether MPI says that it can take pointers to device memory. */
static bool ask_mpi(void)
{
#ifdef HAVE_MPIX_QUERY_CUDA_SUPPORT
    return MPIX_Query_cuda_support() != 0;
#elif defined(HAVE_MPIX_GPU_QUERY_SUPPORT)
    int can = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &can) == MPI_SUCCESS && can != 0;
#else
    return false;
#endif
}

/* ---- what may fail on one rank alone ---- */

static az_err allocate_stage(az_fabric *f)
{
    az_err err = AZ_OK;
    for (int i = 0; i < 2; i++) {
        AZ_TRY(az_dev_alloc_host((void **)&f->stage[i], f->dev, (size_t)f->n_nodes * f->slot,
                                 AZ_FABRIC_LABEL));
        AZ_TRY(az_dev_alloc_host((void **)&f->sum[i], f->dev, f->slot, AZ_FABRIC_LABEL));
        AZ_TRY(az_dev_create_event(&f->out[i], f->dev));
    }
out:
    return err;
}

static az_err find_nccl(az_fabric *f, const az_topology *t, const az_fabric_options *options)
{
    const bool all = wants_all(t, options);
    const int most = count_most_ranks(t);
    if (most == 1 && !all)
        return AZ_OK;
    f->nccl = az_dev_get_table(f->dev, AZ_BACKEND_NCCL);
    if (f->nccl != NULL)
        return AZ_OK;
    if (most > 1)
        return az_fail(AZ_EENV,
                       "a node has %d GPUs in this job, and adze was built without NCCL, which "
                       "brings data from one to the other: configure --with-nccl, or start one "
                       "rank a node",
                       most);
    return az_fail(AZ_EENV, "comm.internode is nccl, and adze was built without NCCL: configure "
                            "--with-nccl, or set comm.internode=mpi");
}

static az_err prepare(az_fabric *f, const az_fabric_options *options)
{
    az_err err;
    const az_topology *t = az_comm_get_topology(f->comm);
    f->n_nodes = t->n_nodes;
    f->n_lanes = t->n_lanes;
    f->n_positions = az_comm_n_positions(f->comm);
    f->number = az_comm_node(f->comm);
    f->lane = az_comm_lane(f->comm);
    f->even = f->n_positions == t->n_ranks;
    f->slot = measure_slot(t, options);
    AZ_TRY(AZ_NEW(f->begins, (size_t)f->n_positions + 1, "communication"));
    AZ_TRY(AZ_NEW(f->counts, (size_t)f->n_nodes, "communication"));
    AZ_TRY(AZ_NEW(f->offsets, (size_t)f->n_nodes, "communication"));
    AZ_TRY(AZ_NEW(f->elements, (size_t)f->n_nodes, "communication"));
    AZ_TRY(find_nccl(f, t, options));
    if (f->n_nodes == 1 || wants_all(t, options))
        goto out;
    f->direct = options->direct && ask_mpi();
    if (f->lane >= 0)
        AZ_TRY(allocate_stage(f));
out:
    return err;
}

/* ---- communicators ---- */

/* The watchdog's table tells who waits for its GPU from who is busy elsewhere. */
static void tell_watch(void *context, bool waits)
{
    az_watch_wait_device(context, waits);
}

static az_err make_id(const az_fabric *f, char *id)
{
    char text[512] = "";
    if (f->nccl->make_id(id, text, sizeof text) == 0)
        return AZ_OK;
    return az_fail(AZ_EENV, "GPUs cannot be joined: %s", text);
}

static az_err join(az_fabric *f, az_nccl **out, const char *id, int n, int rank)
{
    char text[512] = "";
    if (f->nccl->create(out, az_dev_get_self(f->dev), az_dev_get_host(f->dev), id, n, rank, text,
                        sizeof text) == 0)
        return AZ_OK;
    return az_fail(AZ_EENV, "GPU %s cannot be joined with %d others: %s",
                   az_dev_get_info(f->dev)->pci, n - 1, text);
}

/* A communicator of the n ranks of over, none where n is 1; rank 0 is that of over too. Collective
 * over the world. */
static az_err connect(az_fabric *f, az_nccl **out, MPI_Comm over, int n, int rank)
{
    az_err err = AZ_OK;
    char id[AZ_NCCL_ID_BYTES] = "";
    if (n > 1 && rank == 0)
        err = make_id(f, id);
    AZ_TRY(az_comm_agree(f->comm, err));
    if (n > 1) {
        az_comm_block(f->comm, AZ_CALL_BCAST);
        MPI_Bcast(id, sizeof id, MPI_BYTE, 0, over);
        az_watch_end(f->comm->watch);
    }
    az_comm_barrier(f->comm);
    if (n > 1)
        err = join(f, out, id, n, rank);
    err = az_comm_agree(f->comm, err);
out:
    return err;
}

/* Ranks without a position come behind the others. */
static int number_rank(const az_comm *comm, int n_positions)
{
    int none = comm->lane_number < 0, before = 0;
    MPI_Exscan(&none, &before, 1, MPI_INT, MPI_SUM, comm->world);
    if (comm->rank == 0)
        before = 0;
    return none ? n_positions + before : az_comm_position(comm);
}

static void look(void *context)
{
    az_fabric *f = context;
    const az_backend_host *host = az_dev_get_host(f->dev);
    az_nccl *const all[] = {f->node, f->all};
    char text[512] = "";
    for (int i = 0; i < 2; i++)
        if (all[i] != NULL && f->nccl->check(all[i], text, sizeof text) != 0)
            host->fail(host->context, "bringing data from GPU to GPU", text);
}

static az_err connect_all(az_fabric *f, bool between)
{
    az_err err = AZ_OK;
    az_comm *comm = f->comm;
    if (f->nccl != NULL && count_most_ranks(&comm->topology) > 1)
        AZ_TRY(connect(f, &f->node, comm->node, comm->node_size, comm->node_rank));
    if (between)
        AZ_TRY(connect(f, &f->all, comm->world, comm->size, number_rank(comm, f->n_positions)));
    if (f->node != NULL || f->all != NULL)
        err = az_beat_start(&f->beat, LOOK, look, f);
    err = az_comm_agree(comm, err);
out:
    return err;
}

/* ---- first use ---- */

static void try_all(az_fabric *f, char *memory, size_t bytes, int64_t *cut)
{
    for (int p = 0; p <= f->n_positions; p++)
        cut[p] = (int64_t)(az_fabric_cut(bytes, p, f->n_positions) / sizeof(int64_t));
    az_fabric_gather(f, memory, bytes, AZ_GATHER_NODE);
    az_fabric_gather(f, memory, bytes, AZ_GATHER_ALL);
    az_fabric_gather_cut(f, memory, sizeof(int64_t), cut);
    az_fabric_reduce_i64(f, (int64_t *)(void *)memory, cut);
}

/* NCCL takes memory of the device when a kind of collective is used for the first time, and MPI
 * connects. */
static az_err use_once(az_fabric *f)
{
    az_err err;
    int64_t *cut = NULL;
    char *memory = NULL;
    err = AZ_NEW(cut, (size_t)f->n_positions + 1, "communication");
    if (err == AZ_OK)
        err = az_dev_alloc((void **)&memory, f->dev, az_fabric_room(TRIED_MANY, f->n_positions),
                           "communication");
    AZ_TRY(az_comm_agree(f->comm, err));
    az_dev_fill(f->dev, AZ_QUEUE_GATHER, memory, 0, az_fabric_room(TRIED_MANY, f->n_positions));
    try_all(f, memory, TRIED_FEW, cut);
    try_all(f, memory, TRIED_MANY, cut);
    az_dev_sync(f->dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
    f->stats = (az_fabric_stats){0};
out:
    az_dev_free(f->dev, memory);
    az_free(cut);
    return err;
}

az_err az_fabric_create(az_fabric **out_fabric, az_dev *dev, const az_fabric_options *options,
                        az_comm *comm)
{
    az_err err;
    az_fabric *f = NULL;
    *out_fabric = NULL;
    AZ_ASSERT(az_dev_is_gpu(dev));
    err = AZ_NEW(f, 1, "communication");
    if (err == AZ_OK) {
        *f = (az_fabric){.comm = comm, .dev = dev};
        err = prepare(f, options);
    }
    AZ_TRY(az_comm_agree(comm, err));
    az_dev_set_waiting(dev, tell_watch, comm->watch);
    AZ_TRY(connect_all(f, wants_all(&comm->topology, options)));
    AZ_TRY(use_once(f));
    *out_fabric = f;
    f = NULL;
out:
    az_fabric_destroy(f);
    return err;
}

/* After a failure of NCCL's nobody waits for what is queued: it may never end. */
static bool has_failed(const az_fabric *f)
{
    char text[512];
    return (f->all != NULL && f->nccl->check(f->all, text, sizeof text) != 0) ||
           (f->node != NULL && f->nccl->check(f->node, text, sizeof text) != 0);
}

static void disconnect(az_fabric *f)
{
    void (*end)(az_nccl * nccl) = NULL;
    if (has_failed(f)) {
        end = f->nccl->abort;
    } else {
        end = f->nccl != NULL ? f->nccl->destroy : NULL;
        az_dev_sync(f->dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
    }
    if (f->all != NULL)
        end(f->all);
    if (f->node != NULL)
        end(f->node);
}

void az_fabric_destroy(az_fabric *opt_fabric)
{
    az_fabric *f = opt_fabric;
    if (f == NULL)
        return;
    az_beat_stop(&f->beat);
    disconnect(f);
    az_dev_set_waiting(f->dev, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        az_dev_destroy_event(f->dev, f->out[i]);
        az_dev_free_host(f->dev, f->sum[i]);
        az_dev_free_host(f->dev, f->stage[i]);
    }
    az_free(f->begins);
    az_free(f->counts);
    az_free(f->offsets);
    az_free(f->elements);
    az_free(f);
}

bool az_fabric_uses_nccl_between_nodes(const az_fabric *fabric)
{
    return fabric->all != NULL;
}

void az_fabric_describe(const az_fabric *fabric, char *text, size_t size)
{
    const az_fabric *f = fabric;
    char version[32] = "";
    if (f->nccl != NULL)
        f->nccl->get_version(version, sizeof version);
    const char *between = f->all != NULL ? "NCCL"
                          : f->direct    ? "MPI, from and to the GPUs' memory"
                                         : "MPI, through the host";
    *text = '\0';
    if (f->nccl != NULL)
        snprintf(text, size, "NCCL %s", version);
    if (f->n_nodes > 1)
        snprintf(text + strlen(text), size - strlen(text), "%sbetween nodes %s",
                 f->nccl != NULL ? ", " : "", between);
}
