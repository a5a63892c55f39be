#!/bin/bash
# batch/*: the scripts without a Slurm: their help, the parts that must be the same in all of them, what they make of the
# state file and of the answers of Slurm, which are made up here, and the table of a sweep. Budget: 10 s.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
batch=$src/batch
scripts=$(cd "$batch" && echo *.sbatch)

# ---- each is listed, can be executed, and helps
for script in $scripts chain.sh sweep-table.sh; do
    grep -q "batch/$script" "$batch/batch.am" || fail "batch.am has no $script"
    [ -x "$batch/$script" ] || fail "$script is not executable"
    out=$("$batch/$script" --help) || fail "$script --help: exit code $?"
    [[ $out == "$script: "* ]] || fail "$script --help: $out"
    [ "$(grep -c '^# ==== Edit here' "$batch/$script")" = "$([ $script != sweep-table.sh ] && echo 1 || echo 0)" ] ||
        fail "$script: not one place to edit"
    "$batch/$script" >"$tmp/log" 2>&1 && fail "$script runs without arguments"
    grep -q 'batch/' "$tmp/log" || fail "$script says no usage"
done
for script in $scripts; do
    out=$(env -u SLURM_JOB_ID -u ADZE "$batch/$script" deck.yaml 2>&1) && fail "$script runs without a job"
    [[ $out == *"$script: not inside a job: start it with sbatch batch/$script deck.yaml"* ]] || fail "$script, no job: $out"
done

# ---- parts that begin with "# ==== The same in" are the same wherever they are
for script in $scripts; do
    awk -v to="$tmp" '/^# ====/ { part = /The same in/ ? substr($0, 8) : ""; gsub(/[^a-z]/, "", part); if (part != "") n[part]++ }
        part != "" { print > (to "/part." part "." FILENAME_ONLY) }' FILENAME_ONLY="$script" "$batch/$script"
done
for first in $(ls "$tmp"/part.* | sed 's/[a-z-]*\.sbatch$//' | sort -u); do
    [ "$(cat "$first"* | wc -l)" -gt 40 ] || fail "the common part is too short to be one: $first"
    for other in "$first"*; do
        set -- "$first"*
        cmp "$1" "$other" || fail "parts differ that must be the same"
    done
done
[ "$(ls "$tmp"/part.* | wc -l)" = 11 ] || fail "not all common parts were found: $(ls "$tmp"/part.*)"

# ---- a job that is made up: SLURM_... as Slurm gives them, squeue and scontrol that answer what the test wants, and an
# adze that leaves the state that the test wants
mkdir "$tmp/bin" "$tmp/out"
cat >"$tmp/bin/squeue" <<'STUB'
#!/bin/bash
case "$*" in *%e*) echo 2000000000 ;; *) echo "$JOB" ;; esac
STUB
cat >"$tmp/bin/scontrol" <<'STUB'
#!/bin/bash
echo "$*" >>"$TMP/scontrol"
STUB
cat >"$tmp/bin/adze" <<'STUB'
#!/bin/bash
case $1 in
deck) echo "$TMP/out" ;;
help) [ "$2" = eval ] && echo "usage: [mpiexec -n RANKS] adze eval" || echo "usage: adze $2" ;;
*)
    echo "adze $* threads=$OMP_NUM_THREADS end=$SLURM_JOB_END_TIME"
    [ -z "$STATE" ] || printf 'state: %s\nreason: because\ncode: %s\nstep: 7\ntotal_steps: 9\ncheckpoint: %s\njob: %s\n' \
        $STATE "${SAVED:-}" "${OF:-77}" >"$TMP/out/state"
    [ -z "$KILL" ] || { kill -$KILL $PPID && sleep 0.2; }
    exit $CODE
    ;;
