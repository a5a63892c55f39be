#!/bin/bash
# mpi_run.sh TEST.mpi: run the program TEST on each number of ranks that the file TEST.mpi lists, each under a time
# limit (seconds in the variable MPI_LIMIT, default 120); "4/2" is four ranks on two nodes, which MPICH is told to see on
# this machine (ranks in turn). One thread a rank; ranks beyond the cores must not spin.
file=$1
[ -f "$file" ] || file=${srcdir:-.}/$1
program=./${1#"${srcdir:-.}/"}
program=${program%.mpi}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
yield=$PWD/tests/tools/yield.so
[ ! -f "$yield" ] || export LD_PRELOAD=$yield
for places in $(cat "$file"); do
    n=${places%/*}
    unset MPIR_CVAR_NUM_CLIQUES
    [ "$n" = "$places" ] || export MPIR_CVAR_NUM_CLIQUES=${places#*/}
    timeout -k 5 "${MPI_LIMIT:-120}" ${MPIEXEC:-mpiexec} -n "$n" "$program"
    code=$?
    [ $code -eq 0 ] || { echo "$program on $places ranks: exit code $code"; exit $code; }
done
