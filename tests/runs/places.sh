#!/bin/bash
# Output directories with odd names (blanks, quotes, a colon, which MPI-IO takes for the end of a kind of file system, a line end,
# letters beyond ASCII), relative, and behind a link: the run saves there, goes on from its own run.yaml, and its files can be read.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
program=$(readlink -f ./adze)
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 6, max_steps: 3, lr_scheduler_type: constant}
DECK
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/good" train.max_steps=4 || fail "a plain name"
# yaml TEXT: as a quoted string
yaml() {
    local s=${1//\\/\\\\}
    s=${s//\"/\\\"}
    printf '"%s"' "${s//$'\n'/\\n}"
}
mkdir "$tmp/there" "$tmp/there/real"
cd "$tmp/there" || exit 99
ln -s real link
ln -s "$program" adze
for out in "a b 'c' \"d\"" 'x:y/2026-11-30T12:00:00 #1' 'ufs:z' $'line\nend' 'ü€ \t' link; do
    adze 2 train "$tmp/deck.yaml" "output.dir=$(yaml "$out")" || fail "$out"
    [ -f "$out/checkpoint-000003.h5" ] && [ -f "$out/adapter.h5" ] || fail "$out: $(ls -R)"
    rm -r "$out/adapter" "$out/adapter.h5"
    adze 1 train "$out/run.yaml" train.max_steps=4 || fail "$out: going on"
    grep -q 'checkpoint-000003.h5: goes on after step 3 of 4$' "$tmp/log" || fail "$out: does not go on"
    cmp -s "$tmp/good/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" || fail "$out: another adapter"
    grep -qx 'state: done' "$out/state" && [ "$(wc -l <"$out/state")" = 9 ] || fail "$out: the state"
    ./adze verify "$out"/*.h5 >"$tmp/log" 2>&1 || fail "$out: verify"
    ./adze export "$out/adapter.h5" "$out/ex:port" >"$tmp/log" 2>&1 || fail "$out: export"
    ./adze inspect --json "$out/checkpoint-000004.h5" >"$tmp/log" 2>&1 || fail "$out: inspect"
    [ -z "$(find "$out/" -name '*tmp*')" ] || fail "$out: $(ls -a "$out")"
done
[ -L link ] || fail "the link was replaced"
# what is no file is not waited for
mkfifo pipe pipe.h5
for file in pipe pipe.h5; do
    for command in "verify $file" "inspect $file" "export $file $tmp/none"; do
        # shellcheck disable=SC2086
        timeout 20 ./adze $command >"$tmp/log" 2>&1
        [ $? = 2 ] && grep -q "^adze: error: $file: not a regular file" "$tmp/log" || fail "$command"
    done
done
./adze export "$tmp/good/adapter.h5" '' >"$tmp/log" 2>&1 && fail "export to no directory"
grep -q '^adze: error: export: the directory to make was expected after the file' "$tmp/log" || fail "export to no directory: the message"
