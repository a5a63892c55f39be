/* Products. */
#include "kern/kern_cuda.h"

namespace az_cuda {

template <class T>
void gemm(az_kern_self *k, bool, bool, int64_t, int64_t, int64_t, float, const void *, int64_t,
          const void *, int64_t, float, void *, int64_t, bool)
{
    Queued(k, "gemm").check(CUBLAS_STATUS_NOT_SUPPORTED);
}

template <class T>
void linear_forward(az_kern_self *k, void *, bool, const void *, az_view, az_view, int64_t, void *)
{
    Queued(k, "linear forward").check(CUBLAS_STATUS_NOT_SUPPORTED);
}

template <class T>
void linear_backward(az_kern_self *k, void *, const void *, az_view, bool, int64_t, void *)
{
    Queued(k, "linear backward").check(CUBLAS_STATUS_NOT_SUPPORTED);
}

template <class T> cudaError_t load_gemm()
{
    return cudaSuccess;
}

#define INSTANTIATE(T)                                                                             \
    template void gemm<T>(az_kern_self *, bool, bool, int64_t, int64_t, int64_t, float,            \
                          const void *, int64_t, const void *, int64_t, float, void *, int64_t,    \
                          bool);                                                                   \
    template void linear_forward<T>(az_kern_self *, void *, bool, const void *, az_view, az_view,  \
                                    int64_t, void *);                                              \
    template void linear_backward<T>(az_kern_self *, void *, const void *, az_view, bool, int64_t, \
                                     void *);                                                      \
    template cudaError_t load_gemm<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
