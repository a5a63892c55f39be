#!/bin/bash
# docs.sh [ROOT]: what the documents name is there. In doc/*.md and README.md each name az_... or AZ_... (or its beginning,
# az_x_*) is in the sources; each path that begins with a folder of the tree exists, and where it is followed by ":name" the file
# has this name; each key of the deck is in the table; each deck that is shown (a block of yaml) is understood by the program in
# ADZE, if that is set. Prints FILE:LINE: RULE: what for each fault and exits 1 if there is any. Budget: 20 s.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-${srcdir:-$here/../..}}
adze=${ADZE:-}
cd "$root" || exit 99
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
faults=$tmp/faults
: >"$faults"
mapfile -t docs < <(find README.md doc -name '*.md' -type f 2>/dev/null | LC_ALL=C sort)
[ "${#docs[@]}" -gt 0 ] || exit 99

# ---- names: what the sources know, a word a line
find src tests m4 configure.ac -type f \( -name '*.[ch]' -o -name '*.m4' -o -name '*.ac' \) -print0 2>/dev/null |
    xargs -0 grep -ohE '\b(az|AZ)_[A-Za-z0-9_]+\b' | LC_ALL=C sort -u >"$tmp/words"
# found RE: FILE:LINE:MATCH of the documents. inputs.md is made by the program; what it shows is checked all the same.
found() { grep -noHPe "$1" "${docs[@]}"; }
found '\b(?:az_[a-z0-9_]+|AZ_[A-Z0-9_]+)\*?' | while IFS=: read -r file line word; do
    case $word in
    *'*' | *_) grep -q "^${word%'*'}" "$tmp/words" ;;
    *) grep -qx -- "$word" "$tmp/words" ;;
    esac || echo "$file:$line: names: $word is not in the sources"
done >>"$faults"

# ---- paths, and names within them
found '(?<![A-Za-z0-9_./<>-])(?:src|tests|doc|inputs|batch|m4|build-aux|\.ci)/[A-Za-z0-9_./*-]*[A-Za-z0-9_*/](?::[A-Za-z_][A-Za-z0-9_]*)?' |
    while IFS=: read -r file line path name; do
        # shellcheck disable=SC2086
        set -- $path # a pattern of names may be given
        case $1 in *MODULE* | *NAME*) continue ;; esac
        if [ ! -e "$1" ] && [ ! -f "$1.c" ]; then # a program has the name of its source
            echo "$file:$line: paths: $path is not there"
        elif [ -n "$name" ] && ! grep -qwF -- "$name" "$1"; then
            echo "$file:$line: paths: $path has no $name"
        fi
    done >>"$faults"

# ---- keys: `section.key` between backticks, section.key=value anywhere. What else looks so is a file or a tensor.
table=src/deck/deck_table.c
grep -oE '\.name = "[a-z_]+\.[a-z0-9_]+"' "$table" | sed -E 's/.*"(.*)"/\1/' | sort -u >"$tmp/keys"
sections=$(sed -E 's/\..*//' "$tmp/keys" | sort -u | paste -sd '|')
[ -n "$sections" ] || exit 99
{
    found "(?<=\`)(?:$sections)\.[a-z][a-z0-9_]*(?=\`|=|: )"
    found "(?<![A-Za-z0-9_./\`-])(?:$sections)\.[a-z][a-z0-9_]*(?==)"
} | grep -vE '\.(json|jsonl|safetensors|yaml|md|bin|h5|txt|c|h)$' | while IFS=: read -r file line key; do
    grep -qx -- "$key" "$tmp/keys" || echo "$file:$line: keys: $key is no key of the deck"
done >>"$faults"

# ---- decks: all that is wrong with one that is shown is that its model is not there
n_decks=0
if [ -n "$adze" ]; then
    awk -v dir="$tmp" '/^```yaml/ { on = 1; n++; print FILENAME ":" FNR + 1 >(dir "/places"); next }
        /^```/ { on = 0 } on { print >(dir "/deck" n ".yaml") }' "${docs[@]}"
    while read -r place; do
        n_decks=$((n_decks + 1))
        out=$("$adze" train "$tmp/deck$n_decks.yaml" model.path="$tmp/none" output.dir="$tmp/out" 2>&1 </dev/null)
        grep -qE "^adze: error: $tmp/none[^:]*: .*No such file or directory" <<<"$out" ||
            echo "$place: decks: $out" >>"$faults"
    done < <(cat "$tmp/places" 2>/dev/null)
fi

sed -E "s|$tmp/||g" "$faults" | LC_ALL=C sort -u -t: -k1,1 -k2,2n -k3
n=$(LC_ALL=C sort -u "$faults" | wc -l)
echo "docs: ${#docs[@]} documents, $n_decks decks, $n faults"
[ "$n" -eq 0 ]
