/* spread: pieces of data that lie in parts over the nodes, brought together as they are needed.
 *
 * An item either lies whole in a node's memory, and then is just a pointer, or is cut over the
 * positions of the job (comm.h). A cut one is brought into a slot, which the ranks of a node share:
 * each lane brings the parts of its ranks on all nodes, so that no byte comes to a node twice.
 *
 * A walk is the use of items one after the other, in an order, the program, that is known when it
 * begins. From it follows what is brought when and into which slot; it comes while earlier items
 * are still in use. What the slots hold stays from walk to walk.
 *
 *     az_spread_begin(spread, program, n);
 *     for (i = 0; i < n; i++) {
 *         p = az_spread_get(spread);      -- waits until the item program[i] is there
 *         ... read it ...
 *         az_spread_release(spread);
 *     }
 *     az_spread_end(spread);
 *
 * All ranks walk through the same programs; they need not do it in step. While a walk is open, no
 * collective may be called but az_comm_poll, az_comm_node_barrier, the sums over a node and over
 * all ranks, what goes over lanes, and the fabric's: those wait without standing in the way of what
 * is being brought. */
#ifndef AZ_COMM_SPREAD_H
#define AZ_COMM_SPREAD_H

#include "comm/comm.h"
#include "dev/dev.h"

typedef struct az_spread az_spread;

/* Parts are cut in blocks of so many bytes; slots are multiples of it and aligned to it. */
#define AZ_SPREAD_BLOCK 64

typedef struct {
    size_t bytes;  /* of the whole item */
    bool resident; /* home holds all of it (the same on all ranks); so should it be on one node */
    /* The item; or the part that this rank holds, with room up to a multiple of AZ_SPREAD_BLOCK
     * bytes: NULL where it has no lane, or none of the item. Borrowed for the life of the spread;
     * read, through this pointer, by the transport. */
    const void *home;
    /* [n_positions + 1] where the part of each position begins, in bytes: multiples of
     * AZ_SPREAD_BLOCK, but for the end. NULL: even parts, of the blocks
     * az_cut(n_blocks, position, n_positions) and so on. Borrowed for the call. */
    const size_t *opt_cut;
} az_spread_item;

/* Who asks MPI about what is under way: a thread (of ranks with a lane), or the main thread alone,
 * where it waits and between items. Auto: the thread where MPI allows one. */
typedef enum { AZ_PROGRESS_AUTO, AZ_PROGRESS_THREAD, AZ_PROGRESS_POLL } az_progress_kind;

/* n_slots slots of slot_bytes bytes a node, no more than there are cut items; they are empty.
 * longest_program: most items in a walk. label: the slots' category of the memory report, a string
 * literal. Two spreads do not disturb each other. AZ_EENV where there is no memory for it, or where
 * progress asks for a thread that MPI does not allow. Nothing is allocated afterwards. Collective.
 */
az_err az_spread_create(az_spread **out_spread, const az_spread_item *items, int n_items,
                        int n_slots, size_t slot_bytes, int longest_program,
                        az_progress_kind progress, const char *label, az_comm *comm);
/* Ends an open walk first. Collective. */
void az_spread_destroy(az_spread *opt_spread);

/* Pin the slots, so that copies to a GPU can run from what az_spread_get returns while the host
 * goes on. The device must stay. Local. */
az_err az_spread_pin(az_spread *spread, az_dev *dev);

/* Begin a walk; program is copied. The parts of items must be ready to be read. Collective. */
void az_spread_begin(az_spread *spread, const int *program, int n);
/* The next item of the program, readable until it is released; one at a time. One from a slot is
 * aligned to AZ_SPREAD_BLOCK. Waits for other ranks. */
const char *az_spread_get(az_spread *spread);
void az_spread_release(az_spread *spread);
/* End a walk, after its last item or, on all ranks, after the same earlier one. Afterwards nothing
 * is under way, and this rank's parts are read no more. Collective. */
void az_spread_end(az_spread *spread);
/* What the slots hold is out of date. Not within a walk. On all ranks. Local. */
void az_spread_forget(az_spread *spread);

typedef struct {
    double wait_s;                  /* seconds that this rank waited for items */
    int64_t gets;                   /* items used */
    int64_t fetches;                /* items brought */
    int64_t node_bytes, rank_bytes; /* that came to this node, and through this rank */
} az_spread_stats;
/* Since creation. Local. */
az_spread_stats az_spread_get_stats(const az_spread *spread);

/* Bytes that a spread of these sizes takes: a node's slots, and other memory of a rank. Pure. */
typedef struct {
    size_t slot_bytes, own_bytes;
} az_spread_sizes;
void az_spread_measure(az_spread_sizes *out, int n_items, int n_cut, int n_slots, size_t slot_bytes,
                       int longest_program, const az_topology *topology);

/* What one walk through a program fetches: from empty slots, and in the long run, as slots keep
 * what they hold from walk to walk. Bytes are those of whole items; a node brings all but the part
 * that it holds itself. */
typedef struct {
    int64_t first_bytes, first_fetches, bytes, fetches;
} az_spread_traffic;
/* cut_bytes [n_items]: bytes of an item that is cut, 0 for one that needs no slot. It uses the same
 * timetable as a walk does. Local, no communication. */
az_err az_spread_count(az_spread_traffic *out, const size_t *cut_bytes, int n_items,
                       const int *program, int n, int n_slots);

#endif
