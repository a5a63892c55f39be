#!/bin/bash
# 64 ranks of the tiny model on one node, four and sixteen (which MPICH is told to see on this machine) give the bits of one
# rank, in every scope. Some ranks have two micro-batches of a step, some one, and in the last step most have none.
# The memory that was planned for them is what they allocate, within 2 %.
# Budget: 180 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
data=$src/tests/golden/llama-tied/data.jsonl
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-tied/model}
data: {files: [$data, $data], max_length: 64}
lora: {r: 4, lora_dropout: 0.1, target_modules: all-linear}
train: {batch_size: 80, micro_batch_size: 1, num_train_epochs: 2, learning_rate: 0.01, max_grad_norm: 0.3, seed: 7}
eval: {file: $src/tests/golden/llama-gqa/data.jsonl, steps: 4}
DECK
RUN_LIMIT=240
adze 1 train "$tmp/deck.yaml" output.dir="$tmp/one" || fail "one rank"
losses "$tmp/one" >"$tmp/losses"
[ "$(wc -l <"$tmp/losses")" -ge 6 ] || fail "not four steps and two evaluations"
# same NODES [key=value ...]: 64 ranks on so many nodes give the same losses and adapter
same() {
    local nodes=$1 begin=$SECONDS off what="$*"
    shift
    rm -rf "$tmp/out"
    MPIR_CVAR_NUM_CLIQUES=$nodes adze 64 train "$tmp/deck.yaml" output.dir="$tmp/out" "$@" || fail "64 ranks, nodes: $what"
    losses "$tmp/out" | cmp -s "$tmp/losses" - || fail "64 ranks, nodes: $what: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$tmp/out/adapter/adapter_model.safetensors" ||
        fail "64 ranks, nodes: $what: the adapter differs"
    off=$(sed -n 's/^planned .*: \([0-9.]*\) % off$/\1/p' "$tmp/log")
    awk -v off="${off:-100}" 'BEGIN { exit !(off <= 2) }' || fail "64 ranks, nodes: $what: memory is not what was planned"
    echo "64 ranks, nodes: $what: memory ${off} % off; the bits of one rank, $((SECONDS - begin)) s"
}
same 1 shard.scope=node
for nodes in 4 16; do
    same $nodes shard.scope=node
    same $nodes shard.scope=world
done
same 16 shard.scope=world shard.resident=0.5 shard.accumulation=layer_major shard.adapter=gathered shard.reduce=unit run.poison=true
# The check itself can fail.
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/seed" train.seed=8 || fail "another seed"
losses "$tmp/seed" | cmp -s "$tmp/losses" - && fail "another seed gave the same losses"
exit 0
