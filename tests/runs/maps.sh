#!/bin/bash
# Nobody can write into the base after it is loaded: its bytes are looked for in all memory of all ranks while they train, and the
# kernel's maps say who may write there.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
tests/tools/random_model "$tmp/model" 256 512 4 4 4 64 512 bf16 1 1 || fail "no model"
cat >"$tmp/deck.yaml" <<DECK
model: {path: $tmp/model}
data: {files: [$src/tests/golden/llama-gqa/data.jsonl], max_length: 32}
lora: {r: 2, target_modules: [q_proj, v_proj]}
train: {batch_size: 8, micro_batch_size: 1, max_steps: 1000000, lr_scheduler_type: constant}
DECK
# look NAME RANKS NODES [key=value ...]: a line for each mapping of a rank that holds bytes of the base: rights, pieces, name
look() {
    local name=$1 n=$2 nodes=$3 pids
    shift 3
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$tmp/deck.yaml" output.dir="$tmp/$name" "$@" &
    until [ -s "$tmp/$name/metrics.jsonl" ]; do
        kill -0 $! 2>/dev/null || fail "$name"
        sleep 0.1
    done
    pids=$(ranks "output.dir=$tmp/$name")
    # shellcheck disable=SC2086
    tests/tools/find_bytes "$tmp/model/model.safetensors" $pids >"$tmp/found" || fail "$name: memory cannot be read"
    # shellcheck disable=SC2086
    kill -TERM $pids
    wait $!
    all=$(sed -n 's/^pieces //p' "$tmp/found")
}
# How many mappings of a name hold bytes of the base, and how many of those can be written.
rights() { grep -c " [0-9]* $1\$" "$tmp/found"; }
writable() { grep -c "^.w.* [0-9]* $1\$" "$tmp/found"; }

# One copy a node: nothing else holds a byte of it, and each rank sees all of it.
look node 2 1 shard.scope=node
[ "$(sed 1d "$tmp/found" | sort -u)" = "r--s $all /memfd:adze-base" ] && [ "$(rights /memfd:adze-base)" = 2 ] ||
    fail "node: $(<"$tmp/found")"

# Cut over two nodes: of what is held likewise. The slots have two mappings, one that is read, one for the transport. What
# passes through the transport's own memory is less than a unit.
for resident in 0 0.5; do
    look world$resident 4 2 shard.scope=world shard.resident=$resident
    [ "$(rights /memfd:adze-base)" = 4 ] && [ "$(writable /memfd:adze-base)" = 0 ] || fail "world, held: $(<"$tmp/found")"
    [ "$(rights /memfd:adze-slots)" = 8 ] && [ "$(writable /memfd:adze-slots)" = 4 ] || fail "world, slots: $(<"$tmp/found")"
    ! grep -v ' /memfd:adze-\| /SYSV0*$' "$tmp/found" | grep -q '^.w.. [0-9]\{4,\} ' || fail "world: another copy: $(<"$tmp/found")"
done

# The files themselves as memory.
look map 2 1 shard.scope=node model.load=map
[ "$(writable '.*')" = 0 ] && [ "$(rights ".*/model.safetensors")" = 2 ] || fail "map: $(<"$tmp/found")"
