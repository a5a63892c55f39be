/* watch: the end of a job that does nothing any more: the table of the node's ranks, the state
 * file, _exit.
 *
 * The main thread may stand still with the lock of malloc or of stdio held: only system calls and
 * snprintf of integers and strings are used here. All ranks of the node come here, as each looks
 * whether another one has: one is elected to write, then all leave at the same time, each with its
 * own code. A stopped rank is continued so that it leaves too; srun would wait for it. */
#include <config.h>

#include "comm/comm_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define GET(p) atomic_load_explicit((p), memory_order_relaxed)
/* A rank whose watchdog has not looked for so long (ns) does not run. */
#define NOT_RUNNING (3 * NS)
/* For a node whose ranks all wait, to let the node of the missing ones speak first; for a
 * table to get written; from then on until the ranks leave, for other nodes to come here too. */
#define YIELD (1 * NS)
#define WRITING (10 * NS)
#define GRACE (2 * NS)
/* For all ranks to find that MPI does not end, before the first one leaves. */
#define SETTLE (1 * NS)
/* How long connections to the launcher stay open at most (s). */
#define HOLD 5
/* Beyond all files that are open, in practice. */
#define MANY 65536
/* How often it is looked whether the table is written. */
#define LOOK (NS / 20)

static const char *const phases[AZ_N_PHASES] = {[AZ_PHASE_START] = "start",
                                                [AZ_PHASE_LOAD] = "loading",
                                                [AZ_PHASE_STEP] = "training",
                                                [AZ_PHASE_EVAL] = "evaluation",
                                                [AZ_PHASE_GENERATE] = "generation",
                                                [AZ_PHASE_SAVE] = "saving",
                                                [AZ_PHASE_END] = "end"};

static const char *const calls[AZ_N_CALLS] = {[AZ_CALL_NONE] = "none",
                                              [AZ_CALL_AGREE] = "agree",
                                              [AZ_CALL_POLL] = "poll",
                                              [AZ_CALL_BARRIER] = "barrier",
                                              [AZ_CALL_BCAST] = "bcast",
                                              [AZ_CALL_ALLGATHER] = "allgather",
                                              [AZ_CALL_ALLGATHERV] = "allgatherv",
                                              [AZ_CALL_REDUCE_SCATTER] = "reduce_scatter",
                                              [AZ_CALL_ALLREDUCE] = "allreduce",
                                              [AZ_CALL_GATHER] = "gather",
                                              [AZ_CALL_DEVICE] = "device"};

/* ---- 1. what the records say ---- */

bool az_watch_read_process(long pid, char *out_state, uint64_t *out_started)
{
    char name[40], text[1024];
    snprintf(name, sizeof name, "/proc/%ld/stat", pid);
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    char *s = strrchr(text, ')'); /* the program's name may hold anything */
    if (s == NULL || s[1] != ' ' || s[2] == '\0')
        return false;
    *out_state = s[2];
    /* The state is field 3, the start field 22. */
    s += 2;
    for (int field = 3; field < 22 && s != NULL; field++)
        s = strchr(s + 1, ' ');
    *out_started = s != NULL ? strtoull(s, NULL, 10) : 0;
    return true;
}

static void read_row(az_row *row, const az_record *r, int64_t now)
{
    uint64_t words[AZ_WHAT_WORDS], started = 0;
    for (int i = 0; i < AZ_WHAT_WORDS; i++)
        words[i] = GET(&r->what[i]);
    *row = (az_row){.time = GET(&r->time),
                    .beat = GET(&r->beat),
                    .phase = GET(&r->phase),
                    .step = GET(&r->step),
                    .number = GET(&r->number),
                    .call = GET(&r->call),
                    .calls = GET(&r->calls),
                    .pid = GET(&r->pid),
                    .rank = GET(&r->rank)};
    memcpy(row->what, words, sizeof words);
    if (!az_watch_read_process((long)row->pid, &row->state, &started) ||
        started != GET(&r->started))
        row->state = now - row->beat > NOT_RUNNING ? 'X' : '-'; /* '-': not to be seen from here */
}

/* Rules of mark_lags, in this order. */
typedef enum {
    STOPPED, /* it does not run */
    BEHIND,  /* it is busy, and has entered fewer collectives than another rank */
    EARLIER, /* it waits in an earlier collective than another rank; on one node alone, as it may
                wait for a rank of another one */
    BUSY,    /* it is in no collective */
    N_RULES
} lag_rule;

static bool is_lag(const az_row *row, lag_rule rule, bool whole, int64_t most, int64_t now)
{
    const bool busy = row->call == AZ_CALL_NONE;
    switch (rule) {
    case STOPPED:
        return now - row->beat > NOT_RUNNING || strchr("TtZX", row->state) != NULL;
    case BEHIND:
        return busy && row->calls < most;
    case EARLIER:
        return whole && row->calls < most;
    default:
        return busy;
    }
}

/* Who is waited for: the ranks that the first rule finds which finds any. (A rank in the middle of
 * a collective may wait for a stopped one, so being behind others is not enough.) Returns how many;
 * none if all wait in the same place. */
