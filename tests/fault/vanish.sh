#!/bin/bash
# An output directory that goes while a run is in it: removed, moved away, made anew, taken by another run, something else in its
# place, its lock removed [51]. The run says so, ends with its adapter where that can be written, never with success where
# something is missing, and never writes where another job is.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4}
checkpoint: {save_steps: 20}
DECK
out=$tmp/out
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$tmp"' EXIT
# start STEPS LOG [ARGUMENTS]: a run in the background, its number in $pid, that has made some steps
start() {
    nice timeout -k 5 100 ./adze train "$tmp/deck.yaml" output.dir="$out" train.max_steps="$1" "${@:3}" >"$2" 2>&1 &
    pid=$! pids+=($!)
    until [ -e "$out/checkpoint-000020.h5" ]; do
        kill -0 $pid 2>/dev/null || { cat "$2" && fail "ended before step 20"; }
        sleep 0.01
    done
}
# vanish: the directory goes, also while the run makes files in it
vanish() {
    while [ -e "$out" ]; do rm -rf "$out" 2>/dev/null; done
}
# ends CODE: it has ended with this code and one error at most
ends() {
    wait $pid
    code=$?
    [ $code = "$1" ] || fail "$name: code $code instead of $1"
    [ "$(grep -c '^adze: error: ' "$tmp/log")" = $((code > 0)) ] || fail "$name: not one error"
    grep -q 'adze: bug' "$tmp/log" && fail "$name: a leak"
}
says() { grep -q "$1" "$tmp/log" || fail "$name: does not say: $1"; }
fresh() {
    name=$1
    rm -rf "$out" "$tmp/moved"
}

fresh removed
start 300 "$tmp/log"
vanish
ends 3
says "^adze: warning: no checkpoint: $out: cannot write in directory: No such file or directory; the run goes on"
says "^adze: error: $out/metrics.jsonl: steps are missing in it: No such file or directory"
[ -f "$out/adapter/adapter_model.safetensors" ] && [ -f "$out/adapter.h5" ] || fail "removed: no adapter"
grep -qx 'state: failed' "$out/state" || fail "removed: the state"

fresh "removed, on_error: stop"
start 100000 "$tmp/log" checkpoint.on_error=stop
vanish
ends 3
says "^adze: error: $out: cannot write in directory: No such file or directory"
[ -f "$out/adapter/adapter_model.safetensors" ] || fail "$name: no adapter"

fresh "a file in its place"
start 200 "$tmp/log"
mv "$out" "$tmp/moved"
: >"$out"
ends 2
says "^adze: error: $out: cannot create directory: File exists"

# made anew: the run goes on there, and claims it again
fresh "made anew"
start 300 "$tmp/log"
mv "$out" "$tmp/moved"
mkdir "$out"
ends 3
says "^adze: error: $out/metrics.jsonl: steps are missing in it: No such file or directory"
[ -f "$out/checkpoint-000300.h5" ] && [ -f "$out/adapter.h5" ] && [ ! -e "$out/lock" ] || fail "$name: $(ls "$out")"

fresh "the lock removed"
start 100000 "$tmp/log"
rm "$out/lock"
until [ -e "$out/lock" ]; do
    kill -0 $pid || fail "$name: ended"
    sleep 0.05
done
timeout 60 ./adze train "$tmp/deck.yaml" output.dir="$out" >"$tmp/log2" 2>&1
[ $? = 2 ] && grep -q "^adze: error: output.dir $out is in use by " "$tmp/log2" || fail "$name: another run has the directory too"
kill -9 "$(child $pid)"
wait $pid

# taken by another run: left alone
fresh taken
start 100000 "$tmp/log"
first=$pid
mv "$out" "$tmp/moved"
start 1000000 "$tmp/log2"
second=$pid pid=$first
ends 3
says "^adze: error: output.dir $out was taken over by a process on $(hostname) (pid $(child $second)) since "
kill -0 $second || fail "taken: the other run has ended"
kill -USR1 "$(child $second)"
wait $second
./adze verify "$out"/checkpoint-*.h5 >"$tmp/log" 2>&1 || fail "taken: the other run's checkpoints"
grep -qx 'state: requeue' "$out/state" && [ ! -e "$out/adapter" ] || fail "taken: the other run's directory: $(ls "$out")"
