#!/bin/bash
# cuemu_run.sh TEST.cuda: run the program TEST with the backend for GPUs on the stand-in for CUDA. Each line of the file
# TEST.cuda names places ("2": ranks of one node, "4/2": four ranks on two nodes) and seeds: the orders in which streams and
# threads are run; 0 is the plain one. A line "slow" says that the thread sanitizer need not look: what is ordered there is
# ordered in smaller tests too. Each run has a time limit (seconds in MPI_LIMIT, default 120).
file=$1
[ -f "$file" ] || file=${srcdir:-.}/$1
program=./${1#"${srcdir:-.}/"}
program=${program%.cuda}
unset CUDA_VISIBLE_DEVICES
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 UCX_MEM_EVENTS=n
export ADZE_BACKEND=${ADZE_BACKEND:-$PWD/tests/cuemu/adze-cuemu.so}
[ -f "$ADZE_BACKEND" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
yield=$PWD/tests/tools/yield.so
while read -r places seeds; do
    case $places in '' | '#'*) continue ;; esac
    if [ "$places" = slow ]; then
        case ${SANITIZE:-no} in *thread*) echo "skipped: too slow with the thread sanitizer"; exit 77 ;; esac
        continue
    fi
    n=${places%/*}
    unset MPIR_CVAR_NUM_CLIQUES
    [ "$n" = "$places" ] || export MPIR_CVAR_NUM_CLIQUES=${places#*/}
    for seed in ${CUEMU_SEEDS:-$seeds}; do
        CUEMU_SEED=$seed timeout -k 5 "${MPI_LIMIT:-120}" \
            env ${yield:+LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$yield"} ${MPIEXEC:-mpiexec} -n "$n" "$program" </dev/null
        code=$?
        [ $code -eq 0 ] || { echo "$program on $places ranks, seed $seed: exit code $code"; exit $code; }
    done
done <"$file"
