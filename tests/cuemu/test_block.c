/* A decoder layer and the head on a GPU against the CPU, in f32 and in bf16: output, gradients of
 * the pairs and of the input, losses; with and without dropout. What a layer has not kept is made
 * again with the same bits. */
#include <config.h>

#include "model/block.h"
#include "tests/cuemu/kern_gpu.h"

enum { D = 40, F = 72, V = 50, H = 4, G = 2, K = 10, N = 23, R = 3, LONGEST = 12, TARGETS = 15 };
enum { PAIRS = AZ_N_LINEARS * R * (D + F + H * K) };

static const az_config config = {
    .D = D, .F = F, .V = V, .L = 1, .H = H, .G = G, .K = K, .norm_eps = 1e-5, .rope_theta = 1e4};
static const int64_t in[AZ_N_LINEARS] = {D, D, D, H *K, D, D, F};
static const int64_t out[AZ_N_LINEARS] = {H * K, G *K, G *K, D, F, F, D};
static const int64_t ranks[AZ_N_LINEARS] = {R, R, R, R, R, R, R};
static const az_seq seqs[] = {{0, 12, 0, 12}, {12, 11, 12, 11}};

/* What comes out. */
typedef struct {
    float y[N * D], d[N * D], grad[PAIRS], again[PAIRS], dh[N * D];
    double loss;
} result;

/* One run's arrays, in the memory of its device. */
typedef struct {
    const az_kern *kern;
    az_arena arena;
    void *x, *y, *d, *dh, *norm[2], *weight[AZ_N_LINEARS], *bias[AZ_N_LINEARS], *pairs, *head_w;
    float *grad, *rope;
    double *loss;
    int32_t *pos, *labels;
    uint32_t *sample;
    int64_t *rows;
    az_acts acts;
    az_work work;
    az_head head;
} run;

static void *take(run *r, int64_t n)
{
    return az_arena_take(&r->arena, (size_t)n, az_dtype_bytes(r->kern->numeric.act));
}

static void carve(run *r)
{
    const az_numeric numeric = r->kern->numeric;
    r->x = take(r, N * D);
    r->y = take(r, N * D);
    r->d = take(r, N * D);
    r->dh = take(r, N * D);
    for (int i = 0; i < 2; i++)
        r->norm[i] = take(r, D);
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        r->weight[i] = take(r, in[i] * out[i]);
        r->bias[i] = take(r, out[i]);
    }
    r->pairs = take(r, PAIRS);
    r->head_w = take(r, V * D);
    r->grad = az_arena_take(&r->arena, PAIRS, sizeof *r->grad);
    r->rope = az_arena_take(&r->arena, LONGEST * K, sizeof *r->rope);
    r->loss = az_arena_take(&r->arena, 1, sizeof *r->loss);
    r->pos = az_arena_take(&r->arena, N, sizeof *r->pos);
    r->labels = az_arena_take(&r->arena, TARGETS, sizeof *r->labels);
    r->sample = az_arena_take(&r->arena, N, sizeof *r->sample);
    r->rows = az_arena_take(&r->arena, TARGETS, sizeof *r->rows);
    az_acts_carve(&r->acts, &r->arena, &config, N, ranks, AZ_STAGES_ALL, numeric);
    r->work.rope = r->rope;
    az_work_carve(&r->work, &r->arena, &config, N, LONGEST, ranks, true, numeric);
    r->head.linear_scratch = r->work.linear_scratch;
    az_head_carve(&r->head, &r->arena, &config, TARGETS, TARGETS, V, NULL, numeric);
}

