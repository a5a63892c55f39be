#!/bin/bash
# Every deck in inputs/ is understood. Those whose model is not here are refused for that alone, before anything is
# written.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
n=0
for deck in "$src"/inputs/*.yaml; do
    n=$((n + 1))
    # A model directory that is not there is found out only after all of the deck has been read and judged.
    adze 1 train "$deck" model.path="$tmp/no-model" output.dir="$tmp/out" && fail "$deck: trained without a model"
    grep -q "^adze: error: $tmp/no-model[^:]*: .*No such file or directory" "$tmp/log" ||
        fail "$deck: the missing model is not what it complains of"
    [ "$(grep -c '^adze: ' "$tmp/log")" = 1 ] || fail "$deck: more than one message"
    [ ! -e "$tmp/out" ] || fail "$deck: something was written without a model"
done
[ "$n" -gt 0 ] || fail "no decks in inputs/"
# The check itself can fail: a deck with a fault is refused for its fault.
sed 's/lora_alpha/lora_alhpa/' "$src/inputs/llama2-7b-qv.yaml" >"$tmp/fault.yaml"
adze 1 train "$tmp/fault.yaml" model.path="$tmp/no-model" && fail "a deck with an unknown key was taken"
grep -q 'fault.yaml:[0-9]*: lora.lora_alhpa: .*lora_alpha' "$tmp/log" || fail "an unknown key is not named"
# As it stands, the deck of Llama-2-7b says which directory it wants.
adze 1 train "$src/inputs/llama2-7b-qv.yaml" output.dir="$tmp/out" && fail "trained without a model"
grep -q 'error: .*models/Llama-2-7b-hf.*No such file or directory' "$tmp/log" || fail "the model is not named"
