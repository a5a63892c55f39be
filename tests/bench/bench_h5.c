/* How fast a checkpoint is saved and read, against what the disk does in the same run. Not a test:
 *
 *   mpiexec -n N bench_h5 [DIR [RANK [ROUNDS]]]
 *
 * The state is that of a Llama 2 7B with adapters of this rank (default 64) on all linears: 448
 * arrays and their two moments, 1.9 GB. In each round every rank first writes as many bytes as its
 * share into one common file, at its place, in pieces of 16 MiB, and syncs it; then the state is
 * saved, and read back. Rounds alternate, so that both meet the same disk; the fastest counts. */
#include <config.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/h5.h"

#define LAYERS 32
#define LINEARS 7
#define ARRAYS (LAYERS * LINEARS * 2)
#define PIECE ((int64_t)16 << 20)

static const char *const groups[] = {"/adapter", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};
static const struct {
    const char *name;
    int64_t in, out;
} linears[LINEARS] = {
    {"self_attn.q_proj", 4096, 4096}, {"self_attn.k_proj", 4096, 4096},
    {"self_attn.v_proj", 4096, 4096}, {"self_attn.o_proj", 4096, 4096},
    {"mlp.gate_proj", 4096, 11008},   {"mlp.up_proj", 4096, 11008},
    {"mlp.down_proj", 11008, 4096},
};

static az_comm *comm;
static az_h5_array arrays[ARRAYS];
static char names[ARRAYS][100];
static int64_t n_elements, first, n_own;
static float *own;

static void plan_state(int64_t r)
{
    for (int i = 0; i < ARRAYS; i++) {
        const int k = i / 2 % LINEARS, b = i % 2;
        snprintf(names[i], sizeof names[i], "base_model.model.model.layers.%d.%s.lora_%c.weight",
                 i / 2 / LINEARS, linears[k].name, "AB"[b]);
        arrays[i] =
            (az_h5_array){names[i], b ? linears[k].out : r, b ? r : linears[k].in, n_elements};
        n_elements += arrays[i].rows * arrays[i].cols;
    }
    first = n_elements * az_comm_rank(comm) / az_comm_size(comm);
    n_own = n_elements * (az_comm_rank(comm) + 1) / az_comm_size(comm) - first;
}

/* Memory for the page cache is touched before each of the two: a virtual machine gives free memory
 * back to its host, and to get it again may take several times as long as the writing. */
static void warm_memory(void)
{
    const size_t n = 2 * 3 * 4 * (size_t)n_elements;
    if (az_comm_rank(comm) == 0) {
        char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED) {
            madvise(p, n, MADV_HUGEPAGE);
            for (size_t i = 0; i < n; i += 4096)
                p[i] = 1;
            munmap(p, n);
        }
    }
    az_comm_barrier(comm);
}

/* Seconds to bring the state's bytes to the disk without any format; < 0: failed. */
static double write_plain(const char *path)
{
    const int64_t bytes = n_own * 4, base = 3 * 4 * first;
    if (az_comm_rank(comm) == 0)
        unlink(path);
    az_comm_barrier(comm);
    double begin = az_now();
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    bool good = fd >= 0;
    if (az_comm_rank(comm) == 0 && good) /* as a save does; without it, this is slower */
        (void)!fallocate(fd, 0, 0, 3 * 4 * n_elements);
    az_comm_barrier(comm);
    for (int s = 0; s < 3; s++)
        for (int64_t at = 0; good && at < bytes; at += PIECE) {
            const int64_t n = az_min_i64(PIECE, bytes - at);
            good = pwrite(fd, (const char *)own + at, (size_t)n, base + s * bytes + at) == n;
        }
    good = good && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    az_comm_barrier(comm);
    return good ? az_now() - begin : -1;
}

static az_err save(const char *path, az_h5_times *times, double *out_s)
{
    az_err err;
    az_h5_writer *w = NULL;
    double begin = az_now();
    AZ_TRY(az_h5_create(&w, path, "checkpoint", 3 * 4 * n_elements, NULL, comm));
    for (int s = 0; s < 3; s++)
        AZ_TRY(az_h5_put_arrays(w, groups[s], arrays, ARRAYS, AZ_F32, own, first, n_own));
    AZ_TRY(az_h5_finish(w, times));
    *out_s = az_now() - begin;
out:
    az_h5_destroy(w);
    return err;
}

static az_err load(const char *path, double *out_open_s, double *out_read_s)
{
    az_err err;
    az_h5_reader *r = NULL;
    double begin = az_now();
    AZ_TRY(az_h5_open(&r, path, comm));
    *out_open_s = az_now() - begin;
    begin = az_now();
    for (int s = 0; s < 3; s++)
        AZ_TRY(az_h5_read_arrays(r, groups[s], arrays, ARRAYS, own, first, n_own));
    *out_read_s = az_now() - begin;
out:
    az_h5_close(r);
    return err;
}

int main(int argc, char **argv)
{
    az_err err;
    const char *dir = argc > 1 ? argv[1] : ".";
    const int rounds = argc > 3 ? atoi(argv[3]) : 3;
    char path[1000], plain[1000];
    double best_plain = 1e30, best_save = 1e30, s, open_s, read_s, best_read = 1e30;
    az_h5_times t, best = {0};
    if (az_comm_init(&comm, &argc, &argv) != AZ_OK)
        return 99;
    const bool speaks = az_comm_rank(comm) == 0;
    snprintf(path, sizeof path, "%s/bench-%d.h5", dir, az_comm_size(comm));
    snprintf(plain, sizeof plain, "%s/bench-%d.raw", dir, az_comm_size(comm));
    plan_state(argc > 2 ? atoi(argv[2]) : 64);
    AZ_TRY(az_comm_agree(comm, AZ_NEW(own, (size_t)n_own, "bench")));
    for (int64_t i = 0; i < n_own; i++)
        own[i] = (float)(first + i) * 1e-3f;
    for (int i = 0; i < rounds; i++) {
        warm_memory();
        s = write_plain(plain);
        if (speaks && s > 0)
            printf("round %d: plain %.2f s", i, s);
        best_plain = s > 0 && s < best_plain ? s : best_plain;
        if (speaks)
            unlink(plain);
        warm_memory();
        AZ_TRY(save(path, &t, &s));
        AZ_TRY(load(path, &open_s, &read_s));
        if (speaks)
            printf(
                ", save %.2f s (structure %.3f, data %.2f, sync %.2f, rename %.3f), open %.3f s, "
                "read %.2f s\n",
                s, t.create_s, t.write_s, t.sync_s, t.rename_s, open_s, read_s);
        if (s < best_save) {
            best_save = s;
            best = t;
        }
        best_read = read_s < best_read ? read_s : best_read;
        if (speaks)
            unlink(path);
        az_comm_barrier(comm);
    }
    if (speaks)
        printf("%d ranks, %.2f GB in %d arrays: disk %.2f GB/s, save %.2f GB/s = %.0f %% of it, "
               "read %.2f GB/s (from memory where it is cached)\n",
               az_comm_size(comm), (double)best.bytes / 1e9, 3 * ARRAYS,
               (double)best.bytes / best_plain / 1e9, (double)best.bytes / best_save / 1e9,
               100 * best_plain / best_save, (double)best.bytes / best_read / 1e9);
out:
    if (err != AZ_OK && speaks)
        fprintf(stderr, "%s\n", az_err_message());
    az_free(own);
    az_comm_fini(comm);
    return err;
}
