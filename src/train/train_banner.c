/* train/report: what is said before the first step and after the last one. */
#include <config.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kern/kern.h"
#include "train/load.h"
#include "train/report.h"

void az_report_start(const az_engine *engine, const char *what)
{
    const az_comm *comm = engine->comm;
    const int n_ranks = az_comm_size(comm), here = az_comm_node_size(comm);
    const int threads = az_kern_set_threads(0);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    bool slow;
    const char *blas = az_kern_blas_describe(&slow);
    az_say("adze      %s: %s", PACKAGE_VERSION, what);
    az_say("ranks     %d x %d thread%s (%d rank%s on this node of %ld cores), %s", n_ranks, threads,
           threads > 1 ? "s" : "", here, here > 1 ? "s" : "", cores, az_comm_library());
    az_device_say(&engine->device, comm);
    az_say("BLAS      %s", blas);
    if (slow)
        az_warn("the BLAS uses kernels older than this CPU: %s", blas);
    if ((long)here * threads > cores)
        az_warn(
            "%d rank%s x %d thread%s on %ld cores: they will wait for each other; set run.threads, "
            "OMP_NUM_THREADS or fewer ranks",
            here, here > 1 ? "s" : "", threads, threads > 1 ? "s" : "", cores);
}

void az_report_data(const char *name, const char *opt_from, const az_dataset *set)
{
    az_say(
        "%-9s %s%s%s samples, %s tokens, %s targets, longest %lld; %lld cut, %lld dropped as too "
        "long, %lld without targets",
        name, opt_from != NULL ? opt_from : "", opt_from != NULL ? ": " : "",
        az_format_count(set->n), az_format_count(set->n_tokens), az_format_count(set->n_targets),
        (long long)set->longest, (long long)set->n_cut, (long long)set->n_dropped_long,
        (long long)set->n_dropped_empty);
}

static void say_batches(const az_deck *deck, const az_dataset *train, const az_schedule *schedule,
                        int64_t total_steps, int n_ranks)
{
    const long long batch = az_deck_int(deck, "train.batch_size");
    const long long per_epoch = az_schedule_get_steps_per_epoch(schedule);
    const bool by_tokens = az_deck_has(deck, "train.micro_batch_tokens");
    const long long micro = by_tokens ? az_deck_int(deck, "train.micro_batch_tokens")
                                      : az_deck_int(deck, "train.micro_batch_size");
    const long long last = train->n - (per_epoch - 1) * batch;
    if (by_tokens)
        az_say("batches   %lld samples a step, in micro-batches of at most %lld tokens dealt to %d "
               "rank%s",
               batch, micro, n_ranks, n_ranks > 1 ? "s" : "");
    else {
        const long long n_micro = az_ceil_div(batch < train->n ? batch : train->n, micro);
        const long long rounds = az_ceil_div(n_micro, n_ranks);
        az_say(
            "batches   %lld samples a step = %lld micro-batches of %lld, on %d rank%s %lld in turn",
            batch, n_micro, micro, n_ranks, n_ranks > 1 ? "s" : "", rounds);
    }
    az_say("steps     %s samples = %lld steps an epoch (last of %lld samples), %lld steps in all = "
           "%.2f epochs",
           az_format_count(train->n), per_epoch, last, (long long)total_steps,
           (double)total_steps / (double)per_epoch);
}

void az_report_banner(const az_deck *deck, const az_engine *engine, const az_dataset *train,
                      const az_dataset *opt_eval, const az_schedule *schedule, int64_t total_steps,
                      const char *hdf5)
{
    char what[64];
    snprintf(what, sizeof what, "LoRA training (HDF5 %s)", hdf5);
    az_report_start(engine, what);
    az_engine_say(engine);
    az_report_data("data", NULL, train);
    if (opt_eval != NULL)
        az_report_data("eval", NULL, opt_eval);
    say_batches(deck, train, schedule, total_steps, az_comm_size(engine->comm));
}

/* The base in the memory of GPUs. */
static void say_gpu_base(const az_engine *engine, const az_shard_stats *s)
{
    const char *over = s->host.n_slots > 0 ? "the hosts of the nodes"
                       : az_shard_get_scope(engine->shard) == AZ_SCOPE_NODE ? "the GPUs of a node"
                                                                            : "all GPUs";
    if (s->n_resident == s->n_units) {
        az_say("base      a copy of %s in the memory of each GPU",
               az_format_bytes((double)s->base_bytes));
        return;
    }
    az_say("base      cut over %s: %s of %s on each GPU, %d of %d units resident, the others "
           "gathered in %d slot%s of %s",
           over, az_format_bytes((double)s->sizes.held), az_format_bytes((double)s->base_bytes),
           s->n_resident, s->n_units, s->sizes.n_slots, s->sizes.n_slots > 1 ? "s" : "",
           az_format_bytes((double)s->sizes.slot_each));
    if (s->host.n_slots > 0)
        az_say("          %s on each host, in %s, and %d pinned slot%s",
               az_format_bytes((double)s->host.held), az_shard_describe_pages(engine->shard),
               s->host.n_slots, s->host.n_slots > 1 ? "s" : "");
}

