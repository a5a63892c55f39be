#!/bin/bash
# Losses, evaluation losses and the adapter are the same bits on 1, 2, 3, 4, 6 and 8 ranks (one thread each), and with foreign
# ranges and released units filled with NaN.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
deck=$src/tests/runs/exact.yaml
for n in 1 2 3 4 6 8; do
    adze "$n" train "$deck" output.dir="$tmp/np$n" || fail "training on $n ranks"
    losses "$tmp/np$n" >"$tmp/losses$n"
    [ "$(wc -l <"$tmp/losses$n")" = 23 ] || fail "$n ranks: not 20 steps and 3 evaluations"
    cmp -s "$tmp/losses1" "$tmp/losses$n" || fail "losses on $n ranks differ from those on one"
    cmp -s "$tmp/np1/adapter/adapter_model.safetensors" "$tmp/np$n/adapter/adapter_model.safetensors" ||
        fail "the adapter made on $n ranks differs"
done
for n in 1 3; do
    adze "$n" train "$deck" output.dir="$tmp/poison$n" run.poison=true || fail "poisoned run"
    losses "$tmp/poison$n" | cmp -s "$tmp/losses1" - || fail "losses of the poisoned run differ on $n ranks"
    cmp -s "$tmp/np1/adapter/adapter_model.safetensors" "$tmp/poison$n/adapter/adapter_model.safetensors" ||
        fail "the adapter of the poisoned run differs on $n ranks"
    grep -q '^base      unchanged' "$tmp/log" || fail "the poisoned run does not say that the base is unchanged"
done
# The check itself can fail: another seed gives other losses, and clipping was active.
adze 2 train "$deck" output.dir="$tmp/seed" train.seed=8 || fail "training with another seed"
losses "$tmp/seed" | cmp -s "$tmp/losses1" - && fail "another seed gave the same losses"
grep -c 'norm [0-9.]*\*' "$tmp/log" | grep -qx 20 || fail "clipping was not active in every step"
grep -q '^allocated 0 times' "$tmp/log" || fail "the step loop allocates"
