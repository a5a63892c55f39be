#!/bin/bash
# A run that goes on from its checkpoint ends with the bits of an undisturbed one, whatever the numbers of ranks before and
# after [12, 43, 44]: 10 + 10 steps against 20, with dropout, clipping, decay, a cosine schedule, shuffled epochs and evaluations.
# RESUME_RANKS: the numbers of ranks; all pairs of them are tried.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
ranks=${RESUME_RANKS:-1 2 3 4 8}

# whole DIR: the records and the results of a run are those of the undisturbed one
whole() {
    losses "$1" | cmp -s "$tmp/losses" - || fail "$1: losses differ from those of the undisturbed run"
    cmp -s "$tmp/np1/adapter/adapter_model.safetensors" "$1/adapter/adapter_model.safetensors" || fail "$1: the adapter differs"
}

for n in $ranks; do
    adze "$n" train "$deck" output.dir="$tmp/np$n" checkpoint.save_steps=10 || fail "training on $n ranks"
    [ "$n" != 1 ] || losses "$tmp/np1" >"$tmp/losses"
    whole "$tmp/np$n"
    for step in 000010 000020; do
        [ -f "$tmp/np$n/checkpoint-$step.h5" ] || fail "$n ranks: no checkpoint of step $step"
    done
done
[ "$(wc -l <"$tmp/losses")" = 23 ] || fail "not 20 steps and 3 evaluations"
for n in $ranks; do
    for m in $ranks; do
        out=$tmp/from$n-on$m
        cp -r "$tmp/np$n" "$out"
        rm -r "$out"/checkpoint-000020.h5 "$out"/adapter*
        adze "$m" train "$deck" output.dir="$out" || fail "going on from $n ranks on $m"
        grep -q "^resume    $out/checkpoint-000010.h5: goes on after step 10 of 20" "$tmp/log" || fail "does not say from where it goes on"
        grep -c '^step ' "$tmp/log" | grep -qx 10 || fail "not 10 steps after the resume"
        whole "$out"
        rm -r "$out"
    done
done

# Extended: a finished run goes on to more steps; done again, it does nothing but says so.
adze 2 train "$deck" output.dir="$tmp/np1" train.num_train_epochs=6 || fail "extending"
grep -c '^step ' "$tmp/log" | grep -qx 4 || fail "not 4 steps more"
adze 1 train "$deck" output.dir="$tmp/np1" train.num_train_epochs=6 || fail "a finished run again"
grep -q '^step ' "$tmp/log" && fail "a finished run made steps"
grep -q '"step": 24,' "$tmp/np1/metrics.jsonl" && [ "$(grep -c '"loss"' "$tmp/np1/metrics.jsonl")" = 24 ] || fail "metrics.jsonl of the extended run"
grep -qx 'state: done' "$tmp/np1/state" || fail "the state of a finished run"
