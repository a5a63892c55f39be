#!/bin/bash
# gpu.sh [BUILD]: what adze does on a real GPU, in less than 8 minutes: it is built in the folder BUILD (default: a scratch
# folder; one that configure has been run in is used as it is), its tests run with the real backend, and a model of the shape of Llama-2-7B with random weights in bf16 is trained with an
# adapter of rank 8 on all linears and sequences of 4096 tokens. Said are tokens/s, the share of the GPU's peak, memory
# against the plan, and the time of each operation. For people: speed is not judged, the tests are. Exit code 0: all tests
# passed and the training ended; 77: something is missing, which is named.
#
# From the environment:
#   PEAK=TFLOPS   dense bf16 peak of the GPU, where its name is not in the table below
#   MODEL_DIR     scratch folder for weights and data, 15 GB (default /dev/shm if it has room, else TMPDIR)
#   STEPS, BATCH  steps of the training (8) and samples of a step (4)
#   RANKS         ranks, one a GPU (1)
#   SMALL=1       a small model, and where there is no GPU the stand-in for CUDA: a test of this script
set -u
src=$(cd "$(dirname "$0")/../.." && pwd)
small=${SMALL:-0} ranks=${RANKS:-1} begin=$SECONDS
say() { printf '%4d s  %s\n' $((SECONDS - begin)) "$*"; }
scratch=$(mktemp -d "${TMPDIR:-/tmp}/adze-gpu.XXXXXX") || exit 99
sampler=
finish() {
    [ -z "$sampler" ] || kill "$sampler" 2>/dev/null
    rm -rf "$scratch" "${model:-$scratch}"
}
trap finish EXIT
stop() {
    echo "gpu.sh: $*"
    exit 1
}

# ---- what is needed

missing=()
need() { # need WHAT COMMAND...: the first one that is there, in $found
    local what=$1 name
    shift
    for name; do found=$(command -v "$name") && return; done
    missing+=("$what")
}
need "nvcc: the CUDA toolkit, 12.4 or later, in PATH or /usr/local/cuda/bin" nvcc /usr/local/cuda/bin/nvcc
nvcc=$found
need "an MPI compiler: mpich libmpich-dev" mpicc.mpich mpicc
need "mpiexec: mpich" mpiexec.hydra mpiexec
mpiexec=$found
need "make gcc" make
need "a C++ compiler: g++" g++ c++
need "pkg-config" pkg-config
[ -f "$src/configure" ] || need "autoconf automake" autoreconf
if command -v pkg-config >/dev/null; then
    for pc in "hdf5-mpich hdf5:libhdf5-mpich-dev" "openblas:libopenblas-openmp-dev" "yaml-0.1:libyaml-dev" "jansson:libjansson-dev" \
        "libpcre2-8:libpcre2-dev" "libutf8proc:libutf8proc-dev" "libxxhash:libxxhash-dev" "zlib:zlib1g-dev" "cmocka:libcmocka-dev"; do
        for name in ${pc%%:*}; do pkg-config --exists "$name" && continue 2; done
        missing+=("${pc%%:*}: ${pc#*:}")
    done
