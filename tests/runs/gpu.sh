#!/bin/bash
# Training on GPUs, on the tests' stand-in for CUDA: losses, evaluation losses and the adapter are the same bits on 1, 2 and 4
# ranks, as one node and two, however the base, the adapter and the sums lie and go between nodes, in any legal order of the
# device's queues; and in f32 they are the CPU's within rounding.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu.so UCX_MEM_EVENTS=n
unset CUDA_VISIBLE_DEVICES # make check hides GPUs
[ -f "$ADZE_BACKEND" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
awk 'BEGIN {srand(9); for (i = 0; i < 14; i++) {s = ""; n = 2 + int(20 * rand());
    for (j = 0; j < n; j++) s = s (j ? ", " : "") int(301 * rand()); print "{\"input_ids\": [" s "]}"}}' >"$tmp/data.jsonl"
head -n 4 "$tmp/data.jsonl" >"$tmp/few.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: model}
data: {files: [data.jsonl]}
lora: {r: 3, lora_dropout: 0.1, target_modules: all-linear}
train: {batch_size: 6, micro_batch_size: 2, num_train_epochs: 2, learning_rate: 0.01, max_grad_norm: 0.5, seed: 3}
eval: {file: few.jsonl, steps: 2}
DECK
tests/tools/random_model "$tmp/model" 8 12 4 2 1 4 301 bf16 0 3 || fail "no model"
# run NAME N NODES SEED [key=value ...]
run() {
    local out=$tmp/$1 n=$2 nodes=$3 seed=$4
    shift 4
    rm -rf "$out"
    MPIR_CVAR_NUM_CLIQUES=$nodes CUEMU_SEED=$seed adze "$n" train "$tmp/deck.yaml" output.dir="$out" "$@" ||
        fail "$n ranks, $nodes nodes, seed $seed, $*"
    losses "$out" >"$out/losses"
    [ "$(wc -l <"$out/losses")" = 10 ] || fail "not 6 steps and 4 evaluations"
}
# same N NODES SEED [key=value ...]: as the first run
same() {
    run other "$@"
    cmp -s "$tmp/first/losses" "$tmp/other/losses" || fail "$*: losses differ"
    cmp -s "$tmp/first/adapter/adapter_model.safetensors" "$tmp/other/adapter/adapter_model.safetensors" || fail "$*: the adapter differs"
}
# near A B LIMIT: losses of two runs, relative
near() {
    paste "$tmp/$1/losses" "$tmp/$2/losses" | awk -v limit="$3" '{d = $2 - $4; if (d < 0) d = -d; if (!(d <= limit * $2)) bad = 1}
        END {exit bad || NR == 0}' || fail "$1 and $2: losses are further apart than $3: $(paste "$tmp/$1/losses" "$tmp/$2/losses")"
}
run cpu 1 1 0 run.device=cpu
for compute in f32 bf16; do
    set -- run.device=gpu run.compute=$compute
    run first 1 1 0 "$@"
    grep -q '^allocated 0 times' "$tmp/log" || fail "the step loop allocates"
    grep -Eq '^host .* a step: loss [0-9.]+, norm 2.00; in all: start [0-9]+, save [0-9]+$' "$tmp/log" || fail "waits"
    [ $compute = f32 ] && near cpu first 1e-5 || near cpu first 0.01
    same 1 1 1 "$@" shard.accumulation=layer_major shard.activations=keep
    same 2 1 2 "$@"
    same 2 2 3 "$@" shard.scope=world shard.reduce=unit shard.adapter=gathered
    same 4 2 4 "$@" shard.scope=world shard.slots=2 comm.internode=nccl shard.activations=cheap
    same 4 2 5 "$@" shard.scope=node comm.internode=mpi run.poison=true
    same 3 2 6 "$@" shard.scope=world shard.resident=0.5 shard.adapter=gathered comm.internode=mpi
done
