#!/bin/bash
# Two jobs on one output directory: the second is refused and names the first, which goes on; a directory whose job was killed
# is had at once. With locks, and where there are none (ADZE_LOCK=heartbeat), by signs of life. What killed runs left half
# written is removed.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4, max_steps: 10000000}
DECK
host=$(hostname)
since='[0-9]{4}-[0-9-]*T[0-9:]*Z'
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$tmp"' EXIT
# start DIR LOG [ARGUMENTS]: a run without end, in the background; its number in $pid
start() {
    nice timeout 100 ./adze train "$tmp/deck.yaml" output.dir="$1" "${@:3}" >"$2" 2>&1 &
    pid=$! pids+=($!)
}
# child PID: the program below timeout
child() { cat "/proc/$1/task/$1/children" 2>/dev/null | tr -d ' '; }
last_step() { tail -n 1 "$1/metrics.jsonl" 2>/dev/null; }
# goes_on DIR: more steps come. One change can be that of a run which goes on from a checkpoint and drops later lines.
goes_on() {
    local before i begin=$SECONDS
    for i in 1 2 3; do
        before=$(last_step "$1")
        until [ "$(last_step "$1")" != "$before" ]; do
            [ $((SECONDS - begin)) -lt 60 ] || fail "$1: no more steps"
            sleep 0.1
        done
    done
}
# short N DIR: two steps on N ranks into DIR; the code in $code, output in $tmp/log
short() {
    adze "$1" train "$tmp/deck.yaml" output.dir="$2" train.max_steps=2
    code=$?
}
refused() { # DIR PID
    [ $code = 2 ] || fail "$1: code $code instead of 2"
    [ "$(grep -c '^adze: error: ' "$tmp/log")" = 1 ] || fail "$1: not one error"
    grep -qE "^adze: error: output.dir $1 is in use by a process on $host \(pid $2\) since $since; give another output.dir$" \
        "$tmp/log" || fail "$1: the message"
}
had() { # DIR [watched]: the run went well, and waited only if it was to
    [ $code = 0 ] || fail "$1: code $code"
    [ "$(grep -c 'for a sign of life' "$tmp/log")" = "${2:-0}" ] || fail "$1: waited, or did not"
    [ ! -e "$1/lock" ] || fail "$1: a lock is left"
}
fake() { # DIR JOB: the lock file of a job on a host that is not there, and what it left
    mkdir -p "$1"
    printf 'host: elsewhere\npid: 7\njob: %s\nrestarts: 0\nboot: none\nspace: none\ntime: 2026-01-02T03:04:05Z\n' "$2" >"$1/lock"
    : >"$1/checkpoint-000002.h5.tmp"
}

# ---- a job of another host that may live: watched meanwhile, then taken over
fake "$tmp/far" 11
nice timeout 100 ./adze train "$tmp/deck.yaml" output.dir="$tmp/far" train.max_steps=2 >"$tmp/log.far" 2>&1 &
far=$!

# ---- locks
start "$tmp/a" "$tmp/log.a"
goes_on "$tmp/a"
first=$(child $pid)
cp "$tmp/a/lock" "$tmp/lock.a"
cp "$tmp/a/run.yaml" "$tmp/run.a"
for n in 1 2; do
    short $n "$tmp/a"
    refused "$tmp/a" "$first"
    grep -q 'for a sign of life' "$tmp/log" && fail "waited for a lock that is held"
done
cmp "$tmp/a/lock" "$tmp/lock.a" && cmp "$tmp/a/run.yaml" "$tmp/run.a" || fail "the second job wrote something"
goes_on "$tmp/a"
kill -9 "$first"
wait $pid
cmp "$tmp/a/lock" "$tmp/lock.a" || fail "a killed job removed its lock"
touch "$tmp/a/run.yaml.tmp-999999999"
short 2 "$tmp/a"
had "$tmp/a"
[ ! -e "$tmp/a/run.yaml.tmp-999999999" ] || fail "what was left half written stays"
grep -q '^output    removed run.yaml.tmp-999999999, ' "$tmp/log" || fail "the word of it"

# ---- an earlier run of the same job of Slurm, on another host
fake "$tmp/requeued" 11
SLURM_JOB_ID=11 SLURM_RESTART_COUNT=1 short 1 "$tmp/requeued"
had "$tmp/requeued"
[ ! -e "$tmp/requeued/checkpoint-000002.h5.tmp" ] || fail "a checkpoint that was not finished stays"

# ---- signs of life
export ADZE_LOCK=heartbeat
start "$tmp/b" "$tmp/log.b" checkpoint.save_steps=20
sleeper=$pid
goes_on "$tmp/b"
first=$(child $pid)
short 1 "$tmp/b"
refused "$tmp/b" "$first"
grep -qE "^output    $tmp/b may be in use by a process on $host \(pid $first\) since $since: watching" "$tmp/log" ||
    fail "nothing was said of watching"
goes_on "$tmp/b"
kill -STOP "$first"
# two that take over at the same moment: one has it
start "$tmp/b" "$tmp/log.1"
one=$pid
start "$tmp/b" "$tmp/log.2"
two=$pid
begin=$SECONDS
while kill -0 $one 2>/dev/null && kill -0 $two 2>/dev/null; do
    [ $((SECONDS - begin)) -lt 60 ] || fail "both have it"
    sleep 0.1
done
kill -0 $one 2>/dev/null && winner=$one loser=$two log=$tmp/log.2 || winner=$two loser=$one log=$tmp/log.1
wait $loser
code=$?
cp "$log" "$tmp/log"
refused "$tmp/b" "$(child $winner)"
kill -0 $winner || fail "neither has it"
# the first wakes up: it finds that the directory is another's, and leaves it alone
kill -CONT "$first"
wait $sleeper
code=$?
[ $code = 3 ] && grep -qE "^adze: error: output.dir $tmp/b was taken over by a process on $host \(pid $(child $winner)\) since $since: this run ends, and writes nothing more there$" "$tmp/log.b" ||
    fail "the one that was taken over from: code $code, $(tail -n 2 "$tmp/log.b")"
grep -qx 'state: running' "$tmp/b/state" && [ -e "$tmp/b/lock" ] && [ ! -e "$tmp/b/adapter" ] || fail "it did not leave it alone: $(ls "$tmp/b")"
goes_on "$tmp/b"
kill -9 "$(child $winner)"
wait $winner
rm -f "$tmp/b"/checkpoint-*.h5
short 1 "$tmp/b"
had "$tmp/b"

wait $far
code=$?
cp "$tmp/log.far" "$tmp/log"
had "$tmp/far" 1
grep -q "^output    $tmp/far may be in use by job 11 on elsewhere (pid 7) since 2026-01-02T03:04:05Z: watching up to 10 s" \
    "$tmp/log" || fail "nothing was said of watching a file of another host"
[ ! -e "$tmp/far/checkpoint-000002.h5.tmp" ] || fail "a checkpoint that was not finished stays"