fi
smi=$(command -v nvidia-smi) && gpu=$("$smi" --query-gpu=name --format=csv,noheader -i 0 2>/dev/null) || gpu=
[ -n "$gpu" ] || [ "$small" = 1 ] || missing+=("a GPU: nvidia-smi shows none")
if [ ${#missing[@]} -gt 0 ]; then
    echo "gpu.sh: missing here, with Debian's names of packages:"
    printf '  %s\n' "${missing[@]}"
    exit 77
fi
n_gpus=$([ -n "$gpu" ] && "$smi" --query-gpu=name --format=csv,noheader | wc -l || echo 0)
say "${gpu:-no GPU, the stand-in for CUDA}; $("$nvcc" --version | sed -n 's/.*release \([^,]*\),.*/nvcc \1/p')$([ -z "$gpu" ] || "$smi" \
    --query-gpu=driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader -i 0 | sed 's/^/; driver, memory, clock, power: /')"

# ---- build: for the GPU of this machine alone

build=${1:-$scratch/build}
mkdir -p "$build" && cd "$build" || exit 99
build=$PWD
if [ ! -f Makefile ]; then
    [ ! -f "$src/config.status" ] ||
        stop "$src is configured itself, so no other folder can be: make distclean there, or give it: gpu.sh $src"
    [ -f "$src/configure" ] || (cd "$src" && autoreconf -fi) >autoreconf.log 2>&1 || stop "autoreconf failed: see autoreconf.log"
    arch=$([ -n "$gpu" ] && echo native || echo sm_90)
    "$src/configure" -q --with-cuda NVCC="$nvcc" NVCCFLAGS="-O3 -arch=$arch" MPIEXEC="$mpiexec" >configure.log 2>&1 ||
        { tail -n 20 configure.log && stop "configure failed"; }
fi
tests=() programs=()
for file in "$src"/tests/*/*.cuda; do
    name=${file#"$src/"}
    tests+=("$name")
    programs+=("${name%.cuda}")
done
[ -n "$gpu" ] || programs+=(tests/cuemu/adze-cuemu.so)
say "building in $build, which takes minutes"
make -s -j"$(nproc)" adze adze-cuda.so tests/tools/random_model tests/tools/yield.so "${programs[@]}" >make.log 2>&1 ||
    { grep -iE 'error|\*\*\*' make.log | head -n 20 && stop "the build failed: see $build/make.log"; }
export ADZE_BACKEND=$PWD/adze-cuda.so
[ -n "$gpu" ] || export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu.so
[ -n "$gpu" ] || n_gpus=4
say "built; $(./adze --version | sed -n 's/.*\(GPUs: .*\))$/\1/p')"

# ---- tests: each on as many ranks as it asks for, where there are so many GPUs. What is the stand-in's own is skipped there.

failed=0
for name in "${tests[@]}"; do
    places=$(awk -v n="$n_gpus" '!/^#/ && NF > 0 && $1 !~ /\// && $1 <= n { print $1, 0 }' "$src/$name")
    [ -n "$places" ] || { say "skip $name: it asks for more GPUs, or for several nodes" && continue; }
    echo "$places" >"$scratch/${name##*/}"
    result=pass
    while read -r n _; do
        OMP_NUM_THREADS=1 srcdir=$src CUEMU_SEED=0 timeout -k 5 60 "$mpiexec" -n "$n" "./${name%.cuda}" </dev/null >"$scratch/log" 2>&1
        case $? in
        0) ;;
        77) result="skip" ;;
        *) result="FAIL" && failed=$((failed + 1)) && tail -n 12 "$scratch/log" ;;
        esac
    done <"$scratch/${name##*/}"
    say "$result $name"
done

# ---- the model

if [ "$small" = 1 ]; then
    shape=(128 256 2 4 4 32 512) T=64
else
    shape=(4096 11008 32 32 32 128 32000) T=4096
fi
steps=${STEPS:-8} batch=${BATCH:-4}
dir=${MODEL_DIR:-}
[ -n "$dir" ] || { [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 20000000 ] && dir=/dev/shm; } 2>/dev/null || dir=$scratch
model=$(mktemp -d "$dir/adze-model.XXXXXX") || exit 99
tests/tools/random_model "$model" "${shape[@]}" bf16 0 1 || stop "no model"
awk -v n="$T" -v m="$((batch * 2))" -v v="${shape[6]}" 'BEGIN { for (s = 0; s < m; s++) {
    printf "{\"input_ids\": ["
    for (i = 0; i < n; i++) printf "%s%d", (i > 0 ? ", " : ""), (i * 7919 + s * 104729) % (v - 3) + 3
    print "]}" } }' >"$model/data.jsonl"
cat >"$scratch/deck.yaml" <<DECK
model: {path: $model}
data: {files: [$model/data.jsonl], max_length: $T}
lora: {r: 8, target_modules: all-linear}
train: {batch_size: $batch, micro_batch_size: 1, max_steps: $steps, lr_scheduler_type: constant, logging_steps: 1}
output: {dir: $scratch/out, progress: line}
run: {device: gpu, compute: bf16}
DECK
say "model of $(du -h "$model" | tail -n 1 | cut -f 1): $(./adze inspect "$model" 2>/dev/null | head -n 1)"

