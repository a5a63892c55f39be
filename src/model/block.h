/* model/block: the decoder block, forward and backward, and the head with its loss. Weights are
 * handed in as views, activations live in a workspace that is carved once. Llama: Touvron et al.
 * 2023; rotary: Su et al. 2021.
 *
 * Arrays lie in the memory of the device that kern works on, where nothing else is said, and void
 * ones are of the type of its activations (act). Work is put into the device's compute queue.
 * Letters as in kern/ops.h. Local; nothing is allocated. */
#ifndef AZ_MODEL_BLOCK_H
#define AZ_MODEL_BLOCK_H

#include "base/base.h"
#include "kern/kern.h"
#include "lora/pair.h"
#include "model/config.h"

/* The frozen tensors of one decoder layer; absent biases have data NULL. */
typedef struct {
    az_view norm1, norm2;
    az_view weight[AZ_N_LINEARS], bias[AZ_N_LINEARS];
} az_layer;

/* The tokens that pass through together. */
typedef struct {
    int64_t N;
    const int32_t *pos; /* [N] */
    const az_seq *seqs; /* [n_seqs] in host memory: rows of q and of k, v */
    int n_seqs;
    az_mask dropout; /* without its module; p = 0 outside of training */
    /* Generation: keys and values are also kept. New row n goes to row cache_row[n] of the layer's
     * cache [*,G,K], which seqs then refer to. NULL: seqs refer to this pass's own rows. */
    void *opt_cache_k, *opt_cache_v;
    const int64_t *cache_row;
} az_tokens;

/* Activations of one layer for some tokens. */
typedef struct {
    void *n1, *q, *k, *v, *att, *h, *n2, *g, *u, *a;
    float *lse;           /* [N,H] */
    void *t[AZ_N_INPUTS]; /* [N,width] of the adapters of each input */
} az_acts;

/* The stages of a layer's forward and the activations that each fills. A stage reads what the one
 * before it has filled (O and the output also x and h). */
enum {
    AZ_STAGE_NORM1 = 1 << 0,     /* n1 */
    AZ_STAGE_QKV = 1 << 1,       /* q, k (rotated), v; t of the three */
    AZ_STAGE_ATTENTION = 1 << 2, /* att, lse */
    AZ_STAGE_O = 1 << 3,         /* h; t of o */
    AZ_STAGE_NORM2 = 1 << 4,     /* n2 */
    AZ_STAGE_GATE_UP = 1 << 5,   /* g, u; t of the two */
    AZ_STAGE_SILU = 1 << 6,      /* a */
    AZ_STAGE_DOWN = 1 << 7,      /* t of down */
    AZ_STAGES_ALL = (1 << 8) - 1,
    /* Those that cost no product. */
    AZ_STAGES_LIGHT = AZ_STAGE_NORM1 | AZ_STAGE_NORM2 | AZ_STAGE_SILU
};
/* The stages whose activations backward reads, for adapters of ranks R [AZ_N_LINEARS]. lowest: as
 * in az_layer_backward. */
unsigned az_layer_get_stages(const int64_t *R, bool lowest);
/* The least that must be there so that stages can be had without a product. */
unsigned az_layer_get_heavy(unsigned stages);
/* Carve the arrays of stages for N tokens out of arena (counting pass or real); the other arrays
 * stay as they are. */
void az_acts_carve(az_acts *acts, az_arena *arena, const az_config *config, int64_t N,
                   const int64_t *R, unsigned stages, az_numeric numeric);

/* Scratch of forward and backward. */
typedef struct {
    void *dn, *dq, *dk, *dv, *datt, *da, *dg, *du, *dt; /* backward */
    void *dropped, *linear_scratch, *attention_scratch;
    const float *rope; /* [P,K] */
} az_work;

/* Carve scratch out of arena, for backward of N_back tokens (0: none) in sequences of at most
 * longest keys. R [AZ_N_LINEARS]: of the largest adapters. dropout: whether its scratch is wanted.
 * work->rope is the caller's and stays as it is. */
