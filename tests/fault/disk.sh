#!/bin/bash
# A disk that is full: a message, code 3, no half-written adapter, and an earlier one stays as it was [47]. A limit on the
# size of files stands for the full disk, as it needs no rights: it stops writes in the middle.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
# The limit would also stop the files through which UCX shares memory; a process alone needs none.
export UCX_TLS=self
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
lora: {r: 8, target_modules: all-linear}
train: {batch_size: 2, micro_batch_size: 2, learning_rate: 1e-3}
checkpoint: {save_minutes: 0}
DECK
# limited KIB CODE ARGUMENTS...: train into $tmp/out with files of at most KIB KiB; one error, no leak, no rest.
limited() {
    local kib=$1 want=$2 code
    shift 2
    (ulimit -S -f "$kib" && exec timeout 60 ./adze train "$tmp/deck.yaml" output.dir="$tmp/out" "$@") 2>&1 | cat >"$tmp/log"
    code=${PIPESTATUS[0]}
    [ $code = "$want" ] || fail "$kib KiB: code $code, expected $want"
    [ "$(grep -c '^adze: error: ' "$tmp/log")" = 1 ] || fail "$kib KiB: not one error"
    grep -q 'adze: bug' "$tmp/log" && fail "$kib KiB: a leak"
    rm -f "$tmp/out"/checkpoint-*.h5 # or the next run would go on from it
    [ -z "$(find "$tmp/out" -name '*tmp*' 2>/dev/null)" ] || fail "$kib KiB: left over: $(find "$tmp/out" -name '*tmp*')"
}
timeout 60 ./adze train "$tmp/deck.yaml" output.dir="$tmp/good" train.max_steps=40 >"$tmp/log" 2>&1 || fail "without a limit"
adapter=$(($(stat -c %s "$tmp/good/adapter/adapter_model.safetensors") / 1024 + 1))
checkpoint=$(($(stat -c %s "$tmp/good/checkpoint-000040.h5") / 1024 + 1))
metrics=$(($(stat -c %s "$tmp/good/metrics.jsonl") / 1024))
[ "$adapter" -gt 16 ] && [ "$metrics" -gt 6 ] || fail "adapter of $adapter KiB and metrics of $metrics KiB are too small for this test"

# the adapter does not fit: none is there
limited $((adapter - 4)) 3 train.max_steps=2
grep -q "^adze: error: $tmp/out/adapter/.*: cannot write: File too large" "$tmp/log" || fail "the adapter's message"
[ ! -e "$tmp/out/adapter" ] || fail "part of an adapter is left"
# an earlier one stays
cp -r "$tmp/good/adapter" "$tmp/out/adapter"
limited $((adapter - 4)) 3 train.max_steps=2
diff -r "$tmp/good/adapter" "$tmp/out/adapter" || fail "the earlier adapter changed"
# and gives way to one that fits
./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=2 >"$tmp/log" 2>&1 || fail "training over an adapter"
cmp -s "$tmp/good/adapter/adapter_model.safetensors" "$tmp/out/adapter/adapter_model.safetensors" && fail "the earlier adapter stayed"
[ "$(ls "$tmp/out/adapter" | wc -l)" = 2 ] || fail "more than an adapter is left"

# nothing fits, not even the deck as understood
rm -rf "$tmp/out"
limited 0 3 train.max_steps=2
grep -q "^adze: error: $tmp/out/run.yaml.*: cannot write: File too large" "$tmp/log" || fail "run.yaml's message"
[ ! -e "$tmp/out" ] || fail "something was written all the same"

# metrics.jsonl does not fit: said once when it happens, the adapter is whole, the code is 3
rm -rf "$tmp/out"
limited $((checkpoint + 64)) 3 train.max_steps=$((40 * ((checkpoint + 64) / metrics + 2))) # 64: room is reserved with some to spare
grep -q "^adze: warning: $tmp/out/metrics.jsonl: cannot write: File too large; the run goes on" "$tmp/log" || fail "no early word"
[ "$(grep -c '^adze: warning: ' "$tmp/log")" = 1 ] || fail "not one warning"
grep -q "^adze: error: $tmp/out/metrics.jsonl: steps are missing in it: File too large" "$tmp/log" || fail "the message of metrics.jsonl"
./adze eval "$tmp/deck.yaml" eval.adapter="$tmp/out/adapter" >"$tmp/log" 2>&1 || fail "the adapter is not whole"

# a checkpoint does not fit: the run goes on, keeps its last good one and its adapter, and says so; or it ends, as the deck says
rm -rf "$tmp/out"
./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=2 train.lr_scheduler_type=constant >"$tmp/log" 2>&1 || fail "two steps"
cp -r "$tmp/out" "$tmp/two"
going=$(grep -c . <"$tmp/two/state")
for way in continue stop; do
    rm -rf "$tmp/out"
    cp -r "$tmp/two" "$tmp/out"
    (ulimit -S -f $((checkpoint - 4)) && exec timeout 60 ./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=6 \
        train.lr_scheduler_type=constant checkpoint.save_steps=2 checkpoint.on_error=$way) 2>&1 | cat >"$tmp/log"
    [ "${PIPESTATUS[0]}" = 3 ] || fail "$way: code ${PIPESTATUS[0]}"
    cmp -s "$tmp/two/checkpoint-000002.h5" "$tmp/out/checkpoint-000002.h5" || fail "$way: the last good checkpoint changed"
    [ "$(ls "$tmp/out" | grep -c checkpoint)" = 1 ] || fail "$way: more than the last good checkpoint: $(ls "$tmp/out")"
    grep -qx 'state: failed' "$tmp/out/state" && grep -qx 'checkpoint: checkpoint-000002.h5' "$tmp/out/state" || fail "$way: the state"
    [ "$(wc -l <"$tmp/out/state")" = "$going" ] || fail "$way: lines of the state"
