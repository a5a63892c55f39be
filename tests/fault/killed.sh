#!/bin/bash
# A rank that is killed ends the job, soon and not with success; an earlier adapter stays. So does the end of the launcher.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
train: {batch_size: 4, max_steps: 10000000}
DECK
adze 2 train "$tmp/deck.yaml" output.dir="$tmp/good" train.max_steps=2 || fail "training"
mkdir "$tmp/out"
cp -r "$tmp/good/adapter" "$tmp/out/adapter"
# killed SIGNAL WHOM: start three ranks, wait for the first steps, send a signal to rank 1 or to the launcher.
killed() {
    local pids begin code launcher
    rm -f "$tmp/out/metrics.jsonl"
    LD_PRELOAD=$yield ${MPIEXEC:-mpiexec} -n 3 ./adze train "$tmp/deck.yaml" output.dir="$tmp/out" >"$tmp/log" 2>&1 &
    launcher=$!
    begin=$SECONDS
    until [ -f "$tmp/out/metrics.jsonl" ] && [ "$(wc -l <"$tmp/out/metrics.jsonl")" -gt 3 ]; do
        kill -0 $launcher 2>/dev/null || fail "$1 to $2: ended before it began"
        [ $((SECONDS - begin)) -lt 60 ] || { kill -9 $launcher && fail "$1 to $2: no step in 60 s"; }
        sleep 0.1
    done
    pids=$(ranks "output.dir=$tmp/out")
    [ "$(wc -w <<<"$pids")" = 3 ] || { kill -9 $launcher && fail "$1 to $2: not three ranks: $pids"; }
    if [ "$2" = launcher ]; then kill "-$1" $launcher; else kill "-$1" "$(sed -n 2p <<<"$pids")"; fi
    begin=$SECONDS
    while kill -0 $launcher 2>/dev/null || [ -n "$(ranks "output.dir=$tmp/out")" ]; do
        # shellcheck disable=SC2046
        [ $((SECONDS - begin)) -lt 30 ] || { kill -9 $launcher $(ranks "output.dir=$tmp/out") 2>/dev/null && fail "$1 to $2: the job hangs"; }
        sleep 0.1
    done
    wait $launcher
    code=$?
    # a launcher that is itself asked to end has a code of its own; what the ranks said counts then
    [ $code != 0 ] || { [ "$2" = launcher ] && grep -q '^adze: stopped by SIGTERM' "$tmp/log"; } ||
        fail "$1 to $2: the job ended with success"
    diff -r "$tmp/good/adapter" "$tmp/out/adapter" >"$tmp/diff" || fail "$1 to $2: the earlier adapter changed"
    grep -vq '^{.*}$' "$tmp/out/metrics.jsonl" && fail "$1 to $2: a line of metrics.jsonl is cut"
    return 0
}
killed KILL rank
killed TERM launcher
