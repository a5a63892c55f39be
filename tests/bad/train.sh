#!/bin/bash
# train.sh: what `adze train` refuses before it trains, with nothing written, and what it says of what it takes. Decks, data
# and tensors one by one are judged in tests/unit; here are models, adapters and places as a user may hand them over.
set -u
adze=${ADZE:?set by make}
golden=$(cd "${srcdir:-.}/tests/golden" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_NUM_THREADS=1
passed=0 failed=0

# check CODE ERR ARGUMENTS...: ERR is a pattern that whole standard error must match; a refusal writes nothing
check() {
    local want=$1 want_err=$2
    shift 2
    rm -rf "$dir/out"
    timeout 60 "$adze" train "$dir/deck.yaml" "$@" >"$dir/stdout" 2>"$dir/err"
    local code=$?
    if [ "$code" = "$want" ] && [[ $(<"$dir/err") == $want_err ]] && { [ "$code" = 0 ] || [ ! -e "$dir/out" ]; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "adze train $*: code $code, expected $want; $(ls "$dir/out" 2>/dev/null)"
        echo "  err: $(head -c 600 "$dir/err")"
    fi
}
is() {
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "$1: $2, expected $3"; fi
}
# A copy of the model to spoil.
fresh() {
    rm -rf "$dir/model"
    cp -r "$golden/llama-gqa/model" "$dir/model"
}
config() {
    fresh
    sed -i -E "$1" "$dir/model/config.json"
}

cat >"$dir/deck.yaml" <<END
model: {path: $dir/model}
data: {files: $golden/llama-gqa/data.jsonl, max_length: 64}
train: {max_steps: 2}
output: {dir: $dir/out}
END
lfs='version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 132'
pointer='this is a Git LFS pointer, not the file itself (fetch it: git lfs pull)'

fresh
check 0 ''
check 2 "adze: error: argument train.adam_epsilon=0: train.adam_epsilon: found 0, expected a number above 0 to 1" \
    train.adam_epsilon=0
check 2 "adze: error: argument lora.lora_alpha=1e38: lora.lora_alpha: found 1e38, expected a number above 0 to 1e+09" lora.lora_alpha=1e38

# models
config 's/^\{/{"sliding_window": 4,/'
check 2 "adze: error: $dir/model/config.json: sliding_window: found 4, supported: null, full attention *"
config 's/("max_position_embeddings": )[0-9]*/\132/'
check 0 'adze: warning: data.files: the longest sample has 60 tokens; the model has learnt no positions beyond max_position_embeddings, 32 (data.max_length would cut there)'
check 0 '' data.max_length=32
fresh
echo "$lfs" >"$dir/model/config.json"
check 2 "adze: error: $dir/model/config.json: $pointer"
fresh
echo "$lfs" >"$dir/model/tokenizer.json"
check 2 "adze: error: $dir/model/tokenizer.json: $pointer"
fresh
echo "$lfs" >"$dir/model/model.safetensors"
check 2 "adze: error: $dir/model/model.safetensors: $pointer"
ln -sf ../blobs/4d7a2146 "$dir/model/model.safetensors"
check 2 "adze: error: $dir/model/model.safetensors: a directory, or a link that leads to no file"
fresh
latin=$dir/caf$'\xe9'
mkdir "$latin"
cp -r "$dir/model" "$dir/deck.yaml" "$latin"
sed -i 's|path: .*/model|path: model|' "$latin/deck.yaml"
"$adze" train "$latin/deck.yaml" >"$dir/stdout" 2>"$dir/err"
is 'a path that is not UTF-8' "$? $(LC_ALL=C sed -E 's/^adze: error: (model.path): .*: (the name is)/\1: \2/' "$dir/err")" \
    '2 model.path: the name is not valid UTF-8, which adapter_config.json needs'
check 2 'adze: error: *nnnn/config.json: cannot open: File name too long' model.path="$(printf 'n%.0s' {1..5000})"
check 2 'adze: error: argument model.path=*: not valid YAML: control characters are not allowed' \
    model.path=$'\x1b[31mred'
mkdir "$dir/"$'\x1b[31mred'
"$adze" train "$dir/"$'\x1b[31mred/none.yaml' 2>"$dir/err"
is 'control characters' "$(<"$dir/err")" "adze: error: $dir/?[31mred/none.yaml: cannot open: No such file or directory"

# an adapter to start from, with a NaN at its end
cp -r "$golden/llama-gqa/adapter" "$dir/nan"
size=$(stat -c %s "$dir/nan/adapter_model.safetensors")
printf '\0\0\300\177' | dd of="$dir/nan/adapter_model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>"$dir/err"
check 2 "adze: error: $dir/nan/adapter_model.safetensors: base_model.model.*.weight holds numbers that are not finite" \
    lora.init_from="$dir/nan"

# places: what is in the way is found before the first step
place() {
    rm -rf "$dir/place"
    mkdir -p "$dir/place"
}
place
: >"$dir/place/adapter"
check 2 "adze: error: $dir/place/adapter: this is a file, and the adapter needs a directory here" output.dir="$dir/place"
place
mkdir -p "$dir/place/adapter/adapter_model.safetensors"
check 2 "adze: error: $dir/place/adapter/adapter_model.safetensors: this is a directory, and the adapter needs a file here" \
    output.dir="$dir/place"
is 'what a refused place holds' "$(ls "$dir/place")" adapter
check 2 "adze: error: $dir/deck.yaml: cannot create directory: File exists" output.dir="$dir/deck.yaml/x"

# Standard output closed: the first file that is opened must not become it.
"$adze" train "$dir/deck.yaml" >&- 2>"$dir/err"
is 'standard output closed' "$? $(<"$dir/err")" '3 adze: error: cannot write to standard output: Bad file descriptor'
is 'lines of metrics.jsonl that are not JSON' "$(grep -vc '^{.*}$' "$dir/out/metrics.jsonl")" 0
is 'the adapter all the same' "$(ls "$dir/out/adapter")" 'adapter_config.json
adapter_model.safetensors'
"$adze" train "$dir/deck.yaml" >/dev/full 2>"$dir/err"
is 'standard output full' "$? $(<"$dir/err")" '3 adze: error: cannot write to standard output: No space left on device'

echo "train: $passed passed, $failed failed"
[ $failed = 0 ]
