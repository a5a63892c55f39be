#!/bin/bash
# PEFT takes adze's adapters: for each golden model a short training and a training with learning rate 0 from PEFT's adapter. The
# first must load in PEFT, be saved again with equal tensors and give the loss that `adze eval` prints, also after a way through
# adze's own file and `adze export` (as bf16 it must load); the second must be PEFT's own adapter, tensor for tensor.
# Needs a Python with transformers and peft: PYTHON_PEFT=/path/to/python.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
python=${PYTHON_PEFT:-python3}
"$python" -c 'import peft, transformers, torch' 2>/dev/null || {
    echo "no Python with transformers and peft (set PYTHON_PEFT)"
    exit 77
}
for name in gqa tied headdim rope3 bf16 layers; do
    golden=$src/tests/golden/llama-$name
    adze 2 train "$golden/deck.yaml" output.dir="$tmp/$name" || fail "$name: training"
    adze 3 eval --json "$golden/deck.yaml" eval.adapter="$tmp/$name/adapter" || fail "$name: eval"
    loss=$(sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$tmp/log")
    [ -n "$loss" ] || fail "$name: eval printed no loss"
    "$python" "$src/tests/golden/check_peft.py" "$golden/model" "$tmp/$name/adapter" --data "$golden/data.jsonl" \
        --loss "$loss" >"$tmp/log" 2>&1 || fail "$name: PEFT does not agree"
    adze 2 train "$golden/deck.yaml" output.dir="$tmp/same-$name" train.learning_rate=0 train.max_steps=2 ||
        fail "$name: training with learning rate 0"
    "$python" "$src/tests/golden/check_peft.py" "$golden/model" "$tmp/same-$name/adapter" \
        --same "$golden/adapter" >"$tmp/log" 2>&1 || fail "$name: the round trip changed the adapter"
    # ... and by way of adze's own file
    LD_PRELOAD=$yield timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 2 tests/tools/make_h5 checkpoint "$tmp/$name/adapter" "$tmp/$name.h5" \
        >"$tmp/log" 2>&1 || fail "$name: make_h5"
    ./adze export "$tmp/$name.h5" "$tmp/$name/exported" >"$tmp/log" 2>&1 || fail "$name: export"
    "$python" "$src/tests/golden/check_peft.py" "$golden/model" "$tmp/$name/exported" --same "$tmp/$name/adapter" \
        --data "$golden/data.jsonl" --loss "$loss" >"$tmp/log" 2>&1 || fail "$name: PEFT does not take what was exported"
    ./adze export --dtype bf16 "$tmp/$name.h5" "$tmp/$name/half" >"$tmp/log" 2>&1 || fail "$name: export as bf16"
    "$python" "$src/tests/golden/check_peft.py" "$golden/model" "$tmp/$name/half" >"$tmp/log" 2>&1 ||
        fail "$name: PEFT does not take what was exported as bf16"
done