esac
STUB
cat >"$tmp/bin/launch" <<'STUB'
#!/bin/bash
trap 'echo "launcher got USR1"' USR1
[ "$1" = -n ] || exit 9
shift 2
[ -n "$KILL" ] || exec "$@"
PARENT=$PPID
(KILL= && "$@")
code=$?
kill -$KILL $PARENT
for i in 1 2 3; do sleep 0.1; done
exit $code
STUB
cat >"$tmp/bin/srun" <<'STUB'
#!/bin/bash
while [[ $1 == -* ]]; do [ "$1" != -n ] || shift; shift; done
exec "$@"
STUB
chmod +x "$tmp"/bin/*

# case SCRIPT WANTED PATTERN VARIABLE=VALUE...: runs it as job 77; the exit code, and what the output must match
try() {
    local script=$1 want=$2 pattern=$3
    shift 3
    env TMP="$tmp" PATH="$tmp/bin:$PATH" ADZE=adze ADZE_LAUNCH=launch SLURM_JOB_ID=77 SLURM_JOB_NAME=x SLURM_JOB_NUM_NODES=1 \
        SLURM_JOB_NODELIST=n SLURM_NTASKS=3 SLURM_CPUS_PER_TASK=2 SLURM_JOB_END_TIME=5 STATE= CODE=0 KILL= JOB='RUNNING None' "$@" \
        "$batch/$script" ${arguments:-deck.yaml lora.r=3} >"$tmp/log" 2>&1
    local code=$?
    [ $code = "$want" ] || fail "$script $*: exit code $code, expected $want"
    [[ $(<"$tmp/log") == *$pattern* ]] || fail "$script $*: no $pattern"
}
requeued() {
    [ "$(cat "$tmp/scontrol" 2>/dev/null)" = "${1:+requeue 77}" ] || fail "requeue ${1:-not} expected"
    rm -f "$tmp/scontrol"
}
fresh() { rm -f "$tmp"/out/*; }

for script in train.sbatch train-long.sbatch train-gpu.sbatch; do
    fresh
    keys=
    [ $script != train-gpu.sbatch ] || keys=' run.device=gpu'
    try $script 0 "adze train deck.yaml lora.r=3$keys threads=2 end=2000000000"
    try $script 0 'state     done (because) after step 7 of 9; checkpoint c1; exit code 0' STATE='done 0' SAVED=c1
    try $script 0 'exit code 0' STATE='done 0' CODE=143 # the launcher's code does not count
    try $script 2 'state     not written by this run; exit code 2' CODE=2 # an old "done" does not hide a failure
    try $script 3 'exit code 3' STATE='failed 3' CODE=143
    try $script 1 'state     failed' STATE='failed 0'
    try $script 2 'not written' STATE='done 0' OF=78 CODE=2 # that of another job in the same directory
    requeued ''
done

fresh
try train.sbatch 75 'submit it again: it goes on from there' STATE='requeue 75' SAVED=c1 CODE=143
try train.sbatch 1 'state     running' STATE='running 0' SAVED=c1
try train.sbatch 137 'state     running' STATE='running 0' SAVED=c1 CODE=137
try train.sbatch 75 'launcher got USR1' STATE='requeue 75' KILL=TERM
try train.sbatch 75 'launcher got USR1' STATE='requeue 75' KILL=USR1
requeued ''

for script in train-long.sbatch train-gpu.sbatch; do
    fresh
    try $script 75 'requeue   yes: goes on from c1' STATE='requeue 75' SAVED=c1
    requeued yes
    try $script 75 'launcher got USR1' STATE='requeue 75' SAVED=c2 KILL=USR1
    requeued yes
    # Slurm or the user ends the job: not started again, but at the end of its time
    try $script 75 'requeue   no: Slurm ends the job itself (COMPLETING None)' STATE='requeue 75' SAVED=c2 KILL=TERM \
        JOB='COMPLETING None'
    requeued ''
    try $script 75 'requeue   yes' STATE='requeue 75' SAVED=c2 KILL=TERM JOB='COMPLETING TimeLimit'
    requeued yes
    # three starts without a newer checkpoint, then no more; a newer one, or another job, begins anew
    try $script 75 'requeue   yes' STATE='requeue 75' SAVED=c2
    requeued yes
    try $script 75 'requeue   no: 3 times requeued and no newer checkpoint than c2' STATE='requeue 75' SAVED=c2
    requeued ''
    try $script 75 'requeue   yes' STATE='requeue 75' SAVED=c3
    requeued yes
    # killed: again if there is a newer checkpoint than the one it began from
    try $script 137 'requeue   yes: goes on from c4' STATE='running 0' SAVED=c4 CODE=137
    requeued yes
    try $script 137 'requeue   no: this start made no checkpoint' STATE='running 0' SAVED=c4 CODE=137
    requeued ''
    try $script 4 'requeue   yes: goes on from c5' STATE='failed 4' SAVED=c5 CODE=143
    requeued yes
    try $script 4 'requeue   no: this start made no checkpoint' STATE='failed 4' SAVED=c5
    requeued ''
    # told to stop before it could write a state
    fresh
    try $script 138 'requeue   yes: goes on from the beginning' CODE=138 KILL=USR1
    requeued yes
    try $script 138 'requeue   no' CODE=138
    requeued ''
done

# ---- GPUs: srun is told how many there are on a node where Slurm says so, by whichever of its variables, else nothing
fresh
gpu() { # gpu OPTION PATTERN VARIABLE=VALUE...
    local option=$1 pattern=$2
    shift 2
    try train-gpu.sbatch 0 "$pattern" ADZE_LAUNCH=srun "$@"
    grep -qF "command   srun -n 3 --kill-on-bad-exit=1 $option--gpu-bind=none --cpu-bind=cores adze train" "$tmp/log" ||
        fail "train-gpu.sbatch $*: srun has other options"
}
gpu '--gpus-per-node=3 ' 'gpus      3 a node' SLURM_GPUS_PER_NODE=3
[ "$(grep -c '^gpus' "$tmp/log")" = 1 ] || fail "as many tasks as GPUs, and something is said of it"
gpu '--gpus-per-node=4 ' 'gpus      1 of them a node stay idle: there are 3 tasks a node' SLURM_GPUS_PER_NODE=a100:3,v100:1
gpu '--gpus-per-node=2 ' 'gpus      too few: 3 tasks a node' SLURM_GPUS_ON_NODE=2
gpu '--gpus-per-node=2 ' 'gpus      2 a node' SLURM_JOB_GPUS=0,3
gpu '' 'gpus      Slurm does not say' SLURM_GPUS=9 SLURM_GPUS_ON_NODE=5
gpu '' 'gpus      Slurm does not say'
arguments='d.yaml run.device=auto' try train-gpu.sbatch 0 'adze train d.yaml run.device=auto threads'

arguments='eval d.yaml' try adze.sbatch 0 'command   launch -n 3 adze eval d.yaml'
arguments='export a b' try adze.sbatch 3 $'command    adze export a b\nadze export a b' CODE=3

# ---- the table of a sweep
fresh
cd "$tmp/out" || exit 99
for run in 1 2 3 4; do echo "lora.r=$run lora.target_modules='[a, b]'" >run-00$run.keys; done
mkdir run-001 run-002 run-003
printf 'state: done\nstep: 4\ntotal_steps: 4\n' | tee run-001/state >run-002/state
printf 'state: failed\nstep: 1\ntotal_steps: 4\n' >run-003/state
printf '%s\n' '{"step": 0, "eval_loss": 3.5, "eval_perplexity": 9}' '{"step": 2, "epoch": 1, "loss": 2.5, "lr": 1}' \
    '{"step": 2, "eval_loss": 2.25}' '{"step": 4, "loss": 1.5e-1, "lr": 1}' '{"step": 4, "eval_loss": 2.75}' >run-001/metrics.jsonl
sed 's/2\.25/1.75/' run-001/metrics.jsonl >run-002/metrics.jsonl
printf '%s\n' '{"step": 1, "loss": null, "lr": 1}' >run-003/metrics.jsonl
"$batch/sweep-table.sh" "$tmp/out" >"$tmp/log" 2>&1 || fail "sweep-table.sh"
diff <(tr -s ' ' <"$tmp/log") - <<'TABLE' || fail "the table is another one"
run state step loss eval_loss at keys
run-002 done 4/4 1.5e-1 1.75 2 lora.r=2 lora.target_modules='[a, b]'
run-001 done 4/4 1.5e-1 2.25 2 lora.r=1 lora.target_modules='[a, b]'
run-003 failed 1/4 - - - lora.r=3 lora.target_modules='[a, b]'
run-004 - -/- - - - lora.r=4 lora.target_modules='[a, b]'
TABLE
