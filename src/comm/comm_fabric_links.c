/* fabric: how fast links are. Each is tried on a little, and then on as much as takes about SECONDS
 * at that speed, the better of two times. */
#include <config.h>

#include "comm/fabric_priv.h"

#define SECONDS 0.02
#define LITTLE ((size_t)1 << 20)
/* Pinned memory from which copies come. */
#define SOURCE ((size_t)4 << 20)

typedef struct {
    az_fabric *fabric;
    char *memory; /* of the device */
    char *source; /* of the host */
} probe;

static void copy_in(const probe *p, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += SOURCE)
        az_dev_copy_in(p->fabric->dev, AZ_QUEUE_GATHER, p->memory + done, p->source,
                       bytes - done < SOURCE ? bytes - done : SOURCE);
}

static void gather_node(const probe *p, size_t bytes)
{
    az_fabric_gather(p->fabric, p->memory, bytes, AZ_GATHER_NODE);
}

static void gather_between(const probe *p, size_t bytes)
{
    az_fabric_gather_between(p->fabric, p->memory, bytes);
}

/* Seconds of the slowest rank. */
static double time_once(const probe *p, void (*move)(const probe *, size_t), size_t bytes)
{
    az_fabric *f = p->fabric;
    az_comm_barrier(f->comm);
    const double begin = az_now();
    move(p, bytes);
    az_dev_sync(f->dev, AZ_QUEUE_GATHER, AZ_SYNC_START);
    double s = az_now() - begin;
    az_comm_max_f64(f->comm, &s, 1);
    return s > 1e-9 ? s : 1e-9;
}

static double time_twice(const probe *p, void (*move)(const probe *, size_t), size_t bytes)
{
    const double first = time_once(p, move, bytes), second = time_once(p, move, bytes);
    return first < second ? first : second;
}

/* Bytes a second, of a whole. */
static double get_speed(const probe *p, void (*move)(const probe *, size_t))
{
    size_t bytes = LITTLE;
    double s = time_twice(p, move, bytes);
    if (s < SECONDS / 2) {
        const double many = (double)LITTLE * SECONDS / s;
        bytes = many < (double)AZ_FABRIC_PROBE ? (size_t)many : AZ_FABRIC_PROBE;
        s = time_twice(p, move, bytes);
    }
    return (double)bytes / s;
}

/* A GPU gets all of a whole but its own lane's stretch; where ranks have no lane, those get all. */
static double get_node_speed(const probe *p)
{
    const az_fabric *f = p->fabric;
    if (f->comm->size == f->n_nodes)
        return 0;
    const double share = f->even ? 1.0 - 1.0 / f->n_lanes : 1;
    return share * get_speed(p, gather_node);
}

/* The other nodes' parts of the stretch of its lane. */
static double get_between_speed(const probe *p)
{
    const az_fabric *f = p->fabric;
    if (f->n_nodes == 1)
        return 0;
    return (double)(f->n_nodes - 1) / f->n_positions * get_speed(p, gather_between);
}

az_err az_fabric_measure_links(az_fabric *fabric, az_fabric_links *out)
{
    az_err err;
    az_fabric *f = fabric;
    probe p = {.fabric = f};
    const size_t bytes = az_fabric_room(AZ_FABRIC_PROBE, f->n_positions);
    const az_fabric_stats before = f->stats;
    *out = (az_fabric_links){0};
    err = az_dev_alloc((void **)&p.memory, f->dev, bytes, "communication");
    if (err == AZ_OK)
        err = az_dev_alloc_host((void **)&p.source, f->dev, SOURCE, "communication");
    AZ_TRY(az_comm_agree(f->comm, err));
    out->host = get_speed(&p, copy_in);
    out->node = get_node_speed(&p);
    out->between = get_between_speed(&p);
    f->stats = before;
out:
    az_dev_free_host(f->dev, p.source);
    az_dev_free(f->dev, p.memory);
    return err;
}
