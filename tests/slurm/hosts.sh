#!/bin/bash
# batch/*.sbatch on nodes that are hosts of their own, with TCP between them: both ways to start ranks give the adapter of
# one rank; a signal, and a node that is lost under the job (an ordinary one, the one that runs the script), end in a
# restart on other nodes and the same adapter. Budget: 90 s.
# Skipped where there can be no Slurm, or no network namespaces.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/slurm/cluster.sh" || exit 99
. "${srcdir:-.}/tests/slurm/lib.sh" || exit 99

cluster_begin 8 2 hosts
smoke=$src/tests/slurm/smoke.yaml long=$src/tests/slurm/long.yaml
keys=checkpoint.save_steps=10 # a run that is lost has a checkpoint

# node I NAME: the number of the I-th node of a job.
node() {
    scontrol show hostnames "$(squeue -h -j "${job[$2]}" -o %N)" | sed -n "s/^node//;$1p"
}

for name in lost-srun lost-script; do go $name "$srun" train-long.sbatch "$long"; done
go lost-mpiexec mpiexec train-long.sbatch "$long"
go usr1-srun "$srun" train-long.sbatch "$long"
for name in lost-srun lost-mpiexec; do
    at 15 $name
    host_kill "$(node 2 $name)"
done
at 15 lost-script
host_kill "$(node 1 lost-script)"
at 15 usr1-srun
scancel --batch --signal=USR1 "${job[usr1-srun]}"

adze 1 train "$smoke" output.dir="$tmp/alone-smoke" || fail "training on one rank without Slurm"
adze 1 train "$long" output.dir="$tmp/alone" || fail "training on one rank without Slurm"
go usr1-mpiexec mpiexec train-long.sbatch "$long"
at 15 usr1-mpiexec
scancel --batch --signal=USR1 "${job[usr1-mpiexec]}"

go srun "$srun" train.sbatch "$smoke"
go mpiexec mpiexec train.sbatch "$smoke"
for name in srun mpiexec; do
    completes $name 60 alone-smoke
    said $name '^ranks     4 x 1 thread (2 ranks on this node'
done
for name in usr1-srun usr1-mpiexec lost-srun lost-mpiexec lost-script; do
    completes $name 120 alone
    restarted $name || failed $name "was never interrupted"
    said $name '^resume .*: goes on after step'
done

# The ranks did speak over the network: more than Slurm's own few kilobytes.
read -r _ bytes < <(host_bytes 8)
[ "$bytes" -gt 1000000 ] || fail "node 8 sent only $bytes bytes"
