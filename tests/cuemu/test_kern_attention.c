/* Attention of a GPU against plain loops: groups of heads, widths of heads, several tiles, cached
 * keys, sequences that are taken together. */
#include <config.h>

#include "tests/cuemu/kern_gpu.h"

typedef struct {
    int H, G;
    int64_t K;
} shape;

/* Arrays of a call on the host, f32 as the GPU is given them and in double for the twin. */
typedef struct {
    const az_seq *seqs;
    int n_seqs;
    shape s;
    int64_t longest;
    size_t nq, nk, nl;
    float *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
} problem;

static void free_all(void **p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        az_free(p[i]);
}

/* Random numbers; rows of no sequence must keep theirs. */
static problem make_problem(az_dtype act, const az_seq *seqs, int n_seqs, shape s, float spread)
{
    problem p = {.seqs = seqs, .n_seqs = n_seqs, .s = s};
    int64_t Nq = 1, Nk = 1;
    for (int i = 0; i < n_seqs; i++) {
        Nq = az_max_i64(Nq, seqs[i].q_row + seqs[i].q_len + 1);
        Nk = az_max_i64(Nk, seqs[i].k_row + seqs[i].k_len + 1);
        p.longest = az_max_i64(p.longest, seqs[i].k_len);
    }
    p.nq = (size_t)(Nq * s.H * s.K);
    p.nk = (size_t)(Nk * s.G * s.K);
    p.nl = (size_t)(Nq * s.H);
    p.q = random_floats(p.nq, 1);
    for (size_t i = 0; i < p.nq; i++)
        p.q[i] *= spread;
    round_floats(p.q, p.nq, act);
    p.k = random_acts(p.nk, 2, act);
    p.v = random_acts(p.nk, 3, act);
    p.dout = random_acts(p.nq, 4, act);
    p.out = random_acts(p.nq, 5, act);
    p.lse = random_floats(p.nl, 6);
    p.dq = random_acts(p.nq, 7, act);
    p.dk = random_acts(p.nk, 8, act);
    p.dv = random_acts(p.nk, 9, act);
    return p;
}

/* Forward and backward on the GPU, in place of the host's numbers. */
static void run_on_gpu(problem *p, az_dtype act)
{
    const az_kern *kern = open_kern(act);
    const shape s = p->s;
    size_t bytes = az_kern_attention_scratch(kern->numeric, p->longest, s.H, s.G, s.K);
    void *scratch, *q = floats_to_gpu(p->q, p->nq, act), *k = floats_to_gpu(p->k, p->nk, act),
                   *v = floats_to_gpu(p->v, p->nk, act), *dout = floats_to_gpu(p->dout, p->nq, act),
                   *out = floats_to_gpu(p->out, p->nq, act),
                   *lse = floats_to_gpu(p->lse, p->nl, AZ_F32),
                   *dq = floats_to_gpu(p->dq, p->nq, act), *dk = floats_to_gpu(p->dk, p->nk, act),
                   *dv = floats_to_gpu(p->dv, p->nk, act);
    assert_int_equal(az_dev_alloc(&scratch, gpu_dev, bytes, "test"), AZ_OK);
    kern->op->attention_forward(kern->self, out, lse, q, k, v, p->seqs, p->n_seqs, s.H, s.G, s.K,
                                scratch);
    kern->op->attention_backward(kern->self, dq, dk, dv, dout, out, lse, q, k, v, p->seqs,
                                 p->n_seqs, s.H, s.G, s.K, scratch);
    free_all((void *[]){p->out, p->lse, p->dq, p->dk, p->dv}, 5);
    p->out = floats_from_gpu(out, p->nq, act);
    p->lse = floats_from_gpu(lse, p->nl, AZ_F32);
    p->dq = floats_from_gpu(dq, p->nq, act);
    p->dk = floats_from_gpu(dk, p->nk, act);
    p->dv = floats_from_gpu(dv, p->nk, act);
    free_gpu(q);
    free_gpu(k);
    free_gpu(v);
    free_gpu(dout);
    free_gpu(scratch);
}

