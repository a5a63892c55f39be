#!/bin/bash
# device.sh: which device a run computes on, what it says of it, and what it refuses: without a backend, with one that cannot
# be loaded, without a driver, without a GPU on one rank, with more ranks than GPUs, with one GPU twice. Budget: 10 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
unset CUDA_VISIBLE_DEVICES CUEMU_DEVICES
backend=$PWD/tests/cuemu/adze-cuemu.so
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4, max_steps: 2}
output: {dir: $tmp/out, progress: none}
DECK
# try CODE PATTERN COMMAND...: its exit code, and a line of its output
try() {
    local want=$1 pattern=$2 code
    shift 2
    rm -rf "$tmp/out"
    timeout -k 5 60 "$@" >"$tmp/log" 2>&1
    code=$?
    [ $code = "$want" ] && grep -Eq "$pattern" "$tmp/log" && return
    cat "$tmp/log"
    fail "$*: code $code, expected $want and a line as $pattern"
}
train="./adze train $tmp/deck.yaml"

# ---- no GPU: refused where one is asked for, else the CPU, and why
printf 'no library' >"$tmp/text.so"
while IFS='|' read -r file why; do
    export ADZE_BACKEND=$file
    try 2 "run.device: .* has no GPU that can be used: $why" $train run.device=gpu
    try 0 "^device +CPU, f32 \(run.device is auto; $why" $train
    try 2 "run.compute: bf16: the CPU computes in f32 alone, and there is no GPU: $why" $train run.compute=bf16
    try 0 "GPUs: none: $why" ./adze --version
done <<TABLE
$tmp/none.so|ADZE_BACKEND: $tmp/none.so is not there
$tmp/text.so|$tmp/text.so: (file too short|invalid ELF header)
TABLE
try 0 '^device +CPU, f32$' $train run.device=cpu
grep -q '^# device: CPU, f32$' "$tmp/out/run.yaml" || fail "run.yaml does not name the device"
try 2 'run.compute: bf16: the CPU computes in f32 alone, and run.device is cpu' $train run.device=cpu run.compute=bf16
# The real backend, on a machine without a driver.
if [ -f adze-cuda.so ] && [ ! -e /proc/driver/nvidia ]; then
    env -u ADZE_BACKEND LD_DEBUG=files ./adze --version >"$tmp/log" 2>&1 || fail "adze --version"
    grep -q "GPUs: none: no driver of NVIDIA's is loaded" "$tmp/log" || fail "adze --version does not say that there is no driver"
    grep -q libcublas "$tmp/log" && fail "without a driver the libraries of CUDA are loaded all the same, which takes 95 MB a process"
    export ADZE_BACKEND=$PWD/adze-cuda.so
    try 2 'has no GPU that can be used: no driver of NVIDIA.s is loaded. Ask the job for GPUs .--gpus-per-node., or give run.device=cpu$' $train run.device=gpu
    try 0 '^device +CPU, f32 \(run.device is auto; no driver of NVIDIA.s is loaded\)' $train
else
    echo "not tried: the real backend without a driver"
fi

# ---- the stand-in: what the ranks see
[ -f "$backend" ] || { echo "the stand-in for CUDA was not built (no C++17 compiler)" && exit 0; }
export ADZE_BACKEND=$backend
mkdir -p "$tmp/moved/bin" "$tmp/moved/lib/adze"
cp adze "$tmp/moved/bin/" && cp "$backend" "$tmp/moved/lib/adze/adze-cuda.so"
[ -f /usr/local/lib/adze/adze-cuda.so ] || try 0 'GPUs: (1 x cuemu |none: no driver of NVIDIA)' env -u ADZE_BACKEND CUEMU_DEVICES=1 "$tmp/moved/bin/adze" --version
try 0 'GPUs: 3 x cuemu .*; CUDA runtime [0-9.]+, driver for [0-9.]+' env CUEMU_DEVICES=3 ./adze --version
CUDA_VISIBLE_DEVICES='' try 2 'run.device: .* has no GPU that can be used' $train run.device=gpu
m="${MPIEXEC:-mpiexec}"
export LD_PRELOAD=$yield
CUEMU_DEVICES=2 try 2 'has 3 ranks, which see 2 GPUs .*--ntasks-per-node=2' $m -n 3 $train
CUEMU_DEVICES=2 try 2 'has 2 ranks, which see 1 GPU ' $m -n 2 -env CUDA_VISIBLE_DEVICES 1 $train
CUEMU_DEVICES=3 try 2 'local rank [12] would share the GPU GPU-c0' $m -n 1 -env CUDA_VISIBLE_DEVICES 0,1 $train : \
    -n 2 -env CUDA_VISIBLE_DEVICES 2 $train
for kind in auto gpu; do
    CUEMU_DEVICES=2 try 2 '1 of 2 ranks see a GPU, but rank 1 on .* does not: .* or give run.device=cpu' \
        $m -n 1 -env CUDA_VISIBLE_DEVICES 0 $train run.device=$kind : -n 1 -env CUDA_VISIBLE_DEVICES '' $train run.device=$kind
done
[ "$(grep -c 'error' "$tmp/log")" = 1 ] || fail "not said once: $(<"$tmp/log")"
CUEMU_DEVICES=2 try 0 '^device +CPU, f32$' $m -n 1 -env CUDA_VISIBLE_DEVICES 0 $train run.device=cpu : \
    -n 1 -env CUDA_VISIBLE_DEVICES '' $train run.device=cpu
echo "device: all as expected"
