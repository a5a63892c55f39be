#!/bin/bash
# A step that is not finite is never hidden [15]: the run ends with a message and code 2, or the step is counted and nothing is
# updated, as train.on_nonfinite says.
. "${srcdir:-.}/tests/runs/lib.sh"
gqa=$src/tests/golden/llama-gqa
common="data.files=$gqa/data.jsonl lora.lora_alpha=1e4 train.learning_rate=1e3 train.max_steps=4 train.lr_scheduler_type=constant"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $gqa/model}
train: {batch_size: 8}
eval: {file: $gqa/data.jsonl, steps: 100}
DECK
# B is zero in the first step, so the first is in range; from the third on it is not.
adze 2 train "$tmp/deck.yaml" $common output.dir="$tmp/stop"
code=$?
[ $code = 2 ] || fail "exit code $code instead of 2"
grep -q 'adze: error: step 3: the loss or a gradient is not finite' "$tmp/log" || fail "no message"
[ "$(grep -c 'adze: error' "$tmp/log")" = 1 ] || fail "not one message"
[ ! -e "$tmp/stop/adapter" ] || fail "an adapter was written all the same"
adze 2 train "$tmp/deck.yaml" $common output.dir="$tmp/skip" train.on_nonfinite=skip || fail "skip did not go on"
grep -q '^skipped   2 steps' "$tmp/log" || fail "2 skipped steps were not counted"
[ "$(grep -c 'not finite: skipped' "$tmp/log")" = 2 ] || fail "skipped steps were not said"
[ "$(grep -c '"loss": null' "$tmp/skip/metrics.jsonl")" = 2 ] || fail "metrics hide a step that is not finite"
# What was skipped changed nothing: the adapter is that of the steps before, on any number of ranks.
adze 1 train "$tmp/deck.yaml" $common output.dir="$tmp/one" train.lr_scheduler_type=constant train.max_steps=2 || fail "one"
cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$tmp/skip/adapter/adapter_model.safetensors" ||
    fail "a skipped step changed the adapter"
