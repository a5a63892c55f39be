/* Token ids that grow. */
#include <config.h>

#include "text/text.h"

az_err az_ids_add(az_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap < 16 ? 32 : 2 * ids->cap;
        int32_t *v = az_realloc(ids->v, cap, sizeof *v, "token ids");
        if (v == NULL)
            return AZ_EENV;
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return AZ_OK;
}

void az_ids_fini(az_ids *ids)
{
    az_free(ids->v);
    *ids = (az_ids){0};
}
