/* train/device: the CPU or a GPU, by the deck and by what is there.
 *
 * Each step is one that all ranks come to: what is there is counted over all ranks, so that all
 * take the same kind; the ranks of a node tell each other what they see, and each works out the
 * same mapping; only then a rank opens its GPU. */
#include <config.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch.h"
#include "train/device.h"
#include "train/device_map.h"

typedef enum { KIND_AUTO, KIND_CPU, KIND_GPU } kind;

/* What a rank tells the others; its GPUs follow. */
typedef struct {
    char host[64];
    uint64_t numa;
    int node, n;
} card;

typedef struct {
    const az_deck *deck;
    az_comm *comm;
    kind asked;
    az_gpu_info *gpus;
    int n_gpus;
    card own;
    int most;    /* GPUs that a rank sees at most */
    char *cards; /* [n_ranks] a card and az_seen_gpu [most] of each */
    int index;   /* of the rank's GPU among gpus */
    bool *used;  /* [n_gpus] by a rank of the node */
} opening;

static size_t card_bytes(const opening *o)
{
    return sizeof(card) + (size_t)o->most * sizeof(az_seen_gpu);
}

static const card *card_of(const opening *o, int rank)
{
    return (const card *)(const void *)(o->cards + (size_t)rank * card_bytes(o));
}

/* ---- 1. which kind */

/* What is missing, said by the lowest rank without a GPU. */
static az_err refuse_missing(const opening *o, const char *why, int64_t n_with, int64_t n_ranks)
{
    if (o->asked == KIND_GPU && n_with == 0)
        return az_deck_fail(o->deck, "run.device",
                            "%s has no GPU that can be used: %s. Ask the job for GPUs "
                            "(--gpus-per-node), or give run.device=cpu",
                            o->own.host, why);
    return az_deck_fail(o->deck, "run.device",
                        "%lld of %lld ranks see a GPU, but rank %d on %s does not: %s. All ranks "
                        "compute on the same kind of device: give it a GPU, leave the node out, "
                        "or give run.device=cpu",
                        (long long)n_with, (long long)n_ranks, az_comm_rank(o->comm), o->own.host,
                        why);
}

/* GPUs if every rank sees one; none if no rank does. */
static az_err choose_kind(opening *o, bool *out_gpu, az_device *device)
{
    az_err err = AZ_OK;
    static const char *const kinds[] = {"auto", "cpu", "gpu"};
    *out_gpu = false;
    o->asked = (kind)az_deck_find(o->deck, "run.device", kinds, 3);
    device->chosen = o->asked == KIND_AUTO;
    if (o->asked == KIND_CPU)
        return AZ_OK;
    err = az_dev_list_gpus(&o->gpus, &o->n_gpus, device->why, sizeof device->why);
    AZ_TRY(az_comm_agree(o->comm, err));
    int64_t n_with = o->n_gpus > 0;
    const int64_t n_ranks = az_comm_size(o->comm);
    az_comm_sum_i64(o->comm, &n_with, 1);
    if (n_with < n_ranks && (n_with > 0 || o->asked == KIND_GPU) && o->n_gpus == 0)
        err = refuse_missing(o, device->why, n_with, n_ranks);
    AZ_TRY(az_comm_agree(o->comm, err));
    *out_gpu = n_with > 0;
out:
    return err;
}

/* ---- 2. which GPU */

static az_err exchange(opening *o)
{
    az_err err;
    int64_t most = o->n_gpus;
    char *own = NULL;
    az_comm_max_i64(o->comm, &most, 1);
    o->most = (int)most;
    err = AZ_NEW(o->cards, (size_t)az_comm_size(o->comm) * card_bytes(o), "devices");
    if (err == AZ_OK)
        err = AZ_NEW(own, card_bytes(o), "devices");
    AZ_TRY(az_comm_agree(o->comm, err));
    az_seen_gpu *seen = (az_seen_gpu *)(void *)(own + sizeof(card));
    memcpy(own, &o->own, sizeof o->own);
    for (int i = 0; i < o->n_gpus; i++) {
        memcpy(seen[i].uuid, o->gpus[i].uuid, sizeof seen[i].uuid);
        seen[i].numa = az_device_get_numa(o->gpus[i].pci);
    }
    az_comm_allgather(o->comm, own, card_bytes(o), o->cards);
out:
    az_free(own);
    return err;
}

/* The GPUs that ranks of the node use. */
static void mark_used(opening *o, const az_gpu_view *views, const int *index, int n)
{
    for (int r = 0; r < n; r++)
        for (int i = 0; i < o->n_gpus; i++)
            o->used[i] |= strcmp(o->gpus[i].uuid, views[r].gpus[index[r]].uuid) == 0;
}

