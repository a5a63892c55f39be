#!/bin/bash
# inputs.sh: doc/inputs.md is what `adze help --markdown` prints, and `adze help KEY` knows every key in it.
set -u
cd "$(dirname "$0")/../.." || exit 99
adze=${ADZE:?set by make}
if ! diff -u doc/inputs.md <("$adze" help --markdown); then
    echo "doc/inputs.md is not up to date: adze help --markdown > doc/inputs.md"
    exit 1
fi
failed=0 n=0
while read -r key; do
    n=$((n + 1))
    out=$("$adze" help "$key") && [ "${out%%$'\n'*}" = "$key" ] || { echo "adze help $key: $out"; failed=$((failed + 1)); }
done < <(sed -nE 's/^\| `([a-z_]+\.[a-z_0-9]+)` .*/\1/p' doc/inputs.md)
echo "inputs: $n keys, $failed failed"
[ "$failed" -eq 0 ] && [ "$n" -gt 40 ]
