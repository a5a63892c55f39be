#!/bin/bash
# eval_generate.sh: what `adze eval` and `adze generate` print for right and wrong requests, on golden models, whose
# data is token ids without a tokenizer. What they compute is judged in tests/golden/test_generate.c.
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
    "$adze" "$@" >"$dir/out" 2>"$dir/err"
    local code=$?
    if [ "$code" = "$want" ] && [[ $(<"$dir/out") == $want_out ]] && [[ $(<"$dir/err") == $want_err ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "adze $*: code $code, expected $want"
        echo "  out: $(head -c 600 "$dir/out")"
        echo "  err: $(head -c 600 "$dir/err")"
    fi
}
is() {
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "$1: $2, expected $3"; fi
}

deck=$golden/llama-gqa/deck.yaml
model=model.path=$golden/llama-gqa/model
adapter=$golden/llama-gqa/adapter

# ---- eval
check 0 'adze *: evaluation
ranks     1 x 1 thread *
BLAS *
model *
adapter   none
data      data.files: 43 samples, *
loss        [0-9]*.[0-9]*
perplexity  [0-9]*
tokens      [0-9]*
targets     [0-9]*
samples     43
seconds     *' '' eval "$deck"
check 0 '*adapter   LoRA *
data      the part of data.files held out by eval.split: 11 samples,*' '' \
    eval "$deck" eval.adapter="$adapter" eval.split=0.25
check 0 '*data      eval.file: 43 samples,*' '' eval "$deck" eval.file="$golden/llama-gqa/data.jsonl"
check 0 '{"model": "*", "adapter": null, "loss": [0-9]*, "perplexity": [0-9]*, "seconds": [0-9]*, "tokens": [0-9]*, "targets": [0-9]*, "samples": 43}' \
    '' eval --json "$deck"
is 'lines with --json' "$(wc -l <"$dir/out")" 1
echo "model: {path: $(cd "$golden" && pwd)/llama-gqa/model}" >"$dir/bare.yaml"
check 2 '' "adze: error: $dir/bare.yaml: eval.file: missing; give eval.file or data.files to evaluate on" \
    eval "$dir/bare.yaml"
echo '{"input_ids": [1]}' >"$dir/none.jsonl"
check 2 '' 'adze: error: *none.jsonl*' eval "$deck" eval.file="$dir/none.jsonl"
check 2 '' 'adze: error: *nowhere*' eval "$deck" eval.adapter="$dir/nowhere"
check 2 '' 'adze: error: adze eval: no deck; usage: adze eval [[]--json] DECK *' eval --json

# ---- generate
check 2 '' "adze: error: $dir/bare.yaml: generate.prompt: missing; give generate.prompt (text) or generate.file (JSONL)" \
    generate "$dir/bare.yaml"
check 2 '' 'adze: error: generate.prompt: a prompt that is text needs a tokenizer, *' generate "$deck" generate.prompt=Hello
check 2 '' 'adze: error: *: generate.output: there is no directory */nowhere' \
    generate "$deck" generate.prompt=Hello generate.output="$dir/nowhere/out.jsonl"
check 2 '' "adze: error: $dir/text.jsonl*" generate "$deck" generate.file="$dir/text.jsonl"
echo '{"text": "a"}' >"$dir/text.jsonl"
check 2 '' "adze: error: $dir/text.jsonl:1: no prompt: found \"text\"; a line has \"prompt\" (text) or \"input_ids\", *" \
    generate "$deck" generate.file="$dir/text.jsonl"

# the peer's cases as prompts, and back
sed -nE 's/^.*"prompt": (\[[^]]*\]).*$/{"input_ids": \1}/p' "$golden/generate/llama-gqa.json" >"$dir/prompts.jsonl"
sed -nE 's/^.*"prompt": (\[[^]]*\]), "completion": (\[[^]]*\]).*$/{"input_ids": \1, "completion_ids": \2, "tokens": 20, "finished": false}/p' \
    "$golden/generate/llama-gqa.json" >"$dir/expected.jsonl"
is 'cases' "$(wc -l <"$dir/expected.jsonl")" 7
cp -r "$golden/llama-gqa/model" "$dir/model" # one without an end token
sed -i -E 's/"eos_token_id": [^,]*,/"eos_token_id": null,/' "$dir/model/config.json" "$dir/model/generation_config.json"
set -- generate.file="$dir/prompts.jsonl" generate.adapter="$adapter" model.path="$dir/model"
check 0 '{*}' '' generate "$deck" "$@" generate.max_new_tokens=20
is 'rows on standard output' "$(diff "$dir/out" "$dir/expected.jsonl")" ''
check 0 'adze *: generation
ranks *
prompts   7, *
wrote     */out.jsonl: 7 completions, 140 tokens in *' '' \
    generate "$deck" "$@" generate.max_new_tokens=20 generate.output="$dir/out.jsonl" generate.batch_size=2
is 'rows in a file' "$(diff "$dir/out.jsonl" "$dir/expected.jsonl")" ''
check 0 '{*}' 'adze: warning: 1 of 7 prompts: the model'\''s max_position_embeddings, 64, ends the completion before generate.max_new_tokens' \
    generate "$deck" "$@" generate.max_new_tokens=40

echo "eval, generate: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
