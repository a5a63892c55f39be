#!/bin/bash
# No choice of how a run on GPUs is laid out changes a bit of its losses and its adapter: numbers of ranks, nodes, where the
# base, the adapter and the sums lie and how they go between nodes, order of accumulation, activations, loading, memory, the
# order of the devices' queues. Combinations are drawn, for models and data that are drawn too; each run is then continued from
# its middle on another layout, or on the CPU, which gives near results. On the stand-in for CUDA.
# GPU_MATRIX_SEED and GPU_MATRIX_RUNS (combinations for each model) draw others, and more of them.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu.so UCX_MEM_EVENTS=n CUEMU_DEVICES=8
[ -f "$ADZE_BACKEND" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
unset CUDA_VISIBLE_DEVICES
seed=${GPU_MATRIX_SEED:-2026} runs=${GPU_MATRIX_RUNS:-10}
RANDOM=$seed
# one WORD...: one of the words, in $word
one() {
    word=${*:$((RANDOM % $# + 1)):1}
}
# add KEY VALUE...: this key with one of the values, in $keys
add() {
    local key=$1
    shift
    one "$@"
    keys="$keys $key=$word"
}
# draw: a layout, in $ranks, $nodes, $order (of the queues) and $keys
draw() {
    one 1 2 2 3 3 4 4 5 7
    ranks=$word
    one 1 2 2 3
    nodes=$((word < ranks ? word : ranks))
    keys=
    add shard.scope auto node world world world
    if [ "$word" = world ]; then
        add shard.resident 0 0 0.25 0.5 1
        add shard.slots 1 2 3 6
    fi
    add shard.progress auto thread poll
    add shard.accumulation auto depth_first layer_major
    add shard.activations auto keep cheap recompute
    add shard.adapter auto replicated gathered
    add shard.reduce auto step unit
    add comm.internode auto mpi nccl
    add comm.gpu_direct true false
    add model.load auto job node
    add run.poison false true
    add run.time_operations false false true
    [ $((RANDOM % 3)) = 0 ] && add run.memory 104MiB 1GiB
    order=$((RANDOM % 4 == 0 ? 0 : RANDOM))
    return 0
}
# go OUT [key=value ...]: a run with the drawn layout
go() {
    local out=$1
    shift
    what="seed $seed, $model, $ranks ranks on $nodes nodes, CUEMU_SEED=$order, $compute$keys $*"
    # shellcheck disable=SC2086
    MPIR_CVAR_NUM_CLIQUES=$nodes CUEMU_SEED=$order adze "$ranks" train "$tmp/deck.yaml" output.dir="$out" run.compute=$compute $keys "$@"
}
# equal: the run in $tmp/out is that of one rank
equal() {
    losses "$tmp/out" | cmp -s "$tmp/losses" - || fail "$what: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$tmp/out/adapter/adapter_model.safetensors" || fail "$what: the adapter differs"
}
# near LIMIT: its losses are about those
near() {
    losses "$tmp/out" | paste "$tmp/losses" - | awk -v limit="$1" '{d = $2 - $4; if (d < 0) d = -d; if (!(d <= limit * $2)) bad = 1}
        END {exit bad || NR != 9}' || fail "$what: losses are further away than $1"
}
# few SAMPLES LONGEST V: samples of random ids
few() {
    awk -v seed=$RANDOM -v n="$1" -v longest="$2" -v v="$3" 'BEGIN {srand(seed); for (i = 0; i < n; i++) {
        s = int(v * rand()); for (j = 1 + int(longest * rand()); j > 0; j--) s = s ", " int(v * rand()); print "{\"input_ids\": [" s "]}"}}'
}
# model D F L H G K V DTYPE TIED R BATCH MICRO: a model, data for 6 steps of it, and a deck
while read -r d f l h g k v dtype tied r batch micro; do
    model="model $d $f $l $h $g $k $v $dtype $tied, r $r, steps of $batch"
    rm -rf "$tmp/model"
    tests/tools/random_model "$tmp/model" "$d" "$f" "$l" "$h" "$g" "$k" "$v" "$dtype" "$tied" 3 || fail "no model"
    few $((3 * batch - 1)) 24 "$v" >"$tmp/data.jsonl"
    few 5 24 "$v" >"$tmp/few.jsonl"
    cat >"$tmp/deck.yaml" <<DECK
model: {path: model}
data: {files: [data.jsonl], max_length: 20}
lora: {r: $r, lora_dropout: 0.1, target_modules: all-linear}
train: {batch_size: $batch, $micro, num_train_epochs: 2, learning_rate: 0.01, max_grad_norm: 0.5, seed: 3}
eval: {file: few.jsonl, steps: 3, micro_batch_tokens: 30}
checkpoint: {save_steps: 3, save_total_limit: 9}
run: {device: gpu}
DECK
    for compute in f32 bf16; do
        rm -rf "$tmp/one"
        ranks=1 nodes=1 order=0 keys=
        go "$tmp/one" || fail "$what"
        losses "$tmp/one" >"$tmp/losses"
        [ "$(wc -l <"$tmp/losses")" = 9 ] || fail "$what: not 6 steps and 3 evaluations"
        for ((i = 0; i < runs; i++)); do
            draw
            rm -rf "$tmp/out"
            go "$tmp/out" || fail "$what"
            equal
            rm "$tmp/out/checkpoint-000006.h5"
            draw
            if [ $((RANDOM % 4)) = 0 ]; then
                compute=f32 go "$tmp/out" run.device=cpu || fail "$what"
                near $([ $compute = f32 ] && echo 1e-5 || echo 0.02)
            else
                go "$tmp/out" || fail "$what"
                equal
            fi
            grep -q 'checkpoint-000003.h5: goes on after step 3 of 6' "$tmp/log" || fail "$what: did not go on"
        done
    done
done <<MODELS
8 12 4 2 1 4 301 bf16 0 3 6 micro_batch_size: 2
24 40 3 4 2 6 97 f32 1 1 5 micro_batch_size: 1
20 31 5 3 3 10 513 f16 0 33 7 micro_batch_tokens: 37
MODELS
