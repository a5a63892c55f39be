#!/bin/bash
# checkpoint.sh: what a run refuses to go on from, by its message: files that are none, are damaged, or are of another run;
# names that do not fit; what is in the way in output.dir. Nothing there is changed. What it passes over, it names.
set -u
adze=${ADZE:?set by make}
golden=$(cd "${srcdir:-.}/tests/golden" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_NUM_THREADS=1
passed=0 failed=0

is() {
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "$1: $2, expected $3"; fi
}
contents() { (cd "$dir/out" 2>/dev/null && find . -mindepth 1 ! -name state -printf '%P %y %s %l\n' | sort); }
# check CODE ERR ARGUMENTS...: go on in $dir/out. ERR is a pattern that whole standard error must match; a refusal changes nothing
check() {
    local want=$1 want_err=$2 before code
    shift 2
    before=$(contents)
    timeout -k 5 60 "$adze" train "$dir/deck.yaml" output.dir="$dir/out" "$@" >"$dir/stdout" 2>"$dir/err"
    code=$?
    # shellcheck disable=SC2053
    if [ "$code" = "$want" ] && [[ $(<"$dir/err") == $want_err ]] && { [ "$code" = 0 ] || [ "$(contents)" = "$before" ]; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "adze train $*: code $code, expected $want"
        echo "  err: $(head -c 600 "$dir/err")"
        [ "$(contents)" = "$before" ] || diff <(echo "$before") <(contents)
    fi
}
said() { grep -c "$1" "$dir/stdout"; }

cat >"$dir/deck.yaml" <<END
model: {path: $golden/llama-gqa/model}
data: {files: $golden/llama-gqa/data.jsonl, max_length: 64}
train: {batch_size: 6, max_steps: 4}
checkpoint: {save_steps: 2}
END
"$adze" train "$dir/deck.yaml" output.dir="$dir/good" >"$dir/stdout" 2>&1 || exit 99
rm -r "$dir/good/adapter"
old=$dir/good/checkpoint-000002.h5 new=$dir/good/checkpoint-000004.h5
# fresh [all]: an empty place, or the directory of that run
fresh() {
    rm -rf "$dir/out"
    [ -z "${1:-}" ] || cp -r "$dir/good" "$dir/out"
}
# edited FILE GROUP ATTRIBUTE VALUE
edited() { tests/tools/edit_h5 "$@" || { echo "edit_h5 $*" && exit 99; }; }

# ---- checkpoint.resume: FILE
fresh
check 2 "adze: error: checkpoint.resume: $dir/none.h5: cannot open: No such file or directory" checkpoint.resume="$dir/none.h5"
check 2 "adze: error: checkpoint.resume: $dir: not a regular file" checkpoint.resume="$dir"
check 2 "adze: error: checkpoint.resume: /dev/zero: not a regular file" checkpoint.resume=/dev/zero
check 2 "adze: error: checkpoint.resume: $dir/deck.yaml: not an HDF5 file, or its first bytes are damaged" checkpoint.resume="$dir/deck.yaml"
check 2 "adze: error: checkpoint.resume: $dir/good/adapter.h5 holds no checkpoint, but: adapter" checkpoint.resume="$dir/good/adapter.h5"
: >"$dir/empty.h5"
check 2 "adze: error: checkpoint.resume: $dir/empty.h5: the file is empty" checkpoint.resume="$dir/empty.h5"
head -c 20000 "$old" >"$dir/cut.h5"
check 2 "adze: error: checkpoint.resume: $dir/cut.h5: truncated: the file has 20000 bytes of *" checkpoint.resume="$dir/cut.h5"
other="adze: error: checkpoint.resume: $old: was made with other values of keys that must stay the same when a run is resumed:
  "
for key in lora.r=4 train.learning_rate=1e-3 train.seed=3 data.max_length=32 'lora.target_modules=[q_proj]' train.batch_size=7; do
    check 2 "$other${key%%=*}: *" checkpoint.resume="$old" "$key"
done
check 2 "adze: error: checkpoint.resume: $old was made with another base: fingerprint * of *llama-gqa/model, but model.path: *llama-tied/model has *" \
    checkpoint.resume="$old" model.path="$golden/llama-tied/model"
check 2 "adze: error: checkpoint.resume: $old was made with other samples: hash *, data.files now give * (files, their order, the tokenizer and the keys of data count)" \
    checkpoint.resume="$old" "data.files=[$golden/llama-tied/data.jsonl]"
check 2 "adze: error: checkpoint.resume: $old is of step 2, but train.max_steps or train.num_train_epochs now end the run at step 1" \
    checkpoint.resume="$old" train.max_steps=1
fresh all
check 2 "adze: error: checkpoint.resume is no, but $dir/out holds 2 checkpoints of an earlier run: remove them, or give another output.dir" \
    checkpoint.resume=no
check 2 "adze: error: checkpoint.resume: $old is of step 2, but $dir/out holds checkpoint-000004.h5, which is newer: remove it, or *" \
    checkpoint.resume="$old"
check 2 "adze: error: checkpoint.resume: $new is of step 4, but $dir/out holds checkpoint-000004.h5, which is another file: remove *" \
    checkpoint.resume="$new"
check 0 '' checkpoint.resume="$dir/out/checkpoint-000004.h5"
is 'what is done from the file that is there' "$(said '^saved')" 0
# those of another run would be removed in time
fresh
"$adze" train "$dir/deck.yaml" output.dir="$dir/out" train.max_steps=1 train.lr_scheduler_type=constant >"$dir/stdout" 2>&1 || exit 99
check 2 "adze: error: $dir/out must not hold checkpoints of another run: $dir/out/checkpoint-000001.h5: was made with other values *
  train.lr_scheduler_type: *" checkpoint.resume="$old"

# ---- the newest of a directory: damaged ones are passed over, others are not
fresh all
: >"$dir/out/checkpoint-000004.h5"
check 0 "adze: warning: not whole, passed over: $dir/out/checkpoint-000004.h5: the file is empty"
is 'where it goes on' "$(said "^resume    $dir/out/checkpoint-000002.h5: goes on after step 2 of 4$")" 1
fresh all
cp "$dir/good/adapter.h5" "$dir/out/checkpoint-000006.h5"
check 0 "adze: warning: not whole, passed over: $dir/out/checkpoint-000006.h5 holds no checkpoint, but: adapter"
fresh all
: >"$dir/out/checkpoint-000002.h5"
head -c 9000 "$new" >"$dir/out/checkpoint-000004.h5"
check 2 "adze: warning: not whole, passed over: $dir/out/checkpoint-000004.h5: truncated: *
adze: warning: not whole, passed over: $dir/out/checkpoint-000002.h5: the file is empty
adze: error: $dir/out: none of its 2 checkpoints is whole; remove them to start anew, or give another output.dir"
fresh all
ln -sf nowhere "$dir/out/checkpoint-000004.h5"
check 2 "adze: error: $dir/out/checkpoint-000004.h5: cannot open: No such file or directory"
fresh all
rm "$dir/out/checkpoint-000004.h5"
mkfifo "$dir/out/checkpoint-000004.h5"
check 2 "adze: error: $dir/out/checkpoint-000004.h5: this is a pipe, and the run needs a file here"
fresh all
edited "$dir/out/checkpoint-000004.h5" / format_version 7
check 2 "adze: error: $dir/out/checkpoint-000004.h5: format version 7; this adze (*) reads version 1"
fresh all
mv "$dir/out/checkpoint-000004.h5" "$dir/out/checkpoint-000006.h5"
check 2 "adze: error: $dir/out/checkpoint-000006.h5: its name says step 6, but it holds the state after step 4: give it its own name, or remove it"
cp "$old" "$dir/out/checkpoint-9999999.h5"
check 2 "adze: error: $dir/out/checkpoint-9999999.h5: its name says step 9999999, but it holds the state after step 2: *"
fresh all
for edit in 'step -1' 'step 5' 'tokens -1' 'skipped 5' 'updates 0' 'evaluated_step 9' 'best_step 6' 'evaluations_without_improvement -1'; do
    cp "$new" "$dir/out/checkpoint-000004.h5"
    # shellcheck disable=SC2086
    edited "$dir/out/checkpoint-000004.h5" /trainer $edit
    check 2 "adze: error: checkpoint.resume: $dir/out/checkpoint-000004.h5: /trainer holds numbers that no run has: step *" \
        checkpoint.resume="$dir/out/checkpoint-000004.h5"
done
check 0 "adze: warning: not whole, passed over: $dir/out/checkpoint-000004.h5: /trainer holds numbers that no run has: *"

# ---- what is in the way
for name in checkpoint-000006.h5 checkpoint-000006.h5.tmp trial.h5.tmp adapter.h5 run.yaml metrics.jsonl state; do
    fresh all
    rm -f "$dir/out/$name"
    mkdir "$dir/out/$name"
    check 2 "adze: error: $dir/out/$name: this is a directory, and the run needs a file here"
done
fresh all
rm "$dir/out/metrics.jsonl"
mkfifo "$dir/out/metrics.jsonl"
check 2 "adze: error: $dir/out/metrics.jsonl: this is a pipe, and the run needs a file here"
fresh all
echo 'held by another program' >"$dir/out/lock"
check 2 "adze: error: $dir/out/lock: this file is not adze's, and the run needs its place: move it away, or give another output.dir"
fresh
mkdir -p "$dir/out/lock"
check 2 "adze: error: $dir/out/lock: cannot open: Is a directory"

# hints with which some MPIs end the job
for hint in cb_buffer_size=-7 cb_nodes=all ind_rd_buffer_size=0 ind_wr_buffer_size=9999999999; do
    check 2 "adze: error: argument checkpoint.mpiio_hints=\[$hint\]: checkpoint.mpiio_hints: item 1: ${hint%=*}: found ${hint#*=}, \
expected an integer from 1 to 2147483647" "checkpoint.mpiio_hints=[$hint]"
done

# ---- the best adapter as result, whose checkpoint is not there
few=("data.files=[$dir/few.jsonl]" lora.r=16 lora.target_modules=all-linear train.batch_size=12 train.learning_rate=0.02 train.lr_scheduler_type=constant train.max_steps=12
    eval.file="$golden/llama-gqa/data.jsonl" eval.steps=1 checkpoint.save_total_limit=1)
head -n 12 "$golden/llama-tied/data.jsonl" >"$dir/few.jsonl"
sed -i "s|llama-gqa/model|llama-tied/model|" "$dir/deck.yaml"
rm -rf "$dir/good"
"$adze" train "$dir/deck.yaml" output.dir="$dir/good" "${few[@]}" >"$dir/stdout" 2>&1 || exit 99
best=$(cd "$dir/good" && ls checkpoint-*.h5 | head -n 1)
[ "$best" != checkpoint-000012.h5 ] || { echo "the last evaluation is the best: of no use here" && exit 99; }
fresh all
rm -r "$dir/out/adapter" "$dir/out/$best"
check 2 "adze: error: $dir/out does not hold $best, the checkpoint with the lowest evaluation loss, which \
checkpoint.load_best_model_at_end needs: put it there, or give false" "${few[@]}" checkpoint.load_best_model_at_end=true
check 0 '' "${few[@]}"
is 'a best checkpoint that has gone' "$(said "^resume    $best, which had the lowest evaluation loss, is not there any more: the best \
checkpoint is looked for anew$")" 1
# a run that goes on elsewhere from its best one makes it again there
fresh
check 0 '' "${few[@]}" checkpoint.load_best_model_at_end=true checkpoint.resume="$dir/good/$best"
is 'the best one of the other place' "$(ls "$dir/out/$best")" "$dir/out/$best"
# one that is damaged: the last adapter, and the end is no success
fresh all
rm -r "$dir/out/adapter"
for at in $(seq 20000 3000 "$(stat -c %s "$dir/out/$best")"); do # wherever the adapter lies in it
    printf 'damage' | dd of="$dir/out/$best" bs=1 seek="$at" conv=notrunc 2>"$dir/err"
done
"$adze" train "$dir/deck.yaml" output.dir="$dir/out" "${few[@]}" checkpoint.load_best_model_at_end=true >"$dir/stdout" 2>"$dir/err"
is 'a damaged best checkpoint' "$? $(sed -zE "s/$best: .*(; the adapter is that after the last step.adze: error)/best.h5: ...\1/" "$dir/err")" \
    "3 adze: warning: $dir/out/best.h5: ...; the adapter is that after the last step
adze: error: $dir/out: the adapter is that after the last step, as the checkpoint of step $((10#${best//[^0-9]/} / 10)), which had the lowest \
evaluation loss, could not be read"
is 'the adapter' "$(cmp "$dir/good/adapter/adapter_model.safetensors" "$dir/out/adapter/adapter_model.safetensors" 2>&1)" ''

echo "checkpoint: $passed passed, $failed failed"
[ $failed = 0 ]
