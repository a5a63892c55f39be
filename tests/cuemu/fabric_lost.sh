#!/bin/bash
# A GPU that does not come any more, or NCCL that fails, ends the job by the watchdog, which says who is waited for and what
# was queued; several GPUs without NCCL are refused.
program=(./tests/cuemu/fabric_lost)
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
unset CUDA_VISIBLE_DEVICES # the tests are told to compute on the CPU
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 UCX_MEM_EVENTS=n
export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu.so
[ -f "$ADZE_BACKEND" ] || { echo "skipped: the stand-in for CUDA was not built (no C++17 compiler)"; exit 77; }
yield=$PWD/tests/tools/yield.so
# run CODE PLACES ARGUMENTS...: the program ends with this code (-: any but 0), and in time
run() {
    local code=$1 places=$2 begin=$SECONDS got n
    shift 2
    out=$tmp/$BASHPID
    n=${places%/*}
    unset MPIR_CVAR_NUM_CLIQUES
    [ "$n" = "$places" ] || export MPIR_CVAR_NUM_CLIQUES=${places#*/}
    timeout -k 5 60 env LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$yield" ${MPIEXEC:-mpiexec} -n "$n" \
        "${program[@]}" "$@" </dev/null >"$out" 2>&1
    got=$?
    what="fabric_lost $* on $places ranks"
    [ "$got" = "$code" ] || { [ "$code" = - ] && [ $got -ne 0 ]; } || broken "exit code $got, expected $code"
    [ $((SECONDS - begin)) -le 20 ] || broken "it took $((SECONDS - begin)) s"
}
broken() {
    echo "FAIL: $what: $1"
    tail -n 20 "$out"
    touch "$tmp/failed"
}
says() {
    tr -s ' ' <"$out" | grep -Eq "$1" || broken "it does not say '$1'"
}
silence='adze: watchdog on .*: no sign of life for [2-9] s in training:'
waits='others wait \(training, step 5, waits for its GPU after collective [0-9]+\)'
stopped() {
    run 4 2 stopped
    says "$silence rank 1 on .*, stopped, is waited for .*; $waits"
}
busy() {
    run 4 2 busy
    says "$silence rank 1 on .*, sleeping, is waited for .*; $waits"
}
# Nodes of one rank each, whose records are apart: the first to speak is heard.
busy_nccl() {
    run 4 2/2 busy nccl
    says "$silence (all ranks of this node wait for their GPUs|rank 1 on .* is waited for) \(training, step 5"
}
busy_mpi() {
    run 4 2/2 busy mpi
    says "$silence (all ranks of this node wait for ranks of other nodes|rank 1 on .* is waited for) \(training, step 5"
}
# The launcher, which would end the job at once, does not see it: its child is a shell.
killed() {
    program=(sh -c './tests/cuemu/fabric_lost "$1"; code=$?; [ $code -ne 137 ] || sleep 30; exit $code' sh)
    run - 2 killed
    says "$silence rank 1 on .*, (gone|unknown), is waited for .*; $waits"
}
nccl_fails() {
    export CUEMU_NCCL_FAIL=30
    run 4 2 run
    says 'adze: error: GPU .*: bringing data from GPU to GPU failed: NCCL: remote process exited or there was a network error; gather queue.*begun: turn [0-9]+: .*all-gather'
}
without_nccl() {
    export ADZE_BACKEND=$PWD/tests/cuemu/adze-cuemu-single.so
    run 0 2 open
    says '^code 3: a node has 2 GPUs in this job, and adze was built without NCCL.*configure --with-nccl, or start one rank a node$'
    run 0 2/2 open nccl
    says '^code 3: comm.internode is nccl, and adze was built without NCCL: configure --with-nccl, or set comm.internode=mpi$'
    run 0 2/2 open mpi
    run 0 1 open
}
for case in stopped busy busy_nccl busy_mpi killed nccl_fails without_nccl; do
    $case &
done
wait
[ ! -f "$tmp/failed" ]
