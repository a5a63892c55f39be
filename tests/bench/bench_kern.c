/* How fast the kernels are on shapes of real models. Not a test: `make bench` builds and runs it on
 * a machine that is otherwise idle and prints tables for doc and commit messages.
 *
 *   bench_kern [linear|attention|elem]...     all by default
 *
 * Times are the fastest of the runs that fit into a quarter of a second, at least three. With one
 * thread they are CPU times, which other programs disturb less. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kern/kern_cpu.h"

static bool one_thread;

static double clock_now(void)
{
    struct timespec t;
    if (!one_thread)
        return az_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double elapsed(double *best, double start)
{
    double t = clock_now() - start;
    if (t < *best)
        *best = t;
    return t;
}

/* The fastest of several runs of the statement, in seconds. */
#define FASTEST(best, statement)                                \
    do {                                                        \
        double total_ = 0;                                      \
        (best) = 1e30;                                          \
        for (int run_ = 0; run_ < 3 || total_ < 0.25; run_++) { \
            double start_ = clock_now();                        \
            statement;                                          \
            total_ += elapsed(&(best), start_);                 \
        }                                                       \
    } while (0)

static void *need(size_t n, size_t size)
{
    void *p = az_alloc(n, size, "bench");
    if (p == NULL) {
        fprintf(stderr, "bench_kern: %s\n", az_err_message());
        exit(3);
    }
    return p;
}

/* Small numbers of both signs; speed does not depend on them, but on there being no subnormals. */
static float *numbers(size_t n)
{
    float *p = need(n, sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)((double)((i * 2654435761u) >> 8 & 0xffff) / 65536.0 - 0.5);
    return p;
}

/* ---- linears ---- */

static void bench_linear(int64_t F, int64_t D, int64_t N)
{
    size_t nw = (size_t)(F * D);
    float *w = numbers(nw), *x = numbers((size_t)(N * D)), *y = numbers((size_t)(N * F)),
          *scratch = need(az_kern_linear_scratch_cpu(), sizeof *scratch);
    uint16_t *half = need(nw, sizeof *half), *brain = need(nw, sizeof *brain);
    for (size_t i = 0; i < nw; i++) {
        half[i] = az_f32_to_f16(w[i]).bits;
        brain[i] = az_f32_to_bf16(w[i]).bits;
    }
    const void *data[] = {w, half, brain};
    double flop = 2.0 * (double)N * (double)F * (double)D, t, plain[2];
    FASTEST(plain[0], az_kern_gemm_cpu(false, true, N, F, D, 1, x, D, w, D, 0, y, F));
    FASTEST(plain[1], az_kern_gemm_cpu(false, false, N, D, F, 1, y, F, w, D, 0, x, D));
    printf("%5d x %5d, %4d tokens  %7.1f %7.1f ", (int)F, (int)D, (int)N, flop / plain[0] * 1e-9,
           flop / plain[1] * 1e-9);
    for (int type = AZ_F32; type <= AZ_BF16; type++) {
        az_view W = {.data = data[type], .dtype = (az_dtype)type, .rows = F, .cols = D}, none = {0};
        FASTEST(t, az_kern_linear_forward_cpu(y, x, W, none, N, scratch));
        printf(" %7.1f", flop / t * 1e-9);
        FASTEST(t, az_kern_linear_backward_cpu(x, y, W, false, N, scratch));
        printf(" %7.1f", flop / t * 1e-9);
    }
    printf("\n");
    fflush(stdout);
    az_free(w);
    az_free(x);
    az_free(y);
    az_free(scratch);
    az_free(half);
    az_free(brain);
}

static void bench_linears(void)
{
    static const int64_t shapes[][2] = {{576, 576},   {1536, 576},   {576, 1536},
                                        {2048, 2048}, {5632, 2048},  {2048, 5632},
                                        {4096, 4096}, {11008, 4096}, {4096, 11008}};
    static const int64_t tokens[] = {1, 64, 512, 2048};
    printf(
        "Linear layers, GFLOP/s, forward and backward: plain sgemm on f32, then by weight type\n"
        "    F x     D                   sgemm           f32             f16             bf16\n");
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (tokens[n] <= 512 || shapes[i][0] * shapes[i][1] < 20000000)
                bench_linear(shapes[i][0], shapes[i][1], tokens[n]);
}

/* ---- attention ---- */

typedef struct {
    const char *name;
    int H, G;
    int64_t K, D, F;
} model;

