#!/bin/bash
# Runs on GPUs go on with the bits of undisturbed ones, on any number of GPUs; and a checkpoint that passes through the other kind of
# device is the same. On the stand-in for CUDA.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu.so CUEMU_SEED=1 CUDA_VISIBLE_DEVICES=0,1,2,3
[ -f "$ADZE_BACKEND" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
deck=$src/tests/runs/exact.yaml

# run N NODES DIR DEVICE MAX_STEPS [key=value ...]
run() {
    local n=$1 nodes=$2 out=$3 device=$4 steps=$5
    shift 5
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$deck" output.dir="$tmp/$out" run.device="$device" run.compute=f32 train.max_steps="$steps" \
        checkpoint.save_steps=2 train.batch_size=6 eval.file=null eval.steps=null "$@" || fail "$out on $n ranks of $nodes nodes, device $device"
}
# whole DIR REFERENCE
whole() {
    cmp -s "$tmp/$2/adapter/adapter_model.safetensors" "$tmp/$1/adapter/adapter_model.safetensors" || fail "$1: the adapter is not that of $2"
}
# half DIR COPY: a copy of a run as it was after step 2
half() {
    mkdir "$tmp/$2"
    cp "$tmp/$1/checkpoint-000002.h5" "$tmp/$1/metrics.jsonl" "$tmp/$2"
}
says() {
    grep -q "$1" "$tmp/log" || fail "does not say: $1"
}

for device in cpu gpu; do
    run 1 1 "$device" "$device" 4
done
cmp -s "$tmp/cpu/adapter/adapter_model.safetensors" "$tmp/gpu/adapter/adapter_model.safetensors" &&
    fail "the two kinds of device give the same bits: nothing is tested"

# On several GPUs, with everything cut.
half gpu gpus
run 4 2 gpus gpu 4 shard.adapter=gathered shard.reduce=unit
grep -q 'the run goes on, but its last bits may differ' "$tmp/log" && fail "says that bits may differ on other GPUs"
whole gpus gpu
half gpu gpu2
run 2 1 gpu2 gpu 4
whole gpu2 gpu

# Through the other kind and back: the same numbers, and it is said.
cross() {
    local one=$1 other=$2 n=$3 nodes=$4
    shift 4
    run "$n" "$nodes" "$one-$other" "$other" 2 checkpoint.resume="$tmp/$one/checkpoint-000002.h5" "$@"
    says 'the run goes on, but its last bits may differ'
    says 'goes on after step 2 of 2'
    half "$one-$other" "$one-$other-$one"
    run 1 1 "$one-$other-$one" "$one" 4
    says 'goes on after step 2 of 4'
    whole "$one-$other-$one" "$one"
}
cross cpu gpu 3 2 shard.adapter=gathered
cross gpu cpu 2 1

# The adapter of such a run is judged alike.
for device in cpu gpu; do
    adze 1 eval --json "$deck" eval.adapter="$tmp/gpu/checkpoint-000004.h5" run.device="$device" run.compute=f32 || fail "eval on $device"
    grep -o '"loss": [0-9.]\{7\}' "$tmp/log" >"$tmp/loss-$device"
done
[ -s "$tmp/loss-cpu" ] && cmp "$tmp/loss-cpu" "$tmp/loss-gpu" || fail "the losses of an evaluation"