static void send(run *r, void *to, const void *from, size_t bytes)
{
    az_dev_copy_in(r->kern->dev, AZ_QUEUE_COMPUTE, to, from, bytes);
    az_dev_sync(r->kern->dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
}

static void fetch(run *r, void *to, const void *from, size_t bytes)
{
    az_dev_copy_out(r->kern->dev, AZ_QUEUE_COMPUTE, to, from, bytes);
    az_dev_sync(r->kern->dev, AZ_QUEUE_COMPUTE, AZ_SYNC_START);
}

/* Random numbers that are bf16 whatever is computed in, so that all are given the same. */
static void send_random(run *r, void *to, int64_t n, uint32_t stream, float size)
{
    const az_dtype act = r->kern->numeric.act;
    float *x = random_floats((size_t)n, stream);
    az_bf16 *narrow = az_alloc((size_t)n, sizeof *narrow, "test");
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = az_f32_to_bf16(size * x[i]);
        x[i] = az_bf16_to_f32(narrow[i]);
    }
    send(r, to, act == AZ_F32 ? (const void *)x : narrow, (size_t)n * az_dtype_bytes(act));
    az_free(x);
    az_free(narrow);
}

static void fetch_floats(run *r, float *to, const void *from, int64_t n)
{
    const az_dtype act = r->kern->numeric.act;
    void *copy = az_alloc((size_t)n, sizeof(float), "test");
    fetch(r, copy, from, (size_t)n * az_dtype_bytes(act));
    az_widen(to, copy, act, (size_t)n);
    az_free(copy);
}

static void fill(run *r, az_layer *layer)
{
    const az_dtype act = r->kern->numeric.act;
    float rope[LONGEST * K];
    int32_t pos[N], labels[TARGETS];
    uint32_t sample[N];
    int64_t rows[TARGETS];
    for (int i = 0; i < N; i++) {
        pos[i] = i < 12 ? i : i - 12;
        sample[i] = i < 12 ? 7 : 3;
    }
    for (int i = 0; i < TARGETS; i++) {
        rows[i] = i + i / 2;
        labels[i] = (i * 17 + 3) % V;
    }
    az_config_fill_rope(rope, &config, LONGEST);
    send(r, r->rope, rope, sizeof rope);
    send(r, r->pos, pos, sizeof pos);
    send(r, r->sample, sample, sizeof sample);
    send(r, r->labels, labels, sizeof labels);
    send(r, r->rows, rows, sizeof rows);
    send_random(r, r->x, N * D, 1, 1);
    send_random(r, r->d, N * D, 2, 1);
    send_random(r, r->pairs, PAIRS, 3, 0.15f);
    send_random(r, r->head_w, V * D, 4, 0.15f);
    for (int i = 0; i < 2; i++)
        send_random(r, r->norm[i], D, 5 + (uint32_t)i, 1);
    layer->norm1 = (az_view){r->norm[0], act, 1, D};
    layer->norm2 = (az_view){r->norm[1], act, 1, D};
    for (int i = 0; i < AZ_N_LINEARS; i++) {
        send_random(r, r->weight[i], in[i] * out[i], 10 + (uint32_t)i, 0.15f);
        send_random(r, r->bias[i], out[i], 20 + (uint32_t)i, 0.15f);
        layer->weight[i] = (az_view){r->weight[i], act, out[i], in[i]};
        layer->bias[i] = (az_view){r->bias[i], act, 1, out[i]};
    }
}

/* All A, then all B. */
static void fill_adapters(az_adapter *ads, const run *r)
{
    int64_t n = 0;
    for (int i = 0; i < AZ_N_LINEARS; i++, n += R * in[i - 1])
        ads[i] = (az_adapter){.R = R,
                              .in = in[i],
                              .out = out[i],
                              .scale = 1.5f,
                              .A = az_kern_at(r->kern, r->pairs, n),
                              .dA = r->grad + n,
                              .module = (uint32_t)i};
    for (int i = 0; i < AZ_N_LINEARS; n += R * out[i++]) {
        ads[i].B = az_kern_at(r->kern, r->pairs, n);
        ads[i].dB = r->grad + n;
    }
    assert_true(n <= PAIRS);
    az_layer_stack(ads);
}

static void run_head(result *out_result, run *r)
{
    const az_view norm = {r->norm[1], r->kern->numeric.act, 1, D},
                  piece = {r->head_w, r->kern->numeric.act, V, D};
    az_head_begin(&r->head, r->y, norm, r->rows, TARGETS, &config, r->kern);
    az_head_whole(r->loss, &r->head, piece, r->labels, TARGETS, 0.1, &config, r->kern);
    az_head_end(r->dh, &r->head, norm, r->rows, TARGETS, N, &config, r->kern);
    fetch(r, &out_result->loss, r->loss, sizeof out_result->loss);
    fetch_floats(r, out_result->dh, r->dh, N * D);
}

