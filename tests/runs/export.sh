#!/bin/bash
# What reads checkpoints and adapter.h5: export gives the adapter back to the bit and its config to the byte, inspect lists,
# verify names what is damaged, eval, generate and lora.init_from take the file in the place of a PEFT directory. The files are
# made on three ranks from an adapter of PEFT's.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
golden=$src/tests/golden/llama-gqa
given=$golden/adapter
make_h5() {
    LD_PRELOAD=$yield timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 3 tests/tools/make_h5 "$@" >"$tmp/log" 2>&1 || fail "make_h5 $*"
}
# one ARGUMENTS...: the program without a launcher
one() { timeout -k 5 60 ./adze "$@" >"$tmp/log" 2>&1; }
# refused CODE TEXT ARGUMENTS...: it ends with this code and its output holds the text
refused() {
    local code=$1 text=$2
    shift 2
    one "$@"
    local got=$?
    [ $got = "$code" ] || fail "adze $*: code $got instead of $code"
    grep -qF -- "$text" "$tmp/log" || fail "adze $*: does not say: $text"
}
same() { cmp "$1" "$2" >>"$tmp/log" 2>&1 || fail "$3"; }
# flip FILE NAME: one bit of the first number of a tensor
flip() {
    local at byte
    at=$(./adze inspect --json "$1" | sed -n "s|.*\"name\": \"$2\".*\"offset\": \([0-9]*\).*|\1|p")
    [ -n "$at" ] || fail "inspect does not list $2"
    byte=$(od -An -tu1 -j "$at" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 16)))" | dd of="$1" bs=1 seek="$at" conv=notrunc 2>/dev/null
}
tensor=/adapter/base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight

make_h5 checkpoint "$given" "$tmp/c.h5"
make_h5 adapter "$given" "$tmp/a.h5"
make_h5 adapter "$given" "$tmp/half.h5" bf16

# ---- export
one export "$tmp/c.h5" "$tmp/new/deep" || fail "export"
grep -q "^$tmp/new/deep: [0-9]* tensors, F32, .* after step 120$" "$tmp/log" || fail "export does not say what it wrote"
same "$given/adapter_config.json" "$tmp/new/deep/adapter_config.json" "the config is not the text that the file keeps"
[ "$(ls "$tmp/new/deep" | wc -l)" = 2 ] || fail "export leaves more than two files"
one export "$tmp/a.h5" "$tmp/from-a" || fail "export of adapter.h5"
same "$tmp/new/deep/adapter_model.safetensors" "$tmp/from-a/adapter_model.safetensors" "checkpoint and adapter.h5 differ"
# What was exported is the adapter that was given: a file made of it is the same file but for names and times of HDF5.
make_h5 adapter "$tmp/from-a" "$tmp/again.h5"
one export "$tmp/again.h5" "$tmp/again" || fail "export of what was exported"
same "$tmp/from-a/adapter_model.safetensors" "$tmp/again/adapter_model.safetensors" "there and back is not the same"
adze 1 train "$golden/deck.yaml" output.dir="$tmp/still" train.learning_rate=0 train.max_steps=1 lora.init_from="$given" ||
    fail "training without learning"
same "$tmp/still/adapter/adapter_model.safetensors" "$tmp/from-a/adapter_model.safetensors" "the exported numbers are others"
# bf16: asked for, or as the file has it; the same rounding
one export --dtype bf16 "$tmp/c.h5" "$tmp/bf16" || fail "export --dtype bf16"
one export "$tmp/half.h5" "$tmp/half" || fail "export of a bf16 file"
same "$tmp/bf16/adapter_model.safetensors" "$tmp/half/adapter_model.safetensors" "two ways to bf16 differ"
one inspect "$tmp/bf16" || fail "inspect of what was exported"
grep -q '^total  BF16' "$tmp/log" || fail "bf16 was asked for and not written"
one export --dtype f32 "$tmp/half.h5" "$tmp/wide" || fail "export --dtype f32"

