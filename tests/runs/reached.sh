#!/bin/bash
# Every adapted linear is reached by the gradient, of the layers too whose activations are computed again [6] [7]: after one step
# B, which starts at zero, is not zero in any linear of any layer, on one rank and on three, and nothing is said. Where the model
# lets no gradient through (the weights of a layer's o_proj are zero, so that nothing comes to its q, k and v) this is said, once,
# with how many and a name. What is saved holds the adapter and its moments and nothing of the base.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-tied/model}
data: {files: [$src/tests/golden/llama-tied/data.jsonl]}
lora: {r: 2, target_modules: all-linear}
train: {batch_size: 12, max_steps: 1, weight_decay: 0, learning_rate: 1e-3, lr_scheduler_type: constant}
DECK
# zeros FILE: names of the adapter's tensors that are all zero
zeros() {
    ./adze inspect --json "$1" | sed -n 's|.*"name": "/adapter/\([^"]*\)".*"bytes": \([0-9]*\), "offset": \([0-9]*\).*|\1 \2 \3|p' >"$tmp/tensors"
    [ "$(wc -l <"$tmp/tensors")" = 42 ] || fail "$1: not A and B of 7 linears in 3 layers"
    while read -r name bytes offset; do
        ! cmp -s -n "$bytes" -i "$offset:0" "$1" /dev/zero || echo "$name"
    done <"$tmp/tensors"
}
for n in 1 3; do
    adze $n train "$tmp/deck.yaml" output.dir="$tmp/all$n" || fail "training on $n ranks"
    [ -z "$(zeros "$tmp/all$n/adapter.h5")" ] || fail "$n ranks: not trained: $(zeros "$tmp/all$n/adapter.h5")"
    grep -q 'no gradient reached' "$tmp/log" && fail "$n ranks: said to be reached by no gradient"
done
./adze inspect --json "$tmp/all3/checkpoint-000001.h5" | sed -n 's|.*"name": "/\([^"]*\)/base_model[^"/]*".*|\1|p' | sort | uniq -c >"$tmp/groups"
[ "$(xargs <"$tmp/groups")" = "42 adapter 42 optimizer/exp_avg 42 optimizer/exp_avg_sq" ] || fail "the checkpoint holds $(<"$tmp/groups")"

# The checks can fail: no learning rate, then B stays zero; and the warning comes where it must.
adze 1 train "$tmp/deck.yaml" output.dir="$tmp/still" train.learning_rate=0 || fail "training without a learning rate"
[ "$(zeros "$tmp/still/adapter.h5" | wc -l)" = 21 ] || fail "B is not zero without training"
cp -r "$src/tests/golden/llama-tied/model" "$tmp/model"
chmod -R u+w "$tmp/model"
file=$tmp/model/model.safetensors
read -r bytes offset < <(./adze inspect --json "$file" | sed -n 's|.*layers.1.self_attn.o_proj.weight.*"bytes": \([0-9]*\), "offset": \([0-9]*\).*|\1 \2|p')
[ -n "${offset:-}" ] && head -c "$bytes" /dev/zero | dd of="$file" bs="$bytes" oflag=seek_bytes seek="$offset" conv=notrunc 2>/dev/null || exit 99
for n in 1 2; do
    adze $n train "$tmp/deck.yaml" output.dir="$tmp/cut$n" model.path="$tmp/model" || fail "training on $n ranks with a layer that is cut off"
    [ "$(grep -c 'warning: no gradient reached 3 of 21 adapted linears in the first step, e.g. model.layers.1.self_attn.q_proj$' "$tmp/log")" = 1 ] ||
        fail "$n ranks: not said, or not once, that q, k and v of a layer get no gradient"
    [ "$(zeros "$tmp/cut$n/adapter.h5" | grep -c 'layers.1.self_attn.[qkv]_proj.lora_B')" = 3 ] || fail "$n ranks: the warning is wrong"
done