void az_report_base(const az_engine *engine)
{
    const az_shard_stats s = az_shard_get_stats(engine->shard);
    if (az_dev_is_gpu(engine->device.dev))
        say_gpu_base(engine, &s);
    else if (s.mapped)
        az_say(
            "base      %s used where the files are, as the system's cache of them, read-only; %s "
            "copied as they are not aligned",
            az_format_bytes((double)s.base_bytes), az_format_bytes((double)s.sizes.held));
    else if (az_shard_get_scope(engine->shard) == AZ_SCOPE_NODE)
        az_say("base      one copy a node of %s, read by its ranks in place, protected, in %s",
               az_format_bytes((double)s.base_bytes), az_shard_describe_pages(engine->shard));
    else
        az_say("base      cut over %d nodes: %s of %s on each, read by its ranks in place, "
               "protected, in %s; %d of %d units resident, the others gathered in %d slot%s of %s",
               az_comm_get_topology(engine->comm)->n_nodes, az_format_bytes((double)s.sizes.held),
               az_format_bytes((double)s.base_bytes), az_shard_describe_pages(engine->shard),
               s.n_resident, s.n_units, s.sizes.n_slots, s.sizes.n_slots > 1 ? "s" : "",
               az_format_bytes((double)s.sizes.slot_each));
}

static void say_share(const char *name, double s, double whole)
{
    if (s > 0)
        az_say("          %-10s %8.2fs  %5.1f %%", name, s, 100 * s / whole);
}

/* s: seconds of all ranks by operation. */
static void say_times(const az_report *r, const double *s, const char *const *names, int n)
{
    const double whole = r->last - r->begin + r->eval_s;
    double known = 0;
    az_say("time      a rank's mean, of %s:", az_format_seconds(whole));
    for (int i = 0; i < n; i++) {
        const double mean = s[i] / az_comm_size(r->comm);
        known += mean;
        say_share(names[i], mean, whole);
    }
    say_share("other", whole - known, whole);
    az_say("idle      %.1f %% of the ranks' time, estimated from how micro-batches fill the ranks",
           100 * r->idle_s / fmax(r->last - r->begin, 1e-9));
}

static bool is_of_gpu(const char *label)
{
    return strncmp(label, "GPU ", 4) == 0;
}

/* peak: of the rank that had most, of the host's memory or of its GPU's. */
static void say_memory(double peak, bool gpu)
{
    const char *label;
    size_t bytes, most, small = 0;
    az_say("peak      %s a %s; this rank's by category, each at its own peak:",
           az_format_bytes(peak), gpu ? "GPU" : "rank");
    for (int i = 0; az_mem_get_label(i, &label, &bytes, &most); i++)
        if (is_of_gpu(label) == gpu && (double)most >= 0.01 * peak)
            az_say("          %-22s %s", label, az_format_bytes((double)most));
        else if (is_of_gpu(label) == gpu)
            small += most;
    az_say("          %-22s %s", "smaller ones", az_format_bytes((double)small));
}

static void say_gathers(const az_shard_stats *shard, double waited)
{
    if (shard->received_bytes == 0)
        az_say("gathers   %s, nothing comes from other nodes, waited %.3f s a step for them",
               az_format_count(shard->gathers), waited);
    else
        az_say("gathers   %s of %s received by each node, waited %.3f s a step for them",
               az_format_count(shard->gathers), az_format_bytes((double)shard->received_bytes),
               waited);
}

void az_report_summary(az_report *r, const az_engine *engine, az_pass *pass, az_optim *optim)
{
    const az_pass_times t = az_pass_get_times(pass);
    const az_shard_stats shard = az_shard_get_stats(engine->shard);
    double s[] = {t.forward, t.head, t.recompute, t.backward, az_optim_get_seconds(optim),
                  t.gather};
    enum { N = sizeof s / sizeof *s, GATHER = N - 1 };
    static const char *const names[N] = {"forward",  "head",      "recompute",
                                         "backward", "optimizer", "gather"};
    az_comm_sum_f64(r->comm, s, N);
    double peaks[] = {(double)az_mem_get_total().peak_bytes,
                      (double)az_dev_get_most(engine->device.dev)};
    az_comm_max_f64(r->comm, peaks, 2);
    if (!az_log_is_speaker())
        return;
    if (r->steps == 0) {
        az_say("done      no step was left to be made");
        return;
    }
    az_say("done      %lld steps in %s, %s tokens/s, loss %.4f -> %.4f", (long long)r->steps,
           az_format_seconds(r->last - r->begin),
           az_format_count((long long)((double)r->tokens / fmax(r->last - r->begin, 1e-9))),
           r->first_loss, r->last_loss);
    if (r->skipped == r->steps && r->steps > 0)
        az_warn("no step was finite: the adapter is what it was at the start");
    if (!isnan(r->first_eval))
        az_say("eval      loss %.4f -> %.4f", r->first_eval, r->last_eval);
    if (r->skipped > 0)
        az_say("skipped   %lld steps whose gradient was not finite", (long long)r->skipped);
    /* A GPU computes while the host waits: only its own times add up. */
    say_times(r, s, names, az_dev_is_gpu(engine->device.dev) ? GATHER : N);
    say_gathers(&shard, s[GATHER] / az_comm_size(r->comm) / (double)r->steps);
    say_memory(peaks[0], false);
    if (peaks[1] > 0)
        say_memory(peaks[1], true);
    az_device_say_waits(&engine->device, &r->waits, r->steps);
    az_device_say_times(&engine->device);
    az_say("allocated %lld times in the step loop after the first step", (long long)r->allocations);
}
