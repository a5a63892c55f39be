#!/bin/bash
# HDF5's own h5dump prints the numbers of a checkpoint and of a bf16 adapter.h5: those of adapter_model.safetensors, to all
# digits; of files made of an adapter of PEFT's, and of what a training writes.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
command -v h5dump >/dev/null || {
    echo "no h5dump"
    exit 77
}
given=$src/tests/golden/llama-gqa/adapter
for kind in "checkpoint f32" "adapter bf16"; do
    set -- $kind
    LD_PRELOAD=$yield timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 3 tests/tools/make_h5 "$1" "$given" "$tmp/$1.h5" "$2" >"$tmp/log" 2>&1 ||
        fail "make_h5 $kind"
    h5dump -y -m %.9g -g /adapter "$tmp/$1.h5" >"$tmp/text" 2>"$tmp/log" || fail "h5dump of a file with $kind"
    tests/tools/check_h5dump "$given" "$2" <"$tmp/text" >"$tmp/log" 2>&1 || fail "h5dump of a file with $kind prints other numbers"
    cat "$tmp/log"
done
# The check can fail: one digit of one number.
sed '0,/^ *-\{0,1\}[0-9][0-9.e-]*[1-9]/s/[1-8]\([0-9]*\),/9\1,/' "$tmp/text" >"$tmp/wrong"
cmp -s "$tmp/text" "$tmp/wrong" && fail "nothing was changed"
tests/tools/check_h5dump "$given" bf16 <"$tmp/wrong" >"$tmp/log" 2>&1 && fail "another number is not found"
h5dump -n "$tmp/checkpoint.h5" >"$tmp/log" 2>&1 || fail "h5dump -n"
for name in /adapter_config /deck /shards /trainer /base /optimizer/exp_avg /optimizer/exp_avg_sq; do
    grep -q " $name\$" "$tmp/log" || fail "h5dump does not list $name"
done

# What a training writes, f32 and bf16: adapter.h5 and the last checkpoint hold what adapter/ holds, which is PEFT's own format.
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
lora: {r: 3, target_modules: all-linear}
train: {batch_size: 6, max_steps: 3, learning_rate: 1e-2}
checkpoint: {save_steps: 1}
DECK
printed() { # DIR FILE TYPE
    h5dump -y -m %.9g -g /adapter "$1/$2" >"$tmp/text" 2>"$tmp/log" || fail "h5dump of $2"
    tests/tools/check_h5dump "$1/adapter" "$3" <"$tmp/text" >"$tmp/log" 2>&1 || fail "h5dump of the trained $2, $3, prints other numbers"
    cat "$tmp/log"
}
for type in f32 bf16; do
    adze 3 train "$tmp/deck.yaml" output.dir="$tmp/$type" output.adapter_dtype=$type || fail "training, $type"
    printed "$tmp/$type" adapter.h5 $type
done
printed "$tmp/f32" checkpoint-000003.h5 f32
cmp -s "$tmp/f32/adapter/adapter_model.safetensors" "$tmp/bf16/adapter/adapter_model.safetensors" && fail "bf16 is f32"
# The moments: as many arrays, of the same names and shapes, with numbers in them; squares are not negative.
for group in /adapter /optimizer/exp_avg /optimizer/exp_avg_sq; do
    h5dump -H -g $group "$tmp/f32/checkpoint-000003.h5" | grep -E 'DATASET "|DATASPACE  *SIMPLE' >"$tmp/shapes" || fail "h5dump -H"
    [ "$(wc -l <"$tmp/shapes")" = 56 ] || fail "$group: not 28 arrays"
    [ $group = /adapter ] && cp "$tmp/shapes" "$tmp/want"
    diff "$tmp/want" "$tmp/shapes" >"$tmp/log" || fail "$group: other names or shapes"
    h5dump -y -m %.9g -g $group "$tmp/f32/checkpoint-000003.h5" | grep -E '^ *[-0-9][-+0-9.e]*(,|$)' >"$tmp/numbers"
    [ "$(grep -c '[1-9]' "$tmp/numbers")" -gt 400 ] || fail "$group: hardly any number"
    [ $group != /optimizer/exp_avg_sq ] || ! grep -qE '(^|[ ,])-[0-9]' "$tmp/numbers" || fail "$group: a square is negative"
done
