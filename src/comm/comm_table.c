/* watch: the end of a job that does nothing any more: the table of the node's ranks, the state
 * file, _exit.
 *
 * The main thread may stand still with the lock of malloc or of stdio held: only system calls and
 * snprintf of integers and strings are used here. Other ranks of the node come here about the same
 * time: one is elected, the others leave it time. Those that do not come are ended at last (a
 * stopped process stays otherwise, and srun waits for it). */
#include <config.h>

#include "comm/comm_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define GET(p) atomic_load_explicit((p), memory_order_relaxed)
/* A rank whose watchdog has not looked for so long (ns) does not run. */
#define NOT_RUNNING (3 * NS)
/* Seconds: for a node whose ranks all wait, to let the node of the missing ones speak first; for a
 * table to get written; from then on until the ranks leave, for other nodes to come here too; from
 * then on until what is left on the node is ended. */
#define YIELD 1.0
#define WRITING 10.0
#define GRACE 2.0
#define LAST 0.5

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
                                              [AZ_CALL_ALLREDUCE] = "allreduce"};

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

/* Who is waited for: ranks that do not run; ranks that have entered fewer collectives than another;
 * if there are none, ranks that are busy outside of collectives. Returns how many; none if all wait
 * in the same place, for ranks of other nodes. */
static int mark_lags(az_row *rows, int n, int64_t now)
{
    int n_lags = 0;
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = az_max_i64(most, rows[i].calls);
    for (int i = 0; i < n; i++) {
        rows[i].lags = now - rows[i].beat > NOT_RUNNING || rows[i].calls < most;
        n_lags += rows[i].lags;
    }
    if (n_lags > 0)
        return n_lags;
    for (int i = 0; i < n; i++) {
        rows[i].lags = rows[i].call == AZ_CALL_NONE;
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
    if (row->call != AZ_CALL_NONE)
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
        put(t, "the ranks of %s wait for ranks of other nodes (", w->host);
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

static void pause_for(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static void report(az_watch *w, int64_t now)
{
    char reason[1024];
    text why = {.s = reason, .bytes = sizeof reason},
         table = {.s = w->text, .bytes = w->text_bytes};
    for (int i = 0; i < w->n_ranks; i++)
        read_row(&w->rows[i], &w->board->records[i], now);
    const int n_lags = mark_lags(w->rows, w->n_ranks, now);
    put_reason(&why, w, n_lags, now);
    put_table(&table, w, reason, now);
    write_stderr(table.s, table.len);
    if (w->dir[0] == '\0')
        return;
    write_file(w, table.s, table.len);
    if (n_lags == 0)
        pause_for(YIELD);
    if (n_lags > 0 || !az_state_is(w->dir, "failed"))
        az_state_change(w->dir, "failed", reason, AZ_ELOST);
}

/* What is left of the node's other ranks. */
static void end_others(const az_watch *w)
{
    char state;
    uint64_t started;
    for (int i = 0; i < w->n_ranks; i++) {
        const az_record *r = &w->board->records[i];
        const long pid = (long)GET(&r->pid);
        if (r != w->own && az_watch_read_process(pid, &state, &started) &&
            started == GET(&r->started))
            kill((pid_t)pid, SIGKILL);
    }
}

void az_watch_give_up(az_watch *watch, int64_t now)
{
    az_board *board = watch->board;
    int none = 0;
    if (atomic_compare_exchange_strong(&board->elected, &none, 1)) {
        report(watch, now);
        atomic_store(&board->written, 1);
        pause_for(GRACE + LAST);
        end_others(watch);
    } else {
        const int64_t last = az_watch_now() + (int64_t)(WRITING * (double)NS);
        while (!atomic_load(&board->written) && az_watch_now() < last)
            pause_for(0.05);
        pause_for(GRACE);
    }
    _exit(AZ_ELOST);
}