static void run_all(result *out_result, const az_kern *kern, double dropout)
{
    run r = {.kern = kern};
    az_layer layer = {0};
    az_adapter ads[AZ_N_LINEARS];
    const unsigned heavy = az_layer_get_heavy(AZ_STAGES_ALL);
    carve(&r);
    assert_int_equal(az_dev_arena_init(kern->dev, &r.arena, "test"), AZ_OK);
    carve(&r);
    fill(&r, &layer);
    fill_adapters(ads, &r);
    const az_tokens tokens = {
        .N = N,
        .pos = r.pos,
        .seqs = seqs,
        .n_seqs = 2,
        .dropout = {.p = dropout, .seed = 5, .step = 3, .sample = r.sample, .pos = r.pos}};
    az_dev_fill(kern->dev, AZ_QUEUE_COMPUTE, r.grad, 0, PAIRS * sizeof *r.grad);
    az_layer_forward(r.y, r.x, &config, &layer, ads, &tokens, &r.acts, 0, 0, &r.work, kern);
    run_head(out_result, &r);
    /* As a layer of which only outputs of products were kept, and as the lowest one of which
     * nothing was. */
    az_layer_forward(NULL, r.x, &config, &layer, ads, &tokens, &r.acts, heavy, AZ_STAGES_ALL,
                     &r.work, kern);
    az_layer_backward(r.d, r.x, &config, &layer, ads, &tokens, &r.acts, &r.work, false, kern);
    fetch_floats(&r, out_result->d, r.d, N * D);
    fetch(&r, out_result->grad, r.grad, sizeof out_result->grad);
    send_random(&r, r.d, N * D, 2, 1);
    az_layer_forward(NULL, r.x, &config, &layer, ads, &tokens, &r.acts, 0, AZ_STAGES_ALL, &r.work,
                     kern);
    az_layer_backward(r.d, r.x, &config, &layer, ads, &tokens, &r.acts, &r.work, true, kern);
    fetch(&r, out_result->again, r.grad, sizeof out_result->again);
    fetch_floats(&r, out_result->y, r.y, N * D);
    az_dev_arena_fini(kern->dev, &r.arena);
}

static void expect_close(const float *got, const float *ref, int64_t n, double tol,
                         const char *what)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)ref[i]);
        worst = !(off <= worst) ? off : worst;
        largest = fmax(largest, fabs((double)ref[i]));
    }
    if (!(worst <= tol * largest))
        fail_msg("%s: off by %.3g of the largest, allowed %.3g", what, worst / largest, tol);
}

static void check(az_dtype act, double dropout)
{
    static result gpu, cpu;
    const double tol = act == AZ_F32 ? TOL_KERNEL_CHAIN_F32 : TOL_BLOCK_BF16;
    run_all(&cpu, az_kern_get_cpu(), dropout);
    run_all(&gpu, open_kern(act), dropout);
    expect_close(gpu.y, cpu.y, N * D, tol, "output");
    expect_close(gpu.d, cpu.d, N * D, tol, "gradient of the input");
    expect_close(gpu.grad, cpu.grad, PAIRS, tol, "gradients of the pairs");
    expect_close(gpu.dh, cpu.dh, N * D, tol, "gradient at the head");
    assert_true(fabs(gpu.loss - cpu.loss) <= tol * cpu.loss);
    assert_memory_equal(gpu.grad, gpu.again, sizeof gpu.grad);
    assert_memory_equal(cpu.grad, cpu.again, sizeof cpu.grad);
}

static void test_f32(void **state)
{
    (void)state;
    check(AZ_F32, 0);
    check(AZ_F32, 0.25);
}

static void test_bf16(void **state)
{
    (void)state;
    check(AZ_BF16, 0);
    check(AZ_BF16, 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests_name("model/block on a GPU", tests, NULL, close_kerns) != 0;
}
