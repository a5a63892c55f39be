#!/bin/bash
# A vocabulary larger than a layer comes in pieces: a head of five pieces gives the losses of the same head in one piece (the same
# function in a layer made larger by zeros), and the same bits on any number of ranks, tied and untied, poisoned.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
awk 'BEGIN {srand(5); for (i = 0; i < 24; i++) {s = ""; n = 2 + int(40 * rand());
    for (j = 0; j < n; j++) s = s (j ? ", " : "") int(301 * rand()); print "{\"input_ids\": [" s "]}"}}' >"$tmp/data.jsonl"
cat >"$tmp/deck.yaml" <<DECK
data: {files: [data.jsonl]}
lora: {r: 4, target_modules: [q_proj, v_proj], lora_dropout: 0.1}
train: {batch_size: 6, micro_batch_tokens: 60, max_steps: 8, learning_rate: 0.01, max_grad_norm: 0.5, seed: 3}
eval: {file: data.jsonl, steps: 4}
DECK
for tied in 0 1; do
    tests/tools/random_model "$tmp/small" 8 12 2 2 1 4 301 f32 $tied 3 || fail "no model"
    tests/tools/random_model "$tmp/large" 8 12 2 2 1 4 301 f32 $tied 3 400 || fail "no padded model"
    for run in small:1 small:3 small:7:run.poison=true large:1; do
        IFS=: read -r model n option <<<"$run"
        rm -rf "$tmp/out-$model-$n"
        adze "$n" train "$tmp/deck.yaml" model.path="$tmp/$model" output.dir="$tmp/out-$model-$n" $option || fail "$run"
        losses "$tmp/out-$model-$n" >"$tmp/losses-$model-$n"
    done
    [ "$(wc -l <"$tmp/losses-small-1")" = 11 ] || fail "not 8 steps and 3 evaluations"
    for n in 3 7; do
        cmp -s "$tmp/losses-small-1" "$tmp/losses-small-$n" || fail "losses on $n ranks differ"
        cmp -s "$tmp/out-small-1/adapter/adapter_model.safetensors" \
            "$tmp/out-small-$n/adapter/adapter_model.safetensors" || fail "the adapter made on $n ranks differs"
    done
    # Sums in another order only: 1e-5 of the loss.
    paste "$tmp/losses-small-1" "$tmp/losses-large-1" | tr -d '"' | awk '{d = $2 - $4; if (d < 0) d = -d; if (!(d <= 1e-5 * $2)) bad = 1}
        END {exit bad || NR != 11}' || fail "five pieces and one give different losses"
done
