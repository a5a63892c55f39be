#!/bin/bash
# SIGUSR1 and SIGTERM, to one rank or to all, while loading, training, evaluating, saving and generating [57]: the job ends soon
# with code 75 where the launcher hands it on, DIR/state says requeue and why, and the run that goes on ends with the adapter of
# an undisturbed one, bit for bit.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
model=$src/tests/golden/llama-gqa/model data=$src/tests/golden/llama-gqa/data.jsonl
for ((i = 0; i < 40; i++)); do cat "$data"; done >"$tmp/long.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $model}
data: {files: [$data], max_length: 64}
lora: {r: 4, target_modules: all-linear, lora_dropout: 0.1}
train: {batch_size: 6, max_steps: 600, learning_rate: 1e-2}
eval: {file: $tmp/long.jsonl, steps: 300}
DECK
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/good" || fail "the undisturbed run"
losses "$tmp/good" >"$tmp/losses"

has_ranks() { [ "$(ranks "$1" | wc -l)" = 3 ]; }
steps() { [ -f "$out/metrics.jsonl" ] && [ "$(grep -c '"loss"' "$out/metrics.jsonl")" -ge "$1" ]; }
saves() { compgen -G "$out/checkpoint-*.tmp*" >/dev/null; }
evaluates() { grep -qs '^state: running' "$out/state"; } # the first evaluation comes before the first step
says() { grep -q "$1" "$tmp/log"; }

# start WORD ARGUMENTS...; then await COMMAND, send SIGNAL WHOM
start() {
    word=$1
    shift
    LD_PRELOAD=$yield ${MPIEXEC:-mpiexec} -n 3 ./adze "$@" "$word" >"$tmp/log" 2>&1 &
    launcher=$!
    await has_ranks "$word"
    pids=$(ranks "$word") # looked for now, as the search takes longer than some steps
}
await() {
    local begin=$SECONDS
    until "$@"; do
        kill -0 $launcher 2>/dev/null || fail "$name: ended before $*"
        [ $((SECONDS - begin)) -lt 60 ] || { kill -9 $launcher && fail "$name: no $* in 60 s"; }
        [ "$1" = saves ] || sleep 0.01
    done
}
# send SIGNAL WHOM: to rank 1 or to all; the job must end within 30 s, with code 75 or what a launcher makes of it
send() {
    local begin=$SECONDS
    [ "$2" = all ] || pids=$(sed -n 2p <<<"$pids")
    # shellcheck disable=SC2086
    kill "-$1" $pids
    while kill -0 $launcher 2>/dev/null; do
        # shellcheck disable=SC2046
        [ $((SECONDS - begin)) -lt 30 ] || { kill -9 $launcher $(ranks "$word") && fail "$name: the job goes on"; }
        sleep 0.02
    done
    wait $launcher
    code=$?
    [ $code != 0 ] || fail "$name: ended with success"
}

# interrupted SIGNAL WHOM COMMAND...: a training is stopped when COMMAND holds, and then goes on
interrupted() {
    name="$1 to $2 ($3 ${4:-})" out=$tmp/out signal=$1 whom=$2
    shift 2
    rm -rf "$out"
    start "output.dir=$out" train "$tmp/deck.yaml" checkpoint.save_steps="${every:-1000}"
    await "$@"
    send "$signal" "$whom"
    grep -q "^adze: stopped by SIG$signal" "$tmp/log" || fail "$name: does not say what it was stopped by"
    [ "$(grep -c '^adze: \(stopped\|error\)' "$tmp/log")" = 1 ] || fail "$name: not one message"
    if [ "$1" != has_ranks ]; then
        grep -qx 'state: requeue' "$out/state" && grep -q "^reason: stopped by SIG$signal" "$out/state" && grep -qx 'code: 75' "$out/state" ||
            fail "$name: the state file: $(cat "$out/state")"
    fi
    said=$(sed -n 's/^adze: stopped .* after step \([0-9]*\) of .*/\1/p' "$tmp/log")
    made=$(grep -c '"loss"' "$out/metrics.jsonl" 2>/dev/null)
    [ "${said:-0}" = "${made:-0}" ] || fail "$name: stopped after step ${said:-0}, but ${made:-0} were made"
    adze 2 train "$tmp/deck.yaml" output.dir="$out" || fail "$name: the run that goes on"
    from=$(sed -n 's/^resume .*goes on after step \([0-9]*\) of .*/\1/p' "$tmp/log")
    [ "${from:-0}" = "${said:-0}" ] || fail "$name: goes on from ${from:-0}, not from ${said:-0}"
    losses "$out" | cmp -s "$tmp/losses" - || fail "$name: losses differ"
    cmp -s "$tmp/good/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" || fail "$name: the adapter differs"
    grep -qx 'state: done' "$out/state" || fail "$name: the state at the end"
}
interrupted USR1 one steps 3
interrupted TERM all steps 5
interrupted USR1 all evaluates
interrupted TERM one steps 300 # in the evaluation after step 300, or shortly after it
every=1 interrupted USR1 one saves
interrupted TERM all has_ranks "output.dir=$tmp/out"

# eval and generate: nothing is written
for ((i = 0; i < 3000; i++)); do echo '{"input_ids": [1, 2, 3]}'; done >"$tmp/prompts.jsonl"
name=generate
start "generate.output=$tmp/rows.jsonl" generate "$tmp/deck.yaml" generate.file="$tmp/prompts.jsonl" generate.batch_size=1
await has_ranks "generate.output=$tmp/rows.jsonl"
await says ranks
send USR1 one
grep -q '^adze: stopped by SIGUSR1' "$tmp/log" || fail "generate does not say what it was stopped by"
[ ! -e "$tmp/rows.jsonl" ] || fail "rows were written"
name=eval
for ((i = 0; i < 50; i++)); do cat "$tmp/long.jsonl"; done >"$tmp/longer.jsonl"
start "eval.file=$tmp/longer.jsonl" eval "$tmp/deck.yaml"
await says '^ranks'
send TERM all
grep -q '^adze: stopped by SIGTERM' "$tmp/log" || fail "eval does not say what it was stopped by"
