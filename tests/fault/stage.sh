#!/bin/bash
# model.stage where the copy cannot be made: a disk that is too small is refused before anything is copied, a write that fails
# and a job that is killed leave nothing that counts as a copy.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
model=$tmp/model
tests/tools/random_model "$model" 64 128 2 4 2 16 20000 f32 0 1 >/dev/null || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $model, stage: $tmp/disk}
data: {files: [$tmp/data.jsonl], max_length: 64}
train: {batch_size: 2, max_steps: 1}
checkpoint: {save_minutes: 0}
output: {dir: $tmp/out}
DECK
echo '{"input_ids": [1, 2, 3, 4, 5]}' >"$tmp/data.jsonl"
echo '{"input_ids": [5, 4, 3, 2]}' >>"$tmp/data.jsonl"
kib=$(($(stat -c %s "$model/model.safetensors") / 1024))

# a limit on the size of files stands for a disk that fills up meanwhile
(ulimit -S -f $((kib / 2)) && UCX_TLS=self exec timeout 60 ./adze train "$tmp/deck.yaml") >"$tmp/log" 2>&1
[ $? = 3 ] || fail "a file that is too large: code"
grep -q "^adze: error: $tmp/disk/model-[0-9a-f]*.tmp-.*/model.safetensors: cannot reserve space: File too large" "$tmp/log" || fail "the message"
[ "$(ls "$tmp/disk" | grep -vc '\.lock$')" = 0 ] || fail "left: $(ls "$tmp/disk")"

# killed while it copies: what is there is no copy, and goes with the next job
if ! grep -q 'lib\(a\|ub\)san' < <(ldd ./adze) && [ -f tests/tools/hang.so ]; then
    (LD_PRELOAD="$yield $PWD/tests/tools/hang.so" AZ_HANG=pwrite AZ_HANG_RANK=1 timeout 60 ${MPIEXEC:-mpiexec} -n 2 \
        ./adze train "$tmp/deck.yaml" output.dir="$tmp/killed" >"$tmp/log" 2>&1) &
    until [ -n "$(find "$tmp/disk" -name model.safetensors)" ]; do
        kill -0 $! || fail "killed: ended by itself"
        sleep 0.05
    done
    # shellcheck disable=SC2046
    kill -9 $(ranks "output.dir=$tmp/killed")
    wait
    [ "$(ls "$tmp/disk" | grep -c 'tmp-')" = 1 ] && [ "$(ls "$tmp/disk" | grep -vc '\.lock$')" = 1 ] || fail "killed: $(ls "$tmp/disk")"
    adze 2 train "$tmp/deck.yaml" || fail "after a job that was killed"
    grep -q "^staged    $tmp/disk/model-[0-9a-f]*: .*MiB in" "$tmp/log" || fail "after a job that was killed: not copied"
    [ "$(ls "$tmp/disk" | grep -vc '\.lock$')" = 1 ] && ! ls "$tmp/disk" | grep -q tmp- || fail "remains: $(ls "$tmp/disk")"
    cmp "$model/model.safetensors" "$tmp/disk"/model-*/model.safetensors || fail "the copy differs"
fi

mkdir "$tmp/small"
if mount -t tmpfs -o size=2m adze "$tmp/small" 2>/dev/null; then
    trap 'umount "$tmp/small"; rm -rf "$tmp"' EXIT
    adze 2 train "$tmp/deck.yaml" model.stage="$tmp/small/here"
    [ $? = 3 ] || fail "a small disk: code"
    grep -q "^adze: error: model.stage: $tmp/small/here on .*: [0-9.]* MiB are free, the copy of $model needs [0-9.]* MiB" "$tmp/log" ||
        fail "a small disk: the message"
    [ "$(grep -c '^adze: ' "$tmp/log")" = 1 ] || fail "a small disk: not one message"
    [ "$(ls "$tmp/small/here" | grep -vc '\.lock$')" = 0 ] || fail "a small disk: $(ls "$tmp/small/here")"
else
    echo "no file system was mounted here: a disk that is full was not tested"
fi