done
grep -q "^adze: error: $tmp/out/checkpoint-000004.h5.tmp: cannot reserve space: File too large" "$tmp/log" || fail "stop: the message"
[ "$(grep -c '^step ' "$tmp/log")" = 2 ] || fail "stop: not ended at the first failure"
cmp -s "$tmp/two/adapter/adapter_model.safetensors" "$tmp/out/adapter/adapter_model.safetensors" && fail "stop: the adapter is not written all the same"
[ -f "$tmp/out/adapter.h5" ] || fail "stop: no adapter.h5"
# asked to stop, and the state does not fit: the adapter is written all the same
for way in continue stop; do
    rm -rf "$tmp/out"
    (ulimit -S -f $((checkpoint - 4)) && exec timeout -k 5 60 ./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=1000000 \
        checkpoint.on_error=$way) >"$tmp/log" 2>&1 &
    until [ "$(cat "$tmp/out/metrics.jsonl" 2>/dev/null | wc -l)" -gt 4 ]; do
        kill -0 $! 2>/dev/null || fail "asked to stop, $way: ended by itself"
        sleep 0.05
    done
    kill -USR1 "$(child $!)"
    wait $! && fail "asked to stop, $way: success"
    grep -qx 'state: failed' "$tmp/out/state" && grep -qx 'code: 3' "$tmp/out/state" || fail "asked to stop, $way: the state"
    [ "$(grep -c '^adze: error: ' "$tmp/log")" = 1 ] || fail "asked to stop, $way: not one error"
    ./adze eval "$tmp/deck.yaml" eval.adapter="$tmp/out/adapter" >"$tmp/log" 2>&1 || fail "asked to stop, $way: no adapter"
    [ -f "$tmp/out/adapter.h5" ] || fail "asked to stop, $way: no adapter.h5"
done
rm -rf "$tmp/out"
cp -r "$tmp/two" "$tmp/out"
(ulimit -S -f $((checkpoint - 4)) && exec timeout 60 ./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=6 \
    train.lr_scheduler_type=constant checkpoint.save_steps=2) 2>&1 | cat >"$tmp/log"
[ "$(grep -c "^adze: warning: no checkpoint: .*File too large; the run goes on, the last good one is checkpoint-000002.h5" "$tmp/log")" = 2 ] ||
    fail "continue: the warnings"
grep -q "^adze: error: $tmp/out: the state after step 6 could not be saved; the last good checkpoint is checkpoint-000002.h5" "$tmp/log" ||
    fail "continue: the message at the end"
./adze eval "$tmp/deck.yaml" eval.adapter="$tmp/out/adapter" >"$tmp/log" 2>&1 || fail "continue: no adapter"
./adze train "$tmp/deck.yaml" output.dir="$tmp/out" train.max_steps=6 train.lr_scheduler_type=constant >"$tmp/log" 2>&1 || fail "going on with room"
grep -q '^resume .*checkpoint-000002.h5' "$tmp/log" || fail "does not go on from the last good one"

# generated rows do not fit: the earlier file stays
echo '{"input_ids": [1, 2, 3]}' >"$tmp/prompts.jsonl"
echo old >"$tmp/rows.jsonl"
(ulimit -S -f 0 && exec ./adze generate "$tmp/deck.yaml" generate.file="$tmp/prompts.jsonl" generate.output="$tmp/rows.jsonl") 2>&1 | cat >"$tmp/log"
[ "${PIPESTATUS[0]}" = 3 ] && grep -q "^adze: error: $tmp/rows.jsonl.tmp-[0-9]*: cannot write: File too large" "$tmp/log" || fail "generated rows"
[ "$(cat "$tmp/rows.jsonl")" = old ] && [ "$(ls "$tmp" | grep -c rows)" = 1 ] || fail "the earlier rows changed"

# A file system that is too small is found before the first step, where one can be mounted.
mkdir "$tmp/small"
if mount -t tmpfs -o size=16k adze "$tmp/small" 2>/dev/null; then
    trap 'umount "$tmp/small"; rm -rf "$tmp"' EXIT
    ./adze train "$tmp/deck.yaml" output.dir="$tmp/small/out" >"$tmp/log" 2>&1
    [ $? = 3 ] && grep -q "^adze: error: $tmp/small/out: [0-9.]* KiB are free on this file system, .* KiB are needed" "$tmp/log" ||
        fail "a file system that is too small"
    [ ! -e "$tmp/small/out" ] || fail "something was written to a file system that is too small"
    umount "$tmp/small"
    # no file can be made any more: the state file says all the same what became of the run
    mount -t tmpfs -o size=4m,nr_inodes=7 adze "$tmp/small"
    ./adze train "$tmp/deck.yaml" output.dir="$tmp/small/out" train.max_steps=2 checkpoint.save_steps=1 >"$tmp/log" 2>&1
    [ $? = 3 ] && grep -q '^adze: error: .*: No space left on device' "$tmp/log" || fail "no file can be made"
    grep -qx 'state: failed' "$tmp/small/out/state" && grep -q '^reason: .*No space left on device' "$tmp/small/out/state" &&
        [ "$(wc -l <"$tmp/small/out/state")" = "$going" ] || fail "the state where no file can be made: $(cat "$tmp/small/out/state")"
else
    echo "no file system was mounted here: free space was not tested"
fi
