/* What the golden tests compute on, and how close it comes to the peer. Compiled with TEST_GPU they
 * run once for each type that GPUs compute in. */
#ifndef AZ_TESTS_GOLDEN_WAY_H
#define AZ_TESTS_GOLDEN_WAY_H

#include <stdbool.h>

#include "tests/unit/tol.h"

typedef struct {
    const char *name;
    const char *keys[2];     /* of the deck */
    const char *opt_trained; /* the one folder whose training is run (the stand-in is slow) */
    bool exact;              /* f32 throughout */
    double tol, tol_loss, tol_train;
} golden_way;

static const golden_way ways[] = {
#ifdef TEST_GPU
    {"gpu-f32",
     {"run.device=gpu", "run.compute=f32"},
     "gqa",
     true,
     TOL_GOLDEN,
     TOL_GOLDEN,
     TOL_GOLDEN_TRAIN},
    {"gpu-bf16",
     {"run.device=gpu", "run.compute=bf16"},
     "bf16",
     false,
     TOL_GOLDEN_BF16,
     TOL_GOLDEN_LOSS_BF16,
     TOL_GOLDEN_TRAIN_BF16},
#else
    {"cpu",
     {"run.device=cpu", "run.compute=auto"},
     NULL,
     true,
     TOL_GOLDEN,
     TOL_GOLDEN,
     TOL_GOLDEN_TRAIN},
#endif
};
enum { N_WAYS = sizeof ways / sizeof *ways };
static const golden_way *now; /* one of them */

#endif
