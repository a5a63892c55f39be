# Shared by the scripts of tests/runs and tests/fault: a scratch directory, the program on n ranks, its processes, checks that
# end the test.
set -u
src=$(cd "${srcdir:-.}" && pwd)
tmp=$(mktemp -d "${TMPDIR:-/tmp}/adze-test.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
yield=
[ ! -f tests/tools/yield.so ] || yield=$PWD/tests/tools/yield.so
fail() {
    echo "FAIL: $*"
    tail -n 20 "$tmp/log" 2>/dev/null
    exit 1
}
# adze N ARGUMENTS...: run on N ranks under a time limit; output in $tmp/log.
adze() {
    local n=$1
    shift
    LD_PRELOAD=$yield timeout -k 5 "${RUN_LIMIT:-120}" ${MPIEXEC:-mpiexec} -n "$n" ./adze "$@" >"$tmp/log" 2>&1
}
# Losses of a run, as written.
losses() {
    grep -o '"\(eval_\)\?loss": [^,]*' "$1/metrics.jsonl"
}
program=$(readlink -f ./adze)
# ranks WORD: the processes of the program that have this argument, in the order of their ids
ranks() {
    local exe
    for exe in $(printf '%s\n' /proc/[0-9]*/exe | sort -V); do
        [ "$(readlink "$exe" 2>/dev/null)" = "$program" ] || continue
        tr '\0' '\n' 2>/dev/null <"${exe%exe}cmdline" | grep -qxF "$1" || continue
        exe=${exe%/exe} && echo "${exe#/proc/}"
    done
}
