#!/bin/bash
# Scopes of the base change no bit: one copy a node, or a slice a rank, on one node and on two (which MPICH is told to see on
# this machine), poisoned too, and a run that goes on in another scope [8]. Where ranks cannot share memory, auto says so and
# takes slices. No rank can write into the node's copy.
. "${srcdir:-.}/tests/runs/lib.sh"
deck=$src/tests/runs/exact.yaml
adze 1 train "$deck" output.dir="$tmp/one" shard.scope=world checkpoint.save_steps=10 || fail "one rank"
losses "$tmp/one" >"$tmp/losses"
# same N SCOPE NODES [key=value ...]: a run gives the same losses and adapter
same() {
    local n=$1 scope=$2 nodes=$3 out=$tmp/out
    shift 3
    rm -rf "$out"
    [ -z "${from:-}" ] || cp -r "$from" "$out"
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$deck" output.dir="$out" shard.scope="$scope" "$@" || fail "$n ranks, $scope, $nodes nodes"
    losses "$out" | cmp -s "$tmp/losses" - || fail "$n ranks, $scope, $nodes nodes: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" || fail "$n ranks, $scope, $nodes nodes: the adapter differs"
}
for nodes in 1 2; do
    same 4 node $nodes
    grep -q '^base      one copy a node' "$tmp/log" && grep -q '^gathers   [0-9,]* of 0 B received' "$tmp/log" || fail "node, $nodes nodes: gathered"
    same 4 world $nodes
    grep -q '^base      a slice a rank' "$tmp/log" || fail "world, $nodes nodes: does not say so"
    same 3 auto $nodes run.poison=true
done
rm "$tmp/one/checkpoint-000020.h5"
from=$tmp/one same 3 node 1
from=$tmp/one same 2 world 1

# What the kernel says of the pages that hold the base, while a run is at work.
(LD_PRELOAD=$yield timeout 60 ${MPIEXEC:-mpiexec} -n 2 ./adze train "$deck" output.dir="$tmp/maps" train.num_train_epochs=1000000 >"$tmp/log" 2>&1) &
until [ -s "$tmp/maps/metrics.jsonl" ]; do sleep 0.1; done
rights=$(for pid in $(ranks "output.dir=$tmp/maps"); do awk '/memfd:adze-base/ {print $2}' "/proc/$pid/maps"; done)
# shellcheck disable=SC2046
kill -TERM $(ranks "output.dir=$tmp/maps")
wait
[ "$(echo $rights)" = "r--s r--s" ] || fail "rights of the base's pages: $(echo $rights)"