# ---- trainings: the first for speed and memory, the second, shorter, for the times of operations

# train [key=value ...]: its output in $scratch/log, the most memory that the GPU had in use in $used
train() {
    rm -rf "$scratch/out"
    : >"$scratch/used"
    [ -z "$gpu" ] || { while :; do "$smi" --query-gpu=memory.used --format=csv,noheader,nounits -i 0 && sleep 0.3; done >"$scratch/used" 2>/dev/null & sampler=$!; }
    timeout -k 5 240 "$mpiexec" -n "$ranks" ./adze train "$scratch/deck.yaml" "$@" >"$scratch/log" 2>&1
    local code=$?
    [ -z "$sampler" ] || kill "$sampler" 2>/dev/null
    sampler=
    used=$(sort -n "$scratch/used" | tail -n 1)
    [ $code -eq 0 ] || { tail -n 25 "$scratch/log" && stop "the training ended with exit code $code"; }
}

train
say "trained"
echo
grep -vE '^ +(forward|head|recompute|backward|gather|optimizer|other) ' "$scratch/log"
echo

# Dense bf16 on tensor cores with f32 sums, TFLOPS, as NVIDIA gives it.
peak=${PEAK:-}
case $peak:$gpu in
:*GB200* | :*B200*) peak=2250 ;;
:*H100*PCIe*) peak=756 ;;
:*H100*NVL*) peak=835 ;;
:*GH200* | :*H200* | :*H100*) peak=989 ;;
:*H20) peak=148 ;;
:*A100* | :*A800*) peak=312 ;;
:*A30) peak=165 ;;
:*L40S*) peak=362 ;;
:*L40*) peak=181 ;;
:*L4) peak=121 ;;
:*A40) peak=150 ;;
:*A10) peak=125 ;;
:*"RTX 6000 Ada"*) peak=364 ;;
:*"RTX 4090"*) peak=165 ;;
esac
# FLOP a token: 4 for each weight of a linear, 4 for each of the head (every token but one of a sample is a target), and
# attention 12 D keys a layer, where a query sees half of the sample in the mean; nothing for what is computed again.
awk -F '[:,}]' -v D="${shape[0]}" -v F="${shape[1]}" -v L="${shape[2]}" -v H="${shape[3]}" -v G="${shape[4]}" -v K="${shape[5]}" -v V="${shape[6]}" \
    -v T="$T" -v peak="${peak:-0}" -v ranks="$ranks" -v steps="$steps" '
    /"loss"/ {
        for (i = 1; i < NF; i++) {
            if ($i ~ /"tokens"/) tokens = $(i + 1)
            if ($i ~ /"seconds"/) seconds = $(i + 1)
        }
        n++
        if (n > 2 || steps < 3) { all += tokens; time += seconds; used++ }
    }
    function si(x, p) { # with a prefix
        while (x >= 1000 && p < 5) { x /= 1000; p++ }
        return sprintf("%.3g %s", x, p > 0 ? substr("kMGTP", p, 1) : "")
    }
    END {
        if (time <= 0) exit 1
        weights = L * (D * H * K * 2 + D * G * K * 2 + 3 * D * F) + D * V
        flop = 4 * weights + 12 * H * K * T / 2 * L
        printf "speed     %.0f tokens/s over %d steps (the first two left out), %.3g s a step, %sFLOP a token: %sFLOPS a GPU", all / time,
            used, time / used, si(flop), si(flop * all / time / ranks)
        if (peak > 0) printf ", %.1f %% of %d TFLOPS", 100 * flop * all / time / 1e12 / ranks / peak, peak
        else printf "; the peak of this GPU is not known: give PEAK"
        print ""
    }' "$scratch/out/metrics.jsonl" || stop "no steps in metrics.jsonl"
[ -z "$used" ] || echo "memory    $used MiB of the GPU in use at most, with the driver's own, every 0.3 s; the plan's and the peaks are above"
echo

train run.time_operations=true train.max_steps=3
sed -n '/^time /,/^idle/p; /^operations/,/^allocated/p' "$scratch/log" | grep -vE '^(idle|allocated)'
echo
say "done; $failed tests failed"
[ $failed -eq 0 ]
