#!/bin/bash
# registers.sh NVCC SOURCE...: what nvcc makes of each kernel, for each kind of GPU: registers, spills, shared memory, as a
# table. Exits 1 if a kernel spills registers into memory. Run by make check-registers; needs no GPU. FLAGS: more for nvcc.
set -u
nvcc=$1
shift
[ -n "$nvcc" ] || { echo "skipped: configure found no nvcc"; exit 0; }
out=$(mktemp -d) || exit 99
trap 'rm -rf "$out"' EXIT
status=0
printf '| kernel | registers on sm_80 | sm_89 | sm_90 | shared bytes | spilled bytes |\n| --- | --- | --- | --- | --- | --- |\n'
for source in "$@"; do
    # shellcheck disable=SC2086
    "$nvcc" -std=c++17 -O3 ${FLAGS:-} -Xptxas -v -gencode arch=compute_80,code=sm_80 -gencode arch=compute_89,code=sm_89 \
        -gencode arch=compute_90,code=sm_90 -Xcompiler -fPIC -c "$source" -o "$out/o" >"$out/log" 2>&1 ||
        { cat "$out/log"; exit 1; }
    c++filt <"$out/log" >"$out/names" 2>/dev/null || cp "$out/log" "$out/names"
    awk '
        /Compiling entry function/ {
            split($0, part, "'"'"'")
            kernel = part[2]
            gpu = part[4]
            sub(/^void /, "", kernel)
            gsub(/\(anonymous namespace\)::/, "", kernel)
            sub(/\(.*/, "", kernel)
        }
        /bytes stack frame/ { now = $5 + $9 }
        /: Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            registers = substr($0, RSTART + 5, RLENGTH - 5)
            if (!(kernel in shared))
                order[++n] = kernel
            shared[kernel] = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
            used[kernel, gpu] = registers
            spilled[kernel] += now
            bad += now
        }
        END {
            for (i = 1; i <= n; i++) {
                k = order[i]
                print "| `" k "` | " used[k, "sm_80"] " | " used[k, "sm_89"] " | " used[k, "sm_90"] " | " shared[k] " | " spilled[k] " |"
            }
            exit bad > 0
        }' "$out/names" || { status=1; echo "$source: registers are spilled"; }
done
exit $status
