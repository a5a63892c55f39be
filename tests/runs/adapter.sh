#!/bin/bash
# How the adapter and its gradient lie in memory changes no bit: one copy of the parameters a node or slices that are brought
# together layer by layer, sums reduced at the end of a step or after each layer, on 1 to 4 ranks, on one node and on two (which
# MPICH is told to see on this machine), with as many ranks on each and with two and one; a run that goes on with another choice
# elsewhere, or after it was stopped in the middle of a step; and evaluation.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
reference
# laid N NODES [key=value ...]: the same, and nothing is allocated in the step loop
laid() {
    same "$@"
    grep -q '^allocated 0 times' "$tmp/log" || fail "$*: the step loop allocates"
}
for places in "1 1" "4 1" "2 2" "3 2" "4 2"; do
    set -- $places
    laid "$1" "$2" shard.adapter=gathered shard.reduce=unit
    grep -q '^ *adapter  *gathered ' "$tmp/log" && grep -q '^ *reduce  *unit ' "$tmp/log" || fail "$places: does not say how the adapter lies"
done
for how in "gathered step" "replicated unit" "replicated step"; do
    set -- $how
    laid 3 2 shard.adapter="$1" shard.reduce="$2"
done
# messages in pieces; foreign ranges and released units are NaN
ADZE_COMM_LIMIT=1000 laid 3 2 shard.adapter=gathered shard.reduce=unit run.poison=true
ADZE_COMM_LIMIT=1000 laid 4 2 shard.adapter=replicated shard.reduce=step
# gone on from a checkpoint of another choice
rm "$tmp/one/checkpoint-000020.h5"
from=$tmp/one laid 3 2 shard.adapter=gathered shard.reduce=unit
MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$deck" output.dir="$tmp/cut" shard.adapter=gathered shard.reduce=unit checkpoint.save_steps=10 ||
    fail "a run to go on from"
rm "$tmp/cut/checkpoint-000020.h5"
from=$tmp/cut laid 2 1
# stopped where layers are under way
rm -rf "$tmp/out"
(MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$deck" output.dir="$tmp/out" shard.adapter=gathered shard.reduce=unit) &
until [ -s "$tmp/out/metrics.jsonl" ]; do sleep 0.02; done
pid=$(ranks "output.dir=$tmp/out" | head -n 1)
[ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null
wait
grep -qx 'state: \(requeue\|done\)' "$tmp/out/state" || fail "the run that was stopped: $(cat "$tmp/out/state")"
mv "$tmp/out" "$tmp/stopped"
from=$tmp/stopped laid 3 2 shard.adapter=gathered
# an adapter that is read from a directory and from a file, evaluated where it is cut
for kept in adapter adapter.h5; do
    adze 1 eval --json "$deck" eval.adapter="$tmp/one/$kept" || fail "evaluation on one rank"
    grep -o '"loss": [^,]*' "$tmp/log" >"$tmp/eval"
    MPIR_CVAR_NUM_CLIQUES=2 adze 3 eval --json "$deck" eval.adapter="$tmp/one/$kept" shard.adapter=gathered || fail "evaluation on three ranks"
    grep -o '"loss": [^,]*' "$tmp/log" | cmp -s "$tmp/eval" - || fail "the evaluation of $kept differs: $(cat "$tmp/log")"
done
