#!/bin/bash
# No choice of how a run is laid out changes a bit of its losses and its adapter: numbers of ranks, nodes (which MPICH is told to
# see on this machine), scope, residency, slots, transport, order of accumulation, activations, placement of the adapter,
# reduction, loading, memory. Combinations are drawn with a fixed seed; every second one goes on from the middle of the one
# before it. Each is done with two sets of OpenBLAS kernels, whose results differ from each other.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
keep="checkpoint.save_steps=10 checkpoint.save_total_limit=9"
RANDOM=1848
# one WORD...: one of the words, in $word
one() {
    word=${*:$((RANDOM % $# + 1)):1}
}
# draw RANKS: a combination, in $keys and $nodes
draw() {
    local ranks=$1
    one $([ "$ranks" -lt 2 ] && echo 1 || echo 1 2 2) $([ "$ranks" -lt 4 ] || echo 3 4)
    nodes=$word
    one auto node world world world
    keys="shard.scope=$word"
    if [ "$word" = world ]; then
        one 0 0.25 0.5 1
        keys="$keys shard.resident=$word"
        one 1 2 3 6
        keys="$keys shard.slots=$word"
    fi
    one auto thread poll
    keys="$keys shard.progress=$word"
    one auto depth_first layer_major
    keys="$keys shard.accumulation=$word"
    one auto keep cheap recompute
    keys="$keys shard.activations=$word"
    one auto replicated gathered
    keys="$keys shard.adapter=$word"
    one auto step unit
    keys="$keys shard.reduce=$word"
    one auto job node
    keys="$keys model.load=$word"
    one $((16 + 40 * ranks))MiB 8GiB
    [ $((RANDOM % 2)) = 0 ] || keys="$keys run.memory=$word"
}
# check WHAT: the run in $tmp/out is that of one rank
check() {
    losses "$tmp/out" | cmp -s "$tmp/losses" - || fail "$1: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$tmp/out/adapter/adapter_model.safetensors" || fail "$1: the adapter differs"
}
for kernels in "${OPENBLAS_CORETYPE:-SkylakeX}" Haswell; do
    export OPENBLAS_CORETYPE=$kernels
    rm -rf "$tmp/one" "$tmp/out"
    # shellcheck disable=SC2086
    adze 1 train "$deck" output.dir="$tmp/one" $keep || fail "$kernels: one rank"
    losses "$tmp/one" >"$tmp/losses"
    [ "$(wc -l <"$tmp/losses")" = 23 ] || fail "$kernels: not 20 steps and 3 evaluations"
    [ ! -e "$tmp/before" ] || ! cmp -s "$tmp/losses" "$tmp/before" || fail "both sets of kernels gave the same losses: only one was used"
    cp "$tmp/losses" "$tmp/before"
    for ranks in 1 2 3 4 5 6 7 8 12 16 2 3 4 4 4 6; do
        draw "$ranks"
        rm -rf "$tmp/out"
        # shellcheck disable=SC2086
        MPIR_CVAR_NUM_CLIQUES=$nodes adze "$ranks" train "$deck" output.dir="$tmp/out" $keep $keys || fail "$kernels, $ranks ranks on $nodes nodes, $keys"
        check "$kernels, $ranks ranks on $nodes nodes, $keys"
        was="$ranks ranks on $nodes nodes, $keys"
        rm "$tmp/out/checkpoint-000020.h5"
        one 1 2 3 4 6
        ranks=$word
        draw "$ranks"
        # shellcheck disable=SC2086
        MPIR_CVAR_NUM_CLIQUES=$nodes adze "$ranks" train "$deck" output.dir="$tmp/out" $keep $keys || fail "$kernels, on $ranks ranks on $nodes nodes, $keys, after $was"
        grep -q 'checkpoint-000010.h5: goes on after step 10 of 20' "$tmp/log" || fail "$kernels, $keys: did not go on"
        check "$kernels, going on: $ranks ranks on $nodes nodes, $keys, after $was"
    done
done
