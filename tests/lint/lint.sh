#!/bin/bash
# lint.sh [ROOT]: the rules of the source that a machine can check. Prints FILE:LINE: RULE: what for each fault
# and exits 1 if there is any. ROOT: the source tree, by default $srcdir, else the tree this script lies in.
# Budget: 20 s.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-${srcdir:-$here/../..}}
root=$(cd "$root" && pwd) || exit 99
faults=$(mktemp) || exit 99
trap 'rm -f "$faults"' EXIT

sources() { # the C and CUDA sources below the folders given
    (cd "$root" && find "$@" \( -name '*.[ch]' -o -name '*.cu' \) -type f 2>/dev/null | LC_ALL=C sort)
}

# ---- lines of src: order, private, include, fence, alloc, exit, config, length, stand-in; columns of .cu
sources src | sed "s|^|$root/|" | tr '\n' '\0' | xargs -0 -r awk -v root="$root" -f "$here/source.awk" >>"$faults"
# tests: config.h, length and columns only
sources tests | sed "s|^|$root/|" | tr '\n' '\0' |
    xargs -0 -r awk -v root="$root" -f "$here/source.awk" | grep -E ': (config|length|format): ' >>"$faults"

# ---- listed: each source and each test stands in a fragment, so that it is built and travels
fragments=$(cd "$root" && find . -name '*.am' -type f | xargs cat 2>/dev/null)
while read -r f; do
    grep -qF -- "$f" <<<"$fragments" || echo "$f:1: listed: no .am fragment names it" >>"$faults"
done < <(sources src tests)

# ---- words: what is not finished, or points out of the project, is not committed
unfinished='TO''DO|FIX''ME|\.\./sha''red'
(cd "$root" && find . \( -name '.git' -o -name 'build*' -o -path ./tests/golden/text -o -name 'adze-[0-9]*' -o -name aclocal.m4 \) -prune -o \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cxx' -o -name '*.am' -o -name '*.ac' -o -name '*.m4' -o -name '*.sh' -o -name '*.awk' \
    -o -name '*.py' -o -name '*.md' -o -name '*.yaml' -o -name '*.sbatch' -o -name quickstart -o -name run \
    -o -name NEWS -o -name AUTHORS \) -print0 |
    xargs -0 -r grep -nHwE -- "$unfinished" | sed -E 's|^\./||; s|^([^:]*:[0-9]+):(.*)|\1: words: \2|') >>"$faults"

# ---- keys: each key of the deck's table is in doc/inputs.md
if [ -f "$root/src/deck/deck_table.c" ]; then
    grep -nE '^ *\{?\.name = "' "$root/src/deck/deck_table.c" |
        sed -E 's/^([0-9]+):.*"([^"]+)".*/\1 \2/' | while read -r line key; do
        grep -qF -- "| \`$key\` |" "$root/doc/inputs.md" 2>/dev/null ||
            echo "src/deck/deck_table.c:$line: keys: $key is not in doc/inputs.md (adze help --markdown makes it)"
    done >>"$faults"
fi

# ---- format: clang-format, in the version that the tree is formatted with (others differ in details)
version=$(clang-format --version 2>/dev/null | sed -E 's/.*version ([0-9]+).*/\1/')
if [ "$version" = 14 ] && [ -f "$root/.clang-format" ]; then
    sources src tests | grep -v '\.cu$' | (cd "$root" && tr '\n' '\0' | xargs -0 -r clang-format --style="file:$root/.clang-format" --dry-run) 2>&1 |
        sed -nE 's|^([^:]+:[0-9]+):[0-9]+: warning: .*|\1: format: clang-format -i would change it|p' |
        sort -t: -k1,1 -u >>"$faults"
else
    echo "lint: clang-format 14 is not here: the format is not checked"
fi

n=$(wc -l <"$faults")
cat "$faults"
echo "lint: $n faults"
[ "$n" -eq 0 ]
