#!/bin/bash
# What the links carry during 10 steps on two hosts with two ranks each, counted by the kernel at the cables. Scope node: nothing
# of the base after it is loaded, only the adapter's sums and parameters.
# Budget: 60 s. Skipped where there can be no network namespaces.
. "${srcdir:-.}/tests/runs/lib.sh"
. "${srcdir:-.}/tests/hosts/lib.sh"
hosts_begin 2
tests/tools/random_model "$tmp/model" 512 1536 8 8 8 64 512 bf16 1 1 || fail "no model"
base=$(stat -c %s "$tmp/model/model.safetensors")
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 32}
lora: {r: 2, target_modules: [q_proj]}
train: {batch_size: 8, micro_batch_size: 1, max_steps: 11, lr_scheduler_type: constant}
DECK
# traffic NAME [key=value ...]: trains; bytes that a host received in a step, the mean of 10 steps and both hosts, in $received
traffic() {
    local name=$1 in out
    shift
    on_hosts 2 train "$tmp/deck.yaml" output.dir="$tmp/$name" "$@" || fail "$name"
    read -r in out < <(between 1 11)
    received=$((in / 20))
    [ $((in - out)) -lt $((in / 100)) ] || fail "$name: $in bytes were received, $out sent"
    echo "$name: a host receives $received bytes a step, $((1000 * received / base)) thousandths of the base"
}
traffic node shard.scope=node
# The sums (8 bytes each) and the new values (4) of 8 * 2 * (512 + 512) parameters, and a little of agreement.
adapter=$((8 * 2 * 1024 * 12))
[ "$received" -le $((2 * adapter)) ] || fail "node: more than the adapter's"
traffic world shard.scope=world
[ "$received" -ge "$base" ] || fail "world: bytes of the base were not counted"
