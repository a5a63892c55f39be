#!/bin/bash
# How samples become sums: numbers in brackets are entries of the list of failures in doc/testing.md. Losses and norms are
# compared as metrics.jsonl has them, to nine digits: equal text where bits are promised, else within a limit.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
gqa=$src/tests/golden/llama-gqa
cat >"$tmp/deck.yaml" <<DECK
model: {path: $gqa/model}
data: {files: [$gqa/data.jsonl], max_length: 64}
lora: {lora_dropout: 0.2}
train: {batch_size: 8, max_steps: 2, learning_rate: 1e-3}
DECK
# run N NAME ARGUMENTS...: train on N ranks; losses and norms in $tmp/NAME.txt
run() {
    local n=$1 name=$2
    shift 2
    adze "$n" train "$tmp/deck.yaml" output.dir="$tmp/$name" "$@" || fail "$name: training"
    grep -o '"\(loss\|grad_norm\)": [^,]*' "$tmp/$name/metrics.jsonl" >"$tmp/$name.txt"
}
same() {
    cmp -s "$tmp/$1.txt" "$tmp/$2.txt" || fail "$1 and $2 differ: $(diff "$tmp/$1.txt" "$tmp/$2.txt" | head -n 6)"
    cmp -s "$tmp/$1/adapter/adapter_model.safetensors" "$tmp/$2/adapter/adapter_model.safetensors" || fail "adapters of $1 and $2 differ"
}
# close LIMIT A B...: numbers A and B, and so on by pairs, agree within LIMIT of A
close() {
    awk -v limit="$1" 'BEGIN {
        for (i = 2; i < ARGC; i += 2) {
            d = ARGV[i] - ARGV[i + 1]
            if (!((d < 0 ? -d : d) <= limit * ARGV[i]) || ARGV[i] <= 0) exit 1
        }
        exit ARGC < 4
    }' "$@"
}

# [16] [17] eight samples at once, one by one, and dealt to ranks: the mean over the step's targets, not of means
run 1 whole train.micro_batch_size=8
run 1 single
run 2 two
export ADZE_COMM_LIMIT=1000 # messages in pieces
run 4 four
unset ADZE_COMM_LIMIT
same single two
same single four
# shellcheck disable=SC2046
close 1e-6 $(paste "$tmp/whole.txt" "$tmp/single.txt" | sed -E 's/[^\t]*: //g') || fail "whole and single differ: $(paste "$tmp/whole.txt" "$tmp/single.txt")"
run 2 budget train.micro_batch_tokens=100
# shellcheck disable=SC2046
close 1e-6 $(paste "$tmp/whole.txt" "$tmp/budget.txt" | sed -E 's/[^\t]*: //g') || fail "whole and budget differ"

# [17] what a step logs is what an evaluation of its samples gives; [31] whatever the ranks and micro-batches of that
run 2 logged train.batch_size=43 train.max_steps=1 lora.lora_dropout=0
for how in "1 1" "2 1" "3 100" "1 100000"; do
    set -- $how
    adze "$1" eval --json "$tmp/deck.yaml" eval.micro_batch_tokens="$2" || fail "evaluation"
    grep -o '"loss": [^,]*' "$tmp/log" | sed 's/.*: //' >"$tmp/eval-$1-$2"
    # shellcheck disable=SC2046
    close 1e-7 $(head -n 1 "$tmp/logged.txt" | sed 's/.*: //') $(cat "$tmp/eval-$1-$2") || fail "evaluated on $1 ranks by $2 tokens: $(cat "$tmp/log")"
    grep -q '"tokens": 1067, "targets": 863, "samples": 43}' "$tmp/log" || fail "evaluation counts: $(cat "$tmp/log")"
done
cmp -s "$tmp/eval-1-1" "$tmp/eval-2-1" || fail "evaluation on two ranks differs from that on one"

# [14] [15] [22] seven samples on four ranks, the last step with three; one block of parameters, so three ranks own none: no
# word about that, the same norm, no hang
grep -v '"input_ids":\[[0-9]*\]' "$gqa/data.jsonl" | head -n 7 >"$tmp/seven.jsonl"
seven="train.batch_size=4 train.max_steps=4 lora.r=1 lora.target_modules=[q_proj] lora.layers_to_transform=[1]"
for n in 1 4; do
    # shellcheck disable=SC2086
    run $n seven$n $seven data.files="$tmp/seven.jsonl" train.max_grad_norm=0.001
    grep -v 'they will wait for each other' "$tmp/log" | grep -q 'adze: warning' && fail "a warning on $n ranks"
    [ "$(grep -c 'norm [0-9.]*\*' "$tmp/log")" = 4 ] || fail "clipping was not active on $n ranks"
done
same seven1 seven4

# [18] samples whose targets are all masked, or cut off, are counted and leave no trace
sed -E 's/.*"labels":(\[.*\])\}/\1}/; s/-?[0-9]+/-100/g' "$tmp/seven.jsonl" >"$tmp/masks"
sed -E 's/("labels":).*/\1/' "$tmp/seven.jsonl" | paste -d '\0' - "$tmp/masks" >"$tmp/masked.jsonl"
paste -d '\n' "$tmp/masked.jsonl" "$tmp/seven.jsonl" >"$tmp/mixed.jsonl"
# shellcheck disable=SC2086
run 3 mixed $seven data.files="$tmp/mixed.jsonl" train.max_grad_norm=0.001
grep -q '^data      7 samples, .*, 7 without targets$' "$tmp/log" || fail "masked samples are not counted"
same seven1 mixed
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/none" data.files="$tmp/masked.jsonl" && fail "trained on nothing"
grep -q "^adze: error: $tmp/masked.jsonl: no sample is left: 7 without a target token" "$tmp/log" || fail "no word about what is masked"
[ ! -e "$tmp/none" ] || fail "something was written without a sample"

# run again, with the same number of threads: the same bits
run 1 again1 run.threads=2 train.micro_batch_size=4
run 2 again2 run.threads=2 train.micro_batch_size=4
same again1 again2
# the check itself can fail
run 1 other train.seed=7
cmp -s "$tmp/single.txt" "$tmp/other.txt" && fail "another seed gave the same losses"
exit 0
