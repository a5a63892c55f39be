#!/bin/bash
# How the adapter and its gradient lie in memory changes no bit: when sums are reduced, on 1 to 4 ranks, on one node and on two
# (which MPICH is told to see on this machine), with as many ranks on each and with two and one; and a run that goes on with
# another choice elsewhere.
. "${srcdir:-.}/tests/runs/lib.sh"
deck=$src/tests/runs/exact.yaml
adze 1 train "$deck" output.dir="$tmp/one" checkpoint.save_steps=10 || fail "one rank"
losses "$tmp/one" >"$tmp/losses"
[ "$(wc -l <"$tmp/losses")" = 23 ] || fail "not 20 steps and 3 evaluations"
# same N NODES [key=value ...]: a run gives the same losses and adapter
same() {
    local n=$1 nodes=$2 out=$tmp/out
    shift 2
    rm -rf "$out"
    [ -z "${from:-}" ] || cp -r "$from" "$out"
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$deck" output.dir="$out" "$@" || fail "$n ranks, $nodes nodes, $*"
    losses "$out" | cmp -s "$tmp/losses" - || fail "$n ranks, $nodes nodes, $*: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" ||
        fail "$n ranks, $nodes nodes, $*: the adapter differs"
    grep -q '^allocated 0 times' "$tmp/log" || fail "$n ranks, $nodes nodes, $*: the step loop allocates"
}
for places in "1 1" "2 1" "4 1" "2 2" "3 2" "4 2"; do
    set -- $places
    same "$1" "$2" shard.reduce=unit
    grep -q '^gradient  summed over nodes layer by layer' "$tmp/log" || fail "$places: does not say so"
    [ "$2" = 1 ] || same "$1" "$2" shard.reduce=step
done
# messages in pieces
export ADZE_COMM_LIMIT=1000
same 3 2 shard.reduce=unit
same 3 2 shard.reduce=step
unset ADZE_COMM_LIMIT
# gone on from a checkpoint of another choice
rm "$tmp/one/checkpoint-000020.h5"
from=$tmp/one same 3 2 shard.reduce=unit
MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$deck" output.dir="$tmp/unit" shard.reduce=unit checkpoint.save_steps=10 || fail "a run to go on from"
rm "$tmp/unit/checkpoint-000020.h5"
from=$tmp/unit same 2 1 shard.reduce=step