/* Each rank works it out for its own node. */
static az_err map_node(opening *o, az_mapping *mapping)
{
    az_err err;
    const int n = az_comm_node_size(o->comm);
    az_gpu_view *views = NULL;
    int *index = NULL, at = 0;
    AZ_TRY(AZ_NEW(views, (size_t)n, "devices"));
    AZ_TRY(AZ_NEW(index, (size_t)n, "devices"));
    for (int rank = 0; rank < az_comm_size(o->comm); rank++) {
        const card *c = card_of(o, rank);
        if (c->node == o->own.node)
            views[at++] = (az_gpu_view){c->n, (const az_seen_gpu *)(const void *)(c + 1), c->numa};
    }
    AZ_TRY(az_device_map(index, mapping, views, n, o->own.host));
    o->index = index[az_comm_node_rank(o->comm)];
    AZ_TRY(AZ_NEW(o->used, (size_t)o->n_gpus, "devices"));
    mark_used(o, views, index, n);
out:
    az_free(views);
    az_free(index);
    return err;
}

/* Over all nodes. */
static void sum_up(opening *o, az_device *device, const az_mapping *mapping)
{
    char name[sizeof o->gpus[0].name];
    memcpy(name, o->gpus[o->index].name, sizeof name);
    az_comm_bcast(o->comm, name, sizeof name, 0);
    int64_t sums[] = {az_comm_node_rank(o->comm) == 0 ? mapping->n_gpus : 0, mapping->narrow,
                      strcmp(name, o->gpus[o->index].name) != 0};
    az_comm_sum_i64(o->comm, sums, 3);
    device->n_gpus = (int)sums[0];
    device->narrow = sums[1] > 0;
    device->mixed = sums[2] > 0;
}

/* ---- 3. opening it */

static void fail(void *context, const char *text)
{
    az_watch_fail(context, text);
}

az_fabric_options az_device_get_fabric(const az_deck *deck)
{
    static const char *const ways[] = {
        [AZ_INTERNODE_AUTO] = "auto", [AZ_INTERNODE_MPI] = "mpi", [AZ_INTERNODE_NCCL] = "nccl"};
    return (az_fabric_options){.internode =
                                   (az_internode)az_deck_find(deck, "comm.internode", ways, 3),
                               .direct = az_deck_bool(deck, "comm.gpu_direct")};
}

/* Pairs of this rank's GPU and one of another rank of the node, seen by this rank, that it cannot
 * read directly. */
static int64_t count_far(const opening *o, const az_device *device)
{
    int64_t far = 0;
    for (int i = 0; i < o->n_gpus; i++)
        far += o->used[i] && i != o->index && !az_dev_can_reach(device->dev, i);
    return far;
}

static az_err open_gpu(opening *o, az_device *device, az_dtype act)
{
    az_err err;
    az_mapping mapping;
    AZ_TRY(exchange(o));
    err = map_node(o, &mapping);
    AZ_TRY(az_comm_agree(o->comm, err));
    sum_up(o, device, &mapping);
    err = az_dev_open_gpu(&device->dev, o->index, fail, o->comm);
    if (err == AZ_OK)
        err = az_kern_open(&device->kern, device->dev, act);
    AZ_TRY(az_comm_agree(o->comm, err));
    device->n_far = count_far(o, device);
    az_comm_sum_i64(o->comm, &device->n_far, 1);
    const az_fabric_options options = az_device_get_fabric(o->deck);
    err = az_fabric_create(&device->fabric, device->dev, &options, o->comm);
out:
    return err;
}

static az_err open_cpu(opening *o, az_device *device, az_dtype act)
{
    az_err err;
    if (act == AZ_BF16)
        return az_deck_fail(o->deck, "run.compute", "bf16: the CPU computes in f32 alone, and %s%s",
                            device->chosen ? "there is no GPU: " : "run.device is cpu",
                            device->chosen ? device->why : "");
    err = az_device_open_cpu(device);
    return az_comm_agree(o->comm, err);
}

static az_dtype find_type(const az_deck *deck, bool gpu)
{
    const char *asked = az_deck_string(deck, "run.compute");
    return strcmp(asked, "bf16") == 0 || (gpu && strcmp(asked, "auto") == 0) ? AZ_BF16 : AZ_F32;
}

az_err az_device_open(az_device *device, const az_deck *deck, az_comm *comm)
{
    az_err err;
    bool gpu;
    opening o = {.deck = deck, .comm = comm};
    gethostname(o.own.host, sizeof o.own.host - 1);
    AZ_TRY(choose_kind(&o, &gpu, device));
    o.own.n = o.n_gpus;
    o.own.node = az_comm_node(comm);
    o.own.numa = az_device_find_numa();
    const az_dtype act = find_type(deck, gpu);
    err = gpu ? open_gpu(&o, device, act) : open_cpu(&o, device, act);
out:
    az_free(o.gpus);
    az_free(o.cards);
    az_free(o.used);
    return err;
}

az_err az_device_open_cpu(az_device *device)
{
    device->dev = az_dev_get_cpu();
    return az_kern_open(&device->kern, device->dev, AZ_F32);
}

void az_device_close(az_device *device)
{
    az_fabric_destroy(device->fabric);
    az_kern_close(&device->kern);
    az_dev_close(device->dev);
    *device = (az_device){0};
}
