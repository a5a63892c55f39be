/* comm: start and end, topology, agreement. */
#include <config.h>

#include "comm/comm_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One MPI call moves at most this much; counts of MPI-3 are int. */
#define LIMIT ((size_t)1 << 30)

/* Whether a launcher told MPI about this process; without it MPI_Init gives a world of one. */
static bool launched(void)
{
    static const char *const names[] = {"PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE",
                                        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return true;
    return false;
}

/* srun without an MPI plugin that fits starts n processes that all believe to be alone. */
static az_err check_singleton(const az_comm *comm)
{
    const char *n = getenv("SLURM_NTASKS");
    if (comm->size > 1 || n == NULL || atoi(n) <= 1 || launched())
        return AZ_OK;
    const char *proc = getenv("SLURM_PROCID");
    if (proc != NULL && atoi(proc) != 0)
        az_log_set_speaker(false);
    return az_fail(
        AZ_EINPUT,
        "Slurm gave this job %s tasks, but this process sees itself alone: the tasks are "
        "not joined by MPI. Start with \"srun --mpi=pmi2 adze ...\" (or --mpi=pmix, see "
        "srun --mpi=list) or \"mpiexec -n %s adze ...\"; for one process ask for one task",
        n, n);
}

static size_t message_limit(void)
{
    const char *s = getenv("ADZE_COMM_LIMIT");
    long long v = s != NULL ? atoll(s) : 0;
    return v >= 8 && (size_t)v < LIMIT ? (size_t)v / 8 * 8 : LIMIT;
}

/* What a communicator holds. The watchdog bounds all that waits for other ranks here. Collective.
 */
static void release(az_comm *comm)
{
    if (comm->polling)
        MPI_Wait(&comm->poll, MPI_STATUS_IGNORE);
    az_watch_leave(comm);
    if (!comm->alone) {
        if (comm->lane != MPI_COMM_NULL)
            MPI_Comm_free(&comm->lane);
        MPI_Comm_free(&comm->node);
        MPI_Comm_free(&comm->world);
    }
    if (comm->started_mpi)
        MPI_Finalize();
    az_watch_destroy(comm->watch);
    az_free(comm->counts);
    az_free(comm->offsets);
    az_free(comm->node_ranks);
}

/* OpenMP's threads are there while the first one calls MPI; a thread of our own calls it in turn
 * with the first where that is allowed. */
static az_err check_threads(az_comm *comm)
{
    int level;
    MPI_Query_thread(&level);
    comm->serialized = level >= MPI_THREAD_SERIALIZED;
    if (level >= MPI_THREAD_FUNNELED)
        return AZ_OK;
    return az_fail(AZ_EENV,
                   "this MPI (%s) does not work beside threads: MPI_THREAD_FUNNELED is "
                   "needed",
                   az_comm_library());
}

/* What may fail on this rank alone. */
static az_err prepare(az_comm *comm)
{
    az_err err;
    AZ_TRY(AZ_NEW(comm->counts, (size_t)comm->size, "communication"));
    AZ_TRY(AZ_NEW(comm->offsets, (size_t)comm->size, "communication"));
    AZ_TRY(check_threads(comm));
    AZ_TRY(check_singleton(comm));
out:
    return err;
}

az_err az_comm_init(az_comm **out_comm, int *argc, char ***argv)
{
    az_err err;
    az_comm world = {.lane = MPI_COMM_NULL};
    int ready, level;
    *out_comm = NULL;
    MPI_Initialized(&ready);
    if (!ready)
        MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level);
    world.started_mpi = !ready;
    MPI_Comm_dup(MPI_COMM_WORLD, &world.world);
    MPI_Comm_rank(world.world, &world.rank);
    MPI_Comm_size(world.world, &world.size);
    MPI_Comm_split_type(world.world, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &world.node);
    MPI_Comm_rank(world.node, &world.node_rank);
    MPI_Comm_size(world.node, &world.node_size);
    world.limit = message_limit();
    az_log_set_speaker(world.rank == 0);
    err = prepare(&world);
    if (err == AZ_OK)
        err = AZ_NEW(*out_comm, 1, "communication");
    err = az_comm_agree(&world, err);
    if (err == AZ_OK)
        err = az_comm_find_topology(&world);
    if (err == AZ_OK)
        err = az_watch_create(&world);
    if (err == AZ_OK) {
        **out_comm = world;
    } else {
        az_free(*out_comm);
        *out_comm = NULL;
        release(&world);
    }
    return err;
}