# ---- an adapter is replaced, anything else is left alone
echo mine >"$tmp/from-a/README.md"
one export "$tmp/half.h5" "$tmp/from-a" || fail "export over an adapter"
same "$tmp/from-a/adapter_model.safetensors" "$tmp/half/adapter_model.safetensors" "the adapter was not replaced"
[ -e "$tmp/from-a/README.md" ] || fail "export removed a file that is not its own"
mkdir "$tmp/other" && echo mine >"$tmp/other/notes"
refused 2 "$tmp/other: holds other files and no adapter" export "$tmp/c.h5" "$tmp/other"
[ "$(ls "$tmp/other")" = notes ] || fail "a refused export changed the directory"
refused 2 "this is a file, and the adapter needs a directory here" export "$tmp/c.h5" "$tmp/other/notes"
refused 2 "$given: is a directory" export "$given" "$tmp/x"
refused 2 "export: --dtype: found f16, allowed are f32 and bf16" export --dtype f16 "$tmp/c.h5" "$tmp/x"
refused 2 "export: the directory to make was expected" export "$tmp/c.h5"
refused 2 "$given/adapter_model.safetensors" export "$given/adapter_model.safetensors" "$tmp/x"
refused 2 "$tmp/none.h5" export "$tmp/none.h5" "$tmp/x"
[ ! -e "$tmp/x" ] || fail "a refused export made a directory"

# ---- inspect
one inspect "$tmp/c.h5" || fail "inspect"
for line in "$tmp/c.h5: checkpoint, " 'format     version 1' 'trainer    epoch: 1.5' '           step: 120' 'fingerprint: 0123456789abcdef' \
    'adapter    LoRA' 'deck       ' 'train.batch_size: 8' 'shards     rank 0: ' 'rank 2: ' " $tensor" 'total  F32'; do
    grep -qF -- "$line" "$tmp/log" || fail "inspect does not print: $line"
done
grep -q max_steps "$tmp/log" && fail "inspect prints a key that is null"
one inspect "$tmp/half.h5" || fail "inspect of adapter.h5"
grep -q "half.h5: adapter file, " "$tmp/log" && grep -q '^total  BF16' "$tmp/log" || fail "inspect of a bf16 file"
one inspect --json "$tmp/c.h5" || fail "inspect --json"
grep -qF '"deck": "model:\n' "$tmp/log" && grep -q '"kind": "checkpoint"' "$tmp/log" && grep -q '"step": 120' "$tmp/log" ||
    fail "inspect --json lacks something"
h5tool=$(command -v python3) && { "$h5tool" -m json.tool "$tmp/log" >/dev/null 2>&1 || fail "inspect --json is no JSON"; }

# ---- verify
one verify "$tmp/c.h5" "$tmp/half.h5" "$given" "$given/adapter_model.safetensors" "$golden/model" || fail "verify"
[ "$(wc -l <"$tmp/log")" = 5 ] || fail "verify does not print a line each"
grep -q "c.h5: checkpoint, whole: [0-9]* datasets, .* in " "$tmp/log" || fail "verify does not say what it read"
cp "$tmp/c.h5" "$tmp/bad.h5" && flip "$tmp/bad.h5" "$tensor"
flip "$tmp/bad.h5" "${tensor/adapter/optimizer\/exp_avg}"
refused 2 "$tensor" verify "$tmp/bad.h5"
grep -qF "${tensor/adapter/optimizer\/exp_avg}" "$tmp/log" || fail "the second damaged tensor is not named"
refused 2 'verify: 1 of 3 are not whole' verify "$tmp/c.h5" "$tmp/bad.h5" "$given"
grep -q "c.h5: checkpoint, whole" "$tmp/log" && grep -qF "$tensor" "$tmp/log" && grep -q "^$given: adapter" "$tmp/log" ||
    fail "not all files were looked at"
head -c 4000 "$tmp/c.h5" >"$tmp/cut.h5"
refused 2 "$tmp/cut.h5" verify "$tmp/cut.h5"
refused 2 "$tmp/cut.h5" inspect "$tmp/cut.h5"
cp -r "$given" "$tmp/nan" && chmod -R u+w "$tmp/nan"
printf '\377\377\377\377' | dd of="$tmp/nan/adapter_model.safetensors" bs=1 conv=notrunc 2>/dev/null \
    seek=$(($(stat -c %s "$tmp/nan/adapter_model.safetensors") - 4))
