#!/bin/bash
# batch/train-long.sbatch: jobs that are interrupted in every way Slurm has, started by srun and by mpiexec, all at the same
# time, go on and end with the adapter that one rank gives without an interruption. Two nodes with two ranks each.
# Only node failures are elsewhere (hosts.sh). Budget: 90 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/slurm/cluster.sh" || exit 99
. "${srcdir:-.}/tests/slurm/lib.sh" || exit 99

cluster_begin 2 28
deck=$src/tests/slurm/long.yaml

long() {
    local name=$1 launcher=$2
    shift 2
    keys="checkpoint.save_steps=10 ${keys:-}" go "$name" "$launcher" train-long.sbatch "$deck" "$@"
}

long usr1-script-srun "$srun"
long usr1-script-mpiexec mpiexec
long usr1-ranks-srun "$srun"
long usr1-ranks-mpiexec mpiexec
long requeue-srun "$srun"
long requeue-mpiexec mpiexec
long killed-srun "$srun"
long cancelled-srun "$srun"
keys="run.step_timeout=6 run.save_timeout=6" long hung-srun "$srun"
keys="run.step_timeout=6 run.save_timeout=6" long hung-mpiexec mpiexec
# Slurm looks at limits each half minute only, so these are slow. The lead of the first is longer than its time: the
# signal comes as soon as Slurm looks. The second gets SIGTERM, then SIGKILL. The third knows itself when its time ends.
nap=9000 keys=checkpoint.lead=0 long limit-signal "$srun" --time=1
nap=9000 keys=checkpoint.lead=0 long limit-hard "$srun" --time=1 --signal=B:USR1@0
nap=4000 keys=checkpoint.lead=50 long limit-own mpiexec --time=1 --signal=B:USR1@0

# The script has asked for the end; now it comes earlier, when there is a checkpoint.
has_begun() { grep -qs '^command' "$tmp/log.$1"; }
wait_for 30 has_begun limit-hard || failed limit-hard "has not begun"
scontrol update JobId="${job[limit-hard]}" EndTime=now+15

# A requeue is not an end: what waits for the job goes on waiting.
after=$(sbatch --parsable -n 1 --dependency=afterok:"${job[usr1-script-srun]}" --kill-on-invalid-dep=yes \
    --output="$tmp/log.after" --wrap "cat '$tmp/usr1-script-srun/state'") || fail "sbatch"

for name in usr1-script-srun usr1-script-mpiexec; do
    at 5 $name
    scancel --batch --signal=USR1 "${job[$name]}"
done
for name in usr1-ranks-srun usr1-ranks-mpiexec; do
    at 5 $name
    scancel --signal=USR1 "${job[$name]}"
done
for name in requeue-srun requeue-mpiexec; do
    at 5 $name
    scontrol requeue "${job[$name]}"
done
at 5 cancelled-srun
scancel "${job[cancelled-srun]}"
# hit NAME SIGNAL: one of its ranks, when there is a checkpoint.
hit() {
    local name=$1 signal=$2
    at 21 "$name"
    # shellcheck disable=SC2046
    set -- $(grep -lzFx "SLURM_JOB_ID=${job[$name]}" $(grep -lx adze /proc/[0-9]*/comm 2>/dev/null |
        sed 's/comm/environ/') 2>/dev/null)
    [ $# = 4 ] || failed "$name" "$# ranks found"
    kill "-$signal" "$(cut -d/ -f3 <<<"$2")"
}
hit killed-srun KILL
hit hung-srun STOP
hit hung-mpiexec STOP

adze 1 train "$deck" output.dir="$tmp/alone" || fail "training on one rank without Slurm"
[ "$(steps alone)" = 140 ] || fail "not 140 steps"

job_wait "${job[cancelled-srun]}" 30
[ "$job_end" = CANCELLED ] || failed cancelled-srun "the cancelled job ended as $job_end"
[ "$(restarts cancelled-srun)" = 0 ] || failed cancelled-srun "restarted"
said cancelled-srun '^requeue   no: Slurm ends the job itself'
long cancelled-srun "$srun" # a new job goes on

for name in limit-signal limit-hard; do
    wait_for 60 restarted $name || failed $name "was not restarted"
    scontrol update JobId="${job[$name]}" TimeLimit=10 # it has shown what it had to
done

for name in "${!job[@]}"; do
    completes "$name" 120 alone
    [ "$name" = cancelled-srun ] || [ "$(restarts "$name")" -ge 1 ] || failed "$name" "was never interrupted"
    said "$name" '^resume .*: goes on after step'
done

job_wait "$after" 30
[ "$job_end" = COMPLETED ] && grep -qx 'state: done' "$tmp/log.after" || failed after "the job behind a requeued one: $job_end"

# What the scripts said, and why the runs stopped.
said usr1-script-srun '^state     requeue (.*SIGUSR1.*) after step'
said usr1-ranks-mpiexec '^state     requeue (.*SIGUSR1.*) after step'
said usr1-script-mpiexec '^requeue   yes: goes on from checkpoint-'
said requeue-srun '^requeue   no: Slurm ends the job itself'
said killed-srun '^requeue   yes: goes on from checkpoint-'
said hung-srun '^state     failed (.*exit code 4$'
said hung-mpiexec '^requeue   yes: goes on from checkpoint-'
said limit-signal '^signal    SIGUSR1 at .*, handed on'
said limit-signal '^state     requeue (.*SIGUSR1'
said limit-hard '^signal    SIGTERM at .*, handed on'
said limit-hard 'DUE TO TIME LIMIT'
said limit-own '^state     requeue (.*end of the allocation'

# It can fail: another seed gives another adapter.
adze 1 train "$deck" output.dir="$tmp/other" train.seed=4 || fail "training with another seed"
cmp -s "$tmp/alone/adapter/adapter_model.safetensors" "$tmp/other/adapter/adapter_model.safetensors" &&
    fail "another seed gives the same adapter"
exit 0
