/* shard: the frozen base, cut into units and over ranks.
 *
 * A unit is what is gathered at a time: a piece of rows of the embedding table, a decoder layer,
 * the final norm, a piece of rows of the head. A table larger than a layer is cut into pieces of at
 * most a layer's elements; the rule looks at the model alone, so it changes no bit when ranks or
 * budgets change. The tensors of a unit lie one behind the other, each at a multiple of 64 bytes,
 * in the type of their file; equal byte slices of the unit belong to the ranks of its scope: all
 * ranks (world), or those of a node, which then hold one copy together in memory that they share,
 * so that a gather is a pointer. Each rank reads from the files only the bytes of its slices. In a
 * tied model head and embedding are the same units. No scope changes a bit of what is computed.
 *
 * Every rank must gather the same units in the same order. Gather and release are the seam behind
 * which prefetch and residency belong. */
#ifndef AZ_SHARD_SHARD_H
#define AZ_SHARD_SHARD_H

#include "base/base.h"
#include "comm/comm.h"
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

/* auto: node where there is one node, or where the base is at most AZ_SHARD_NODE_SHARE of the
 * memory that each node has for the job; else world. */
typedef enum { AZ_SCOPE_AUTO, AZ_SCOPE_WORLD, AZ_SCOPE_NODE } az_scope;
#define AZ_SHARD_NODE_SHARE 0.7

/* Cut the model and read this rank's slices. In scope node the copy is protected against writing
 * afterwards, and nodes whose files gave other bytes than those of other nodes are a failure.
 * poison: fill what is not held with NaN, and never hand out a slice in place (tests). Collective.
 */
az_err az_shard_create(az_shard **out_shard, const az_config *config, const az_table *table,
                       const az_tensor_set *set, az_comm *comm, az_scope scope, bool poison);
/* The scope in use, never auto. Local. */
az_scope az_shard_get_scope(const az_shard *shard);
void az_shard_destroy(az_shard *opt_shard);
/* Units of a kind: pieces of the table, layers, 1. */
int az_shard_count(const az_shard *shard, az_unit_kind kind);
/* Largest number of rows of a head piece. */
int64_t az_shard_get_head_rows(const az_shard *shard);
/* Bring unit i of a kind together. One unit at a time. Collective. */
void az_shard_gather(az_shard *shard, az_unit_kind kind, int i);
/* Views into the gathered unit, valid until it is released. */
void az_shard_get_layer(const az_shard *shard, az_layer *out_layer);
/* The piece (or the norm) and its first row. */
az_view az_shard_get_piece(const az_shard *shard, int64_t *opt_row0);
void az_shard_release(az_shard *shard);
/* A number that stands for the model: all its tensors, and what of its config has a part in what is
 * computed. It is taken while the slices are read, and does not depend on the number of ranks, nor
 * on how tensors are spread over files. The same on all ranks. Local. */
uint64_t az_shard_get_fingerprint(const az_shard *shard);
/* The same number, from the files alone, a piece at a time. Local. */
az_err az_shard_fingerprint_files(uint64_t *out, const az_config *config, const az_table *table,
                                  const az_tensor_set *set);
/* Hash of this rank's slices, or of the node's copy. Local. */
uint64_t az_shard_hash(const az_shard *shard);
/* Bytes of the base on this rank, or (scope node) on this node; bytes of the slot that a gathered
 * unit fills; seconds and bytes of gathers so far. */
typedef struct {
    size_t slice_bytes, slot_bytes, base_bytes;
    double gather_s;
    int64_t gathers, gathered_bytes;
} az_shard_stats;
az_shard_stats az_shard_get_stats(const az_shard *shard);

#endif
