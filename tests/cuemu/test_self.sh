#!/bin/bash
# test_self.sh: the stand-in for CUDA keeps CUDA's rules, and finds each of a list of deliberate faults: wrong kernels, waits
# left out, collectives that do not match. A fault that is not reported is a failure of this test, as is a report where
# there is no fault. What is found depends on the build: without sanitizers wrong results and what the stand-in itself
# refuses; with the address and undefined-behaviour sanitizers also what is out of bounds; with the thread sanitizer what
# is not ordered, without a wrong result being needed. SANITIZE: the build's list. Budget: 20 s.
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ -f tests/cuemu/self_rules.self ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
export CUEMU_TIMEOUT=2
case ${SANITIZE:-no} in
*thread*) column=3 seeds="0" ;;
*address*) column=2 seeds="1 0" ;;
*) column=1 seeds="1 2 3 4 5 6 7 0" ;;
esac
report=$(mktemp) || exit 99
trap 'rm -f "$report"' EXIT
passed=0 failed=0

once() { # SEED PROGRAM ARGUMENTS: its exit code; what it prints is in $report
    { CUEMU_SEED=$1 timeout -k 5 60 "tests/cuemu/$2.self" "${@:3}" >"$report" 2>&1; } 2>/dev/null
}

# Every seed must be right.
right() {
    local seed
    for seed in $seeds; do
        once "$seed" "$@" && { passed=$((passed + 1)); continue; }
        failed=$((failed + 1))
        echo "$*, seed $seed: failed without a fault:"
        head -30 "$report"
    done
}

# A seed must fail with the text; another failure counts for nothing.
found() { # TEXT PROGRAM ARGUMENTS
    local seed
    for seed in $seeds; do
        if ! once "$seed" "${@:2}" && grep -qE -- "$1" "$report"; then
            passed=$((passed + 1))
            return
        fi
    done
    failed=$((failed + 1))
    echo "${*:2}: not found: $1; the last report:"
    head -30 "$report"
}

right self_rules
right self_kernels right
right self_waits
right self_nccl right
right self_nccl abort

# program; case; plain; address,undefined; thread: what the report must say; - : this build need not find it
race='WARNING: ThreadSanitizer: data race'
while IFS=';' read -r program case texts; do
    [ -n "$program" ] || continue
    IFS=';' read -r -a text <<<"$texts"
    expected=${text[column - 1]//RACE/$race}
    [ "$expected" = - ] || found "$expected" "$program" "$case"
done <"$here/self.txt"

echo "self-test of the stand-in (${SANITIZE:-no} sanitizers): $passed passed, $failed failed"
[ $failed -eq 0 ]
