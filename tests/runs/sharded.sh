#!/bin/bash
# The base is there once: proportional memory (PSS) of four ranks together, during the steps, stays below one model + the units in
# flight + activations + what the same run needs with a model of almost nothing; in scope node no unit is in flight. With a copy a
# rank it would be four models.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 32}
lora: {r: 2, target_modules: [q_proj]}
train: {batch_size: 4, micro_batch_size: 1}
DECK
# pss DIR STEPS SCOPE: train on four ranks, print the largest sum of their PSS in KiB seen between the first step and the end.
pss() {
    local most=0 sum pid pids=
    timeout -k 5 120 env LD_PRELOAD="$yield" ${MPIEXEC:-mpiexec} -n 4 ./adze train "$tmp/deck.yaml" output.dir="$1" train.max_steps="$2" shard.scope="$3" \
        >"$tmp/log" 2>&1 &
    while kill -0 $! 2>/dev/null; do
        sleep 0.05
        [ -s "$1/metrics.jsonl" ] || continue
        sum=0
        [ -n "$pids" ] || pids=$(ranks "output.dir=$1")
        for pid in $pids; do
            sum=$((sum + $(awk '/^Pss:/ {n = $2} END {print n + 0}' "/proc/$pid/smaps_rollup" 2>/dev/null || echo 0)))
        done
        [ "$sum" -le "$most" ] || most=$sum
    done
    wait $! || fail "training with $1"
    echo "$most"
}
# once SCOPE UNITS: so many units in flight a rank, at most
once() {
    local small large base unit limit
    tests/tools/random_model "$tmp/model" 512 1024 1 8 8 64 128 f32 1 1 || fail "no small model"
    small=$(pss "$tmp/small-$1" 100 "$1") || exit 1
    tests/tools/random_model "$tmp/model" 512 1024 16 8 8 64 128 f32 1 1 || fail "no model"
    large=$(pss "$tmp/large-$1" 8 "$1") || exit 1
    base=$(($(stat -c %s "$tmp/model/model.safetensors") / 1024))
    unit=$((base / 16))
    # Inputs of 15 more layers, of at most 32 tokens, and 16 adapters: well below one unit a rank.
    limit=$((base + 4 * $2 * unit))
    echo "PSS of four ranks, scope $1: $large KiB, $small KiB with one layer; difference $((large - small)) KiB, limit $limit KiB," \
        "one model $base KiB, four models $((4 * base)) KiB"
    [ "$small" -gt 0 ] && [ "$large" -gt "$base" ] || fail "memory was not measured"
    [ $((large - small)) -lt "$limit" ] || fail "scope $1: the ranks hold more than one model"
}
once world 2
once node 1
