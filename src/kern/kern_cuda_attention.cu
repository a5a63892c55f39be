/* Attention. */
#include "kern/kern_cuda.h"

namespace az_cuda {

template <class T>
void attention_forward(az_kern_self *k, void *, float *, const void *, const void *, const void *,
                       const az_seq *, int, int, int, int64_t, void *)
{
    Queued(k, "attention forward").check(CUBLAS_STATUS_NOT_SUPPORTED);
}

template <class T>
void attention_backward(az_kern_self *k, void *, void *, void *, const void *, const void *,
                        const float *, const void *, const void *, const void *, const az_seq *,
                        int, int, int, int64_t, void *)
{
    Queued(k, "attention backward").check(CUBLAS_STATUS_NOT_SUPPORTED);
}

template <class T> cudaError_t load_attention()
{
    return cudaSuccess;
}

#define INSTANTIATE(T)                                                                             \
    template void attention_forward<T>(az_kern_self *, void *, float *, const void *,              \
                                       const void *, const void *, const az_seq *, int, int, int,  \
                                       int64_t, void *);                                           \
    template void attention_backward<T>(az_kern_self *, void *, void *, void *, const void *,      \
                                        const void *, const float *, const void *, const void *,   \
                                        const void *, const az_seq *, int, int, int, int64_t,      \
                                        void *);                                                   \
    template cudaError_t load_attention<T>();
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

} // namespace az_cuda
