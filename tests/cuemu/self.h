/* For the self-test of the stand-in: checked calls, and ranks as children of one process. */
#ifndef CUEMU_SELF_H
#define CUEMU_SELF_H

#include <cstdio>
#include <cstdlib>
#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CU(call)                                                                        \
    do {                                                                                \
        const cudaError_t e_ = (call);                                                  \
        if (e_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); \
            exit(2);                                                                    \
        }                                                                               \
    } while (0)
/* cuBLAS and NCCL: zero is success. */
#define OK(call)                                                           \
    do {                                                                   \
        const int e_ = (int)(call);                                        \
        if (e_ != 0) {                                                     \
            fprintf(stderr, "%s:%d: status %d\n", __FILE__, __LINE__, e_); \
            exit(2);                                                       \
        }                                                                  \
    } while (0)
#define WRONG(...)                              \
    do {                                        \
        fprintf(stderr, "WRONG: " __VA_ARGS__); \
        fputc('\n', stderr);                    \
        exit(1);                                \
    } while (0)

template <class T> static inline T *device(size_t n)
{
    T *p;
    CU(cudaMalloc(&p, n * sizeof *p));
    return p;
}

template <class T> static inline T *pinned(size_t n)
{
    T *p;
    CU(cudaMallocHost(&p, n * sizeof *p));
    return p;
}

/* work(rank, n, id) in n processes; the worst of their results. When one has failed the others,
 * which may wait for it, are ended. */
template <class Work> static inline int on_ranks(int n, Work work)
{
    ncclUniqueId id;
    pid_t children[8];
    int worst = 0, status;
    OK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < n; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            char text[16];
            snprintf(text, sizeof text, "%d", rank);
            setenv("PMI_RANK", text, 1);
            exit(work(rank, n, id));
        }
    }
    for (int left = n; left > 0 && wait(&status) > 0; left--) {
        if (status == 0)
            continue;
        worst = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        for (int rank = 0; rank < n; rank++)
            kill(children[rank], SIGTERM);
    }
    return worst;
}

#endif
