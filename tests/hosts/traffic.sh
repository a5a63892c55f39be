#!/bin/bash
# What the links carry during 10 steps on two hosts with two ranks each, counted by the kernel at the cables, against what
# `adze plan` says for two such nodes: within 5 % in scope world, in proportion to what is not resident, divided by the number of
# micro-batches in the order layer_major; in scope node nothing of the base after it is loaded.
#
# Beside it what FSDP would bring into a host with such a base: two all-gathers of it for each micro-batch of a rank, of which a
# ring over N ranks brings (N - 1) / N into each host, in the type of the file.
# Budget: 90 s. Skipped where there can be no network namespaces.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/hosts/lib.sh" || exit 99
hosts_begin 2
tests/tools/random_model "$tmp/model" 192 576 24 3 3 64 256 bf16 1 1 || fail "no model"
base=$(stat -c %s "$tmp/model/model.safetensors")
# 48 samples of 12 to 31 tokens: 12 steps of 4 are an epoch, so that all steps have as many micro-batches.
awk 'BEGIN { for (s = 0; s < 48; s++) {
    printf "{\"input_ids\": ["
    for (i = 0; i < 12 + s % 20; i++) printf "%s%d", (i > 0 ? ", " : ""), (i * 7 + s * 13) % 256
    print "]}" } }' >"$tmp/data.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$tmp/data.jsonl], max_length: 32}
lora: {r: 2, target_modules: [q_proj]}
train: {batch_size: 4, micro_batch_size: 1, max_steps: 11, lr_scheduler_type: constant}
shard: {slots: 2, accumulation: depth_first}
DECK
# field NAME: of the plan
field() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$tmp/plan" | head -n 1; }
# traffic ROUNDS [key=value ...]: trains; bytes that a host received in a step, the mean of 10 steps and of both hosts, in
# $received; what was planned in $weights and $adapter
traffic() {
    local rounds=$1 in out
    shift
    ./adze plan "$tmp/deck.yaml" --nodes 2 --ranks-per-node 2 --threads 1 --memory 4GiB --json train.batch_size=$((4 * rounds)) "$@" >"$tmp/plan" ||
        fail "no plan: $*"
    weights=$(field weights_into_node) adapter=$(field adapter_into_node)
    rm -rf "$tmp/out"
    on_hosts 2 train "$tmp/deck.yaml" output.dir="$tmp/out" train.batch_size=$((4 * rounds)) "$@" || fail "$*"
    read -r in out < <(between 1 11)
    received=$((in / 20))
    [ $((in - out)) -lt $((in / 50)) ] && [ $((out - in)) -lt $((in / 50)) ] || fail "$*: $in bytes were received, $out sent"
    awk -v r=$received -v w="$weights" -v a="$adapter" -v f=$((rounds * 2 * base * 3 / 4)) -v what="$*" 'BEGIN {
        printf "%s: a host receives %d bytes a step; planned %d of weights, %d of the adapter: %.3f; FSDP %d: %.3f\n",
            what, r, w, a, r / (w + a), f, r / f }'
}
# near A B PERCENT OF
near() { awk -v a="$1" -v b="$2" -v limit="$(($3 * $4))" 'BEGIN { d = a > b ? a - b : b - a; exit !(100 * d <= limit) }'; }

traffic 1 shard.scope=node
[ "$weights" = 0 ] || fail "node: weights are planned"
# Beside the adapter there are the polls, loss and norm, and the lines that mpiexec takes: far less than any unit of the base.
[ "$received" -le $((adapter * 21 / 20 + 16384)) ] || fail "node: more than the adapter"

for resident in 0 0.25 0.5 1; do
    traffic 1 shard.scope=world shard.resident=$resident
    near "$received" $((weights + adapter)) 5 $((weights + adapter + 655360 * (weights == 0))) || fail "resident $resident: not what was planned"
    [ $resident != 0 ] || whole=$received most=$weights
    part=$(awk -v r=$resident -v n="$most" -v a="$adapter" 'BEGIN { printf "%.0f", (1 - r) * n + a }')
    near "$received" "$part" 5 "$whole" || fail "resident $resident: not in proportion"
done
[ "$weights" = 0 ] || fail "all is resident, but weights are planned"

traffic 4 shard.scope=world
near "$received" $((weights + adapter)) 5 $((weights + adapter)) || fail "depth_first: not what was planned"
deep=$((received - adapter))
traffic 4 shard.scope=world shard.accumulation=layer_major
near "$received" $((weights + adapter)) 5 $((weights + adapter)) || fail "layer_major: not what was planned"
near $((4 * (received - adapter))) $deep 5 $deep || fail "layer_major: not a quarter of depth_first"
