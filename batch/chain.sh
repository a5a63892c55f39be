#!/bin/bash
# chain.sh: submits a training, its evaluation and the export of its adapter, each of which waits for the one before
#
#   batch/chain.sh DECK [key=value ...]        on a login node; not by sbatch
#
# The training is train-long.sbatch, which may be requeued; the others start when it has ended with 0, and are
# cancelled when it has failed. The evaluation is that of the deck (eval.file, eval.split) with the trained adapter;
# its output is in adze-eval-JOB.out. The exported PEFT directory is export/ in the output directory. ADZE and
# ADZE_LAUNCH are as in train.sbatch. Prints the three jobs' ids.
#
# What these scripts mark to be edited holds for the jobs of the chain too. Options given here win.

# ==== Edit here ====================================================================================================
train_options=()                     # (--nodes=4 --time=12:00:00)
eval_options=()                      # (--nodes=2)
export_options=(--ntasks=1 --time=10)
load_modules() {
    : # module load gcc mpich hdf5 openblas
}
# ==== End of what is to be edited ==================================================================================

set -eu
here=$(cd "$(dirname "$0")" && pwd)

case ${1:-} in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
'' | -*)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    echo "chain.sh: no deck given" >&2
    exit 2
    ;;
esac

load_modules
dir=$("${ADZE:-adze}" deck "$@" output.dir)

# submit NAME BEFORE ARGUMENTS: prints the id of a job that waits for the job BEFORE, if that is not empty.
submit() {
    local name=$1 before=$2
    shift 2
    sbatch --parsable --job-name="$name" --output="$name-%j.out" \
        ${before:+--dependency=afterok:"$before" --kill-on-invalid-dep=yes} "$@" | sed 's/;.*//'
}

train=$(submit adze-train "" "${train_options[@]}" "$here/train-long.sbatch" "$@")
eval=$(submit adze-eval "$train" "${eval_options[@]}" "$here/adze.sbatch" eval "$@" eval.adapter="$dir/adapter")
export=$(submit adze-export "$eval" "${export_options[@]}" "$here/adze.sbatch" export "$dir/adapter.h5" "$dir/export")

echo "train     $train"
echo "eval      $eval"
echo "export    $export"
echo "results   $dir"
