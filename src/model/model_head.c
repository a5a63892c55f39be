/* model/block: final norm, head and loss, at target positions only. Logits exist for some tokens
 * (az_kern_head_tokens) and one piece of the head at a time. A head that comes in several pieces is
 * passed twice: once for the softmax's sums, once for the gradient. */
#include <config.h>

#include "model/block.h"

void az_head_carve(az_head *head, az_arena *arena, const az_config *config, int64_t N,
                   int64_t N_back, int64_t rows, const az_head *opt_first, az_numeric numeric)
{
    const size_t n = (size_t)N, D = (size_t)config->D, act = az_dtype_bytes(numeric.act);
    *head = (az_head){.N = N, .rows = rows, .linear_scratch = head->linear_scratch};
    head->x = az_arena_take(arena, n * D, act);
    head->n = az_arena_take(arena, n * D, act);
    if (N_back > 0)
        head->dn = az_arena_take(arena, (size_t)N_back * D, act);
    head->max = az_arena_take(arena, n, sizeof(float));
    head->hit = az_arena_take(arena, n, sizeof(float));
    head->sum = az_arena_take(arena, n, sizeof(double));
    if (opt_first != NULL) {
        head->logits = opt_first->logits;
        head->dlogits = opt_first->dlogits;
        return;
    }
    const size_t n_logits = (size_t)(az_kern_head_tokens(numeric) * rows);
    head->logits = az_arena_take(arena, n_logits, sizeof(float));
    head->dlogits = head->logits;
    if (numeric.act != AZ_F32 && N_back > 0)
        head->dlogits = az_arena_take(arena, n_logits, act);
}

static const az_view no_bias;

void az_head_begin(az_head *head, const void *h, az_view norm, const int64_t *rows,
                   int64_t n_targets, const az_config *config, const az_kern *kern)
{
    AZ_ASSERT(n_targets <= head->N);
    kern->op->gather_rows(kern->self, head->x, h, rows, n_targets, config->D);
    kern->op->rmsnorm_forward(kern->self, head->n, head->x, norm, config->norm_eps, n_targets,
                              config->D);
    kern->op->loss_begin(kern->self, head->max, head->sum, head->hit, n_targets);
}

/* Logits of targets [i, i + return value) against a piece. */
static int64_t fill_logits(az_head *head, az_view piece, int64_t i, int64_t n_targets,
                           const az_config *config, const az_kern *kern)
{
    const int64_t n = az_min_i64(az_kern_head_tokens(kern->numeric), n_targets - i);
    AZ_ASSERT(piece.rows <= head->rows);
    kern->op->linear_forward(kern->self, head->logits, true,
                             az_kern_at(kern, head->n, i * config->D), piece, no_bias, n,
                             head->linear_scratch);
    return n;
}

void az_head_logits(float *logits, az_head *head, az_view piece, int64_t row0, int64_t n_rows,
                    const az_config *config, const az_kern *kern)
{
    const size_t bytes = (size_t)piece.rows * sizeof *logits;
    for (int64_t i = 0, n; i < n_rows; i += n) {
        n = fill_logits(head, piece, i, n_rows, config, kern);
        for (int64_t j = 0; j < n; j++)
            az_dev_copy_out(kern->dev, AZ_QUEUE_COMPUTE, logits + (i + j) * config->V + row0,
                            head->logits + j * piece.rows, bytes);
    }
}

static void fold(az_head *head, az_view piece, int64_t row0, const int32_t *labels, int64_t i,
                 int64_t n, const az_kern *kern)
{
    kern->op->loss_fold(kern->self, head->max + i, head->sum + i, head->hit + i, head->logits,
                        labels + i, row0, n, piece.rows);
}

static void add_gradient(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                         int64_t i, int64_t n, double scale, bool first, const az_config *config,
                         const az_kern *kern)
{
    kern->op->loss_backward(kern->self, head->dlogits, head->logits, head->max + i, head->sum + i,
                            labels + i, scale, row0, n, piece.rows);
    kern->op->linear_backward(kern->self, az_kern_at(kern, head->dn, i * config->D), head->dlogits,
                              piece, !first, n, head->linear_scratch);
}

void az_head_forward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                     int64_t n_targets, const az_config *config, const az_kern *kern)
{
    for (int64_t i = 0, n; i < n_targets; i += n) {
        n = fill_logits(head, piece, i, n_targets, config, kern);
        fold(head, piece, row0, labels, i, n, kern);
    }
}

void az_head_loss(double *out_loss, az_head *head, int64_t n_targets, const az_kern *kern)
{
    kern->op->loss_end(kern->self, out_loss, head->max, head->sum, head->hit, n_targets);
}

void az_head_backward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                      int64_t n_targets, double scale, bool first, const az_config *config,
                      const az_kern *kern)
{
    for (int64_t i = 0, n; i < n_targets; i += n) {
        n = fill_logits(head, piece, i, n_targets, config, kern);
        add_gradient(head, piece, row0, labels, i, n, scale, first, config, kern);
    }
}

void az_head_whole(double *out_loss, az_head *head, az_view piece, const int32_t *labels,
                   int64_t n_targets, double scale, const az_config *config, const az_kern *kern)
{
    for (int64_t i = 0, n; i < n_targets; i += n) {
        n = fill_logits(head, piece, i, n_targets, config, kern);
        fold(head, piece, 0, labels, i, n, kern);
        if (scale != 0)
            add_gradient(head, piece, 0, labels, i, n, scale, true, config, kern);
    }
    az_head_loss(out_loss, head, n_targets, kern);
}

void az_head_end(void *dh, az_head *head, az_view norm, const int64_t *rows, int64_t n_targets,
                 int64_t N, const az_config *config, const az_kern *kern)
{
    const size_t width = (size_t)config->D * az_dtype_bytes(kern->numeric.act);
    az_dev_fill(kern->dev, AZ_QUEUE_COMPUTE, dh, 0, (size_t)N * width);
    /* n is no longer needed: it takes the gradient through the norm. */
    az_dev_fill(kern->dev, AZ_QUEUE_COMPUTE, head->n, 0, (size_t)n_targets * width);
    kern->op->rmsnorm_backward(kern->self, head->n, head->dn, head->x, norm, config->norm_eps,
                               n_targets, config->D);
    kern->op->scatter_rows(kern->self, dh, head->n, rows, n_targets, config->D);
}
