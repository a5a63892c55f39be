#!/bin/bash
# A step that is not finite is never hidden [15]: the run ends with a message and code 2, or the step is counted and nothing is
# updated, as train.on_nonfinite says.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
gqa=$src/tests/golden/llama-gqa
common="data.files=$gqa/data.jsonl lora.lora_alpha=1e4 train.learning_rate=1e3 train.lr_scheduler_type=constant"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $gqa/model}
train: {batch_size: 8}
eval: {file: $gqa/data.jsonl, steps: 100}
DECK
# B is zero in the first step, so that one is in range; soon after the product of A and B is not.
adze 2 train "$tmp/deck.yaml" $common output.dir="$tmp/stop" train.max_steps=9
code=$?
[ $code = 2 ] || fail "exit code $code instead of 2"
step=$(sed -n 's/^adze: error: step \([0-9]*\): the loss or a gradient is not finite.*/\1/p' "$tmp/log")
[ -n "$step" ] && [ "$step" -ge 2 ] || fail "no message, or it is about the first step"
[ "$(grep -c 'adze: error' "$tmp/log")" = 1 ] || fail "not one message"
[ ! -e "$tmp/stop/adapter" ] || fail "an adapter was written all the same"
# the state before it is kept: with skip the run goes on from there
before=$(printf 'checkpoint-%06d.h5' $((step - 1)))
[ -f "$tmp/stop/$before" ] && grep -q "; the state before it is in $before" "$tmp/log" || fail "the state before it was not kept"
adze 1 train "$tmp/deck.yaml" $common output.dir="$tmp/stop" train.max_steps="$step" train.on_nonfinite=skip || fail "skip after stop"
grep -q "^resume .*/$before: " "$tmp/log" && grep -c '^step ' "$tmp/log" | grep -qx 1 || fail "does not go on from there"
adze 2 train "$tmp/deck.yaml" $common output.dir="$tmp/skip" train.max_steps="$step" train.on_nonfinite=skip ||
    fail "skip did not go on"
grep -q '^skipped   1 steps' "$tmp/log" || fail "the skipped step was not counted"
[ "$(grep -c 'not finite: skipped' "$tmp/log")" = 1 ] || fail "the skipped step was not said"
[ "$(grep -c '"loss": null' "$tmp/skip/metrics.jsonl")" = 1 ] || fail "metrics hide the step that is not finite"
# What was skipped changed nothing: the adapter is that of the steps before, on any number of ranks.
adze 1 train "$tmp/deck.yaml" $common output.dir="$tmp/one" train.max_steps=$((step - 1)) || fail "the steps before"
cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$tmp/skip/adapter/adapter_model.safetensors" ||
    fail "a skipped step changed the adapter"
cmp -s "$tmp/stop/adapter/adapter_model.safetensors" "$tmp/skip/adapter/adapter_model.safetensors" ||
    fail "skip after stop gave another adapter"
losses "$tmp/stop" | cmp -s - <(losses "$tmp/skip") || fail "skip after stop gave other losses"
