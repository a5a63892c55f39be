#!/bin/bash
# command_line.sh: what the program answers to wrong and right command lines: exit code, where it answers, what.
set -u
adze=${ADZE:?set by make}
out=$(mktemp) err=$(mktemp)
trap 'rm -f "$out" "$err"' EXIT
passed=0 failed=0

# check CODE OUT ERR ARGUMENTS...: OUT and ERR are patterns that whole standard output and error must match
check() {
    local want=$1 want_out=$2 want_err=$3
    shift 3
    "$adze" "$@" >"$out" 2>"$err"
    local code=$?
    if [ "$code" = "$want" ] && [[ $(<"$out") == $want_out ]] && [[ $(<"$err") == $want_err ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "adze $*: code $code, expected $want"
        echo "  out: $(head -c 300 "$out")"
        echo "  err: $(head -c 300 "$err")"
    fi
}

check 2 '' 'adze: error: no command; `adze help` lists them'
check 2 '' 'adze: error: hepl: unknown command; did you mean help?' hepl
check 2 '' 'adze: error: deck.yaml: unknown command; there are *help*' deck.yaml
check 2 '' 'adze: error: --frobnicate: unknown command; there are *' --frobnicate
check 2 '' 'adze: error: lora.rr: no such command, section or key; did you mean lora.r?' help lora.rr
check 2 '' 'adze: error: lorra: no such command, section or key; did you mean lora?' help lorra
check 2 '' 'adze: error: hulp: no such command, section or key; did you mean help?' help hulp
check 2 '' 'adze: error: xyzzy: no such command, section or key; `adze help keys` lists all keys' help xyzzy
check 0 'adze [0-9]*.[0-9]*.[0-9]*' '' --version
check 0 'adze *usage: adze COMMAND*lora *exit codes*' '' help
check 0 'adze *usage: adze COMMAND*' '' --help
check 0 'usage: adze help *' '' help help
check 0 'usage: adze help *' '' help --help
check 0 'lora.r
*value    an integer from 1 to 65536
*' '' help lora.r
check 0 '*train.seed*generate.seed*' '' help seed
check 0 'lora: *lora.target_modules*' '' help lora
check 0 '*model.path*run.poison*' '' help keys

# the deck as understood, and single values of it
deck=${srcdir:-.}/tests/golden/llama-gqa/deck.yaml
check 0 'model:
  path: "/*/golden/llama-gqa/model"*train:*  seed: 3*' '' deck "$deck" train.seed=3
check 0 3 '' deck "$deck" train.seed=3 train.seed
check 0 "$PWD/a b" '' deck "$deck" output.dir output.dir='a b'
check 0 '' '' deck "$deck" data.tokenizer
check 2 '' 'adze: error: *lora.rr: *did you mean lora.r?' deck "$deck" lora.rr=3 lora.r
check 2 '' 'adze: error: lora.rr: no such key; did you mean lora.r?' deck "$deck" lora.rr
check 2 '' 'adze: error: adze deck: lora.r and train.seed: one key at a time' deck "$deck" lora.r train.seed
check 2 '' 'adze: error: adze deck: no deck; usage: adze deck DECK *' deck

# output that cannot be written is an error of the environment
"$adze" help keys >/dev/full 2>"$err"
code=$?
if [ "$code" = 3 ] && [[ $(<"$err") == 'adze: error: cannot write to standard output: No space left on device' ]]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "adze help keys >/dev/full: code $code, $(<"$err")"
fi

# under a launcher a command that is not parallel answers once
n=$(for rank in 0 1 2; do PMI_RANK=$rank "$adze" --version; done | wc -l)
if [ "$n" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "--version on three ranks: $n lines"; fi

echo "command line: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
