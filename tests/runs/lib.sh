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
# reference [key=value ...]: the run of one rank in $tmp/one, of the deck in $deck, with a checkpoint in its middle
reference() {
    adze 1 train "$deck" output.dir="$tmp/one" checkpoint.save_steps=10 "$@" || fail "one rank"
    losses "$tmp/one" >"$tmp/losses"
    [ "$(wc -l <"$tmp/losses")" = 23 ] || fail "not 20 steps and 3 evaluations"
}
# same N NODES [key=value ...]: a run of that deck on N ranks, which MPICH is told to see on so many nodes, into $tmp/out, gives the
# reference's losses and adapter. With $from it goes on from a copy of that directory.
same() {
    local n=$1 nodes=$2 out=$tmp/out what="$*"
    shift 2
    rm -rf "$out"
    [ -z "${from:-}" ] || cp -r "$from" "$out"
    MPIR_CVAR_NUM_CLIQUES=$nodes adze "$n" train "$deck" output.dir="$out" "$@" || fail "$what"
    losses "$out" | cmp -s "$tmp/losses" - || fail "$what: losses differ"
    cmp -s "$tmp/one/adapter/adapter_model.safetensors" "$out/adapter/adapter_model.safetensors" || fail "$what: the adapter differs"
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