refused 2 'holds numbers that are not finite' verify "$tmp/nan"
refused 2 'verify: files or directories to look at were expected' verify
refused 2 'verify: unknown option --all' verify --all "$tmp/c.h5"

# ---- the base
cp -r "$golden/model" "$tmp/base" && chmod -R u+w "$tmp/base"
refused 2 "c.h5: made with another base: fingerprint 0123456789abcdef of /models/tiny, but $tmp/base has " \
    verify --verify-base "$tmp/base" "$tmp/c.h5"
print=$(sed -n 's/.* has \([0-9a-f]\{16\}\)$/\1/p' "$tmp/log")
make_h5 checkpoint "$given" "$tmp/right.h5" f32 "$golden/model" "$print"
one verify --verify-base "$tmp/base" "$tmp/right.h5" || fail "verify --verify-base with the right base"
grep -q "whole: .*; its base is $tmp/base\$" "$tmp/log" || fail "verify does not say that the base is the right one"
adze 2 eval "$golden/deck.yaml" eval.adapter="$tmp/right.h5" || fail "eval on the base of the file"
grep -q 'another base' "$tmp/log" && fail "eval takes the right base for another"
weights=$(ls "$tmp/base"/*.safetensors | head -n 1)
byte=$(tail -c 1 "$weights" | od -An -tu1)
printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 1)) conv=notrunc 2>/dev/null
refused 2 "right.h5: made with another base: fingerprint $print of " verify --verify-base "$tmp/base" "$tmp/right.h5"
adze 2 eval "$golden/deck.yaml" eval.adapter="$tmp/right.h5" model.path="$tmp/base" || fail "eval on another base"
[ "$(grep -c 'adze: warning: .*made with another base (fingerprint' "$tmp/log")" = 1 ] || fail "eval does not warn of another base"
refused 2 "$given: --verify-base needs checkpoints" verify --verify-base "$tmp/base" "$given"

# ---- a damaged file gives no adapter, and takes none away
refused 2 "$tensor" export "$tmp/bad.h5" "$tmp/x"
[ ! -e "$tmp/x" ] || fail "a damaged file made a directory"
refused 2 "$tensor" export "$tmp/bad.h5" "$tmp/from-a"
same "$tmp/from-a/adapter_model.safetensors" "$tmp/half/adapter_model.safetensors" "a damaged file took an adapter away"

# ---- in the place of a directory
loss() { sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$tmp/log"; }
adze 2 eval --json "$golden/deck.yaml" eval.adapter="$given" || fail "eval with a directory"
want=$(loss)
for n in 1 3; do
    adze $n eval --json "$golden/deck.yaml" eval.adapter="$tmp/c.h5" || fail "eval with a checkpoint on $n ranks"
    [ -n "$want" ] && [ "$(loss)" = "$want" ] || fail "eval with a checkpoint on $n ranks gives $(loss), with a directory $want"
done
adze 2 eval "$golden/deck.yaml" eval.adapter="$tmp/bad.h5" && fail "eval takes a damaged file"
grep -qF "$tensor" "$tmp/log" && [ "$(grep -c 'adze: error' "$tmp/log")" = 1 ] || fail "eval does not name what is damaged"
adze 2 train "$golden/deck.yaml" output.dir="$tmp/from" train.learning_rate=0 train.max_steps=1 lora.init_from="$tmp/a.h5" || fail "lora.init_from with adapter.h5"
same "$tmp/from/adapter/adapter_model.safetensors" "$tmp/new/deep/adapter_model.safetensors" "lora.init_from: another adapter"
echo '{"input_ids": [1, 2, 3]}' >"$tmp/p.jsonl"
for adapter in "$given" "$tmp/a.h5"; do
    adze 2 generate "$golden/deck.yaml" generate.adapter="$adapter" generate.file="$tmp/p.jsonl" generate.output="$tmp/g" \
        generate.max_new_tokens=8 || fail "generate with $adapter"
    cat "$tmp/g" >>"$tmp/texts"
done
[ "$(sort -u "$tmp/texts" | wc -l)" = 1 ] || fail "generate with adapter.h5 differs"
