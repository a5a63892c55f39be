#!/bin/bash
# Runs killed with SIGKILL at random moments go on from their newest checkpoint on another number of ranks: no step that was
# said to be saved is lost, no file under its last name is half written, and losses and adapter at the end are those of an
# undisturbed run, bit for bit [47, 51]. Every second one is killed inside a save: a library (tests/tools/order.c) stops one
# rank before one of the calls with which a checkpoint is made, and it, all ranks or the launcher are killed there. Some are
# killed a second time while they go on, or while the adapter is written at the end.
# KILLS: how many, by default 20; KILL_SEED: another sequence of moments.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
RANDOM=${KILL_SEED:-1}
kills=${KILLS:-20}
steps=12
out=$tmp/out
# The loss on this text is lowest in the middle, so that the best checkpoint is neither the first nor the last.
echo '{"input_ids": [50, 1, 1, 1, 2]}' >"$tmp/eval.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $src/tests/golden/llama-gqa/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 64}
lora: {r: 8, target_modules: all-linear, lora_dropout: 0.1}
train: {batch_size: 6, max_steps: $steps, learning_rate: 0.03, lr_scheduler_type: constant}
eval: {file: $tmp/eval.jsonl, steps: 2}
checkpoint: {save_steps: 1}
DECK
# Calls of a save; the seldom ones among them; the note of it, before old ones are removed; what is read and written while a run goes on; the results.
save="*:@($out/checkpoint-*|$out)"
steady="@(fsync|rename|unlink):@($out/checkpoint-*|$out)"
notes="rename:$out/state"
records="*:$out/@(metrics.jsonl|state|run.yaml|lock)*"
results="*:$out/adapter*"
best=(checkpoint.load_best_model_at_end=false checkpoint.load_best_model_at_end=true)
keep=checkpoint.save_total_limit=2
exec 9<> <(:)
nap() { read -rt "$1" -u 9 _; } # sleep without a process

