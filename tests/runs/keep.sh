#!/bin/bash
# Which checkpoints there are and which stay: by steps, by minutes, the last K, the best by evaluation loss; early stopping; the
# best adapter as result; the end of a Slurm allocation as a reason to stop; whether the run went on in between or not.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
# Learns its few samples by heart, so that the evaluation loss rises again.
head -n 12 "$src/tests/golden/llama-tied/data.jsonl" >"$tmp/few.jsonl"
args=("data.files=[$tmp/few.jsonl]" lora.r=16 train.learning_rate=0.02 train.lr_scheduler_type=constant train.max_grad_norm=1
    train.max_steps=40 eval.steps=2)
# evals DIR: "STEP LOSS" of each evaluation but the first
evals() { sed -n 's/^{"step": \([0-9]*\), "eval_loss": \([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | grep -v '^0 '; }
best_of() { evals "$1" | sort -s -g -k2,2 | awk 'NR == 1 {print $1}'; }
kept() { (cd "$1" && echo checkpoint-*.h5 | sed 's/checkpoint-0*//g; s/\.h5//g'); }
value() { sed -n "s/^$2: //p" "$1/state"; }

adze 2 train "$deck" "${args[@]}" output.dir="$tmp/all" checkpoint.save_steps=1 checkpoint.save_total_limit=100 || fail "all"
[ "$(kept "$tmp/all")" = "$(seq -s ' ' 1 40)" ] || fail "save_steps=1: $(kept "$tmp/all")"
best=$(best_of "$tmp/all")
[ "$best" -gt 4 ] && [ "$best" -lt 36 ] || fail "the best evaluation is that after step $best: of no use here"

adze 3 train "$deck" "${args[@]}" output.dir="$tmp/last" checkpoint.save_steps=3 || fail "last"
[ "$(kept "$tmp/last")" = "$best 39 40" ] || fail "the last two and the best, $best: $(kept "$tmp/last")"
cmp -s "$tmp/all/adapter/adapter_model.safetensors" "$tmp/last/adapter/adapter_model.safetensors" || fail "saving changed the adapter"
adze 1 train "$deck" "${args[@]}" output.dir="$tmp/one" checkpoint.save_steps=3 checkpoint.save_total_limit=1 checkpoint.keep_best=false || fail "one"
[ "$(kept "$tmp/one")" = 40 ] || fail "one: $(kept "$tmp/one")"
adze 1 train "$deck" "${args[@]}" output.dir="$tmp/often" checkpoint.save_minutes=1e-9 checkpoint.save_total_limit=100 || fail "often"
[ "$(kept "$tmp/often")" = "$(seq -s ' ' 1 40)" ] || fail "by minutes: $(kept "$tmp/often")"

# The best as result, also if the run went on in between; early stopping likewise.
adze 2 train "$deck" "${args[@]}" output.dir="$tmp/best" checkpoint.load_best_model_at_end=true || fail "best"
./adze export "$tmp/all/$(printf 'checkpoint-%06d.h5' "$best")" "$tmp/export" >"$tmp/log" 2>&1 || fail "export"
cmp -s "$tmp/export/adapter_model.safetensors" "$tmp/best/adapter/adapter_model.safetensors" || fail "the result is not the best"
cmp -s "$tmp/export/adapter_model.safetensors" "$tmp/all/adapter/adapter_model.safetensors" && fail "the best is the last"
adze 2 train "$deck" "${args[@]}" output.dir="$tmp/early" eval.early_stopping_patience=3 || fail "early"
end=$((best + 6))
[ "$(value "$tmp/early" step)" = $end ] && grep -q "^early .* in 3 evaluations: the run ends after step $end" "$tmp/log" ||
    fail "early stopping: $(value "$tmp/early" step), expected $end"
[ "$(value "$tmp/early" state)" = done ] || fail "early: the state"
adze 1 train "$deck" "${args[@]}" output.dir="$tmp/early" eval.early_stopping_patience=3 || fail "early again"
grep -q '^step ' "$tmp/log" && fail "a run that was stopped early made steps"
for from in $((best - 1)) $((best + 1)); do
    rm -rf "$tmp/again"
    mkdir "$tmp/again"
    cp "$tmp/all/$(printf 'checkpoint-%06d.h5' $from)" "$tmp/all/metrics.jsonl" "$tmp/again"
    # the best one of that moment: the run needs it
    cp "$tmp/all/$(printf 'checkpoint-%06d.h5' $((from > best ? best : best - 2)))" "$tmp/again"
    adze 3 train "$deck" "${args[@]}" output.dir="$tmp/again" eval.early_stopping_patience=3 checkpoint.load_best_model_at_end=true ||
        fail "going on from $from"
    [ "$(value "$tmp/again" step)" = $end ] || fail "early stopping, gone on from $from: $(value "$tmp/again" step), expected $end"
    cmp -s "$tmp/export/adapter_model.safetensors" "$tmp/again/adapter/adapter_model.safetensors" || fail "the best, gone on from $from"
    losses "$tmp/early" | cmp -s - <(losses "$tmp/again") || fail "losses, gone on from $from"
done

# The end of the allocation: stopped before it with a checkpoint; with an hour left not at all.
SLURM_JOB_END_TIME=$(($(date +%s) + 4)) adze 2 train "$deck" "${args[@]/max_steps=40/max_steps=1000000}" \
    output.dir="$tmp/time" checkpoint.lead=2 output.progress=none && fail "not stopped before the end of the allocation"
grep -q '^adze: stopped by the end of the allocation after step' "$tmp/log" || fail "does not say what it was stopped by"
[ "$(value "$tmp/time" state)" = requeue ] && [ -f "$tmp/time/$(value "$tmp/time" checkpoint)" ] || fail "the state: $(cat "$tmp/time/state")"
SLURM_JOB_END_TIME=$(($(date +%s) + 3600)) adze 2 train "$deck" output.dir="$tmp/hour" || fail "stopped with an hour left"
