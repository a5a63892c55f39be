/* shard: the frozen base, cut into units and over nodes.
 *
 * A unit is what is used at a time: a piece of rows of the embedding table, a decoder layer, the
 * final norm, a piece of rows of the head. A table larger than a layer is cut into pieces of at
 * most a layer's elements; the rule looks at the model alone, so it changes no bit when ranks or
 * budgets change. The tensors of a unit lie one behind the other, each at a multiple of 64 bytes,
 * in the type of their file. In a tied model head and embedding are the same units.
 *
 * Each unit is resident or cut. A resident unit lies whole in memory that the ranks of a node
 * share; a gather of it is a pointer. Of a cut unit a node holds one part of as many as there are
 * nodes, in stripes of its lanes (az_topology in comm.h), and a gather brings the rest from the
 * other nodes into a slot that the node's ranks share. Scope node: every unit is resident. Scope
 * world: as many as are asked for. On one node a stripe of all nodes is the whole, so every unit
 * is resident there.
 *
 * A GPU has memory and slots of its own: a resident unit lies whole in each, and what is not
 * resident is cut over the GPUs of a node (scope node), over all GPUs, or over the memory of the
 * hosts (az_gpu_cut). There a gather queues work: views are into the GPU's memory, for what is put
 * into the compute queue until the unit is released. Nothing of this changes a bit of what is
 * computed. */
#ifndef AZ_SHARD_SHARD_H
#define AZ_SHARD_SHARD_H

#include "base/base.h"
#include "comm/comm.h"
#include "comm/fabric.h"
#include "comm/spread.h"
#include "model/block.h"
#include "model/config.h"
#include "store/safetensors.h"

typedef struct az_shard az_shard;

typedef enum {
    AZ_UNIT_EMBED,
    AZ_UNIT_LAYER,
    AZ_UNIT_NORM,
    AZ_UNIT_HEAD,
    AZ_N_UNIT_KINDS
} az_unit_kind;

/* ---- units and their memory, from the model alone: nothing is read, no other rank is asked ----
 */

/* A unit, as sizes see it. */
typedef struct {
    az_unit_kind kind;
    int uses;     /* times it is brought together for a micro-batch that trains every layer; a
                     caller who knows better writes here before it chooses */
    size_t bytes; /* its tensors with their padding; a multiple of 64 */
} az_unit_info;

typedef struct {
    az_unit_info *units; /* in model order */
    int n_units, n_members;
    /* Units of each kind; head and embedding are the same units where they are tied. */
    int first[AZ_N_UNIT_KINDS], count[AZ_N_UNIT_KINDS];
    int64_t head_rows; /* most rows of a piece of the head */
    size_t bytes;      /* of all units */
} az_unit_list;

/* The units of a model. Start from {0}. Local. */
az_err az_shard_list_units(az_unit_list *list, const az_config *config, const az_table *table,
                           const az_tensor_set *set);
void az_shard_free_units(az_unit_list *list);

/* What a unit takes of a node's memory: whole if it is resident, else the node's stripes of it. */
size_t az_shard_count_held(const az_unit_info *unit, bool resident, const az_topology *topology);
/* What it would take to keep every unit resident, beyond what is held of cut units. */
size_t az_shard_count_excess(const az_unit_list *list, const az_topology *topology);
/* Choose the units that stay resident when at most spend bytes of a node's memory may go beyond
 * what is held of cut units: small ones (norms) first, then those that are used most often for
 * their bytes, evenly spread over their like, so that a unit under way hides behind one that is
 * there. spend >= az_shard_count_excess: all of them. resident: [n_units]. */
void az_shard_choose_resident(bool *resident, const az_unit_list *list, size_t spend,
                              const az_topology *topology);

/* Memory of the base as az_shard_create allocates it. */
typedef struct {
    size_t held;      /* shared by a node's ranks: resident units and stripes of the others */
    size_t slots;     /* shared by a node's ranks: cut units brought together */
    size_t own;       /* of each rank: indices, programs, and the copy that poison wants */
    int n_slots;      /* 0: nothing is cut */
    size_t slot_each; /* bytes of a slot */
} az_shard_sizes;
az_shard_sizes az_shard_measure(const az_unit_list *list, const bool *resident, int n_slots,
                                bool poison, const az_topology *topology);

/* node: every unit is resident, on GPUs in the node's memory together; world: some are cut over
 * nodes. auto, of who chooses: not yet settled. */
typedef enum { AZ_SCOPE_AUTO, AZ_SCOPE_WORLD, AZ_SCOPE_NODE } az_scope;

/* Where units lie that are not resident on GPUs. */
typedef enum {
    AZ_CUT_NODE, /* each node's GPUs hold them, a lane's stretch each (comm/fabric.h) */
    AZ_CUT_ALL,  /* all GPUs hold them, a position's part each */
    AZ_CUT_HOST  /* the nodes' hosts hold stripes of them, as without GPUs, and bring them together
                  in slots of their own, from where each GPU takes its lane's stretch */
} az_gpu_cut;
/* node in scope node, and on one node; else host where MPI joins the nodes. Pure. */
az_gpu_cut az_shard_find_cut(az_scope scope, bool nccl_between_nodes, const az_topology *topology);
/* GPUs as what the functions above call nodes: count_held (exact but for AZ_CUT_HOST, of which a
 * GPU holds nothing: 64 bytes here), count_excess, choose_resident. Pure. */
