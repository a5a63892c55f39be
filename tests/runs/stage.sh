#!/bin/bash
# model.stage: the copy of a model on a disk of the node is made once, by all ranks of the node, and changes no bit; it is used
# again while it is whole and the model's files are the same; two jobs at the same time make one; a request to stop ends the
# waiting for another job.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$tmp/deck.yaml
model=$tmp/model
cp -r "$src/tests/golden/llama-gqa/model" "$model"
cat >"$deck" <<DECK
model: {path: $model, stage: $tmp/disk}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4, max_steps: 2}
checkpoint: {save_minutes: 0}
DECK
# copies: the names under which there are copies; nothing but these and their locks may be there
copies() {
    find "$tmp/disk" -mindepth 1 -maxdepth 1 ! -name '*.lock' -printf '%f\n' | sort
}
# same OUT: the run ended as the one that reads the model where it is, and says the same of it
same() {
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$1/adapter/adapter_model.safetensors" || fail "$1: another adapter"
    cmp -s "$tmp/one/adapter/adapter_config.json" "$1/adapter/adapter_config.json" || fail "$1: another adapter_config.json"
}
adze 1 train "$deck" model.stage=null output.dir="$tmp/one" || fail "without a copy"
[ ! -e "$tmp/disk" ] || fail "null makes a copy"
adze 3 train "$deck" output.dir="$tmp/out1" || fail "first"
same "$tmp/out1"
name=$(copies)
[[ $name =~ ^model-[0-9a-f]{16}$ ]] || fail "the copy's name: $name"
grep -q "^staged    $tmp/disk/$name: .*KiB in " "$tmp/log" || fail "first: not said"
for f in "$tmp/disk/$name"/*; do
    cmp -s "$f" "$model/${f##*/}" || fail "${f##*/} differs"
    [ "$(stat -c %Y "$f")" = "$(stat -c %Y "$model/${f##*/}")" ] || fail "${f##*/}: another time"
done
[ -f "$tmp/disk/$name/config.json" ] && [ -f "$tmp/disk/$name/model.safetensors" ] || fail "files are missing: $(ls "$tmp/disk/$name")"
inode=$(stat -c %i "$tmp/disk/$name")
MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$deck" output.dir="$tmp/out2" || fail "again"
same "$tmp/out2"
grep -q "^staged    $tmp/disk/$name: there already" "$tmp/log" || fail "again: not said"
[ "$(stat -c %i "$tmp/disk/$name")" = "$inode" ] || fail "made again"
./adze eval "$deck" eval.file="$src/tests/golden/llama-gqa/data.jsonl" >"$tmp/log" 2>&1 || fail "eval"
grep -q '^staged ' "$tmp/log" || fail "eval does not use the copy"

# one that is not whole is made again, remains of a job that was killed go; so does a copy made by two nodes that have one disk
truncate -s 100 "$tmp/disk/$name/model.safetensors"
mkdir "$tmp/disk/$name.tmp-$(uname -n)-1"
cp "$model/model.safetensors" "$tmp/disk/$name.tmp-$(uname -n)-1"
MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$deck" output.dir="$tmp/out3" || fail "not whole"
same "$tmp/out3"
[ "$(copies)" = "$name" ] || fail "not whole: $(copies)"
grep -q "^staged    .* on each of 2 nodes (there already on 1) in" "$tmp/log" || fail "not whole: not said"

# files that change have another copy
touch -d 2020-01-01 "$model/model.safetensors"
adze 1 train "$deck" output.dir="$tmp/out4" || fail "changed"
[ "$(copies | wc -l)" = 2 ] || fail "changed: $(copies)"

# two jobs at the same time
rm -r "$tmp/disk"
for i in 5 6; do
    LD_PRELOAD=$yield timeout 60 ${MPIEXEC:-mpiexec} -n 2 ./adze train "$deck" output.dir="$tmp/out$i" >"$tmp/log$i" 2>&1 &
done
wait
for i in 5 6; do
    cp "$tmp/log$i" "$tmp/log"
    same "$tmp/out$i"
done
[ "$(copies | wc -l)" = 1 ] || fail "two jobs: $(copies)"
[ "$(cat "$tmp/log5" "$tmp/log6" | grep -c '^staged .*there already')" = 1 ] || fail "two jobs: not one that has found the copy"

# the lock is held: the job waits, and ends when it is asked to stop
lock=("$tmp/disk"/*.lock)
rm -r "${lock[0]%.lock}"
exec 9>"${lock[0]}"
flock 9
LD_PRELOAD=$yield timeout 60 ${MPIEXEC:-mpiexec} -n 2 ./adze train "$deck" output.dir="$tmp/out7" >"$tmp/log" 2>&1 9>&- &
launcher=$!
until pid=$(ranks "output.dir=$tmp/out7" | head -n 1) && [ -n "$pid" ] &&
    (($(printf '0x%s' "$(awk '/^SigCgt/ {print $2}' "/proc/$pid/status")") & 0x200)); do # it catches SIGUSR1
    kill -0 $launcher || fail "asked to stop: ended by itself"
    sleep 0.05
done
kill -USR1 "$pid"
wait $launcher
code=$?
[ $code = 75 ] || fail "asked to stop: code $code"
grep -q '^adze: stopped by SIGUSR1' "$tmp/log" || fail "asked to stop: the message"
[ -z "$(copies)" ] || fail "asked to stop: $(copies)"
