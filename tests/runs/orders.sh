#!/bin/bash
# Neither the order of accumulation nor what is kept of activations changes a bit: losses, evaluation losses and the adapter, on
# 1, 2 and 3 ranks, untied on one node and tied on two, with dropout, an uneven last step, adapters on all linears and on upper layers only. In
# layer-major order the gathers are those of one micro-batch a step.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
awk 'BEGIN {srand(9); for (i = 0; i < 34; i++) {s = ""; n = 2 + int(20 * rand());
    for (j = 0; j < n; j++) s = s (j ? ", " : "") int(301 * rand()); print "{\"input_ids\": [" s "]}"}}' >"$tmp/data.jsonl"
head -n 5 "$tmp/data.jsonl" >"$tmp/few.jsonl"
cat >"$tmp/deck.yaml" <<DECK
data: {files: [data.jsonl]}
lora: {r: 3, lora_dropout: 0.1}
train: {batch_size: 12, micro_batch_size: 2, num_train_epochs: 2, learning_rate: 0.01, max_grad_norm: 0.5, seed: 3}
DECK
# run NAME N ACCUMULATION ACTIVATIONS [key=value ...]
run() {
    local out=$tmp/$1 n=$2 accumulation=$3 activations=$4
    shift 4
    rm -rf "$out"
    adze "$n" train "$tmp/deck.yaml" output.dir="$out" shard.accumulation="$accumulation" shard.activations="$activations" "$@" ||
        fail "$n ranks, $accumulation, $activations, $*"
    losses "$out" >"$out/losses"
    grep -q '^allocated 0 times' "$tmp/log" || fail "$n ranks, $accumulation, $activations: the step loop allocates"
}
gathers() {
    sed -n 's/^gathers  *\([0-9,]*\) .*/\1/p' "$tmp/log" | tr -d ,
}
# The lowest adapted linear of "upper" is not the first of its layer, and a layer in between has none.
all="lora.target_modules=all-linear"
upper="lora.target_modules=[o_proj,down_proj] lora.layers_to_transform=[2,4]"
for tied in 0 1; do
    tests/tools/random_model "$tmp/model" 8 12 5 2 1 4 301 bf16 $tied 3 || fail "no model"
    for adapters in "$all" "$upper"; do
        set -- model.path="$tmp/model" eval.file="$tmp/few.jsonl" eval.steps=2 $adapters
        run first 1 depth_first recompute "$@"
        [ "$(wc -l <"$tmp/first/losses")" = 10 ] || fail "not 6 steps and 4 evaluations"
        export MPIR_CVAR_NUM_CLIQUES=$((tied + 1))
        for how in "1 layer_major recompute" "1 depth_first keep" "1 layer_major cheap" "2 depth_first cheap" \
            "2 layer_major keep run.poison=true" "2 layer_major cheap shard.reduce=unit" "3 layer_major recompute" "3 layer_major keep shard.scope=world"; do
            run other $how "$@"
            cmp -s "$tmp/first/losses" "$tmp/other/losses" || fail "$how: losses differ ($*)"
            cmp -s "$tmp/first/adapter/adapter_model.safetensors" "$tmp/other/adapter/adapter_model.safetensors" ||
                fail "$how: the adapter differs ($*)"
        done
        unset MPIR_CVAR_NUM_CLIQUES
    done
done

# 34 samples in steps of 12, 12 and 10: six, six and five micro-batches on one rank; 3, 3 and 3 rounds on two.
set -- model.path="$tmp/model" $all train.num_train_epochs=1
run first 1 depth_first recompute "$@"
one=$(($(gathers) / 17))
[ "$(gathers)" = $((17 * one)) ] && [ "$one" -gt 10 ] || fail "gathers of one micro-batch: $(gathers) / 17"
run other 1 layer_major keep "$@"
[ "$(gathers)" = $((3 * one)) ] || fail "layer-major on one rank: $(gathers) gathers, not 3 x $one"
run other 2 depth_first keep "$@"
[ "$(gathers)" = $((9 * one)) ] || fail "depth-first on two ranks: $(gathers) gathers, not 9 x $one"
run other 2 layer_major cheap "$@"
[ "$(gathers)" = $((3 * one)) ] || fail "layer-major on two ranks: $(gathers) gathers, not 3 x $one"