az_topology az_shard_list_gpus(az_gpu_cut cut, const az_topology *topology);

/* Memory of the base on GPUs. gpu: of each; held are resident units, with room up to a multiple of
 * 64 bytes times positions, and parts of the others; own is the copy that poison wants. host: of a
 * node and of a rank; held and slots are 0 but with AZ_CUT_HOST (slots are pinned). */
typedef struct {
    az_shard_sizes gpu, host;
} az_shard_gpu_sizes;
/* Pure. */
az_shard_gpu_sizes az_shard_measure_gpus(const az_unit_list *list, const bool *resident,
                                         int n_slots, bool poison, az_gpu_cut cut,
                                         const az_topology *topology);

/* ---- the base itself ---- */

/* Who reads. job: each byte is read from the files once, and comes from node to node where it is
 * resident; each node reads a few blocks besides, by which files that differ are found. node: each
 * node reads what is resident there, its ranks a part each; of cut units each byte is read once.
 * map: nothing is copied: every unit is resident, as the system's cache of the files, which jobs of
 * a node share; not on GPUs. auto: job. */
typedef enum { AZ_LOAD_AUTO, AZ_LOAD_JOB, AZ_LOAD_NODE, AZ_LOAD_MAP } az_load_way;

typedef struct {
    const bool *opt_resident; /* [n_units] which are resident; NULL: share says it */
    double share;             /* the part of az_shard_count_excess that may be spent on them */
    int n_slots;              /* for cut units: how many may be there at a time, or under way */
    az_load_way load;
    az_progress_kind progress; /* who keeps units coming (comm/spread.h) */
    bool poison; /* hand out private copies, filled with NaN when they are released (tests) */
    /* On a GPU: the device, what joins it to others, and over which of them units are cut that are
     * not resident. NULL: the host. */
    az_dev *opt_dev;
    az_fabric *opt_fabric;
    az_scope scope;
} az_shard_options;

/* Cut the model, take memory, read this rank's part. What is held is protected against writing
 * afterwards, and nodes whose files gave other bytes than those of other nodes are a failure.
 * Collective. */
az_err az_shard_create(az_shard **out_shard, const az_config *config, const az_table *table,
                       const az_tensor_set *set, az_comm *comm, const az_shard_options *options);
void az_shard_destroy(az_shard *opt_shard);
/* node where every unit is resident, or cut over the GPUs of a node; else world. Local. */
az_scope az_shard_get_scope(const az_shard *shard);
/* The units, and which of them are resident. Local. */
const az_unit_list *az_shard_get_units(const az_shard *shard);
bool az_shard_is_resident(const az_shard *shard, int unit);
/* Units of a kind: pieces of the table, layers, 1. */
int az_shard_count(const az_shard *shard, az_unit_kind kind);
/* Largest number of rows of a head piece. */
int64_t az_shard_get_head_rows(const az_shard *shard);

/* Say in which order units (numbers in az_unit_list) will be gathered, so that they come while
 * earlier ones are in use. A program is at most AZ_SHARD_PROGRAM times as long as the list, and the
 * same on all ranks; so is where it is ended, early or not. In between only those collectives may
 * be called that comm/spread.h names. Collective. */
#define AZ_SHARD_PROGRAM 3
void az_shard_begin(az_shard *shard, const int *program, int n);
void az_shard_end(az_shard *shard);
/* Bring unit i of a kind together: the program's next one, or (outside of begin and end) any. One
 * unit at a time. Collective. */
void az_shard_gather(az_shard *shard, az_unit_kind kind, int i);
/* Views into the gathered unit, valid until it is released. */
void az_shard_get_layer(const az_shard *shard, az_layer *out_layer);
/* The piece (or the norm) and its first row. */
az_view az_shard_get_piece(const az_shard *shard, int64_t *opt_row0);
void az_shard_release(az_shard *shard);

/* A number that stands for the model: all its tensors, and what of its config has a part in what is
 * computed. It is taken while the base is read, and does not depend on the number of ranks, nor
 * on how tensors are spread over files. The same on all ranks. Local. */
uint64_t az_shard_get_fingerprint(const az_shard *shard);
/* The same number, from the files alone, a piece at a time. Local. */
az_err az_shard_fingerprint_files(uint64_t *out, const az_config *config, const az_table *table,
                                  const az_tensor_set *set);
/* Hash of what this node holds. Local. */
uint64_t az_shard_hash(const az_shard *shard);
/* In which pages this rank sees what its node holds (az_shared_describe_pages). Local. */
const char *az_shard_describe_pages(const az_shard *shard);
/* Where files are used in place: fails if one was written to since. Local. */
az_err az_shard_check_files(const az_shard *shard);

typedef struct {
    az_shard_sizes sizes;              /* on GPUs: of each GPU */
    az_shard_sizes host;               /* on GPUs: of their hosts */
    size_t base_bytes, resident_bytes; /* of all units, of the resident ones */
    bool mapped;                       /* nothing but tensors that are not aligned was copied */
    int n_units, n_resident;
    /* So far. */
    double waited_s;        /* by this rank, for units that were not there */
    int64_t gathers;        /* units asked for */
    int64_t fetches;        /* units that were not there and were brought */
    int64_t received_bytes; /* brought to this node from others by all its ranks */
} az_shard_stats;
az_shard_stats az_shard_get_stats(const az_shard *shard);

#endif
