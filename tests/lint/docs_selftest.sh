#!/bin/bash
# docs_selftest.sh: docs.sh must find a wrong name, path, key and deck where they stand, and nothing in a document that is
# right. Budget: 20 s.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

fresh() {
    rm -rf "$dir/t"
    mkdir -p "$dir"/t/{src/{base,deck},doc,tests/unit}
    printf 'void *az_alloc(int n);\n#define AZ_TRY(x) x\nstatic void count(void);\n' >"$dir/t/src/base/mem.c"
    printf '    {.name = "lora.r"},\n    {.name = "data.files"},\n' >"$dir/t/src/deck/deck_table.c"
    cat >"$dir/t/README.md" <<'X'
`az_alloc`, `AZ_TRY(az_alloc())`, the family `az_al*`, `src/base/mem.c`, tests/unit, `src/base/mem.c:count`, `src/*/mem.c`, src/base/mem.
`lora.r`, `lora.r=16`, lora.r=16, `data.jsonl`, build/src/none.c, `model.layers.0`, az_<module>.
X
}

# expect FILE:LINE RULE: the tree has this fault and no other
expect() {
    local out rc
    out=$(bash "$here/docs.sh" "$dir/t") && rc=0 || rc=$?
    if [ "$rc" = 1 ] && grep -q "^$1: $2: " <<<"$out" && grep -q ', 1 faults$' <<<"$out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'not found: %s: %s (exit %s)\n%s\n' "$1" "$2" "$rc" "$out"
    fi
    fresh
}

# bad RULE TEXT: a document whose second line is TEXT
bad() {
    printf 'First.\n%s\n' "$2" >"$dir/t/doc/new.md"
    expect doc/new.md:2 "$1"
}

fresh
if out=$(bash "$here/docs.sh" "$dir/t"); then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'a tree without faults fails:\n%s\n' "$out"
fi
bad names 'call `az_aloc`'
bad names 'all of `az_free_*`'
bad names 'or AZ_TRY_ALL'
bad paths 'see `src/base/memory.c`.'
bad paths 'see (tests/mpi)'
bad paths 'see `src/base/mem.c:discount`'
bad paths 'see `src/*/file.c`'
bad keys 'set `lora.rank`'
bad keys 'set `lora.rank=8`'
bad keys '    adze train deck.yaml data.file=x.jsonl'
printf '`lora.alpha`\n' >>"$dir/t/README.md"
expect README.md:3 keys
if [ -n "${ADZE:-}" ]; then
    printf '```yaml\nmodel: {path: m}\ndata: {files: [a.jsonl]}\nlora: {r: 8}\n```\n' >"$dir/t/doc/new.md"
    if out=$(bash "$here/docs.sh" "$dir/t"); then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "$out"; fi
    printf 'A deck.\n\n```yaml\nmodel: {path: m}\ndata: {files: [a.jsonl]}\nlora: {rank: 8}\n```\n' >"$dir/t/doc/new.md"
    expect doc/new.md:4 decks
fi

echo "docs selftest: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
