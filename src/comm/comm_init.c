/* comm: start and end, topology, agreement. */
#include <config.h>

#include "comm/comm_priv.h"

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

az_err az_comm_init(az_comm **out_comm, int *argc, char ***argv)
{
    az_err err;
    az_comm *comm = NULL;
    int ready, level;
    *out_comm = NULL;
    MPI_Initialized(&ready);
    if (!ready)
        MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    AZ_TRY(AZ_NEW(comm, 1, "communication"));
    comm->started_mpi = !ready;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm->world);
    MPI_Comm_rank(comm->world, &comm->rank);
    MPI_Comm_size(comm->world, &comm->size);
    MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &comm->node);
    MPI_Comm_rank(comm->node, &comm->node_rank);
    MPI_Comm_size(comm->node, &comm->node_size);
    comm->limit = message_limit();
    az_log_set_speaker(comm->rank == 0);
    AZ_TRY(AZ_NEW(comm->counts, (size_t)comm->size, "communication"));
    AZ_TRY(AZ_NEW(comm->offsets, (size_t)comm->size, "communication"));
    AZ_TRY(check_singleton(comm));
    *out_comm = comm;
    comm = NULL;
out:
    az_comm_fini(comm);
    return err;
}

az_err az_comm_create_self(az_comm **out_comm)
{
    az_err err;
    AZ_TRY(AZ_NEW(*out_comm, 1, "communication"));
    **out_comm = (az_comm){.alone = true, .size = 1, .node_size = 1, .limit = LIMIT};
out:
    return err;
}

void az_comm_fini(az_comm *opt_comm)
{
    if (opt_comm == NULL)
        return;
    if (!opt_comm->alone) {
        MPI_Comm_free(&opt_comm->node);
        MPI_Comm_free(&opt_comm->world);
        if (opt_comm->started_mpi)
            MPI_Finalize();
    }
    az_free(opt_comm->counts);
    az_free(opt_comm->offsets);
    az_free(opt_comm);
}

void az_comm_abort(az_comm *opt_comm, int code)
{
    if (opt_comm != NULL && !opt_comm->alone)
        MPI_Abort(opt_comm->world, code);
    _Exit(code);
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
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm->world);
    if (first == comm->size)
        return AZ_OK;
    static char text[AZ_ERR_MAX];
    if (first == comm->rank)
        strncpy(text, az_err_message(), sizeof text - 1);
    MPI_Bcast(&err, 1, MPI_INT, first, comm->world);
    MPI_Bcast(text, sizeof text, MPI_CHAR, first, comm->world);
    az_err_clear();
    return az_fail(err, "%s", text);
}