static void free_problem(problem *p)
{
    free_all((void *[]){p->q, p->k, p->v, p->dout, p->out, p->lse, p->dq, p->dk, p->dv}, 9);
}

/* Rows where they are given. */
static void check_rows(az_dtype act, const az_seq *seqs, int n_seqs, shape s, float spread)
{
    problem p = make_problem(act, seqs, n_seqs, s, spread);
    double *q = widened(p.q, p.nq), *k = widened(p.k, p.nk), *v = widened(p.v, p.nk),
           *dout = widened(p.dout, p.nq), *out = widened(p.out, p.nq), *lse = widened(p.lse, p.nl),
           *dq = widened(p.dq, p.nq), *dk = widened(p.dk, p.nk), *dv = widened(p.dv, p.nk);
    const double tol = act == AZ_F32 ? TOL_KERNEL_CHAIN_F32 : TOL_KERNEL_CHAIN_BF16;
    run_on_gpu(&p, act);
    az_kern_attention_forward_ref(out, lse, q, k, v, seqs, n_seqs, s.H, s.G, s.K);
    az_kern_attention_backward_ref(dq, dk, dv, dout, q, k, v, seqs, n_seqs, s.H, s.G, s.K);
    CHECK_ERROR(error_of(p.out, out, p.nq), act == AZ_F32 ? tol : 2 * TOL_KERNEL_BF16);
    CHECK_ERROR(error_of(p.lse, lse, p.nl), TOL_KERNEL_F32);
    CHECK_ERROR(error_of(p.dq, dq, p.nq), tol);
    CHECK_ERROR(error_of(p.dk, dk, p.nk), tol);
    CHECK_ERROR(error_of(p.dv, dv, p.nk), tol);
    free_problem(&p);
    free_all((void *[]){q, k, v, dout, out, lse, dq, dk, dv}, 9);
}

/* Sequences one after the other, with a row that belongs to none between them. */
static void check_lengths(az_dtype act, const az_seq *lengths, int n_seqs, shape s)
{
    az_seq seqs[32] = {{0}};
    int64_t Nq = 0, Nk = 0;
    for (int i = 0; i < n_seqs; i++) {
        seqs[i] = (az_seq){Nq, lengths[i].q_len, Nk, lengths[i].k_len};
        Nq += lengths[i].q_len + 1;
        Nk += lengths[i].k_len + 1;
    }
    check_rows(act, seqs, n_seqs, s, 1);
}

static const shape shapes[] = {{1, 1, 8},  {4, 4, 16},  {6, 2, 64},
                               {2, 1, 80}, {4, 2, 128}, {6, 1, 7}};

static void test_lengths(void **state)
{
    static const int64_t lengths[] = {1, 7, 40};
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++)
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t i = 0; i < COUNT(lengths); i++)
                check_lengths(acts[a], &(az_seq){0, lengths[i], 0, lengths[i]}, 1, shapes[s]);
}

/* More than one tile of queries, with a rest; the second time behind cached keys; tall tiles of a
 * part of the heads; rows so long that a block has one. */
static void test_tiles(void **state)
{
    (void)state;
    /* One order suffices for what takes a second; not the thread sanitizer's. */
    const char *seed = getenv("CUEMU_SEED");
    if (seed != NULL && strcmp(seed, "2") == 0)
        check_lengths(AZ_BF16, &(az_seq){0, 2050, 0, 2050}, 1, (shape){4, 2, 2});
    for (size_t a = 0; a < COUNT(acts); a++) {
        check_lengths(acts[a], &(az_seq){0, 2 * 128 + 9, 0, 2 * 128 + 9}, 1, (shape){2, 1, 8});
        check_lengths(acts[a], &(az_seq){0, 130, 0, 163}, 1, (shape){2, 2, 8});
        check_lengths(acts[a], &(az_seq){0, 128, 0, 128}, 1, (shape){2, 2, 8});
        check_lengths(acts[a], &(az_seq){0, 3, 0, 1100}, 1, (shape){2, 1, 8});
    }
}

