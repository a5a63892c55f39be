/* spread: pieces of data that lie in parts over the nodes, brought together as they are needed. */
#ifndef AZ_COMM_SPREAD_H
#define AZ_COMM_SPREAD_H

#include "comm/comm.h"

/* What one walk through a program fetches: from empty slots, and in the long run, as slots keep
 * what they hold from walk to walk. Bytes are those of whole items; a node brings all but the part
 * that it holds itself. */
typedef struct {
    int64_t first_bytes, first_fetches, bytes, fetches;
} az_spread_traffic;
/* cut_bytes [n_items]: bytes of an item that is cut, 0 for one that needs no slot. It uses the same
 * schedule as a walk does. Local, no communication. */
az_err az_spread_count(az_spread_traffic *out, const size_t *cut_bytes, int n_items,
                       const int *program, int n, int n_slots);

#endif
