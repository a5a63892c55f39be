# Shared by the tests of tests/slurm that start trainings: jobs by name. After tests/runs/lib.sh and cluster.sh.
#
# Ranks nap while they wait ($nap microseconds), so that many fit on two cores. Keys of a run are in $keys.
declare -A job
srun="srun --mpi=pmi2"

# go NAME LAUNCHER SCRIPT DECK OPTIONS...: submits a training on two nodes with two ranks each, output in $tmp/NAME.
go() {
    local name=$1 launcher=$2 script=$3 deck=$4
    shift 4
    # shellcheck disable=SC2086
    job[$name]=$(ADZE_LAUNCH=$launcher YIELD_US=${nap:-2000} LD_PRELOAD=$yield ADZE=$PWD/adze sbatch --parsable -N 2 \
        --ntasks-per-node=2 --time=10 --output="$tmp/log.$name" --chdir="$tmp" "$@" "$src/batch/$script" "$deck" \
        output.dir="$tmp/$name" ${keys:-}) || fail "$name: sbatch"
}

failed() {
    grep -v '^step\|^saved\|^eval\|^ ' "$tmp/log.$1"
    rm -f "$tmp/log"
    fail "$1: $2"
}

steps() {
    [ ! -f "$tmp/$1/metrics.jsonl" ] || grep -c '"loss"' "$tmp/$1/metrics.jsonl"
}
has_steps() {
    local n
    n=$(steps "$1")
    [ "${n:-0}" -ge "$2" ]
}

# at STEP NAME: waits until the run has got that far.
at() {
    wait_for 60 has_steps "$2" "$1" || failed "$2" "no step $1"
}

restarts() {
    scontrol -o show job "${job[$1]}" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p'
}
restarted() {
    [ "$(restarts "$1")" -ge 1 ]
}

# said NAME PATTERN: a line of the job's output.
said() {
    grep -q -- "$2" "$tmp/log.$1" || failed "$1" "no line $2"
}

# completes NAME SECONDS WANTED: the job ends well, and with the same adapter as the run WANTED.
completes() {
    job_wait "${job[$1]}" "$2"
    [ "$job_end" = COMPLETED ] || failed "$1" "the job ended as $job_end"
    grep -qx 'state: done' "$tmp/$1/state" || failed "$1" "state: $(<"$tmp/$1/state")"
    cmp -s "$tmp/$3/adapter/adapter_model.safetensors" "$tmp/$1/adapter/adapter_model.safetensors" ||
        failed "$1" "the adapter differs from that of $3"
    echo "$1: $(restarts "$1") restarts, after $SECONDS s"
}
