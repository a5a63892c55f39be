#!/bin/bash
# HDF5's own h5dump prints the numbers of a checkpoint and of a bf16 adapter.h5: those of adapter_model.safetensors, to all digits.
. "${srcdir:-.}/tests/runs/lib.sh"
command -v h5dump >/dev/null || {
    echo "no h5dump"
    exit 77
}
given=$src/tests/golden/llama-gqa/adapter
for kind in "checkpoint f32" "adapter bf16"; do
    set -- $kind
    LD_PRELOAD=$yield timeout -k 5 60 ${MPIEXEC:-mpiexec} -n 3 tests/tools/make_h5 "$1" "$given" "$tmp/$1.h5" "$2" >"$tmp/log" 2>&1 ||
        fail "make_h5 $kind"
    h5dump -y -m %.9g -g /adapter "$tmp/$1.h5" >"$tmp/text" 2>"$tmp/log" || fail "h5dump of a file with $kind"
    tests/tools/check_h5dump "$given" "$2" <"$tmp/text" >"$tmp/log" 2>&1 || fail "h5dump of a file with $kind prints other numbers"
    cat "$tmp/log"
done
# The check can fail: one digit of one number.
sed '0,/^ *-\{0,1\}[0-9][0-9.e-]*[1-9]/s/[1-8]\([0-9]*\),/9\1,/' "$tmp/text" >"$tmp/wrong"
cmp -s "$tmp/text" "$tmp/wrong" && fail "nothing was changed"
tests/tools/check_h5dump "$given" bf16 <"$tmp/wrong" >"$tmp/log" 2>&1 && fail "another number is not found"
h5dump -n "$tmp/checkpoint.h5" >"$tmp/log" 2>&1 || fail "h5dump -n"
for name in /adapter_config /deck /shards /trainer /base /optimizer/exp_avg /optimizer/exp_avg_sq; do
    grep -q " $name\$" "$tmp/log" || fail "h5dump does not list $name"
done
