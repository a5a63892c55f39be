#!/bin/bash
# batch/train.sbatch under a Slurm of our own: two nodes with two ranks each, started by srun and by mpiexec, give the
# adapter that one rank gives without Slurm; tasks that MPI does not join are refused with the remedy.
# Skipped where Slurm is not installed or this is not root.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/slurm/cluster.sh" || exit 99

cluster_begin 2 2

deck=$src/tests/slurm/smoke.yaml
adze 1 train "$deck" output.dir="$tmp/alone" || fail "training on one rank without Slurm"

# run_job NAME OPTIONS...: submits the batch script, its output in $tmp/log; fails unless the job completes.
run_job() {
    local name=$1 job
    shift
    job=$(LD_PRELOAD=$yield ADZE=$PWD/adze sbatch --parsable --output="$tmp/log.$name" --chdir="$tmp" "$@") ||
        fail "$name: sbatch"
    job_wait "$job" 60
    cp "$tmp/log.$name" "$tmp/log" 2>/dev/null
    [ "$job_end" = COMPLETED ] || fail "$name: the job ended as $job_end"
}

# check_run NAME: what the job says and what it made.
check_run() {
    local line
    for line in '^state     done after step 3 of 3; checkpoint checkpoint-000003.h5; exit code 0$' '^nodes     2: node\[1-2\]$' '^tasks     4 x 1 thread$' '^ranks     4 x 1 thread '; do
        grep -q "$line" "$tmp/log" || fail "$1: the job's output has no line $line"
    done
    [ "$(grep -c '^step ' "$tmp/log")" = 3 ] || fail "$1: not three lines of steps"
    cmp -s "$tmp/alone/adapter/adapter_model.safetensors" "$tmp/$1/adapter/adapter_model.safetensors" ||
        fail "$1: the adapter differs from the one made without Slurm"
}

script=$src/batch/train.sbatch
run_job srun -N 2 --ntasks-per-node=2 "$script" "$deck" output.dir="$tmp/srun"
check_run srun
ADZE_LAUNCH=${MPIEXEC:-mpiexec} run_job mpiexec -N 2 --ntasks-per-node=2 "$script" "$deck" output.dir="$tmp/mpiexec"
check_run mpiexec

# Tasks that are not joined: one message, the remedy in it, nothing written.
LD_PRELOAD=$yield timeout -k 5 60 srun --mpi=none -n 2 ./adze train "$deck" output.dir="$tmp/none" >"$tmp/log" 2>&1
code=$?
[ $code != 0 ] || fail "two tasks without MPI were not refused"
[ "$(grep -c '^adze: error: .*srun --mpi=pmi2 adze.*mpiexec -n 2' "$tmp/log")" = 1 ] ||
    fail "the refusal of two tasks without MPI does not say the remedy once"
[ ! -e "$tmp/none" ] || fail "a refused run wrote something"

# The script's own messages.
out=$("$script" 2>&1) && fail "the batch script runs without a deck"
[[ $out == *"sbatch [OPTIONS] batch/train.sbatch DECK"*"no deck given" ]] || fail "no help without a deck: $out"
out=$(env -u SLURM_JOB_ID "$script" "$deck" 2>&1) && fail "the batch script runs without a job"
[[ $out == *"not inside a job"* ]] || fail "without a job: $out"
job=$(ADZE=$tmp/nowhere sbatch --parsable --output="$tmp/log" --chdir="$tmp" "$script" "$deck")
job_wait "$job" 30
[ "$job_end" = FAILED ] || fail "a job without the program ended as $job_end"
grep -q "nowhere: no such program on .*ADZE=/path/to/adze" "$tmp/log" || fail "a job without the program does not say so"
