#!/bin/bash
# The demo does what README says: on 2 ranks evaluation loss at least halves, and greedy generation of held-out prompts goes from at
# most 10 % right to at least 90 %, all in this run. No held-out prompt, nor anybody named in one, occurs in training.
# Budget: 60 s alone on two cores.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
demo=$src/inputs/demo
deck=$src/inputs/demo.yaml
prompts() { sed 's/^{"prompt": \(.*\), "completion": .*/\1/' "$@" | sort -u; }
[ "$(prompts "$demo/prompts.jsonl" | wc -l)" -ge 100 ] || fail "fewer than 100 different held-out prompts"
[ -z "$(comm -12 <(prompts "$demo/prompts.jsonl" "$demo/eval.jsonl") <(prompts "$demo/train.jsonl"))" ] ||
    fail "prompts of training are among the held-out ones"
# Nor does anybody whom a held-out prompt names.
if command -v python3 >/dev/null; then
    python3 "$demo/make_demo.py" --check >"$tmp/check" || { cat "$tmp/check"; fail "people of training are among the held-out ones"; }
fi
# percent ROWS: share of right completions as `adze generate` says it, checked against the rows it wrote.
percent() {
    local right all
    read -r right all < <(sed -n 's/^exact match: \([0-9]*\) of \([0-9]*\) .*/\1 \2/p' "$tmp/log")
    [ "$all" = "$(wc -l <"$1")" ] || return 1
    [ "$right" = "$(grep -c '"match": true' "$1")" ] || return 1
    echo $((100 * right / all))
}
adze 2 generate "$deck" generate.output="$tmp/before.jsonl" || fail "generation without adapter"
before=$(percent "$tmp/before.jsonl") || fail "exact match was not said, or is not that of the rows"
adze 2 train "$deck" output.dir="$tmp/out" || fail "training"
read -r first last < <(sed -n 's/^eval      loss \([0-9.]*\) -> \([0-9.]*\)$/\1 \2/p' "$tmp/log")
adze 2 generate "$deck" generate.adapter="$tmp/out/adapter" generate.output="$tmp/after.jsonl" || fail "generation"
after=$(percent "$tmp/after.jsonl") || fail "exact match was not said, or is not that of the rows"
echo "evaluation loss $first -> $last, right before $before %, after $after %"
awk -v a="$first" -v b="$last" 'BEGIN {exit !(a > 0 && b > 0 && b <= a / 2)}' || fail "evaluation loss has not halved"
[ "$before" -le 10 ] || fail "the task was known before"
[ "$after" -ge 90 ] || fail "the task was not learnt"