static const model models[] = {{"SmolLM2-135M", 9, 3, 64, 576, 1536},
                               {"TinyLlama-1.1B", 32, 4, 64, 2048, 5632},
                               {"Llama-2-7B", 32, 32, 128, 4096, 11008}};

/* Seconds of the seven linears of a layer, forward, bf16. */
static double linears_of(const model *m, int64_t N)
{
    const int64_t q = m->H * m->K, kv = m->G * m->K;
    const int64_t shapes[][2] = {{q, m->D},    {kv, m->D},   {kv, m->D},  {m->D, q},
                                 {m->F, m->D}, {m->F, m->D}, {m->D, m->F}};
    float *x = numbers((size_t)(N * m->F)), *y = numbers((size_t)(N * m->F)),
          *scratch = need(az_kern_linear_scratch_cpu(), sizeof *scratch);
    uint16_t *w = need((size_t)(m->F * m->D), sizeof *w);
    double sum = 0, t;
    for (int64_t i = 0; i < m->F * m->D; i++)
        w[i] = az_f32_to_bf16((float)(i % 101 - 50) * 0.01f).bits;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        az_view W = {.data = w, .dtype = AZ_BF16, .rows = shapes[i][0], .cols = shapes[i][1]},
                none = {0};
        FASTEST(t, az_kern_linear_forward_cpu(y, x, W, none, N, scratch));
        sum += t;
    }
    az_free(x);
    az_free(y);
    az_free(scratch);
    az_free(w);
    return sum;
}

static void bench_attention(const model *m, int64_t q_len, int64_t k_len, int n_seqs)
{
    az_seq *seqs = need((size_t)n_seqs, sizeof *seqs);
    for (int i = 0; i < n_seqs; i++)
        seqs[i] = (az_seq){i * q_len, q_len, i * k_len, k_len};
    size_t nq = (size_t)(n_seqs * q_len * m->H * m->K), nk = (size_t)(n_seqs * k_len * m->G * m->K);
    float *q = numbers(nq), *k = numbers(nk), *v = numbers(nk), *out = numbers(nq),
          *lse = numbers((size_t)(n_seqs * q_len * m->H)), *dq = numbers(nq), *dk = numbers(nk),
          *dv = numbers(nk), *dout = numbers(nq),
          *scratch = need(az_kern_attention_scratch_cpu(k_len, m->H, m->G, m->K), sizeof *scratch);
    double forward, backward;
    FASTEST(forward, az_kern_attention_forward_cpu(out, lse, q, k, v, seqs, n_seqs, m->H, m->G,
                                                   m->K, scratch));
    /* Pairs of a query and a key that it sees; 4 K flop each forward, 10 K backward. */
    double pairs = (double)n_seqs * (double)q_len *
                   ((double)(k_len - q_len) + (double)(q_len + 1) / 2) * m->H * (double)m->K;
    printf("%-14s %3d x %4d of %4d  %8.3f ms %7.1f", m->name, n_seqs, (int)q_len, (int)k_len,
           forward * 1e3, 4 * pairs / forward * 1e-9);
    if (q_len > 1) {
        double linears = linears_of(m, n_seqs * q_len);
        FASTEST(backward, az_kern_attention_backward_cpu(dq, dk, dv, dout, out, lse, q, k, v, seqs,
                                                         n_seqs, m->H, m->G, m->K, scratch));
        printf("  %8.3f ms %7.1f  %8.2f ms %5.0f %%", backward * 1e3, 10 * pairs / backward * 1e-9,
               linears * 1e3, 100 * forward / linears);
    } else {
        printf("  %7.1f GB/s", 2e-9 * 4 * (double)nk / forward);
    }
    printf("\n");
    fflush(stdout);
    az_free(seqs);
    az_free(q);
    az_free(k);
    az_free(v);
    az_free(out);
    az_free(lse);
    az_free(dq);
    az_free(dk);
    az_free(dv);
    az_free(dout);
    az_free(scratch);
}

static void bench_attentions(void)
{
    printf("Attention: time and GFLOP/s of what the mask lets through, forward and backward; the "
           "layer's linears forward, and attention's time against theirs\n");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bench_attention(&models[i], 64, 64, 8);
        bench_attention(&models[i], 512, 512, 1);
        if (i == 0) {
            bench_attention(&models[i], 512, 512, 4);
            bench_attention(&models[i], 2048, 2048, 1);
        }
        bench_attention(&models[i], 1, 512, 1);
        bench_attention(&models[i], 1, 2048, 1);
    }
}

