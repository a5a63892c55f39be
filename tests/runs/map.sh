#!/bin/bash
# model.load: map: the base where its files are changes no bit, on one node and on two (which MPICH is told to see on this
# machine), poisoned, from a staged copy, with tensors that are not aligned, and for a run that goes on; no process holds a copy
# or can write. What goes against it is refused. A file that is cut, or written to, ends the run with a message.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
reference model.load=job
# mapped N NODES [key=value ...]: the same, where the files are
mapped() {
    same "$@" model.load=map
    grep -q '^base      .* used where the files are, .*; 0 B copied' "$tmp/log" || fail "$*: not said"
}
mapped 2 1
! grep -q 'base slices' "$tmp/log" || fail "memory for a copy"
mapped 3 2 run.poison=true
mapped 2 1 model.stage="$tmp/disk"
rm "$tmp/one/checkpoint-000020.h5"
from=$tmp/one mapped 2 1

# tensors that begin at odd bytes: the header is made longer by one blank
model=$src/tests/golden/llama-tied/model
cp -r "$model" "$tmp/odd"
n=$(od -An -tu8 -N8 "$model/model.safetensors" | tr -d ' ')
{
    for i in 0 8 16 24 32 40 48 56; do
        # shellcheck disable=SC2059
        printf "\\x$(printf %02x $(((n + 1) >> i & 255)))"
    done
    tail -c +9 "$model/model.safetensors" | head -c "$n"
    printf ' '
    tail -c +$((9 + n)) "$model/model.safetensors"
} >"$tmp/odd/model.safetensors"
rm -rf "$tmp/out"
adze 2 train "$deck" model.path="$tmp/odd" output.dir="$tmp/out" model.load=map || fail "odd"
grep -q '^base      .* used where the files are, .*; 0 B copied' "$tmp/log" && fail "odd: nothing is copied"
losses "$tmp/out" | cmp -s "$tmp/losses" - || fail "odd: losses differ"

# planned: the base is nobody's memory
./adze plan "$deck" model.load=map --nodes 2 >"$tmp/log" 2>&1 || fail "plan"
grep -q 'scope  *node  *model.load: map: the copy is the system.s cache of the files' "$tmp/log" || fail "plan: not said"
! grep -qE '^  (shared copy|base slices|resident units) ' "$tmp/log" || fail "plan: memory for a copy"

# refused
for key in shard.scope=world shard.resident=0.5; do
    ./adze train "$deck" output.dir="$tmp/no" model.load=map $key >"$tmp/log" 2>&1
    [ $? = 2 ] && grep -q "${key%=*}: goes against model.load: map, in which every unit is resident" "$tmp/log" || fail "$key"
done

# begin NAME: a long run of two ranks on a copy of the model, at work
begin() {
    rm -rf "$tmp/copy"
    cp -r "$model" "$tmp/copy"
    LD_PRELOAD=$yield timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 2 ./adze train "$deck" model.path="$tmp/copy" output.dir="$tmp/$1" \
        model.load=map train.num_train_epochs=1000000 >"$tmp/log" 2>&1 &
    launcher=$!
    until [ -s "$tmp/$1/metrics.jsonl" ]; do
        kill -0 $launcher 2>/dev/null || fail "$1: ended by itself"
        sleep 0.1
    done
}
# ended NAME CODE MESSAGE: the run has ended so, once for all ranks
ended() {
    local code
    wait $launcher
    code=$?
    [ $code = "$2" ] || fail "$1: code $code"
    [ "$(grep -c '^adze: error: ' "$tmp/log")" = 1 ] && grep -q "^adze: error: $tmp/copy/model.safetensors: $3" "$tmp/log" || fail "$1: the message"
    grep -qx 'state: failed' "$tmp/$1/state" && grep -qx "code: $2" "$tmp/$1/state" && grep -q "^reason: $tmp/copy/.*$3" "$tmp/$1/state" ||
        fail "$1: the state: $(cat "$tmp/$1/state")"
}
begin cut
for pid in $(ranks "output.dir=$tmp/cut"); do cat "/proc/$pid/maps"; done >"$tmp/pages"
[ "$(awk '/model.safetensors/ {print $2}' "$tmp/pages" | sort | uniq -c | xargs)" = "2 r--s" ] || fail "rights of the files' pages"
! grep -q memfd:adze-base "$tmp/pages" || fail "a copy beside the files"
truncate -s 4096 "$tmp/copy/model.safetensors"
ended cut 3 "cannot be read any more: the file was cut or its disk fails"
[ ! -e "$tmp/cut/adapter" ] || fail "cut: an adapter"

begin written
touch "$tmp/copy/model.safetensors"
# shellcheck disable=SC2046
kill -USR1 $(ranks "output.dir=$tmp/written" | head -n 1)
ended written 3 "was written to while it was in use in place"
[ ! -e "$tmp/written/adapter" ] || fail "written to: an adapter"
