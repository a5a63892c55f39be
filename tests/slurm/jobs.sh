#!/bin/bash
# batch/sweep.sbatch, chain.sh, adze.sbatch and train-gpu.sbatch under a Slurm of our own: an array and its table, jobs that
# wait for each other and are cancelled with each other, and what tasks see of GPUs that are stand-ins. Budget: 60 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/slurm/cluster.sh" || exit 99
. "${srcdir:-.}/tests/slurm/lib.sh" || exit 99

cluster_gpus=4
cluster_begin 2 16
deck=$src/tests/slurm/smoke.yaml
export LD_PRELOAD=$yield YIELD_US=500 ADZE=$PWD/adze
build=$PWD
cd "$tmp" || exit 99

# ---- a chain, all of whose jobs end well, and one whose training is refused. The options of the scripts are made small.
mkdir chain
sed 's/^train_options=.*/train_options=(--time=5)/; s/^eval_options=.*/eval_options=(-N 2 --ntasks-per-node=2)/' \
    "$src/batch/chain.sh" >chain/chain.sh
cp "$src"/batch/*.sbatch chain
chmod +x chain/*
chain() {
    chain/chain.sh "$@" >"$tmp/log" 2>&1 || fail "chain.sh $*"
    read -r train eval export < <(awk '/^(train|eval|export) / { printf "%s ", $2 } END { print "" }' "$tmp/log")
}
chain "$deck" output.dir=chained
good=("$train" "$eval" "$export")
chain "$deck" output.dir=refused model.path=nowhere
bad=("$train" "$eval" "$export")

# ---- a sweep: three runs and a wrong one, two at a time
cat >sweep.txt <<'TABLE'
# rank and rate
lora.r=2

lora.r=4 train.learning_rate=0.02 lora.target_modules='[q_proj, v_proj, o_proj]'
  lora.r=8
lora.rr=8
TABLE
sweep=$(sbatch --parsable --array=1-5%2 "$src/batch/sweep.sbatch" "$deck" sweep.txt output.dir=swept eval.split=0.2) ||
    fail "sbatch of a sweep"
table=$(sbatch --parsable -n 1 --dependency=afterany:"$sweep" --output=table "$src/batch/sweep-table.sh" swept)

# ---- GPUs: what each task sees. A variable that is not set hides none.
cat >see <<'SEE'
#!/bin/bash
[ "$1" = deck ] && echo "$PWD/gpu" || echo "task sees ${CUDA_VISIBLE_DEVICES-0,1,2,3} GPUs, ordered by ${CUDA_DEVICE_ORDER:-}"
SEE
chmod +x see
sed '/^#SBATCH --gpus-per-node/d; s/^##SBATCH --gres/#SBATCH --gres/' "$src/batch/train-gpu.sbatch" >gres.sbatch
gpu() { # gpu NAME LAUNCHER SCRIPT OPTIONS...
    local name=$1 launcher=$2 script=$3
    shift 3
    job[$name]=$(ADZE=$tmp/see ADZE_LAUNCH=$launcher sbatch --parsable -N 2 --ntasks-per-node=2 -c 1 --time=5 \
        --output="$tmp/log.$name" "$@" "$script" deck.yaml) || fail "sbatch of $name"
}
gpu gpu-srun "$srun" "$src/batch/train-gpu.sbatch" --gpus-per-node=4
gpu gpu-mpiexec mpiexec "$src/batch/train-gpu.sbatch" --gpus-per-node=4
gpu gpu-gres "$srun" gres.sbatch
one=$(srun -N 2 --ntasks-per-node=2 --gpus-per-task=1 bash -c 'echo "$CUDA_VISIBLE_DEVICES"' | sort | uniq -c | xargs)
[ "$one" = "2 0 2 1" ] || fail "the stand-ins for GPUs are not bound where they should be: $one"

(cd "$build" && adze 1 train "$deck" output.dir="$tmp/alone" && adze 1 train "$deck" output.dir="$tmp/two" lora.r=2 eval.split=0.2) ||
    fail "training on one rank without Slurm"

grep -q '^#SBATCH --gres=gpu:4$' gres.sbatch || fail "train-gpu.sbatch has no line with --gres"
for name in gpu-srun gpu-mpiexec gpu-gres; do
    job_wait "${job[$name]}" 60
    [ "$job_end" = COMPLETED ] || failed $name "the job ended as $job_end"
    [ "$(grep -c '^task sees 0,1,2,3 GPUs, ordered by PCI_BUS_ID$' "log.$name")" = 4 ] || failed $name "not 4 tasks see all GPUs"
done

# ---- the chain's ends
for i in 0 1 2; do
    job_wait "${good[i]}" 60
    cat adze-*-"${good[i]}".out >"$tmp/log" 2>/dev/null
    [ "$job_end" = COMPLETED ] || fail "job $i of the chain ended as $job_end"
done
cmp alone/adapter/adapter_model.safetensors chained/adapter/adapter_model.safetensors || fail "the chain's adapter differs"
cmp chained/export/adapter_model.safetensors chained/adapter/adapter_model.safetensors || fail "the exported adapter differs"
grep -q '^loss ' "adze-eval-${good[1]}.out" || fail "the evaluation says no loss"
job_wait "${bad[0]}" 30
[ "$job_end" = FAILED ] || fail "a training without a model ended as $job_end"
scontrol -o show job "${bad[0]}" | grep -q ' ExitCode=2:0' || fail "a training without a model: not exit code 2"
for i in 1 2; do
    job_wait "${bad[i]}" 30
    [ "$job_end" = CANCELLED ] || fail "job $i after a failed training ended as $job_end"
done

# ---- the sweep's table
job_wait "$table" 60
[ "$job_end" = COMPLETED ] || fail "the table's job ended as $job_end"
cp table "$tmp/log"
[ "$(wc -l <table)" = 5 ] || fail "not four runs in the table"
grep -q '^run-001 *done  *3/3 .* lora.r=2$' table || fail "the table has no line of run 1"
grep -q "^run-002 *done  *3/3 .* lora.r=4 train.learning_rate=0.02 lora.target_modules='\[q_proj, v_proj, o_proj\]'\$" table ||
    fail "the table has no line of run 2"
grep -q '^run-004 *-  *-/- .* lora.rr=8$' table || fail "the table has no line of the wrong run"
best=$(awk 'NR > 1 && $5 != "-" { print $5 }' table)
[ "$(sort -g <<<"$best")" = "$best" ] || fail "the table is not sorted by evaluation loss"
cmp two/adapter/adapter_model.safetensors swept/run-001/adapter/adapter_model.safetensors || fail "a run of the sweep differs"
cat "adze-sweep-${sweep}_4.out" "adze-sweep-${sweep}_5.out" >"$tmp/log"
grep -q 'lora.rr: .*did you mean lora.r?' "$tmp/log" || fail "a wrong key is not named"
grep -q '^sweep.sbatch: sweep.txt: has 4 runs, there is none for task 5 of the array' "$tmp/log" || fail "too long an array"
exit 0
