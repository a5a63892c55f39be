#!/bin/bash
# A control group that allows what `adze plan` says and 128 MiB beside it (the least reserve, for mpiexec, its proxies and files
# being read) is enough for a run of four ranks with one copy of the base between them, which then does what was planned; one that
# allows clearly less is refused by the plan before anything is allocated, and nobody is killed. Where control groups cannot be written, memory (PSS) is sampled instead.
# Budget: 20 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
tests/tools/random_model "$tmp/model" 512 1536 16 8 8 64 512 bf16 1 1 || fail "no model"
base=$(stat -c %s "$tmp/model/model.safetensors")
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 32}
lora: {r: 4, target_modules: all-linear}
train: {batch_size: 8, micro_batch_size: 1, max_steps: 3, lr_scheduler_type: constant}
DECK
beside=$((128 << 20))
./adze plan "$tmp/deck.yaml" --nodes 1 --ranks-per-node 4 --threads 1 --memory 8GiB --json >"$tmp/plan" || fail "no plan"
planned=$(sed -n 's/.*"category": "total".*"sum": \([0-9]*\).*/\1/p' "$tmp/plan")
[ "${planned:-0}" -gt "$base" ] || fail "no sum in the plan"

group=
case $(stat -fc %T /sys/fs/cgroup 2>/dev/null) in
cgroup2fs) group=/sys/fs/cgroup/adze-$$ limit=memory.max peak=memory.peak events=memory.events ;;
*) group=/sys/fs/cgroup/memory/adze-$$ limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes events=memory.oom_control ;;
esac
mkdir "$group" 2>/dev/null && [ -w "$group/$limit" ] || group=
trap '[ -z "$group" ] || rmdir "$group" 2>/dev/null; rm -rf "$tmp"' EXIT

# within BYTES ARGUMENTS...: four ranks in a group that allows so many
within() {
    echo "$1" >"$group/$limit" || fail "the limit cannot be set"
    shift
    (echo "$BASHPID" >"$group/cgroup.procs" && adze 4 "$@")
}
killed() { sed -n 's/^oom_kill //p' "$group/$events"; }

if [ -z "$group" ]; then
    echo "control groups cannot be written: memory is sampled"
    adze 4 train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=20 &
    most=0
    while kill -0 $! 2>/dev/null; do
        sum=0
        for pid in $(ranks "output.dir=$tmp/out"); do
            sum=$((sum + $(awk '/^Pss:/ {n = $2} END {print n + 0}' "/proc/$pid/smaps_rollup" 2>/dev/null || echo 0)))
        done
        [ $sum -le $most ] || most=$sum
        sleep 0.1
    done
    wait $! || fail "training"
    echo "planned $((planned >> 20)) MiB, sampled $((most >> 10)) MiB"
    [ $most -gt 0 ] && [ $((most << 10)) -le $((planned + beside)) ] || fail "more than planned and $((beside >> 20)) MiB"
    exit 0
fi

within $((planned + beside)) train "$tmp/deck.yaml" output.dir="$tmp/out" || fail "what was planned, and 128 MiB, are not enough"
grep -q '^done  ' "$tmp/log" && [ "$(killed)" = 0 ] || fail "did not end well"
echo "planned $((planned >> 20)) MiB, allowed $(((planned + beside) >> 20)) MiB, at most $(($(<"$group/$peak") >> 20)) MiB were used; the base is $((base >> 20)) MiB"

# One copy of the base alone would fit, all the rest would not.
within $((beside + base + (8 << 20))) train "$tmp/deck.yaml" output.dir="$tmp/less"
[ $? = 2 ] || fail "a limit below the plan: not refused"
grep -q 'does not fit' "$tmp/log" || fail "a limit below the plan: the message"
[ "$(killed)" = 0 ] || fail "a rank was killed"
[ ! -e "$tmp/less/metrics.jsonl" ] || fail "a run was begun that cannot fit"