az_err az_comm_create_self(az_comm **out_comm)
{
    az_err err;
    AZ_TRY(AZ_NEW(*out_comm, 1, "communication"));
    **out_comm = (az_comm){.alone = true, .size = 1, .node_size = 1, .limit = LIMIT};
    AZ_TRY(az_comm_find_topology(*out_comm));
    err = az_watch_create(*out_comm);
out:
    if (err != AZ_OK && *out_comm != NULL) {
        az_free((*out_comm)->node_ranks);
        az_free(*out_comm);
        *out_comm = NULL;
    }
    return err;
}

void az_comm_fini(az_comm *opt_comm)
{
    if (opt_comm != NULL)
        az_watch_enter(opt_comm, AZ_PHASE_END, -1);
    if (opt_comm != NULL)
        release(opt_comm);
    az_free(opt_comm);
}

int az_comm_rank(const az_comm *comm)
{
    return comm->rank;
}

int az_comm_size(const az_comm *comm)
{
    return comm->size;
}

int az_comm_node_size(const az_comm *comm)
{
    return comm->node_size;
}

int az_comm_node_rank(const az_comm *comm)
{
    return comm->node_rank;
}

void az_comm_get_mpi(const az_comm *comm, void *out_mpi_comm)
{
    const MPI_Comm world = comm->alone ? MPI_COMM_SELF : comm->world;
    memcpy(out_mpi_comm, &world, sizeof world);
}

bool az_comm_has_mpi(const az_comm *comm)
{
    return !comm->alone;
}

static az_err add_hint(MPI_Info info, const char *hint)
{
    char name[MPI_MAX_INFO_KEY + 1];
    const char *equal = strchr(hint, '=');
    if (equal == NULL || equal == hint || equal[1] == '\0')
        return az_fail(AZ_EINPUT, "MPI-IO hint '%.200s': \"name=value\" was expected", hint);
    if (equal - hint >= MPI_MAX_INFO_KEY || strlen(equal + 1) >= MPI_MAX_INFO_VAL)
        return az_fail(AZ_EINPUT,
                       "MPI-IO hint '%.200s': this MPI takes names of %d and values of %d "
                       "characters at most",
                       hint, MPI_MAX_INFO_KEY - 1, MPI_MAX_INFO_VAL - 1);
    snprintf(name, sizeof name, "%.*s", (int)(equal - hint), hint);
    if (info != MPI_INFO_NULL)
        MPI_Info_set(info, name, equal + 1);
    return AZ_OK;
}

az_err az_comm_create_info(void *out_mpi_info, const az_comm *comm, const char *const *hints, int n)
{
    az_err err = AZ_OK;
    MPI_Info info = MPI_INFO_NULL;
    if (n > 0 && !comm->alone)
        MPI_Info_create(&info);
    for (int i = 0; i < n; i++)
        AZ_TRY(add_hint(info, hints[i]));
out:
    memcpy(out_mpi_info, &info, sizeof info);
    if (err != AZ_OK)
        az_comm_destroy_info(out_mpi_info);
    return err;
}

void az_comm_destroy_info(void *mpi_info)
{
    MPI_Info info;
    memcpy(&info, mpi_info, sizeof info);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    memcpy(mpi_info, &info, sizeof info);
}

const char *az_comm_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    MPI_Get_library_version(text, &n);
    text[strcspn(text, "\n")] = '\0';
    for (char *s = text; *s != '\0'; s++)
        if (*s == '\t')
            *s = ' ';
    return text;
}

az_err az_comm_agree(az_comm *comm, az_err err)
{
    if (comm->alone)
        return err;
    int mine = err != AZ_OK ? comm->rank : comm->size, first;
    static char text[AZ_ERR_MAX];
    az_comm_block(comm, AZ_CALL_AGREE);
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm->world);
    if (first == comm->size) {
        az_watch_end(comm->watch);
        return AZ_OK;
    }
    if (first == comm->rank)
        strncpy(text, az_err_message(), sizeof text - 1);
    MPI_Bcast(&err, 1, MPI_INT, first, comm->world);
    MPI_Bcast(text, sizeof text, MPI_CHAR, first, comm->world);
    az_watch_end(comm->watch);
    az_err_clear();
    return az_fail(err, "%s", text);
}
