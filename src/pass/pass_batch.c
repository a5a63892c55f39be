/* pass: micro-batches on their way to the device.
 *
 * All of a pass are put one behind the other into pinned memory and go to the device as its first
 * work, in the compute queue: so they come after all that reads those of the pass before, and
 * before all that reads them. The pinned memory is free again when the pass has given its result,
 * for which the host waits (pass_run.c): before the next pass begins. */
#include <config.h>

#include <string.h>

#include "pass/pass_priv.h"

/* Elements that the slots filled so far have taken. */
typedef struct {
    int64_t tokens, targets;
    int seqs;
} filled;

static void put(void *staged, const void *array, int64_t n, size_t size)
{
    if (n > 0)
        memcpy(staged, array, (size_t)n * size);
}

static void send(az_pass *p, void *to, const void *staged, int64_t n, size_t size)
{
    az_dev_copy_in(p->m.kern->dev, AZ_QUEUE_COMPUTE, to, staged, (size_t)n * size);
}

static void send_all(az_pass *p, const filled *f)
{
    const az_batches *to = &p->batches, *from = &p->staged;
    send(p, to->ids, from->ids, f->tokens, sizeof *to->ids);
    send(p, to->pos, from->pos, f->tokens, sizeof *to->pos);
    send(p, to->rows, from->rows, f->targets, sizeof *to->rows);
}

static void add_batch(az_pass *p, az_slot *slot, const az_batch *b, filled *f)
{
    const az_walk *w = &p->now;
    const az_batches *to = &p->staged, *d = &p->batches;
    const int64_t token0 = f->tokens, target0 = f->targets;
    az_seq *seqs = p->seqs + f->seqs;
    put(to->ids + token0, b->ids, b->N, sizeof *to->ids);
    put(to->pos + token0, b->pos, b->N, sizeof *to->pos);
    put(to->sample + token0, b->sample, b->N, sizeof *to->sample);
    put(to->rows + target0, b->rows, b->n_targets, sizeof *to->rows);
    put(to->labels + target0, b->labels, b->n_targets, sizeof *to->labels);
    for (int i = 0; i < b->B; i++) {
        const int64_t row = b->start[i], len = b->start[i + 1] - row;
        seqs[i] = (az_seq){row, len, row, len};
    }
    const az_mask dropout = {.p = w->training ? p->m.lora->dropout : 0,
                             .seed = w->seed,
                             .step = (uint32_t)w->step,
                             .sample = d->sample + token0,
                             .pos = d->pos + token0};
    *slot = (az_slot){.tokens = {.N = b->N,
                                 .pos = d->pos + token0,
                                 .seqs = seqs,
                                 .n_seqs = b->B,
                                 .dropout = dropout},
                      .ids = d->ids + token0,
                      .n_targets = b->n_targets,
                      .rows = d->rows + target0,
                      .labels = d->labels + target0};
    *f = (filled){token0 + b->N, target0 + b->n_targets, f->seqs + b->B};
}

void az_pass_load_batches(az_pass *pass, az_schedule *schedule, int first, int n)
{
    const az_pass_limits *limits = pass->now.training ? &pass->back : &pass->most;
    filled f = {0};
    for (int s = 0; s < n; s++) {
        az_batch b;
        az_schedule_get_batch(schedule, first + s, &b);
        AZ_ASSERT(b.B <= limits->sequences && b.N <= limits->tokens &&
                  b.n_targets <= limits->targets);
        add_batch(pass, &pass->slots[s], &b, &f);
    }
    const az_batches *to = &pass->batches, *from = &pass->staged;
    send_all(pass, &f);
    send(pass, to->sample, from->sample, f.tokens, sizeof *to->sample);
    send(pass, to->labels, from->labels, f.targets, sizeof *to->labels);
}

void az_pass_load_feed(az_pass *pass, const az_feed *feed)
{
    const az_batches *to = &pass->staged, *d = &pass->batches;
    const filled f = {feed->N, feed->n_rows, 0};
    AZ_ASSERT(feed->N <= pass->most.tokens && feed->n_rows <= pass->most.targets);
    put(to->ids, feed->ids, feed->N, sizeof *to->ids);
    put(to->pos, feed->pos, feed->N, sizeof *to->pos);
    put(to->rows, feed->rows, feed->n_rows, sizeof *to->rows);
    send_all(pass, &f);
    if (feed->opt_cache_k != NULL) {
        put(to->cache_row, feed->cache_row, feed->N, sizeof *to->cache_row);
        send(pass, d->cache_row, to->cache_row, feed->N, sizeof *to->cache_row);
    }
    pass->slots[0] = (az_slot){.tokens = {.N = feed->N,
                                          .pos = d->pos,
                                          .seqs = feed->seqs,
                                          .n_seqs = feed->n_seqs,
                                          .opt_cache_k = feed->opt_cache_k,
                                          .opt_cache_v = feed->opt_cache_v,
                                          .cache_row = d->cache_row},
                               .ids = d->ids,
                               .n_targets = feed->n_rows,
                               .rows = d->rows};
}
