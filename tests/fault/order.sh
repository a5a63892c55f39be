#!/bin/bash
# The order in which a checkpoint comes to the disk, from a library between the program and the kernel: every write of every
# rank, then each rank that wrote syncs the file, then the rename, then the directory is synced. The check is shown to fail on
# wrong logs. A program that is killed loses nothing of what it has written, so that no test with kill shows this.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
# in_order LOG RANKS: whether a log of order.so is right; says what is wrong.
in_order() {
    awk -v ranks="$2" '
        function bad(what) { print "line " NR ": " what; wrong = 1 }
        $4 == "temporary" && $3 ~ /^(write|ftruncate|fallocate)$/ {
            wrote[$1] = 1
            if (syncing) bad("rank " $1 " changes the file while others sync it")
            if (renamed) bad("rank " $1 " changes the file after it was renamed")
        }
        $4 == "final" && $3 ~ /^(write|ftruncate|fallocate)$/ { bad("the file is changed under its last name") }
        $4 == "temporary" && $3 == "fsync" && $2 == "begin" { syncing = 1 }
        $4 == "temporary" && $3 == "fsync" && $2 == "end" { synced[$1] = NR }
        $3 == "rename" && $4 == "final" && $2 == "begin" {
            for (r in wrote) if (!(r in synced)) bad("renamed before rank " r " has synced")
        }
        $3 == "rename" && $4 == "final" && $2 == "end" { renamed = NR }
        $3 == "fsync" && $4 == "directory" && $2 == "begin" && !renamed { bad("the directory is synced before the rename") }
        $3 == "fsync" && $4 == "directory" && $2 == "end" && renamed { last = NR }
        END {
            for (r = 0; r < ranks; r++) if (!(r in wrote)) { print "rank " r " wrote nothing: the test is void"; wrong = 1 }
            if (!renamed) { print "never renamed"; wrong = 1 }
            if (!last) { print "the directory was not synced after the rename"; wrong = 1 }
            exit wrong
        }' "$1"
}

ORDER_LOG=$tmp/order ORDER_FILE=$tmp/a.h5 LD_PRELOAD="$yield $PWD/tests/tools/order.so" \
    timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 3 tests/tools/h5_small "$tmp/a.h5" f32 >"$tmp/log" 2>&1 || fail "writing"
[ "$(grep -c 'write temporary' "$tmp/order")" -gt 20 ] || fail "few writes were seen: $(cat "$tmp/order")"
in_order "$tmp/order" 3 >"$tmp/log" || fail "the order"

# Logs that are wrong in one way each must be refused.
refused() {
    in_order "$tmp/wrong" 3 >"$tmp/log" && fail "not refused: $1"
    grep -q "$2" "$tmp/log" || fail "refused for another reason: $1"
}
grep -v '^1 .* fsync temporary' "$tmp/order" >"$tmp/wrong"
refused "a rank does not sync" "renamed before rank 1 has synced"
{ cat "$tmp/order" && echo "2 begin write temporary"; } >"$tmp/wrong"
refused "a write after all" "rank 2 changes the file after it was renamed"
awk '/^2 begin fsync temporary/ { print; print "0 begin write temporary"; next } { print }' "$tmp/order" >"$tmp/wrong"
refused "a write while others sync" "rank 0 changes the file while others sync it"
{ grep rename "$tmp/order" && grep -v rename "$tmp/order"; } >"$tmp/wrong"
refused "renamed first" "rank 0 changes the file after it was renamed"
grep -v 'fsync directory' "$tmp/order" >"$tmp/wrong"
refused "no sync of the directory" "the directory was not synced"
{ grep 'fsync directory' "$tmp/order" && grep -v 'fsync directory' "$tmp/order"; } >"$tmp/wrong"
refused "the directory first" "synced before the rename"
grep -v '^1 .* write temporary' "$tmp/order" >"$tmp/wrong"
refused "a rank that writes nothing" "rank 1 wrote nothing"
