#!/bin/bash
# Where the base lies changes no bit: one copy a node, or cut over two nodes (which MPICH is told to see on this machine) with
# none, some or all of it resident, in one slot or more, read once a job or once a node, poisoned too, nodes of unequal size,
# and a run that goes on in another scope [8]. No process can write into what a node holds.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
reference shard.scope=world
# received: what the summary says that a node has received
received() {
    sed -nE 's/^gathers   [0-9,]*, nothing comes from other nodes, waited .*/0 B/p
        s/^gathers   [0-9,]* of ([0-9.]+ [A-Za-z]+) received by each node, waited .*/\1/p' "$tmp/log"
}
for nodes in 1 2; do
    same 4 $nodes shard.scope=node
    grep -q '^base      one copy a node' "$tmp/log" && [ "$(received)" = "0 B" ] || fail "node, $nodes nodes: gathered"
done
same 4 1 shard.scope=world
[ "$(received)" = "0 B" ] || fail "world on one node: gathered"
same 4 2 shard.scope=world
grep -q '^base      cut over 2 nodes: .* 0 of [0-9]* units resident' "$tmp/log" && [ "$(received)" != "0 B" ] || fail "world: does not say so"
same 3 2 shard.scope=world shard.slots=1 model.load=node run.poison=true
same 3 2 shard.scope=world shard.resident=0.5 shard.slots=4 shard.progress=poll
same 4 2 shard.scope=world shard.resident=0.5 shard.slots=1 model.load=node
same 4 2 shard.scope=world shard.resident=1 model.load=node
[ "$(received)" = "0 B" ] || fail "all resident: gathered"
same 3 2 run.poison=true
rm "$tmp/one/checkpoint-000020.h5"
from=$tmp/one same 3 1 shard.scope=node
from=$tmp/one same 3 2 shard.scope=world shard.resident=0.3

# What the kernel says of the pages that hold the base, while a run is at work: of what is held, and of slots, which the
# transport fills.
# rights NODES [key=value ...]: of all processes and mappings, those of memory NAME
rights() {
    local nodes=$1 pids
    shift
    rm -rf "$tmp/maps"
    (MPIR_CVAR_NUM_CLIQUES=$nodes LD_PRELOAD=$yield timeout 60 ${MPIEXEC:-mpiexec} -n 4 ./adze train "$deck" output.dir="$tmp/maps" \
        train.num_train_epochs=1000000 "$@" >"$tmp/log" 2>&1) &
    until [ -s "$tmp/maps/metrics.jsonl" ]; do sleep 0.1; done
    pids=$(ranks "output.dir=$tmp/maps")
    for pid in $pids; do cat "/proc/$pid/maps"; done >"$tmp/pages"
    # shellcheck disable=SC2086
    kill -TERM $pids
    wait
    awk '/memfd:adze-base/ {print $2}' "$tmp/pages" | sort | uniq -c | xargs
}
[ "$(rights 1)" = "4 r--s" ] || fail "one node: rights of the base's pages"
! grep -q memfd:adze-slots "$tmp/pages" || fail "one node: slots"
[ "$(rights 2 shard.scope=world shard.resident=0.5)" = "4 r--s" ] || fail "two nodes: rights of the base's pages"
grep -q memfd:adze-slots "$tmp/pages" || fail "two nodes: no slots"
