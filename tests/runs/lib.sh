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
# ranks WORD: the processes of the program that have this argument. Quick, as runs are short: no process is started for others.
ranks() {
    local dir name
    for dir in /proc/[0-9]*; do
        { read -r name <"$dir/comm"; } 2>/dev/null && [ "$name" = "${program##*/}" ] || continue
        [ "$(readlink "$dir/exe")" = "$program" ] && tr '\0' '\n' 2>/dev/null <"$dir/cmdline" | grep -qxF "$1" && echo "${dir#/proc/}"
    done | sort -n
}
# child PID: the process that another one started, timeout for example
child() {
    local dir stat parent
    for dir in /proc/[0-9]*; do
        { read -r stat <"$dir/stat"; } 2>/dev/null || continue
        read -r _ parent _ <<<"${stat##*) }" # PID (NAME) STATE PARENT ...
        [ "$parent" != "$1" ] || echo "${dir#/proc/}"
    done
}