static int mark_lags(az_watch *w, int64_t now)
{
    az_row *rows = w->rows;
    const int n = w->n_ranks;
    int n_lags = 0;
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = az_max_i64(most, rows[i].calls);
    for (int rule = 0; rule < N_RULES && n_lags == 0; rule++)
        for (int i = 0; i < n; i++) {
            rows[i].lags = is_lag(&rows[i], (lag_rule)rule, w->whole, most, now);
            n_lags += rows[i].lags;
        }
    return n_lags;
}

/* ---- 2. as text ---- */

typedef struct {
    char *s;
    size_t bytes, len;
} text;

static void put(text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(t->s + t->len, t->bytes - t->len, fmt, args);
    va_end(args);
    if (n > 0)
        t->len = t->len + (size_t)n < t->bytes ? t->len + (size_t)n : t->bytes - 1;
}

static const char *state_name(char letter)
{
    switch (letter) {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "in the disk";
    case 'T':
    case 't':
        return "stopped";
    case 'Z':
    case 'X':
        return "gone";
    default:
        return "unknown";
    }
}

/* "training, step 12, layer 3", in brackets of the caller's. */
static void put_place(text *t, const az_row *row)
{
    put(t, "%s", phases[row->phase]);
    if (row->step >= 0)
        put(t, ", step %lld", (long long)row->step);
    if (row->what[0] != '\0')
        put(t, ", %s %lld", row->what, (long long)row->number);
    if (row->call == AZ_CALL_DEVICE)
        put(t, ", waits for its GPU after collective %lld", (long long)row->calls);
    else if (row->call != AZ_CALL_NONE)
        put(t, ", in collective %lld (%s)", (long long)row->calls, calls[row->call]);
    else
        put(t, ", after collective %lld", (long long)row->calls);
}

static void put_row(text *t, const az_row *row, const char *host, int64_t now)
{
    char step[24] = "-", what[48] = "-";
    if (row->step >= 0)
        snprintf(step, sizeof step, "%lld", (long long)row->step);
    if (row->what[0] != '\0')
        snprintf(what, sizeof what, "%s %lld", row->what, (long long)row->number);
    put(t, "%c %-12s %6lld %8lld  %-11s  %-10s %7s  %-18s %-14s %10lld %7lld s%s\n",
        row->lags ? '*' : ' ', host, (long long)row->rank, (long long)row->pid,
        state_name(row->state), phases[row->phase], step, what, calls[row->call],
        (long long)row->calls, (long long)((now - row->time) / NS),
        row->lags ? "  <- waited for" : "");
}

static void put_table(text *t, const az_watch *w, const char *reason, int64_t now)
{
    char when[32];
    az_state_format_time(when, sizeof when);
    put(t, "adze: watchdog on %s, %s: %s\n", w->host, when, reason);
    put(t, "  %-12s %6s %8s  %-11s  %-10s %7s  %-18s %-14s %10s %9s\n", "host", "rank", "pid",
        "process", "phase", "step", "at", "in", "collective", "silent");
    for (int i = 0; i < w->n_ranks; i++)
        put_row(t, &w->rows[i], w->host, now);
}

static void put_reason(text *t, const az_watch *w, int n_lags, int64_t now)
{
    const az_row *first = NULL, *waits = NULL;
    const int64_t silent = (now - GET(&w->own->time)) / NS;
    for (int i = 0; i < w->n_ranks; i++) {
        const az_row *row = &w->rows[i];
        if (row->lags && first == NULL)
            first = row;
        if (!row->lags && row->call != AZ_CALL_NONE && waits == NULL)
            waits = row;
    }
    put(t, "no sign of life for %lld s in %s: ", (long long)silent, phases[GET(&w->own->phase)]);
    if (first == NULL) {
        put(t, w->rows[0].call == AZ_CALL_DEVICE ? "all ranks of this node wait for their GPUs ("
               : w->whole                        ? "all ranks stand still in the same collective ("
                          : "all ranks of this node wait for ranks of other nodes (");
        put_place(t, &w->rows[0]);
        put(t, ")");
        return;
    }
    put(t, "rank %lld on %s, pid %lld, %s, is waited for (", (long long)first->rank, w->host,
        (long long)first->pid, state_name(first->state));
    put_place(t, first);
    put(t, ")");
    if (n_lags > 1)
        put(t, " and %d more", n_lags - 1);
    if (waits != NULL) {
        put(t, "; others wait (");
        put_place(t, waits);
        put(t, ")");
    }
}

/* ---- 3. where it goes ---- */

/* To standard error, without standing still before a pipe that nobody reads: a pipe that is ready
 * takes 4096 bytes. */
static void write_stderr(const char *s, size_t n)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    while (n > 0 && poll(&ready, 1, 1000) == 1 && (ready.revents & POLLOUT) != 0) {
        const ssize_t done = write(STDERR_FILENO, s, n < 4096 ? n : 4096);
        if (done <= 0)
            return;
        s += done;
        n -= (size_t)done;
    }
}

