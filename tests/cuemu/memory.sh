#!/bin/bash
# memory.sh: what a run takes of GPUs and of their nodes is what was planned, for every place of the base and of the adapter;
# what does not fit is refused before anything is allocated; less free than was said is said. Then what is worth knowing of
# GPUs: a narrow view, no direct copies, one that fails, a run that goes on with another device. Budget: 30 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
backend=$PWD/tests/cuemu/adze-cuemu.so
[ -f "$backend" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)" && exit 77; }
unset CUDA_VISIBLE_DEVICES CUEMU_DEVICES CUEMU_MEMORY
export ADZE_BACKEND=$backend
tests/tools/random_model "$tmp/model" 64 160 3 4 2 16 300 bf16 0 3 || fail "random model"
for ((s = 0; s < 8; s++)); do
    line=1
    for ((t = 1; t < 6 + 2 * s; t++)); do line+=", $(((s * 131 + t * 17) % 300))"; done
    echo "{\"input_ids\": [$line]}"
done >"$tmp/data.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$tmp/data.jsonl]}
lora: {r: 16, target_modules: all-linear}
train: {batch_size: 4, micro_batch_size: 1, max_steps: 1}
output: {progress: none}
run: {device: gpu}
DECK
# run CODE RANKS[/NODES] [key=value ...]: into $tmp/out
run() {
    local want=$1 n=${2%/*} nodes=${2#*/} code=0
    shift 2
    [ "$nodes" != "$n" ] || nodes=1
    rm -rf "${out:=$tmp/out}"
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$tmp/deck.yaml" output.dir="$out" "$@" || code=$?
    [ $code = "$want" ] || fail "$n ranks on $nodes nodes, $*: code $code, expected $want"
}
says() { grep -Eq -- "$1" "$tmp/log" || fail "does not say: $1"; }

# ---- as planned
world='shard.scope=world shard.resident=0 shard.slots=2'
for how in '1' "2 $world shard.activations=recompute" "4/2 $world" "4/2 $world comm.internode=nccl" \
    '4/2 shard.adapter=gathered shard.reduce=unit' '2 shard.scope=world shard.resident=0.5 run.compute=f32'; do
    # shellcheck disable=SC2086
    run 0 $how
    ! grep -q 'is not what was planned' "$tmp/log" || fail "$how: not as planned"
    [ "$(grep -c '^planned .* % off$' "$tmp/log")" = 2 ] || fail "$how: GPU and node are not compared"
done
says '^links     measured: from the host into a GPU '
says '^peak .* a rank; ' && says '^peak .* a GPU; '
# Times are of one clock: nothing is counted twice.
sed -n 's/^ \{10\}\(forward\|head\|recompute\|backward\|gather\|optimizer\|other\) .* \([0-9.]*\) %$/\2/p' "$tmp/log" |
    awk '{ sum += $1 } END { exit !(NR > 3 && sum < 100.5) }' || fail 'times by operation do not add up'

# ---- what does not fit, and less than was said
CUEMU_MEMORY=$((150 << 20)) run 2 1 run.compute=f32 train.micro_batch_size=8
says 'the run does not fit: it needs .* a GPU of .* free, less a reserve of 64.00 MiB'
[ ! -e "$tmp/out/metrics.jsonl" ] || fail "something was begun"
CUEMU_MEMORY=$((600 << 20)) run 0 1 run.memory=10GiB
says 'warning: run.memory: 10.00 GiB a GPU are to be filled, but there are .* MiB .*: the plan takes these'
CUEMU_CONTEXT=$((100 << 20)) run 0 1 run.memory=200MiB
says '^memory    68.00 MiB may be filled on a GPU: run.memory, 200.00 MiB, of which CUDA, NCCL and others have taken 132.00 MiB$'
CUEMU_CONTEXT=$((100 << 20)) run 2 1 run.memory=100MiB
says 'nothing is left to fill of a GPU: run.memory, 100.00 MiB, of which CUDA, NCCL and others have taken 132.00 MiB: give more'

CUEMU_TAKEN=$((8 << 30)) run 0 1
says 'warning: GPU 0000:10:00.0 of rank 0 on .* has .* GiB free before the first step, [67][.][0-9]+ GiB less than was planned'

# ---- GPUs that are not as they should be
m="${MPIEXEC:-mpiexec}"
rm -rf "$tmp/out"
t="./adze train $tmp/deck.yaml output.dir=$tmp/out"
CUEMU_DEVICES=2 LD_PRELOAD=$yield timeout -k 5 60 $m -n 1 -env CUDA_VISIBLE_DEVICES 1 $t : -n 1 -env CUDA_VISIBLE_DEVICES 0 $t >"$tmp/log" 2>&1 ||
    fail "one visible GPU a task"
says "warning: the ranks of a node do not see each other's GPUs"
[ "$(grep -c 'do not see each other' "$tmp/log")" = 1 ] || fail "not said once"
CUEMU_PEERS=0 CUEMU_FAIL=1:900 run 4 2 train.max_steps=50
says 'warning: 1 pairs? of GPUs of a node cannot read'
says '^adze: error: GPU 0000:11:00.0: .* failed: '
[ "$(grep -c 'adze: error: GPU' "$tmp/log")" = 1 ] || fail "a GPU that fails is not said once"
grep -q '^state: failed$' "$tmp/out/state" && grep -q '^code: 4$' "$tmp/out/state" && grep -q '^reason: GPU 0000:' "$tmp/out/state" ||
    fail "the state after a GPU has failed: $(<"$tmp/out/state")"

# ---- going on with another device
out=$tmp/moved
run 0 1 run.device=cpu
mv "$out" "$tmp/kept"
for how in 'bf16 results' 'f32 last bits'; do
    cp -r "$tmp/kept" "$out"
    MPIR_CVAR_NUM_CLIQUES=1 adze 1 train "$tmp/deck.yaml" output.dir="$out" train.max_steps=2 run.compute="${how%% *}" run.memory=900MiB ||
        fail "from the CPU to a GPU in ${how%% *}"
    says "goes on, but its ${how#* } may differ .*; it computed on CPU, f32, now on GPU cuemu .*, ${how%% *}"
    says '^memory    868.00 MiB may be filled on a GPU: run.memory, 900.00 MiB, of which CUDA, NCCL and others have taken 32.00 MiB$'
    rm -rf "$out"
done
echo "memory: all as expected"