# begin N [STOP]: train on N ranks in the background; STOP: where a rank stops (ORDER_STOP).
begin() {
    rm -f "$tmp/launcher" "$tmp/pids" "$tmp/mark"
    (
        export LD_PRELOAD="$yield $PWD/tests/tools/order.so" ORDER_STOP=${2:-} ORDER_MARK=$tmp/mark
        timeout -k 5 120 sh -c 'echo $$ >"$0"; exec "$@"' "$tmp/launcher" ${MPIEXEC:-mpiexec} -n "$1" \
            sh -c 'echo $$ >>"$0"; exec ./adze "$@"' "$tmp/pids" train "$tmp/deck.yaml" output.dir="$out" "${best[chosen]}" $keep
        exit $?
    ) >"$tmp/log" 2>&1 &
    job=$!
    until [ -s "$tmp/launcher" ]; do nap 0.002; done
    launcher=$(cat "$tmp/launcher")
}
alive() { # whether the launcher or a rank is; one that has ended has no program
    local pid
    for pid in $launcher $(cat "$tmp/pids" 2>/dev/null); do
        [ -e "/proc/$pid/exe" ] && return 0
    done
    return 1
}
# await CONDITION...: until it holds; false if the run ends first
await() {
    until "$@"; do
        [ -e "/proc/$launcher/exe" ] || return 1
        nap 0.002
    done
}
has_steps() { [ -f "$out/metrics.jsonl" ] && [ "$(grep -c '"loss"' "$out/metrics.jsonl")" -ge "$1" ]; }
# strike N: kill a rank, all, or the launcher; until nothing lives. hit: whether the run was still going.
strike() {
    local pids whom=$((RANDOM % 3)) start code
    mapfile -t pids < <(cat "$tmp/pids" 2>/dev/null)
    [ ${#pids[@]} = "$1" ] || whom=2 # not all have started
    case $whom in
    0) kill -9 "${pids[RANDOM % $1]}" 2>/dev/null ;;
    1) kill -9 "${pids[@]}" 2>/dev/null ;;
    2) kill -9 $launcher 2>/dev/null ;;
    esac
    start=$SECONDS
    [ ${#pids[@]} = "$1" ] || nap 0.5      # those that are on their way
    while alive; do
        # shellcheck disable=SC2046
        [ $((SECONDS - start)) -lt 20 ] || { kill -9 $launcher $(cat "$tmp/pids") && fail "$what: the job hangs"; }
        nap 0.02
    done
    wait $job 2>/dev/null
    code=$?
    hit=1
    [ $code != 0 ] || hit=0
    grep -q '^adze: \(error\|bug\)' "$tmp/log" && fail "$what: the run failed by itself"
    grep -q 'not whole' "$tmp/log" && fail "$what: a checkpoint was damaged"
    look
}
# look: what was said to be saved is there, and everything under its last name is whole
look() {
    local step files=("$out"/checkpoint-??????.h5) here
    step=$(sed -n 's/^saved .*checkpoint-0*\([0-9]*\)\.h5: .*/\1/p' "$tmp/log" | tail -n 1)
    [ -z "$step" ] || said=$step
    [ -e "${files[0]}" ] || files=()
    here=${files[*]: -1}
    here=${here##*checkpoint-} && here=${here%.h5} && here=$((10#${here:-0}))
    step=$(sed -n 's/^checkpoint: //p' "$out/state" 2>/dev/null)
    [ -z "$step" ] || [ -e "$out/$step" ] || fail "$what: the state file names $step, which is not there"
    [ "$here" -ge "$said" ] || fail "$what: step $said was saved, but the newest checkpoint is of step $here"
    [ ! -e "$out/adapter.h5" ] || files+=("$out/adapter.h5")
    [ ${#files[@]} = 0 ] || ./adze verify "${files[@]}" >"$tmp/log" 2>&1 || fail "$what: a file is not whole"
    # The config comes last; without it there is no adapter.
    [ ! -e "$out/adapter/adapter_config.json" ] || same_adapter
}
same_adapter() {
    cmp -s "$tmp/good$chosen/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" ||
        fail "$what: the adapter differs"
}

# Undisturbed: the last adapter and the best one; how many calls make the checkpoints and the results.
declare -A calls
for chosen in 0 1; do
    for rank in 0 1; do
        case $chosen$rank in
        *1) begin 2 "$save 1 1000000 -1" ;;
        00) begin 1 "$save 0 1000000 -1" ;;
        10) begin 3 "$results 0 1000000 -1" ;;
        esac
        wait $job || fail "an undisturbed run"
        calls[$chosen$rank]=$(sed -n 's/^none //p' "$tmp/mark")
        [ ${calls[$chosen$rank]:-0} -gt 30 ] || fail "too few calls were seen: ${calls[*]}"
        [ $rank = 0 ] || cmp "$out/adapter.h5" "$tmp/good$chosen/adapter.h5" >/dev/null 2>&1 || same=0
        rm -rf "$tmp/good$chosen"
        mv "$out" "$tmp/good$chosen"
    done
done
losses "$tmp/good0" >"$tmp/losses"
cmp -s "$tmp/good0/adapter/adapter_model.safetensors" "$tmp/good1/adapter/adapter_model.safetensors" &&
    fail "the best adapter is the last one: the test is void"

random=0 inside=0 chance=0 going=0 ending=0 late=0
declare -A phases
for ((k = 1; k <= kills; k++)); do
    rm -rf "$out"
    chosen=$((RANDOM % 2)) said=0
    keep=checkpoint.save_total_limit=$((RANDOM % 2 + 1))
    n=$((RANDOM % 4 + 1)) what="kill $k"
    if [ $((k % 2)) = 1 ]; then
        begin "$n"
        at=$((RANDOM % (steps + 2) - 1))
        [ $at -lt 0 ] && nap 0.$((RANDOM % 4))$((RANDOM % 10)) || await has_steps $at
        nap 0.0$((RANDOM % 4))$((RANDOM % 10))
        strike "$n"
        random=$((random + hit))
        [ ! -e "$(echo "$out"/checkpoint-*.tmp)" ] || chance=$((chance + 1))
    else
        rank=$((RANDOM % n))
        most=$((rank == 0 ? calls[00] * 7 / 10 : calls[01])) which=$save pause=-1
        [ $((RANDOM % 2)) = 0 ] || { which=$steady && most=$((rank == 0 ? 4 * steps : steps)); }
        [ $((RANDOM % 8)) != 0 ] || { which=$notes && rank=0 && most=$steps; }
        [ $((RANDOM % 3)) != 0 ] || pause=$((RANDOM % 2000))
        begin "$n" "$which $rank $(((RANDOM * 32768 + RANDOM) % most)) $pause"
        await [ -e "$tmp/mark" ]
        strike "$n"
        read -r call _ <"$tmp/mark" || fail "$what: was not stopped"
        [ "$call" != none ] || hit=0 # that rank had come to its end before the others
        [ $hit = 0 ] || phases[$call]=$((${phases[$call]:-0} + 1))
        inside=$((inside + hit))
    fi
    late=$((late + 1 - hit))
    what="$what ($n ranks)"
    if [ $((RANDOM % 3)) = 0 ]; then
        m=$((RANDOM % 4 + 1)) what="$what, killed again on $m"
        case $((RANDOM % 3)) in
        0) which="*:$out*" most=200 ;;
        1) which=$records most=26 ;;
        2) which=$results most=${calls[10]} ;;
        esac
        begin "$m" "$which 0 $((RANDOM % most)) -1"
        await [ -e "$tmp/mark" ]
        strike "$m"
        case $which in
        "$results") ending=$((ending + hit)) ;;
        *) going=$((going + hit)) ;;
        esac
    fi
    m=$((RANDOM % 4 + 1)) what="$what, then $m"
    adze "$m" train "$tmp/deck.yaml" output.dir="$out" "${best[chosen]}" $keep || fail "$what: the resumed run"
    from=$(sed -n 's/^resume .*goes on after step \([0-9]*\) of .*/\1/p' "$tmp/log")
    [ "${from:-0}" -ge "$said" ] || fail "$what: step $said was saved, but the run went on from ${from:-the start}"
    grep -q 'not whole' "$tmp/log" && fail "$what: a checkpoint was damaged"
    [ -z "$(find "$out" -name '*tmp*')" ] || fail "$what: left over: $(find "$out" -name '*tmp*')"
    [ ! -e "$out/lock" ] && grep -qx 'state: done' "$out/state" || fail "$what: lock and state at the end"
    [ "$(find "$out" -name 'checkpoint-*' | wc -l)" -le $((${keep#*=} + 1)) ] || fail "$what: old checkpoints stay: $(ls "$out")"
    losses "$out" | cmp -s "$tmp/losses" - || fail "$what: losses differ"
    [ -f "$out/adapter/adapter_config.json" ] || fail "$what: the adapter has no config"
    same_adapter
done
echo "killed: $random at a random moment ($chance inside a save by chance), $inside inside a save, $going while going on," \
    "$ending while writing the adapter; $late had ended before; lost: 0"
for call in "${!phases[@]}"; do echo "  inside a save, before $call: ${phases[$call]}"; done
[ $late -le $((kills / 5)) ] || fail "too many runs had ended before they were killed"