/* Appended in one piece: what is there is of an earlier run, or of other ranks of this host that
 * MPI was told to see as another node. */
static void write_file(const az_watch *w, const char *s, size_t n)
{
    char path[PATH_MAX + 80];
    snprintf(path, sizeof path, "%s/watchdog-%s.txt", w->dir, w->host);
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    while (n > 0) {
        const ssize_t done = write(fd, s, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        s += done;
        n -= (size_t)done;
    }
    fsync(fd);
    close(fd);
}

static void sleep_until(int64_t when)
{
    const struct timespec at = {.tv_sec = (time_t)(when / NS), .tv_nsec = (long)(when % NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

/* What has failed, as any failure of the program is said. */
static void report_failure(az_watch *w, const char *failure, int code)
{
    char line[PATH_MAX + 512];
    text t = {.s = line, .bytes = sizeof line};
    put(&t, "adze: error: %s\n", failure);
    write_stderr(t.s, t.len);
    if (w->dir[0] != '\0')
        az_state_change(w->dir, "failed", failure, code);
}

static void report(az_watch *w, int64_t now)
{
    char reason[1024];
    text why = {.s = reason, .bytes = sizeof reason},
         table = {.s = w->text, .bytes = w->text_bytes};
    for (int i = 0; i < w->n_ranks; i++)
        read_row(&w->rows[i], &w->board->records[i], now);
    const int n_lags = mark_lags(w, now);
    put_reason(&why, w, n_lags, now);
    put_table(&table, w, reason, now);
    write_stderr(table.s, table.len);
    if (w->dir[0] == '\0')
        return;
    write_file(w, table.s, table.len);
    if (n_lags == 0)
        sleep_until(az_watch_now() + YIELD);
    if (n_lags > 0 || !az_state_is(w->dir, "failed"))
        az_state_change(w->dir, "failed", reason, AZ_ELOST);
}

/* ---- 4. the end ---- */

static bool is_alone(const az_watch *w)
{
    return w->whole && w->n_ranks == 1;
}

static void stand_still(int signal_number)
{
    (void)signal_number;
    for (;;)
        pause();
}

/* From here on the main thread does nothing any more: it would take ranks that end for a failure of
 * MPI and abort, or go on for a moment if the one that it waits for does. */
static void freeze(const az_watch *w)
{
    struct sigaction action = {.sa_handler = stand_still};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR2, &action, NULL);
    pthread_kill(w->main, SIGUSR2);
}

static void continue_stopped(const az_watch *w)
{
    char state;
    uint64_t started;
    for (int i = 0; i < w->n_ranks; i++) {
        const az_record *r = &w->board->records[i];
        const long pid = (long)GET(&r->pid);
        if (r != w->own && az_watch_read_process(pid, &state, &started) &&
            started == GET(&r->started) && (state == 'T' || state == 't'))
            kill((pid_t)pid, SIGCONT);
    }
}

/* A process of its own on memory that it shares: system calls only. All but the connection is
 * closed at once, as whoever reads it waits for its end. It ends with the launcher. */
static int hold(void *context)
{
    struct pollfd connection = {.fd = *(const int *)context};
    struct timespec most = {.tv_sec = HOLD};
    for (int fd = 0; fd < MANY; fd++)
        if (fd != connection.fd)
            syscall(SYS_close, fd);
    syscall(SYS_ppoll, &connection, 1, &most, NULL, (size_t)0);
    return 0;
}

/* Hydra takes a closed connection to a rank that has not ended MPI for a crash: it kills the other
 * ranks, and the job's code is 9, or 1. So a small process keeps this rank's connection open while
 * all ranks end with their own codes. */
static void leave(az_watch *w, int code) __attribute__((noreturn));
static void leave(az_watch *w, int code)
{
    static _Alignas(16) char stack[16384];
    if (w->launcher >= 0)
        clone(hold, stack + sizeof stack, CLONE_VM | SIGCHLD, &w->launcher);
    _exit(code);
}

void az_watch_end_quietly(az_watch *watch)
{
    if (!is_alone(watch)) {
        freeze(watch);
        sleep_until(az_watch_now() + SETTLE);
    }
    leave(watch, atomic_load(&watch->code));
}

void az_watch_give_up(az_watch *watch, int64_t now, const char *opt_failure, int code)
{
    az_board *board = watch->board;
    int none = 0;
    int64_t written, last = now + WRITING;
    const bool elected = atomic_compare_exchange_strong(&board->elected, &none, code);
    if (elected) {
        if (opt_failure != NULL)
            report_failure(watch, opt_failure, code);
        else
            report(watch, now);
        atomic_store(&board->written, az_watch_now());
        continue_stopped(watch);
    }
    while ((written = atomic_load(&board->written)) == 0 && az_watch_now() < last)
        sleep_until(az_watch_now() + LOOK);
    freeze(watch);
    if (written != 0)
        last = written + (is_alone(watch) ? 0 : GRACE);
    sleep_until(last);
    leave(watch, atomic_load(&board->elected));
}