/* Generation: few queries, keys in a cache with rows of its own. */
static void test_cache(void **state)
{
    static const az_seq one = {0, 1, 0, 600},
                        few[] = {{0, 1, 40, 33}, {1, 1, 0, 1}, {2, 3, 90, 20}},
                        long_and_short[] = {{0, 1, 0, 530}, {1, 1, 600, 3}, {2, 2, 700, 40}};
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++) {
        check_rows(acts[a], &one, 1, (shape){4, 2, 16}, 1);
        check_rows(acts[a], few, COUNT(few), (shape){6, 3, 16}, 1);
        check_rows(acts[a], long_and_short, COUNT(long_and_short), (shape){4, 2, 8}, 1);
    }
}

static void test_several(void **state)
{
    static const az_seq many[] = {{0, 17, 0, 17}, {0, 0, 0, 0},   {0, 1, 0, 1}, {0, 100, 0, 100},
                                  {0, 0, 0, 5},   {0, 2, 0, 9},   {0, 1, 0, 1}, {0, 150, 0, 150},
                                  {0, 30, 0, 30}, {0, 27, 0, 27}, {0, 0, 0, 3}};
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++) {
        check_lengths(acts[a], many, COUNT(many), (shape){4, 2, 16});
        check_lengths(acts[a], many, COUNT(many), (shape){3, 3, 7});
        check_lengths(acts[a], many, 0, shapes[1]);
        check_lengths(acts[a], &(az_seq){0}, 1, shapes[1]);
    }
}

/* Scores of +-100: the softmax is all but a choice, and must not overflow. */
static void test_sharp(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT(acts); a++)
        check_rows(acts[a], &(az_seq){0, 40, 0, 40}, 1, (shape){6, 2, 16}, 40);
}

/* A token sees nothing that comes after it, and a sequence's result does not depend on what it is
 * taken together with. */
static void test_isolation(void **state)
{
    (void)state;
    enum { H = 4, G = 2, K = 16, T = 30 };
    static const az_seq both[2] = {{0, T, 0, T}, {T, T, T, T}};
    const shape s = {H, G, K};
    for (size_t a = 0; a < COUNT(acts); a++) {
        problem p = make_problem(acts[a], both, 2, s, 1),
                alone = make_problem(acts[a], both, 2, s, 1);
        alone.seqs = both + 1;
        alone.n_seqs = 1;
        for (int i = 0; i < G * K; i++)
            alone.k[i] = alone.v[i] = NAN; /* of the first sequence */
        run_on_gpu(&p, acts[a]);
        run_on_gpu(&alone, acts[a]);
        CHECK_ERROR(memcmp(p.out + T * H * K, alone.out + T * H * K, T * H * K * sizeof *p.out), 0);
        for (int i = 0; i < G * K; i++)
            alone.v[(2 * T - 1) * G * K + i] = 7; /* the last token */
        run_on_gpu(&alone, acts[a]);
        CHECK_ERROR(
            memcmp(p.out + T * H * K, alone.out + T * H * K, (T - 1) * H * K * sizeof *p.out), 0);
        free_problem(&p);
        free_problem(&alone);
    }
}

/* What the plan is told suffices for all sequences up to the longest, and grows with it. */
static void test_scratch(void **state)
{
    (void)state;
    const az_numeric numeric = {true, AZ_BF16};
    size_t last = 0;
    for (int64_t T = 1; T < 5000; T += 37) {
        size_t bytes = az_kern_attention_scratch(numeric, T, 32, 8, 128);
        assert_true(bytes >= last);
        last = bytes;
    }
    assert_true(az_kern_attention_scratch(numeric, 16384, 32, 32, 128) <
                (size_t)16384 * (32 * 128 * 12 + 2 * 32 * 128 * 4) + ((size_t)64 << 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_cache),   cmocka_unit_test(test_several),
        cmocka_unit_test(test_sharp),   cmocka_unit_test(test_isolation),
        cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, close_kerns);
}