void az_work_carve(az_work *work, az_arena *arena, const az_config *config, int64_t N_back,
                   int64_t longest, const int64_t *R, bool dropout, az_numeric numeric);

/* Set at and width of a layer's adapters (lora/pair.h), ads [AZ_N_LINEARS]. */
void az_layer_stack(az_adapter *ads);
/* opt_out[N,D] = block(x[N,D]); opt_out may be x, which is gone then. Fills the activations of the
 * stages in want, and what these and opt_out are made from; those of the stages in have are there
 * already, as an earlier call for the same x left them. The bits do not depend on what is there.
 * ads [AZ_N_LINEARS], stacked (az_layer_stack). */
void az_layer_forward(void *opt_out, const void *x, const az_config *config, const az_layer *layer,
                      const az_adapter *ads, const az_tokens *tokens, const az_acts *acts,
                      unsigned have, unsigned want, az_work *work, const az_kern *kern);
/* d[N,D]: in, the gradient of the block's output; out, of its input x. acts holds what forward
 * left for the same x in the stages that az_layer_get_stages names. Gradients of the layer's pairs
 * are overwritten in ads[].dA, dB. lowest: no gradient below this layer is wanted, so the walk ends
 * at its lowest adapted linear, and d is undefined afterwards. */
void az_layer_backward(void *d, const void *x, const az_config *config, const az_layer *layer,
                       const az_adapter *ads, const az_tokens *tokens, const az_acts *acts,
                       az_work *work, bool lowest, const az_kern *kern);

/* ---- head and loss ---- */

/* Head for up to N target tokens; pieces of the head have at most rows rows. */
typedef struct {
    int64_t N, rows;
    void *x, *n, *dn; /* [N,D] output of the last layer at the targets, normed, gradient */
    float *max, *hit; /* [N] */
    double *sum;      /* [N] */
    float *logits;    /* [az_kern_head_tokens, rows] */
    void *dlogits;    /* the same as a gradient: logits' own memory where act is f32 */
    void *linear_scratch;
} az_head;

/* For N targets, with gradients of N_back (0: none). opt_first: another head whose scratch this one
 * uses too, so that several micro-batches can have sums of their own at the same time.
 * head->linear_scratch is the caller's: it may be the block's, which is not used at that time. */
void az_head_carve(az_head *head, az_arena *arena, const az_config *config, int64_t N,
                   int64_t N_back, int64_t rows, const az_head *opt_first, az_numeric numeric);
/* Take rows[n_targets] of the last layer's output h through the final norm. */
void az_head_begin(az_head *head, const void *h, az_view norm, const int64_t *rows,
                   int64_t n_targets, const az_config *config, const az_kern *kern);
/* Columns row0 .. of logits[n_rows,V], in pinned host memory, after az_head_begin: there when the
 * compute queue is done with them. */
void az_head_logits(float *logits, az_head *head, az_view piece, int64_t row0, int64_t n_rows,
                    const az_config *config, const az_kern *kern);
/* Fold one piece (rows row0 .. of the head) into the softmax's sums. */
void az_head_forward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                     int64_t n_targets, const az_config *config, const az_kern *kern);
/* Sum of the negative log-likelihoods. */
void az_head_loss(double *out_loss, az_head *head, int64_t n_targets, const az_kern *kern);
/* After az_head_loss: dn += scale (softmax - onehot) piece. first: dn is overwritten. */
void az_head_backward(az_head *head, az_view piece, int64_t row0, const int32_t *labels,
                      int64_t n_targets, double scale, bool first, const az_config *config,
                      const az_kern *kern);
/* A head of one piece: forward, loss and (scale != 0) backward without a second product. */
void az_head_whole(double *out_loss, az_head *head, az_view piece, const int32_t *labels,
                   int64_t n_targets, double scale, const az_config *config, const az_kern *kern);
/* dh[N,D] = gradient at the last layer's output; zero at tokens that are no targets. */
void az_head_end(void *dh, az_head *head, az_view norm, const int64_t *rows, int64_t n_targets,
                 int64_t N, const az_config *config, const az_kern *kern);

#endif
