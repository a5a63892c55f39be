#!/bin/bash
# sweep-table.sh: one line for each run of a sweep, the best first
#
#   batch/sweep-table.sh DIR                                                  the deck's output.dir
#   sbatch -n 1 --dependency=afterany:JOB -o table.txt batch/sweep-table.sh DIR    when the array has ended
#
# Columns: run; state (a run that wrote none: -); last step and number of steps; loss of the last step; best evaluation
# loss and its step; keys of the run. Sorted by the evaluation loss, or the last loss where nothing was evaluated.
# From the files state, metrics.jsonl and run-NNN.keys.

set -u

case ${1:-} in
'' | -*)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    [ "${1:-}" = --help ] || [ "${1:-}" = -h ]
    exit
    ;;
esac
cd "$1" || exit 2
set -- run-*.keys
[ -e "$1" ] || {
    echo "sweep-table.sh: $PWD: no run-NNN.keys in it; was it made by sweep.sbatch?" >&2
    exit 2
}

# row RUN: sorting key and columns, with tabs between.
row() {
    local metrics=/dev/null state=/dev/null
    [ ! -r "$1/metrics.jsonl" ] || metrics=$1/metrics.jsonl
    [ ! -r "$1/state" ] || state=$1/state
    awk -v run="$1" -v keys="$(<"$1.keys")" '
        # The number of a field of a JSON line, or nothing.
        function number(name) {
            return match($0, "\"" name "\": [-+0-9.e]+") ? substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) : ""
        }
        FILENAME ~ /metrics.jsonl$/ {
            if ((x = number("loss")) != "") loss = x
            if ((x = number("eval_loss")) != "" && (best == "" || x + 0 < best + 0)) { best = x; at = number("step") }
            step = number("step")
            next
        }
        /^state: / { state = $2 }
        /^step: / { step = $2 }
        /^total_steps: / { total = $2 }
        function shown(x) { return x == "" ? "-" : x }
        END {
            key = best != "" ? best : loss != "" ? loss : 1e99
            printf "%s\t%s\t%s\t%s/%s\t%s\t%s\t%s\t%s\n", key, run, shown(state), shown(step), shown(total), shown(loss),
                shown(best), shown(at), keys
        }' "$metrics" "$state"
}

{
    printf '\trun\tstate\tstep\tloss\teval_loss\tat\tkeys\n'
    for file; do row "${file%.keys}"; done | LC_ALL=C sort -g
} | awk -F '\t' '{ printf "%-8s %-8s %11s %11s %11s %8s  %s\n", $2, $3, $4, $5, $6, $7, $8 }'
