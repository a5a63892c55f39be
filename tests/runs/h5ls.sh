#!/bin/bash
# h5dump and h5ls read adze's HDF5 files: numbers in decimals for f32 and for 16-bit floats, texts, tables, attributes.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
command -v h5dump >/dev/null && command -v h5ls >/dev/null || { echo "h5dump and h5ls are not here"; exit 77; }
groups=(/adapter /optimizer/exp_avg /optimizer/exp_avg_sq)
# data ARGUMENTS...: what h5dump prints as DATA, one value a line.
data() {
    h5dump -y -w 0 -m %.9g "$@" | awk '/ATTRIBUTE/ { exit } /^ *DATA \{/ { on = 1; next } on && /^ *}/ { exit } on' |
        tr ',' '\n' | sed 's/^ *//; s/ *$//' | grep -v '^$'
}
for type in f32 bf16; do
    file=$tmp/$type.h5
    LD_PRELOAD=$yield timeout 60 ${MPIEXEC:-mpiexec} -n 2 tests/tools/h5_small "$file" $type >"$tmp/log" 2>&1 || fail "writing $type"
    h5ls -r "$file" | awk '$2 == "Dataset" { print $1 }' | grep -E '^/(adapter|optimizer)/' >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" = 15 ] || fail "h5ls: $(cat "$tmp/names")"
    for s in 0 1 2; do
        i=0
        for name in self_attn.q_proj.lora_A self_attn.q_proj.lora_B mlp.down_proj.lora_A mlp.down_proj.lora_B one; do
            path=$(grep "^${groups[s]}/.*$name" "$tmp/names")
            tests/tools/h5_small values $type $s $i >"$tmp/want"
            data -d "$path" "$file" >"$tmp/got"
            diff "$tmp/want" "$tmp/got" >"$tmp/log" || fail "$type $path"
            i=$((i + 1))
        done
    done
    data -d /shards "$file" | tr '\n' ' ' >"$tmp/got"
    [ "$(cat "$tmp/got")" = "0 0 20 1 20 57 -1 9223372036854775807 -9223372036854775808 " ] || fail "/shards: $(cat "$tmp/got")"
    h5dump -d /deck "$file" | grep -q 'steps: 10' || fail "/deck"
    [ "$(h5dump -a /trainer/step "$file" | grep -c '(0): 120')" = 1 ] || fail "/trainer/step"
    [ "$(h5dump -a /trainer/loss "$file" | grep -c '(0): 0.1')" = 1 ] || fail "/trainer/loss"
    [ "$(h5dump -a /complete "$file" | grep -c '(0): 1')" = 1 ] || fail "/complete"
done
h5dump -H -d /adapter/one "$tmp/bf16.h5" | grep -q '16-bit little-endian floating-point' || fail "the type of bf16"
