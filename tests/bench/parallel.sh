#!/bin/bash
# parallel.sh [135M|1.1B ...]: what the ways to spread a base over ranks take and give, a row each: memory of all ranks together as
# planned for what depends on model and data, as allocated, as planned with the libraries, communication and page tables of every
# process, and as the kernel counts it (PSS, before the last step), in MiB; seconds a step that a rank waited for weights; tokens
# a second. Models of the shapes of SmolLM2-135M and TinyLlama-1.1B, with random weights in bf16, made in
# BENCH_DIR (a scratch directory). Two nodes are made on one machine: their memory is counted together, and what goes between
# them goes through memory. For people: nothing is judged. Run in the build folder, as `make bench-parallel`.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
dir=${BENCH_DIR:-$tmp}
steps=${BENCH_STEPS:-3} RUN_LIMIT=${RUN_LIMIT:-600}

# make_model NAME: its directory in $model, and the length of a sample in $tokens
make_model() {
    model=$dir/model-$1
    case $1 in
    135M) set -- "$1" 576 1536 30 9 3 64 49152 bf16 1 1 && tokens=128 ;;
    1.1B) set -- "$1" 2048 5632 22 32 4 64 32000 bf16 0 1 && tokens=32 ;;
    *) fail "$1: 135M or 1.1B was expected" ;;
    esac
    shift
    [ -f "$model/model.safetensors" ] || tests/tools/random_model "$model" "$@" || fail "no model"
    awk -v n="$tokens" 'BEGIN { for (s = 0; s < 64; s++) {
        printf "{\"input_ids\": ["
        for (i = 0; i < n; i++) printf "%s%d", (i > 0 ? ", " : ""), (i * 7 + s * 13) % 9973
        print "]}" } }' >"$dir/data.jsonl"
    cat >"$tmp/deck.yaml" <<DECK
model: {path: $model}
data: {files: [$dir/data.jsonl], max_length: $tokens}
lora: {r: 8, target_modules: all-linear}
train: {batch_size: ${BENCH_BATCH:-8}, micro_batch_size: 1, max_steps: $steps, lr_scheduler_type: constant}
output: {dir: $tmp/out}
DECK
}

# mib NUMBER UNIT NODES
mib() { awk -v n="$1" -v u="$2" -v k="$3" 'BEGIN { f["KiB"] = 1 / 1024; f["MiB"] = 1; f["GiB"] = 1024; printf "%.0f", n * f[u] * k }'; }

# row RANKS NODES [key=value ...]
row() {
    local n=$1 nodes=$2 line pss pid planned unit tracked unit2 waited speed all
    shift 2
    ./adze plan "$tmp/deck.yaml" --nodes "$nodes" --ranks-per-node $((n / nodes)) --threads 1 --memory 20GiB --json "$@" >"$tmp/plan" || fail "no plan: $*"
    all=$(sed -n 's/.*"category": "total".*"sum": \([0-9]*\).*/\1/p' "$tmp/plan")
    rm -rf "$tmp/out"
    : >"$tmp/log"
    MPIR_CVAR_NUM_CLIQUES=$nodes LD_PRELOAD=$yield timeout -k 5 "$RUN_LIMIT" ${MPIEXEC:-mpiexec} -n "$n" \
        ./adze train "$tmp/deck.yaml" "$@" 2>&1 | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$tmp/log"
        case $line in
        "step $((steps - 1))/"*)
            for pid in $(ranks "$tmp/deck.yaml"); do awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup"; done | awk '{ s += $1 } END { printf "%.0f\n", s / 1024 }' >"$tmp/pss"
            ;;
        esac
    done
    grep -q '^done' "$tmp/log" || { tail -n 3 "$tmp/log"; fail "$n ranks, $nodes nodes: $*"; }
    pss=$(<"$tmp/pss")
    read -r planned unit tracked unit2 < <(sed -n 's/^planned *\([0-9.]*\) \([KMG]iB\) a node.* data, \([0-9.]*\) \([KMG]iB\) are.*/\1 \2 \3 \4/p' "$tmp/log")
    waited=$(sed -n 's/^gathers .* waited \([0-9.]*\) s a step.*/\1/p' "$tmp/log")
    speed=$(sed -n 's/^done .* \([0-9,]*\) tokens\/s.*/\1/p' "$tmp/log")
    printf '| %5s | %5s | %-68s | %7s | %9s | %8s | %7s | %6s | %8s |\n' "$n" "$nodes" "$*" \
        "$(mib "$planned" "$unit" "$nodes")" "$(mib "$tracked" "$unit2" "$nodes")" $((all * nodes / 1048576)) "$pss" "$waited" "$speed"
}

for name in "${@:-135M}"; do
    make_model "$name"
    echo
    echo "$name: a copy of the base is $(($(stat -c %s "$model/model.safetensors") / 1048576)) MiB; steps of ${BENCH_BATCH:-8} micro-batches of $tokens tokens"
    echo
    printf '| %5s | %5s | %-68s | %7s | %9s | %8s | %7s | %6s | %8s |\n' ranks nodes keys planned allocated with-all PSS wait-s tokens/s
    echo '| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |'
    for n in 1 2 4; do row $n 1 shard.scope=node; done
    for way in keep cheap recompute; do row 4 1 shard.scope=node shard.activations=$way; done
    for n in 2 4; do row $n 2 shard.scope=node; done
    for n in 2 4; do row $n 2 shard.scope=world; done
    row 4 2 shard.scope=world shard.resident=0.5
    row 4 2 shard.scope=world shard.slots=1
    row 4 2 shard.scope=world shard.accumulation=layer_major
    row 4 2 shard.scope=world shard.accumulation=layer_major shard.activations=recompute
done
