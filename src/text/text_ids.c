/* Token ids that grow. */
#include <config.h>

#include "text/text.h"

az_err az_ids_add(az_ids *ids, int32_t id)
{
    az_err err = AZ_OK;
    if (ids->n == ids->cap) {
        size_t cap = ids->cap < 16 ? 32 : 2 * ids->cap;
        AZ_TRY(AZ_GROW(ids->v, cap, "token ids"));
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
out:
    return err;
}

void az_ids_fini(az_ids *ids)
{
    az_free(ids->v);
    *ids = (az_ids){0};
}
