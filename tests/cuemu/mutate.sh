#!/bin/bash
# mutate.sh [-w DIR] [-l] [PATTERN...]: is each wait needed, and would a test notice if it were gone? Finds by itself all event
# waits, host waits and barriers of src (mutate.awk), removes each in turn in a copy of the tree, builds what that changes,
# and runs the tests on the stand-in for CUDA: first in a build with the thread sanitizer and one order, to which a missing
# wait is a race, then in a plain build with the orders that the tests list. Prints a table; exits 1 if a removal was not
# found: then a test is missing, or the line may go. PATTERN: only files (or FILE:LINE) that one of these extended regular
# expressions matches. -l: list the places only. -w: where to work (kept; other runs need other places), by default a
# temporary folder. TESTS: names of tests, by default all. An hour for the whole source on two cores.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work='' list=0
while getopts w:l option; do
    case $option in
    w) work=$OPTARG ;;
    l) list=1 ;;
    *) exit 99 ;;
    esac
done
shift $((OPTIND - 1))

sites() { # ROOT: FILE:LINE:COLUMN CALL of each place
    (cd "$1" && find src -name '*.c' -o -name '*.cu' -o -name '*.h' | LC_ALL=C sort) | while read -r f; do
        awk -f "$here/mutate.awk" "$1/$f" | sed "s|^|$f:|"
    done | if [ ${#wanted[@]} -eq 0 ]; then cat; else grep -E "$(printf '|^[^ ]*(%s)' "${wanted[@]}" | cut -c 2-)"; fi
}
wanted=("$@")
[ $list = 0 ] || { sites "$root"; exit 0; }

if [ -z "$work" ]; then
    work=$(mktemp -d) || exit 99
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/src" || exit 99
work=$(cd "$work" && pwd)
copy=$work/src
# The tree as it is, with configure; build folders stay out of it.
(cd "$root" && tar -cf - --exclude=.git --exclude=./build --exclude='./build-[!a]*' --exclude='./adze-[0-9]*' --exclude='*.o' .) |
    tar -xf - -C "$copy" || exit 99
# What an interrupted run has left is built anew.
[ ! -f "$work/mutated" ] || touch "$copy/$(cat "$work/mutated")"
[ -f "$copy/configure" ] || (cd "$copy" && autoreconf -fi) || exit 99
prepare() { # NAME FLAGS...
    mkdir -p "$work/$1" && cd "$work/$1" || exit 99
    [ -f Makefile ] || "$copy/configure" -q --enable-debug --without-cuda "${@:2}" >configure.log 2>&1 || { cat configure.log; exit 99; }
}
(prepare thread --enable-sanitize=thread CFLAGS="-O1 -g") && (prepare plain CFLAGS="-O1 -g") || exit 99

# Tests of the file's module first: one that fails ends the search.
tests_for() {
    local module=${1#src/} all
    module=${module%%/*}
    all=$(cd "$copy" && ls tests/cuemu/*.cuda)
    [ -z "${TESTS:-}" ] || all=$TESTS
    grep -E "test_$module|$2" <<<"$all"
    grep -vE "test_$module|$2" <<<"$all"
}
near() { # modules whose tests lie nearest to a file's, besides its own
    case $1 in
    src/comm/*) echo fabric ;;
    src/lora/*) echo 'test_optim|test_params' ;;
    src/pass/* | src/model/* | src/train/*) echo 'test_pass|test_train|golden' ;;
    *) echo nothing ;;
    esac
}

# found BUILD FILE: the tests of a build; prints the first that fails.
found() {
    local t
    cd "$work/$1" || exit 99
    make -s -j"${JOBS:-2}" cuda-programs >build.log 2>&1 || { echo "does not build: $work/$1/build.log"; return; }
    [ "$1" = plain ] || export CUEMU_SEEDS=0
    [ "$1" != plain ] || unset CUEMU_SEEDS
    for t in $(tests_for "$2" "$(near "$2")"); do
        MPI_LIMIT=${MPI_LIMIT:-60} make -s check-cuda TESTS_CUDA="$t" >run.log 2>&1 && continue
        t=${t##*/}
        if grep -q 'ThreadSanitizer: data race' "tests/cuemu/${t%.cuda}.log" 2>/dev/null; then
            echo "$t: a race"
        elif grep -qE 'exit code (124|137)' "tests/cuemu/${t%.cuda}.log" 2>/dev/null; then
            echo "$t: hangs"
        else
            echo "$t: fails ($1)"
        fi
        return
    done
}

# Without a mutation nothing may fail.
if [ -z "${TRUST:-}" ]; then
    for build in thread plain; do
        why=$(found $build src/none/none)
        [ -z "$why" ] || { echo "without a mutation: $why (see $work/$build)"; exit 99; }
    done
fi

n=0 lost=0
echo '| line | removed | found by |'
echo '| --- | --- | --- |'
while IFS=' ' read -r place call; do
    file=${place%%:*} at=${place#*:}
    echo "$file" >"$work/mutated"
    awk -v at="$at" -f "$here/mutate.awk" "$root/$file" >"$copy/$file"
    by=$(found thread "$file")
    [ -n "$by" ] || by=$(found plain "$file")
    cp "$root/$file" "$copy/$file" # with a new date: it is built anew
    rm -f "$work/mutated"
    n=$((n + 1))
    [ -n "$by" ] || { by='**NOT FOUND**' && lost=$((lost + 1)); }
    echo "| $file:${at%%:*} | \`$call\` | $by |"
done < <(sites "$root")
echo "$n waits and barriers removed, $lost not found"
[ $lost -eq 0 ]
