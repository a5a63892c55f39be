#!/bin/bash
# data.sh: what `adze data` prints: counts, arithmetic, tokens with their targets, with a real tokenizer; and how wrong
# files and flags are refused. Rows and messages one by one are judged in tests/unit/test_data_load.c.
set -u
adze=${ADZE:?set by make}
golden=${srcdir:-.}/tests/golden
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_NUM_THREADS=1
passed=0 failed=0

# check CODE OUT ERR ARGUMENTS...: OUT and ERR are patterns that whole standard output and error must match
check() {
    local want=$1 want_out=$2 want_err=$3
    shift 3
    "$adze" data "$@" >"$dir/out" 2>"$dir/err"
    local code=$?
    if [ "$code" = "$want" ] && [[ $(<"$dir/out") == $want_out ]] && [[ $(<"$dir/err") == $want_err ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "adze data $*: code $code, expected $want"
        echo "  out: $(head -c 1500 "$dir/out")"
        echo "  err: $(head -c 600 "$dir/err")"
    fi
}

deck=$golden/llama-gqa/deck.yaml
check 0 'files     *data.jsonl
samples   43, of 1,067 tokens; 863 of these (80.9 %) are targets
lengths   shortest 2, median 21, nine in ten at most 55, longest 60 tokens
cut       0 to data.max_length = 64
dropped   0 longer than data.max_length, 2 without a target
steps     4 samples a step: 11 an epoch (the last one of 3), 11 in all = 1.00 epochs
batches   micro-batches of 2 samples: 22 in the first epoch, none above 120 tokens
ranks     3: 11 rounds in the first epoch, [0-9]*.[0-9] % of the ranks'\'' time idle

sample 0: 9 tokens, 8 targets (position, id)
       0      50
       1      88  target
*
       8      90  target' '' --samples 1 "$deck" --ranks 3
check 0 '*
lengths   shortest 2, median 20, nine in ten at most 20, longest 20 tokens
cut       2[0-9] to data.max_length = 20
dropped   0 *
held out  4 samples for evaluation (eval.split)*
steps     8 samples a step: 5 an epoch (the last one of *), 3 in all = 0.60 epochs
batches   micro-batches of at most 100 tokens (a longer sample alone): [0-9]* in the first epoch
ranks     1: *' '' "$deck" --samples 0 data.max_length=20 eval.split=0.1 train.batch_size=8 train.max_steps=3 \
    train.micro_batch_tokens=100

# A model of which nothing but the config is there, with a tokenizer that puts <|begin_of_text|> in front.
mkdir "$dir/model"
sed 's/"vocab_size": [0-9]*/"vocab_size": 2000/' "$golden/llama-gqa/model/config.json" >"$dir/model/config.json"
cp "$golden/text/llama3/tokenizer.json" "$golden/text/llama3/tokenizer_config.json" "$dir/model"
cat >"$dir/rows.jsonl" <<'END'
{"prompt": "2+2\n=", "completion": " \t4"}
{"input_ids": [5, 6, 7], "labels": [-100, 6, 9]}
END
echo "{model: {path: model}, data: {files: rows.jsonl}}" >"$dir/deck.yaml"
check 0 '*
sample 0: * tokens, * targets (position, id, text)
       0 *"2"
*"=?
*  target  *"4"
*  target  "<|e*|>"

sample 1: 3 tokens, 2 targets (position, id, text)
       0       5 * "*"
       1       6  target  "*"
       2       7  target 9  "*"' '' "$dir/deck.yaml"
check 0 '*
       0 *  "<|begin_of_text|>"
       1 *  "2"
*' '' "$dir/deck.yaml" data.add_bos=true --samples 1
check 0 '*
sample 0: * tokens, * targets *"4"' '' "$dir/deck.yaml" data.add_eos=false --samples 1

printf '{"text": "good"}\n{"text": "bad\xff"}\n' >"$dir/utf8.jsonl"
check 2 '' "adze: error: $dir/utf8.jsonl:2: invalid UTF-8: byte 0xff at offset 13 of the line" \
    "$dir/deck.yaml" data.files="$dir/utf8.jsonl"
check 2 '' "adze: error: $dir/none.jsonl: cannot open: No such file or directory" \
    "$dir/deck.yaml" data.files="$dir/none.jsonl"
: >"$dir/empty.jsonl"
check 2 '' "adze: error: $dir/empty.jsonl: the file holds no samples (0 bytes)" \
    "$dir/deck.yaml" data.files="[$dir/rows.jsonl, $dir/empty.jsonl]"
check 2 '' "adze: error: $dir/rows.jsonl:1: token 0 of the sample has id * rows: the tokenizer does not belong to this *" \
    "$deck" data.tokenizer="$dir/model" data.files="$dir/rows.jsonl" data.add_bos=true
check 2 '' 'adze: error: adze data: --ranks: found x, expected a number from 1 to 1000000' "$dir/deck.yaml" --ranks x
check 2 '' 'adze: error: adze data: --samples: found nothing, *' "$dir/deck.yaml" --samples
check 2 '' 'adze: error: adze data: no deck; usage: adze data [[]--ranks N] *' --ranks 3

echo "adze data: $passed passed, $failed failed"
[ $failed = 0 ]
