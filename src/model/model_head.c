/* model/block: final norm, head and loss, at target positions only. Logits exist for AZ_HEAD_TOKENS
 * tokens and one piece of the head at a time. A head that comes in several pieces is passed twice:
 * once for the softmax's sums, once for the gradient. */
#include <config.h>

#include <string.h>

#include "model/block.h"

void az_head_carve(az_head *head, az_arena *arena, const az_config *config, int64_t N,
                   int64_t N_back, int64_t rows, const az_head *opt_first)
{
    const size_t n = (size_t)N, D = (size_t)config->D;
    *head = (az_head){.N = N, .rows = rows};
    head->x = az_arena_take(arena, n * D, sizeof(float));
    head->n = az_arena_take(arena, n * D, sizeof(float));
    if (N_back > 0)
        head->dn = az_arena_take(arena, (size_t)N_back * D, sizeof(float));
    head->max = az_arena_take(arena, n, sizeof(float));
    head->hit = az_arena_take(arena, n, sizeof(float));
    head->sum = az_arena_take(arena, n, sizeof(double));
    if (opt_first != NULL) {
        head->logits = opt_first->logits;
        head->linear_scratch = opt_first->linear_scratch;
        return;
    }
    head->logits = az_arena_take(arena, (size_t)(AZ_HEAD_TOKENS * rows), sizeof(float));
    head->linear_scratch = az_arena_take(arena, az_kern_linear_scratch_cpu(), sizeof(float));
}

static const az_view no_bias;

void az_head_begin(az_head *head, const float *h, az_view norm, const int64_t *rows,
                   int64_t n_targets, const az_config *config)
{
    const size_t D = (size_t)config->D;
    AZ_ASSERT(n_targets <= head->N);
    for (int64_t i = 0; i < n_targets; i++)
        memcpy(head->x + (size_t)i * D, h + (size_t)rows[i] * D, D * sizeof(float));
    az_kern_rmsnorm_forward_cpu(head->n, head->x, norm, config->norm_eps, n_targets, config->D);
    az_kern_loss_begin_cpu(head->max, head->sum, head->hit, n_targets);
}

/* Logits of targets [i, i+n) against a piece. */
static void fill_logits(az_head *head, az_view piece, int64_t i, int64_t n, const az_config *config)
{
    AZ_ASSERT(piece.rows <= head->rows);
    az_kern_linear_forward_cpu(head->logits, head->n + i * config->D, piece, no_bias, n,
                               head->linear_scratch);
}

void az_head_logits(float *logits, az_head *head, az_view piece, int64_t row0, int64_t n_rows,
                    const az_config *config)
{
    const size_t bytes = (size_t)piece.rows * sizeof(float);
    for (int64_t i = 0; i < n_rows; i += AZ_HEAD_TOKENS) {
        int64_t n = az_min_i64(AZ_HEAD_TOKENS, n_rows - i);
        fill_logits(head, piece, i, n, config);
        for (int64_t j = 0; j < n; j++)
            memcpy(logits + (i + j) * config->V + row0, head->logits + j * piece.rows, bytes);
    }
}

static void fold(az_head *head, az_view piece, int64_t row0, const int32_t *labels, int64_t i,
                 int64_t n)
{
    az_kern_loss_fold_cpu(head->max + i, head->sum + i, head->hit + i, head->logits, labels + i,
                          row0, n, piece.rows);
}

static void add_gradient(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                         int64_t i, int64_t n, double scale, bool first, const az_config *config)
{
    az_kern_loss_backward_cpu(head->logits, head->max + i, head->sum + i, labels + i, scale, row0,
                              n, piece.rows);
    az_kern_linear_backward_cpu(head->dn + i * config->D, head->logits, piece, !first, n,
                                head->linear_scratch);
}

void az_head_forward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                     int64_t n_targets, const az_config *config)
{
    for (int64_t i = 0; i < n_targets; i += AZ_HEAD_TOKENS) {
        int64_t n = az_min_i64(AZ_HEAD_TOKENS, n_targets - i);
        fill_logits(head, piece, i, n, config);
        fold(head, piece, row0, labels, i, n);
    }
}

double az_head_loss(az_head *head, int64_t n_targets)
{
    return az_kern_loss_end_cpu(head->max, head->sum, head->hit, NULL, n_targets);
}

void az_head_backward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                      int64_t n_targets, double scale, bool first, const az_config *config)
{
    for (int64_t i = 0; i < n_targets; i += AZ_HEAD_TOKENS) {
        int64_t n = az_min_i64(AZ_HEAD_TOKENS, n_targets - i);
        fill_logits(head, piece, i, n, config);
        add_gradient(head, piece, row0, labels, i, n, scale, first, config);
    }
}

double az_head_whole(az_head *head, az_view piece, const int32_t *labels, int64_t n_targets,
                     double scale, const az_config *config)
{
    for (int64_t i = 0; i < n_targets; i += AZ_HEAD_TOKENS) {
        int64_t n = az_min_i64(AZ_HEAD_TOKENS, n_targets - i);
        fill_logits(head, piece, i, n, config);
        fold(head, piece, 0, labels, i, n);
        if (scale != 0)
            add_gradient(head, piece, 0, labels, i, n, scale, true, config);
    }
    return az_head_loss(head, n_targets);
}

void az_head_end(float *dh, az_head *head, az_view norm, const int64_t *rows, int64_t n_targets,
                 int64_t N, const az_config *config)
{
    const size_t D = (size_t)config->D;
    memset(dh, 0, (size_t)N * D * sizeof(float));
    /* n is no longer needed: it takes the gradient through the norm. */
    memset(head->n, 0, (size_t)n_targets * D * sizeof(float));
    az_kern_rmsnorm_backward_cpu(head->n, head->dn, head->x, norm, config->norm_eps, n_targets,
                                 config->D);
    for (int64_t i = 0; i < n_targets; i++)
        memcpy(dh + (size_t)rows[i] * D, head->n + (size_t)i * D, D * sizeof(float));
}
