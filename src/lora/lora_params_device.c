/* lora/params: in the memory of GPUs.
 *
 * Replicated, each GPU has the buffer: a slice is updated in its place, and those of the others
 * come over the fabric. Gathered, it has its slice and two slots; layers are brought into them in
 * the order that the timetable of the walk gives, by all ranks alike, each as soon as the host
 * knows that the slot's last layer has been released, and so ahead of its use.
 *
 * Operations read and write in the compute queue, parts are brought in the gather queue. What
 * orders the two:
 *
 *   written   compute to gather: the slice is what it is to be, and nothing reads the buffer
 *   shared    gather to compute: the buffer is whole (replicated)
 *   brought   gather to compute: a slot holds its layer, and the slice may be written again
 *   used      compute to gather: a slot's layer has been read
 */
#include <config.h>

#include "lora/params_priv.h"

/* Slots begin on multiples of so many elements: 256 bytes. */
#define ALIGN 64

/* Elements of a slot. */
static int64_t find_slot(const az_spans *spans)
{
    return az_ceil_div(az_params_find_largest(spans), ALIGN) * ALIGN;
}

/* One rank has nothing to bring together. */
static az_params_placement choose_placement(az_params_placement placement, int n_positions)
{
    return n_positions > 1 ? placement : AZ_PARAMS_REPLICATED;
}

/* ---- 1. begin and end ---- */

static az_err create_slots(az_params *p)
{
    az_err err;
    az_params_device *d = &p->device;
    az_dev *dev = p->kern->dev;
    const int n_slots = az_params_find_slots(p->n_forward);
    d->slot = find_slot(&p->spans);
    AZ_TRY(az_dev_alloc((void **)&d->slots, dev, (size_t)(n_slots * d->slot) * sizeof *d->slots,
                        "adapter"));
    for (int s = 0; s < n_slots; s++) {
        AZ_TRY(az_dev_create_event(&d->brought[s], dev));
        AZ_TRY(az_dev_create_event(&d->used[s], dev));
    }
    AZ_TRY(az_timetable_init(&d->timetable, p->spans.n, n_slots, p->n_program));
    for (int l = 0; l < p->spans.n; l++)
        d->timetable.cut[l] = !az_params_is_empty(&p->spans, l);
out:
    return err;
}

static az_err create_memory(az_params *p)
{
    az_err err;
    az_params_device *d = &p->device;
    az_dev *dev = p->kern->dev;
    const int n_positions = az_comm_n_positions(p->comm);
    const bool whole = p->placement == AZ_PARAMS_REPLICATED;
    const int64_t n = p->off[p->spans.n], n_here = whole ? n : p->n_own;
    AZ_TRY(AZ_NEW(d->cuts, (size_t)n_positions + 1, "adapter"));
    AZ_TRY(AZ_NEW(d->clipped, (size_t)n_positions + 1, "adapter"));
    for (int i = 0; i <= n_positions; i++)
        d->cuts[i] = az_params_cut(n, i, n_positions);
    AZ_TRY(
        az_dev_alloc_host((void **)&p->slice, dev, (size_t)p->n_own * sizeof *p->slice, "adapter"));
    AZ_TRY(az_dev_alloc((void **)&d->flat, dev, (size_t)n_here * sizeof *d->flat, "adapter"));
    p->slice_d = d->flat + (whole ? p->first : 0);
    AZ_TRY(az_dev_create_event(&d->written, dev));
    AZ_TRY(az_dev_create_event(&d->shared, dev));
    if (!whole)
        AZ_TRY(create_slots(p));
    az_dev_fill(dev, AZ_QUEUE_COMPUTE, d->flat, 0, (size_t)n_here * sizeof *d->flat);
out:
    return err;
}

static az_err create(az_params *p, az_progress_kind progress)
{
    (void)progress;
    p->placement = choose_placement(p->placement, az_comm_n_positions(p->comm));
    return az_comm_agree(p->comm, create_memory(p));
}

static void destroy(az_params *params)
{
    az_params_device *d = &params->device;
    az_dev *dev = params->kern->dev;
    for (int s = 0; s < AZ_PARAMS_SLOTS; s++) {
        az_dev_destroy_event(dev, d->brought[s]);
        az_dev_destroy_event(dev, d->used[s]);
    }
    az_dev_destroy_event(dev, d->written);
    az_dev_destroy_event(dev, d->shared);
    az_timetable_fini(&d->timetable);
    az_dev_free(dev, d->slots);
    az_dev_free(dev, d->flat);
    az_dev_free_host(dev, params->slice);
    az_free(d->cuts);
    az_free(d->clipped);
}

/* ---- 2. sharing and reading ---- */

