#!/bin/bash
# Bytes of a checkpoint and of an adapter.h5 that a training has written, changed in turn: each is named, or it is not used,
# and then a run goes on from the changed file with the same bits. FLIP_STRIDE: how far apart they are.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
stride=${FLIP_STRIDE:-151}
tests/tools/random_model "$tmp/model" 8 12 1 2 1 4 32 F32 0 5 >"$tmp/log" 2>&1 || fail "random_model"
for ((i = 0; i < 4; i++)); do echo "{\"input_ids\": [1, $((i + 5)), 3, $((2 * i + 3)), 7]}"; done >"$tmp/data.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$tmp/data.jsonl], max_length: 8}
lora: {r: 1, target_modules: all-linear}
train: {batch_size: 2, max_steps: 2, learning_rate: 1e-2}
eval: {file: $tmp/data.jsonl, steps: 1}
checkpoint: {save_steps: 1}
output: {adapter_dtype: bf16}
DECK
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/out" || fail "training"
for file in checkpoint-000001.h5 adapter.h5; do
    tests/tools/flip "$tmp/out/$file" "$stride" $((stride / 2)) "$tmp/unused-$file" >"$tmp/log" 2>&1 || fail "$file"
    echo "$file: $(cat "$tmp/log")"
done
unused=$tmp/unused-checkpoint-000001.h5
[ -s "$unused" ] || fail "every byte is used: there is nothing to go on from"
# Ten of the bytes that are not used, from first to last.
mkdir "$tmp/again"
awk -v n="$(wc -l <"$unused")" 'NR == 1 || int(NR * 10 / n) > last { print; last = int(NR * 10 / n) }' "$unused" | while read -r at; do
    cp "$tmp/out/checkpoint-000001.h5" "$tmp/again/"
    byte=$(od -An -tu1 -j "$at" -N 1 "$tmp/again/checkpoint-000001.h5")
    printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$tmp/again/checkpoint-000001.h5" bs=1 seek="$at" conv=notrunc 2>"$tmp/log"
    cmp -s "$tmp/out/checkpoint-000001.h5" "$tmp/again/checkpoint-000001.h5" && fail "byte $at was not changed"
    adze 1 train "$tmp/deck.yaml" output.dir="$tmp/again" || fail "byte $at: going on"
    grep -q '^resume .* goes on after step 1 of 2' "$tmp/log" || fail "byte $at: does not go on"
    cmp "$tmp/out/adapter/adapter_model.safetensors" "$tmp/again/adapter/adapter_model.safetensors" >"$tmp/log" || fail "byte $at: the adapter"
    ./adze export "$tmp/out/checkpoint-000002.h5" "$tmp/one" >"$tmp/log" 2>&1 || fail "export"
    ./adze export "$tmp/again/checkpoint-000002.h5" "$tmp/two" >"$tmp/log" 2>&1 || fail "export"
    cmp "$tmp/one/adapter_model.safetensors" "$tmp/two/adapter_model.safetensors" >"$tmp/log" || fail "byte $at: the adapter before rounding"
    rm -r "$tmp/again" && mkdir "$tmp/again"
done || exit 1
