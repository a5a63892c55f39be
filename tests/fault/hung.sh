#!/bin/bash
# A job that does nothing any more ends within its deadline, with code 4 and a table that says who is waited for [56]:
# a rank that is stopped in training, one whose read does not return while loading. A job that was stopped as a whole
# goes on. MPI that does not end does not change the code of the job.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
if [ -f /proc/self/maps ] && grep -q 'lib\(a\|ub\)san' < <(ldd ./adze); then
    echo "the preloaded library replaces malloc, as the sanitizers do"
    exit 77
fi
[ -f tests/tools/hang.so ] || { echo "tests/tools/hang.so is not built" && exit 99; }
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4, max_steps: 10000000}
run: {step_timeout: 2, load_timeout: 2, finalize_timeout: 1}
DECK
# start NAME ARGUMENTS...: $n ranks that train into $tmp/NAME, output in $tmp/NAME.log
start() {
    local name=$1
    shift
    LD_PRELOAD="$yield $PWD/tests/tools/hang.so" timeout -k 5 60 ${MPIEXEC:-mpiexec} -n "${n:-3}" ./adze train "$tmp/deck.yaml" \
        output.dir="$tmp/$name" output.progress=none "$@" >"$tmp/$name.log" 2>&1 &
    launcher=$!
}
# broken NAME WHAT: say it, with the job's output, and end the subshell of this case
broken() {
    echo "FAIL: $1: $2"
    tail -n 20 "$tmp/$1.log"
    # shellcheck disable=SC2046
    kill -9 $(ranks "output.dir=$tmp/$1") 2>/dev/null
    exit 1
}
# steps NAME N: wait until that many are made
steps() {
    local begin=$SECONDS
    until [ -f "$tmp/$1/metrics.jsonl" ] && [ "$(wc -l <"$tmp/$1/metrics.jsonl")" -ge "$2" ]; do
        [ $((SECONDS - begin)) -lt 30 ] || broken "$1" "not $2 steps in 30 s"
        sleep 0.1
    done
}
# ends NAME CODE SECONDS: the job ends with this code, leaving no process
ends() {
    local begin=$SECONDS code
    wait $launcher
    code=$?
    [ $code = "$2" ] || broken "$1" "code $code, expected $2"
    [ $((SECONDS - begin)) -le "$3" ] || broken "$1" "it took $((SECONDS - begin)) s, expected $3"
    begin=$SECONDS
    until [ -z "$(ranks "output.dir=$tmp/$1")" ]; do
        [ $((SECONDS - begin)) -lt 10 ] || broken "$1" "processes are left: $(ranks "output.dir=$tmp/$1")"
        sleep 0.1
    done
}
# lost NAME PID PROCESS AT...: the table and the state file name this rank 1 and what it was doing
lost() {
    local name=$1 pid=$2 process=$3 file
    shift 3
    file=("$tmp/$name"/watchdog-*.txt)
    [ -f "${file[0]}" ] || broken "$name" "no table"
    [ "$(grep -c '<- waited for' "${file[0]}")" = 1 ] || broken "$name" "not one rank is waited for: $(cat "${file[0]}")"
    tr -s ' ' <"${file[0]}" | grep -Eq "^\* $(hostname) 1 $pid $process $* [0-9]+ [23] s <- waited for" ||
        broken "$name" "not rank 1 as expected: $(cat "${file[0]}")"
    [ "$(wc -l <"${file[0]}")" = 5 ] || broken "$name" "not one table of three ranks: $(cat "${file[0]}")"
    [ "$(grep -c '^adze: watchdog on ' "$tmp/$name.log")" = 1 ] || broken "$name" "not said once"
    grep -q '^state: failed$' "$tmp/$name/state" && grep -q '^code: 4$' "$tmp/$name/state" &&
        grep -Eq "^reason: no sign of life for [23] s in .*: rank 1 on $(hostname), pid $pid, $process, is waited for [(]" "$tmp/$name/state" ||
        broken "$name" "the state: $(cat "$tmp/$name/state")"
}
stopped() {
    local pid
    start stopped
    steps stopped 3
    pid=$(ranks "output.dir=$tmp/stopped" | sed -n 2p)
    kill -STOP "$pid"
    ends stopped 4 10
    lost stopped "$pid" stopped training '[0-9]+ (-|(embedding|layer|norm|head) [0-9])' '[a-z_]+'
}
reading() {
    AZ_HANG=pread AZ_HANG_RANK=1 AZ_HANG_AT=6 start reading
    ends reading 4 10
    lost reading '[0-9]+' sleeping loading '- unit [0-9]+' none
    grep -q 'others wait (loading, .*in collective [0-9]* (agree))' "$tmp/reading.log" || broken reading "where the others wait"
}
# The rank that says it is the one that holds the locks.
alone() {
    n=1 AZ_HANG=pread AZ_HANG_AT=3 start alone
    ends alone 4 10
    grep -q 'rank 0 on .*, sleeping, is waited for (loading' "$tmp/alone.log" || broken alone "the table"
    cmp -s <(grep -A 2 '^adze: watchdog' "$tmp/alone.log") "$tmp/alone"/watchdog-*.txt || broken alone "its file"
    grep -q '^state: failed$' "$tmp/alone/state" || broken alone "the state"
}
# All are stopped for longer than the deadline: that is no fault of theirs.
resumed() {
    start resumed
    steps resumed 3
    # shellcheck disable=SC2046
    kill -STOP $(ranks "output.dir=$tmp/resumed")
    sleep 4
    # shellcheck disable=SC2046
    kill -CONT $(ranks "output.dir=$tmp/resumed")
    steps resumed $(($(wc -l <"$tmp/resumed/metrics.jsonl") + 20))
    sleep 1
    [ "$(ranks "output.dir=$tmp/resumed" | wc -l)" = 3 ] || broken resumed "it did not go on"
    grep -q watchdog "$tmp/resumed.log" && broken resumed "the watchdog spoke"
    # shellcheck disable=SC2046
    kill -TERM $(ranks "output.dir=$tmp/resumed")
    ends resumed 75 10
}
# finalize NAME CODE ARGUMENTS...: MPI_Finalize hangs on all ranks, then on one
finalize() {
    local name=$1 want=$2
    shift 2
    AZ_HANG=finalize start "$name" "$@"
    ends "$name" "$want" 10
    AZ_HANG=finalize AZ_HANG_RANK=1 start "$name" "$@"
    ends "$name" "$want" 10
    grep -q watchdog "$tmp/$name.log" && broken "$name" "the end is not quiet"
    return 0
}
done_() {
    finalize done 0 train.max_steps=2
    [ -f "$tmp/done/adapter/adapter_model.safetensors" ] || broken done "no adapter"
    tail -n 1 "$tmp/done.log" | grep -q "^adapter   $tmp/done/adapter" || broken done "its last line was lost"
}
bad() {
    finalize bad 2 lora.target_modules=nothing
    grep -q '^adze: error: ' "$tmp/bad.log" || broken bad "its message was lost"
}
# The cases wait more than they work.
pids=()
for case in stopped reading alone resumed done_ bad; do
    $case >"$tmp/$case.case" 2>&1 &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=1
done
cat "$tmp"/*.case
exit $code
