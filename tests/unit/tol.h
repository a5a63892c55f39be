/* The one table of tolerances. Compare as !(err <= tol), so that NaN fails. */
#ifndef AZ_TESTS_TOL_H
#define AZ_TESTS_TOL_H

/* max|got - ref| / max|ref| of a kernel in f32 against plain loops in double: sums of at most a few
 * thousand terms of f32, each rounded to 6e-8 relative, in another order. */
#define TOL_KERNEL_F32 5e-6
/* The same for a product of three such kernels (attention, the LoRA pair's gradients). */
#define TOL_KERNEL_CHAIN_F32 2e-5
/* max|got - ref| / max|ref| of a kernel in bf16: one rounding of the result, half a unit in the
 * last of eight bits, 2^-8 = 3.9e-3, of sums in f32. Inputs are rounded before they are compared.
 */
#define TOL_KERNEL_BF16 4e-3
/* The same for gradients of attention: the output, probabilities, the gradients of scores and the
 * result are rounded, four roundings. */
#define TOL_KERNEL_CHAIN_BF16 1.6e-2
/* A decoder layer, forward and backward, in bf16: the same for some twenty roundings one after the
 * other. */
#define TOL_BLOCK_BF16 2e-2
/* A result rounded to bf16, relative to itself: half a unit in the last of eight bits. */
#define TOL_ROUND_BF16 0x1p-8
/* A derivative from central differences in double with step 1e-5 against the analytic one in
 * double: truncation 1e-10 times the third derivative, cancellation 1e-16/1e-5. */
#define TOL_DIFFERENCE 1e-6
/* Golden: logits and adapter gradients against the peer in f32, per tensor, max|d|/max|ref|. */
#define TOL_GOLDEN 1e-5
/* Golden: change of the adapter after the training steps, |dW - dW_ref| / |dW_ref|. Adam divides by
 * the root of the second moment, which magnifies rounding where gradients are near zero. */
#define TOL_GOLDEN_TRAIN 1e-3
/* The same with activations in bf16: each of some hundred roundings on the way through the layers
 * and back, half a unit in the last of eight bits, is 2^-9 relative; they add up like a random
 * walk, and largest where terms cancel. The loss is a mean over many targets. */
#define TOL_GOLDEN_BF16 0.15
#define TOL_GOLDEN_LOSS_BF16 5e-3
#define TOL_GOLDEN_TRAIN_BF16 0.15
/* Rotary cosines and sines in f32 against double, relative to 1 + angle: the frequency carries four
 * roundings of 6e-8 each, the angle one, the function one. */
#define TOL_ROPE 4e-7
/* An updated parameter or moment of one kind of device against another's, relative to 1 + its
 * magnitude: the same formula in double, in which a compiler may round a product or not, makes a
 * f32 that is one unit in the last place off at most, a step. */
#define TOL_UPDATE 2.5e-7f

#endif
