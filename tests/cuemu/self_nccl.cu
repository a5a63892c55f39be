/* self_nccl NAME: two ranks whose collectives do not match, which the stand-in must find; "right":
 * they do. */
#include "self.h"

namespace {

const char *name = "right";

bool is(const char *what)
{
    return strcmp(name, what) == 0;
}

int run(int rank, int n, ncclUniqueId id)
{
    enum { COUNT = 1024 };
    const bool odd = rank == 1;
    float *a = device<float>(COUNT), *b = device<float>(COUNT * n);
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, n, id, rank));
    CU(cudaMemset(a, 0, COUNT * sizeof *a));
    if (is("order") && odd)
        OK(ncclAllReduce(a, a, 4, ncclFloat, ncclSum, comm, 0));
    if (!(is("missing") && odd))
        OK(ncclAllGather(a, is("small") ? a : b, is("count") && odd ? COUNT / 2 : COUNT,
                         is("type") && odd ? ncclInt32 : ncclFloat, comm, 0));
    if (is("order") && !odd)
        OK(ncclAllReduce(a, a, 4, ncclFloat, ncclSum, comm, 0));
    if (is("root") || is("operation"))
        OK(ncclReduce(a, a, 4, ncclFloat, is("operation") && odd ? ncclMax : ncclSum,
                      is("root") && odd ? 1 : 0, comm, 0));
    if (is("abort") && !odd) { /* rank 1 never comes to this */
        CU(cudaDeviceSynchronize());
        OK(ncclAllGather(a, b, COUNT, ncclFloat, comm, 0));
        OK(ncclCommAbort(comm));
    }
    CU(cudaDeviceSynchronize());
    if (is("missing") && odd)
        sleep(20); /* the other one is to give up before */
    if (!is("abort") || odd)
        OK(ncclCommDestroy(comm));
    CU(cudaFree(a));
    CU(cudaFree(b));
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1)
        name = argv[1];
    return on_ranks(2, run);
}