static void share(az_params *p)
{
    az_params_device *d = &p->device;
    az_dev *dev = p->kern->dev;
    if (az_comm_size(p->comm) == 1)
        return;
    az_dev_record(dev, d->written, AZ_QUEUE_COMPUTE);
    az_dev_wait(dev, AZ_QUEUE_GATHER, d->written);
    if (p->placement == AZ_PARAMS_GATHERED) {
        az_timetable_forget(&d->timetable);
        return;
    }
    az_fabric_gather_cut(p->fabric, (char *)d->flat, sizeof *d->flat, d->cuts);
    az_dev_record(dev, d->shared, AZ_QUEUE_GATHER);
    az_dev_wait(dev, AZ_QUEUE_COMPUTE, d->shared);
}

/* Bring a layer into a slot. */
static void fetch(az_params *p, int layer, int slot)
{
    az_params_device *d = &p->device;
    az_dev *dev = p->kern->dev;
    float *to = d->slots + slot * d->slot;
    const int64_t begin = p->off[layer], end = p->off[layer + 1];
    const int64_t first = az_max_i64(begin, p->first);
    const int64_t n = az_min_i64(end, p->first + p->n_own) - first;
    for (int i = 0; i <= az_comm_n_positions(p->comm); i++)
        d->clipped[i] = az_min_i64(az_max_i64(d->cuts[i], begin), end) - begin;
    az_dev_wait(dev, AZ_QUEUE_GATHER, d->used[slot]);
    if (n > 0)
        az_dev_copy(dev, AZ_QUEUE_GATHER, to + (first - begin), p->slice_d + (first - p->first),
                    (size_t)n * sizeof *to);
    az_fabric_gather_cut(p->fabric, (char *)to, sizeof *to, d->clipped);
    az_dev_record(dev, d->brought[slot], AZ_QUEUE_GATHER);
}

/* All that can come: into slots that are free, or will be when what is queued is done. */
static void fetch_ahead(az_params *p, int n_released)
{
    az_params_device *d = &p->device;
    const az_timetable *t = &d->timetable;
    while (d->n_queued < t->n_fetches && t->fetches[d->n_queued].after < n_released) {
        const az_fetch *f = &t->fetches[d->n_queued++];
        fetch(p, f->item, f->slot);
    }
}

static void begin(az_params *params, int n)
{
    az_timetable_make(&params->device.timetable, params->program, n);
    params->device.n_queued = 0;
    fetch_ahead(params, 0);
}

static const float *get_layer(az_params *p, int layer)
{
    az_params_device *d = &p->device;
    if (p->placement == AZ_PARAMS_REPLICATED)
        return d->flat + p->off[layer];
    if (!p->held)
        return d->flat;
    const int slot = d->timetable.slot[p->turn - 1];
    az_dev_wait(p->kern->dev, AZ_QUEUE_COMPUTE, d->brought[slot]);
    return d->slots + slot * d->slot;
}

static void release_layer(az_params *p)
{
    az_params_device *d = &p->device;
    az_dev_record(p->kern->dev, d->used[d->timetable.slot[p->turn - 1]], AZ_QUEUE_COMPUTE);
    fetch_ahead(p, p->turn);
}

/* Where the walk ends early, what has come unused has read the slice all the same. */
static void end(az_params *p)
{
    az_params_device *d = &p->device;
    const int n = az_timetable_end(&d->timetable, p->turn);
    AZ_ASSERT(n == d->n_queued);
    for (int s = 0; s < d->timetable.n_slots && p->turn < d->timetable.n; s++)
        az_dev_wait(p->kern->dev, AZ_QUEUE_COMPUTE, d->brought[s]);
}

/* The device waits, not the host; for messages between nodes the fabric counts. */
static double get_waited(const az_params *params)
{
    (void)params;
    return 0;
}

const az_params_way az_params_on_device = {.create = create,
                                           .destroy = destroy,
                                           .share = share,
                                           .begin = begin,
                                           .release_layer = release_layer,
                                           .end = end,
                                           .get_layer = get_layer,
                                           .get_waited = get_waited};

/* ---- 3. sizes ---- */

az_params_sizes az_params_measure_gpu(const az_spans *spans, az_params_placement placement,
                                      const az_topology *topology)
{
    const int64_t n = spans->off[spans->n];
    const int n_positions = topology->n_lanes * topology->n_nodes;
    const int n_layers = az_params_count_layers(spans), n_slots = az_params_find_slots(n_layers);
    const bool whole = choose_placement(placement, n_positions) == AZ_PARAMS_REPLICATED;
    size_t tables =
        az_params_measure_common(spans) + 2 * ((size_t)n_positions + 1) * sizeof(int64_t);
    int64_t most, least;
    az_params_find_slices(&most, &least, n, topology);
    const size_t own_most = (size_t)most * sizeof(float), own_least = (size_t)least * sizeof(float);
    const size_t all = (size_t)n * sizeof(float);
    const size_t slots = (size_t)(n_slots * find_slot(spans)) * sizeof(float);
    if (!whole)
        tables += az_timetable_measure(spans->n, n_slots, 2 * n_layers);
    return (az_params_sizes){
        .device = {0, whole ? all : own_most + slots, whole ? all : own_least + slots},
        .host = {0, tables + own_most, tables + own_least}};
}
