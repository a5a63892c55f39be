#!/bin/bash
# Runs killed at random moments, every second one inside a save (one rank, all ranks, or the launcher; SIGKILL), go on from
# their newest checkpoint on another number of ranks: no step that was said to be saved is lost, and the adapter at the end is
# that of an undisturbed run, bit for bit [47, 51]. KILLS: how many, by default 20; KILL_SEED: another sequence of moments.
. "${srcdir:-.}/tests/runs/lib.sh"
RANDOM=${KILL_SEED:-1}
kills=${KILLS:-20}
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
lora: {r: 8, target_modules: all-linear, lora_dropout: 0.1}
train: {batch_size: 6, max_steps: 30, learning_rate: 1e-2, lr_scheduler_type: cosine}
eval: {file: $src/tests/golden/llama-gqa/data.jsonl, steps: 7}
checkpoint: {save_steps: 1, save_total_limit: 3}
DECK
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/good" || fail "the undisturbed run"
losses "$tmp/good" >"$tmp/losses"
program=$(readlink -f ./adze)

# ranks: the processes that train into $out
ranks() {
    local exe
    for exe in /proc/[0-9]*/exe; do
        [ "$(readlink "$exe" 2>/dev/null)" = "$program" ] || continue
        tr '\0' '\n' <"${exe%exe}cmdline" 2>/dev/null | grep -qxF "output.dir=$out" || continue
        exe=${exe%/exe} && echo "${exe#/proc/}"
    done
}
gone() {
    ! kill -0 "$launcher" 2>/dev/null && [ -z "$(ranks)" ]
}
# await_step N: until N lines of steps are there; false if the run ends first
await_step() {
    until [ -f "$out/metrics.jsonl" ] && [ "$(grep -c '"loss"' "$out/metrics.jsonl")" -ge "$1" ]; do
        kill -0 "$launcher" 2>/dev/null || return 1
        sleep 0.01
    done
}
# await_save: until a save is under way
await_save() {
    local i=0
    until compgen -G "$out/checkpoint-*.tmp*" >/dev/null; do
        i=$((i + 1))
        [ $((i % 200)) != 0 ] || kill -0 "$launcher" 2>/dev/null || return 1
    done
}

inside=0 early=0
for ((k = 1; k <= kills; k++)); do
    out=$tmp/out
    rm -rf "$out"
    n=$((RANDOM % 4 + 1)) m=$((RANDOM % 4 + 1)) at=$((RANDOM % 26)) whom=$((RANDOM % 3)) late=$((RANDOM % 8))
    LD_PRELOAD=$yield ${MPIEXEC:-mpiexec} -n "$n" ./adze train "$tmp/deck.yaml" output.dir="$out" >"$tmp/log1" 2>&1 &
    launcher=$!
    await_step "$at"
    [ $((k % 2)) = 1 ] || { await_save && inside=$((inside + 1)); }
    sleep 0.00$late
    pids=$(ranks)
    # shellcheck disable=SC2086
    case $whom in
    0) kill -9 $(echo $pids | cut -d' ' -f$((RANDOM % n + 1))) 2>/dev/null ;;
    1) kill -9 $pids 2>/dev/null ;;
    2) kill -9 $launcher 2>/dev/null ;;
    esac
    begin=$SECONDS
    until gone; do
        [ $((SECONDS - begin)) -lt 20 ] || { kill -9 $launcher $(ranks) 2>/dev/null && fail "kill $k: the job hangs"; }
        sleep 0.05
    done
    wait $launcher 2>/dev/null
    said=$(sed -n 's/^saved .*checkpoint-0*\([0-9]*\)\.h5: .*/\1/p' "$tmp/log1" | tail -n 1)
    [ -n "$said" ] && [ "$said" -lt 30 ] && early=$((early + 1))
    adze "$m" train "$tmp/deck.yaml" output.dir="$out" || fail "kill $k ($n ranks, then $m): the resumed run"
    from=$(sed -n 's/^resume .*goes on after step \([0-9]*\) of .*/\1/p' "$tmp/log")
    [ "${from:-0}" -ge "${said:-0}" ] || fail "kill $k: step $said was saved, but the run went on from ${from:-the start}"
    grep -q 'not whole' "$tmp/log" && fail "kill $k: a checkpoint was damaged"
    [ -z "$(find "$out" -name '*.tmp*')" ] || fail "kill $k: left over: $(find "$out" -name '*.tmp*')"
    losses "$out" | cmp -s "$tmp/losses" - || fail "kill $k ($n ranks, then $m): losses differ"
    cmp -s "$tmp/good/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" ||
        fail "kill $k ($n ranks, then $m): the adapter differs"
done
echo "$kills runs killed, $inside inside a save, $early between the first save and the end; lost: 0"
[ "$early" -ge $((kills / 2)) ] || fail "too few runs were killed between their first save and their end"