/* ---- rows and elements ---- */

static void line(const char *name, double t, double n, double bytes)
{
    printf("%-28s %8.2f ns/element %8.1f GB/s\n", name, t / n * 1e9, bytes * n / t * 1e-9);
    fflush(stdout);
}

static void bench_elems(void)
{
    enum { N = 512, D = 1536, V = 8192 };
    const size_t n = (size_t)N * D;
    float *a = numbers(n), *b = numbers(n), *c = numbers(n), *d = numbers(n), *e = numbers(n),
          *logits = numbers((size_t)N * V);
    uint16_t *half = need(n, sizeof *half);
    float max[N], hit[N];
    double sum[N], t;
    int32_t label[N], pos[N];
    uint32_t sample[N];
    int64_t *fixed = need(n, sizeof *fixed), overflow = 0;
    az_view w = {.data = half, .dtype = AZ_BF16, .rows = 1, .cols = D};
    double *blocks = need(n / 1024 + 1, sizeof *blocks);
    const az_adamw o = {1e-4, 0.9, 0.999, 1e-8, 0, 3};
    for (int i = 0; i < N; i++) {
        label[i] = i;
        pos[i] = i;
        sample[i] = 0;
    }
    printf("Rows and elements\n");
    FASTEST(t, az_kern_silu_gate_forward_cpu(a, b, c, n));
    line("silu gate forward", t, n, 12);
    FASTEST(t, az_kern_silu_gate_backward_cpu(a, b, c, d, e, n));
    line("silu gate backward", t, n, 20);
    FASTEST(t, az_kern_rmsnorm_forward_cpu(a, b, w, 1e-5, N, D));
    line("rmsnorm forward, bf16", t, n, 8);
    FASTEST(t, az_kern_rmsnorm_backward_cpu(a, b, c, w, 1e-5, N, D));
    line("rmsnorm backward, bf16", t, n, 16);
    FASTEST(t, az_kern_rope_cpu(d, pos, a, N, D / 64, 64, false));
    line("rope", t, n, 8);
    FASTEST(t, az_kern_add_cpu(a, b, n));
    line("add", t, n, 12);
    FASTEST(t, az_kern_dropout_cpu(a, b, false, 0.05, 1, 2, 3, sample, pos, N, D));
    line("dropout", t, n, 8);
    FASTEST(t, (az_kern_loss_begin_cpu(max, sum, hit, N),
                az_kern_loss_fold_cpu(max, sum, hit, logits, label, 0, N, V)));
    line("loss fold", t, (double)N * V, 4);
    FASTEST(t, az_kern_loss_backward_cpu(logits, max, sum, label, 1e-3, 0, N, V));
    line("loss backward", t, (double)N * V, 8);
    memset(fixed, 0, n * sizeof *fixed);
    FASTEST(t, az_kern_fixed_add_cpu(fixed, b, n, AZ_FIXED_RANGE, &overflow));
    line("fixed add", t, n, 20);
    FASTEST(t, az_kern_fixed_add_shared_cpu(fixed, b, n, AZ_FIXED_RANGE, &overflow));
    line("fixed add shared", t, n, 20);
    FASTEST(t, az_kern_square_blocks_cpu(blocks, fixed, n, 1024));
    line("square blocks", t, n, 8);
    memset(a, 0, n * sizeof *a);
    memset(c, 0, n * sizeof *c);
    FASTEST(t, az_kern_adamw_cpu(b, a, c, fixed, 1, n, &o));
    line("adamw", t, n, 32);
    az_free(a);
    az_free(b);
    az_free(c);
    az_free(d);
    az_free(e);
    az_free(logits);
    az_free(half);
    az_free(fixed);
    az_free(blocks);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"linear", bench_linears}, {"attention", bench_attentions}, {"elem", bench_elems}};
    az_kern_blas_remedy(argv);
    int threads = az_kern_set_threads(0);
    one_thread = threads == 1;
    printf("%s; %d thread%s\n", az_kern_blas_describe(NULL), threads, one_thread ? "" : "s");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool asked = argc == 1;
        for (int a = 1; a < argc; a++)
            asked |= strcmp(argv[a], parts[i].name) == 0;
        if (asked)
            parts[i].run();
    }
    return 0;
}
