/* train/stage: the ranks of each node make a copy of the model together (store/stage.h).
 *
 * All ranks go in rounds, each of which ends in an agreement, so that a failure or a request to
 * stop ends the work of all soon, and nobody waits long without a sign of life. Nodes are at
 * different points: one may copy while another waits for the lock of another job. */
#include <config.h>

#include <time.h>
#include <unistd.h>

#include "comm/watch.h"
#include "store/stage.h"
#include "train/stage.h"

/* Bytes that a rank copies in a round, and seconds between two looks at a lock. */
#define ROUND ((int64_t)256 << 20)
#define LOOK_NS 50000000

typedef struct {
    az_stage stage;
    az_comm *comm;
    bool first; /* of the node */
    /* What the node is at: one of az_stage_state; SEAL when all is copied. */
    int64_t state;
    int64_t at, end; /* this rank's part: bytes of all files that it has still to copy */
    int64_t rounds;  /* that are still needed for the largest part */
    bool copied;     /* by this job */
} job;

enum { SEAL = AZ_STAGE_COPY + 1 };

/* Which files there are: rank 0 looks. */
static az_err share_list(az_str *list, const char *model_dir, const az_tensor_set *set,
                         az_comm *comm)
{
    az_err err = AZ_OK;
    int64_t bytes;
    char *text = NULL;
    if (az_comm_rank(comm) == 0)
        err = az_stage_list(list, model_dir, set);
    AZ_TRY(az_comm_agree(comm, err));
    bytes = (int64_t)list->len;
    az_comm_bcast(comm, &bytes, sizeof bytes, 0);
    err = AZ_NEW(text, (size_t)bytes, "text");
    AZ_TRY(az_comm_agree(comm, err));
    if (az_comm_rank(comm) == 0)
        memcpy(text, list->s, (size_t)bytes);
    az_comm_bcast(comm, text, (size_t)bytes, 0);
    if (az_comm_rank(comm) != 0)
        err = az_str_add_bytes(list, text, (size_t)bytes);
    err = az_comm_agree(comm, err);
out:
    az_free(text);
    return err;
}

/* The number that the node's first rank gives. Collective over the node. */
static int64_t from_first(const job *j, int64_t v)
{
    v = j->first ? v : 0;
    az_comm_node_sum_i64(j->comm, &v, 1);
    return v;
}

static void take_part(job *j)
{
    const size_t n = (size_t)az_comm_node_size(j->comm), rank = (size_t)az_comm_node_rank(j->comm);
    const size_t bytes = (size_t)j->stage.bytes;
    j->at = (int64_t)az_cut(bytes, rank, n);
    j->end = (int64_t)az_cut(bytes, rank + 1, n);
    j->rounds = az_ceil_div(az_ceil_div(j->stage.bytes, (int64_t)n), ROUND);
    j->copied = true;
}

/* What this rank does in a round; its node's state is then known to the first rank alone. Local. */
static az_err do_round(job *j)
{
    az_err err = AZ_OK;
    az_stage_state found = AZ_STAGE_WAIT;
    switch (j->state) {
    case AZ_STAGE_WAIT:
        if (j->first)
            err = az_stage_begin(&j->stage, &found);
        j->state = found;
        break;
    case AZ_STAGE_COPY: {
        const int64_t next = az_min_i64(j->end, j->at + ROUND);
        err = az_stage_copy(&j->stage, j->at, next);
        j->at = next;
        if (--j->rounds <= 0)
            j->state = SEAL;
        break;
    }
    case SEAL:
        if (j->first)
            err = az_stage_seal(&j->stage);
        j->state = AZ_STAGE_WHOLE;
        break;
    default: /* the copy is there, others are not ready */
        break;
    }
    return err != AZ_OK ? err : az_stop_check();
}

static az_err run_rounds(job *j)
{
    az_err err;
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    int64_t busy = 1;
    j->state = AZ_STAGE_WAIT;
    for (int64_t round = 0; busy > 0; round++) {
        const int64_t before = j->state;
        az_watch_mark(j->comm, "staging", round);
        AZ_TRY(az_comm_agree(j->comm, do_round(j)));
        j->state = from_first(j, j->state);
        if (before == AZ_STAGE_WAIT && j->state == AZ_STAGE_COPY)
            take_part(j);
        if (before == AZ_STAGE_WAIT && j->state == AZ_STAGE_WAIT)
            nanosleep(&pause, NULL);
        busy = j->state != AZ_STAGE_WHOLE;
        az_comm_max_i64(j->comm, &busy, 1);
    }
out:
    return err;
}

static void say(const job *j, double seconds)
{
    int64_t n[2] = {j->first && j->copied, j->first};
    az_comm_sum_i64(j->comm, n, 2);
    const char *what = az_format_bytes((double)j->stage.bytes);
    if (n[0] == 0)
        az_say("staged    %s: there already, %s", j->stage.target, what);
    else if (n[1] == 1)
        az_say("staged    %s: %s in %s", j->stage.target, what, az_format_seconds(seconds));
    else
        az_say("staged    %s: %s on each of %lld nodes (there already on %lld) in %s",
               j->stage.target, what, (long long)n[1], (long long)(n[1] - n[0]),
               az_format_seconds(seconds));
}

az_err az_stage_model(az_tensor_set *set, const char *model_dir, const char *dir, az_comm *comm)
{
    az_err err;
    const double begin = az_now();
    az_str list = {0};
    job j = {.stage = {.lock = -1}, .comm = comm, .first = az_comm_node_rank(comm) == 0};
    AZ_TRY(share_list(&list, model_dir, set, comm));
    const int64_t maker = from_first(&j, getpid());
    err = az_stage_init(&j.stage, dir, model_dir, list.s, list.len, maker);
    AZ_TRY(az_comm_agree(comm, err));
    AZ_TRY(run_rounds(&j));
    AZ_TRY(az_comm_agree(comm, az_stage_redirect(set, &j.stage)));
    say(&j, az_now() - begin);
out:
    az_stage_fini(&j.stage);
    az_str_fini(&list);
    return err;
}
