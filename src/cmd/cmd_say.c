/* What the commands that compute say first. */
#include <config.h>

#include "cmd/cmd.h"
#include "kern/kern.h"

void az_cmd_say_start(az_comm *comm, const char *what)
{
    bool slow;
    const int n_ranks = az_comm_size(comm), threads = az_kern_set_threads(0);
    const char *blas = az_kern_blas_describe(&slow);
    az_say("adze %s: %s on %d rank%s x %d thread%s, %s", PACKAGE_VERSION, what, n_ranks,
           n_ranks > 1 ? "s" : "", threads, threads > 1 ? "s" : "", blas);
    if (slow)
        az_warn("the BLAS uses kernels older than this CPU: %s", blas);
}
