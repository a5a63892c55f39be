#!/bin/bash
# Weights come over the network while others are computed with: on two hosts whose link is so slow that gathers take about as long
# as the computing for which they are made, a step takes at most 1.2 times the longer of both with two slots or more, and their
# sum with one.
#   computing   the median step of the same run in scope node, which fetches nothing
#   gathers     what a rank waits for them with one slot, where nothing goes on beside them, in proportion to the bytes that
#               came; they must make use of half of the link at least
# Products of matrices are made as slow as on a core of $SLOW_FLOPS (tests/tools/slow.c): mostly sleep, which other work of the
# machine lengthens little, as it would lengthen real computing. It does hold up the network, so a claim is measured up to three
# times; it holds if two of them show it, and all are printed. Budget: 200 s. Skipped where there can be no network namespaces.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/hosts/lib.sh" || exit 99
hosts_begin 2
[ -f tests/tools/slow.so ] || fail "no tests/tools/slow.so"
export SLOW_FLOPS=3e9
yield=$yield:$PWD/tests/tools/slow.so
layers=12 tokens=64 steps=4
tests/tools/random_model "$tmp/model" 384 1152 $layers 6 6 64 128 bf16 1 1 || fail "no model"
unit=$(($(stat -c %s "$tmp/model/model.safetensors") / layers))
awk -v n="$tokens" 'BEGIN { for (s = 0; s < 4; s++) {
    printf "{\"input_ids\": ["
    for (i = 0; i < n; i++) printf "%s%d", (i > 0 ? ", " : ""), (i * 7 + s * 13) % 128
    print "]}" } }' >"$tmp/data.jsonl"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$tmp/data.jsonl], max_length: $tokens}
lora: {r: 2, target_modules: [q_proj]}
train: {batch_size: 2, micro_batch_size: 1, max_steps: $steps, lr_scheduler_type: constant}
shard: {scope: world}
output: {dir: $tmp/out}
DECK
# run [key=value ...]: seconds of a step in $step, waited of them in $waited, bytes into a host in $received
run() {
    rm -rf "$tmp/out"
    on_hosts 1 train "$tmp/deck.yaml" "$@" || fail "$*"
    step=$(step_seconds 2)
    received=$(between 1 $steps)
    received=$((${received% *} / (2 * (steps - 1))))
    waited=$(sed -n 's/^gathers .* waited \([0-9.]*\) s a step.*/\1/p' "$tmp/log")
}
slow() {
    local i
    for i in 1 2; do host_slow $i "$1" || fail "the link cannot be slowed"; done
}
# claim TIMES SLOTS: one measurement; a line, and whether it holds
claim() {
    local rate
    # So many bits a second that half a unit would come in TIMES the computing of a layer one way, if the link were used to the full.
    rate=$(awk -v u="$unit" -v c="$compute" -v r="$1" -v n=$((2 * layers)) 'BEGIN { printf "%.0f", 8 * u / 2 / (c / n * r) }')
    slow "$rate"
    run shard.slots=1
    awk -v c="$compute" -v s="$step" -v x="$waited" -v b="$received" -v rate="$rate" 'BEGIN {
        good = s >= 0.85 * (c + x) && s <= 1.15 * (c + x) && 8 * b / rate >= 0.5 * x
        printf "1 slot, %.0f Mbit/s: computing %.3f s, gathers %.3f s, step %.3f s = %.2f of the longer, %.2f of the sum; %.2f of the link: %s\n",
            rate / 1e6, c, x, s, s / (c > x ? c : x), s / (c + x), 8 * b / rate / x, good ? "holds" : "does not hold"
        exit !good }' || return 1
    gathers=$waited bytes=$received
    run shard.slots="$2"
    awk -v c="$compute" -v s="$step" -v x="$gathers" -v b="$received" -v all="$bytes" -v k="$2" 'BEGIN {
        x *= b / all; most = c > x ? c : x; good = s <= 1.2 * most
        printf "%d slots: gathers %.3f s, step %.3f s = %.2f of the longer, %.2f of the sum: %s\n",
            k, x, s, s / most, s / (c + x), good ? "holds" : "does not hold"
        exit !good }'
}
claims() {
    local held=0 n
    for n in 1 2 3; do
        claim "$@" && held=$((held + 1))
        [ $held -lt 2 ] && [ $((held + 3 - n)) -ge 2 ] || break
    done
    [ $held -ge 2 ] || fail "$2 slots, gathers $1 times as long as computing: shown $held times only"
}
run shard.scope=node
compute=$step
claims 0.6 2
claims 1.25 3
