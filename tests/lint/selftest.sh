#!/bin/bash
# selftest.sh: each rule of lint.sh must find a fault made for it, at its file and line, and nothing else; a tree
# without faults must pass. Budget: 30 s.
set -u
shopt -s lastpipe # counts of the last command of a pipe stay
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

fresh() { # a small tree that keeps all rules
    rm -rf "$dir/t"
    mkdir -p "$dir"/t/{src/{base,deck,comm,store,train},doc,tests/unit}
    cp "$here/../../.clang-format" "$dir/t/" 2>/dev/null
    cat >"$dir/t/src/base/mem.c" <<'X'
/* Memory. malloc( in a comment, MPI_Init( too. */
#include <config.h>

#include <stdlib.h>

void *az_alloc(int n);
void *az_alloc(int n)
{
    if (n < 0)
        abort();
    return malloc(n); /* allowed here */
}
X
    cat >"$dir/t/src/store/json.c" <<'X'
/* JSON. */
#include <config.h>

#include <jansson.h>

#include "base/mem.h"

void f(char *text)
{
    az_say("malloc(1), exit(2) and MPI_Init() in a string, a quote \" and '\"'");
    free(text);
    az_free(text);
}
X
    cat >"$dir/t/src/deck/deck_table.c" <<'X'
/* Keys. */
#include <config.h>

const az_key az_keys[] = {
    {.name = "lora.r"},
};
X
    echo '| `lora.r` | an integer |' >"$dir/t/doc/inputs.md"
    printf '/* main. */\n#include <config.h>\n\nint main(void)\n{\n    exit(0);\n}\n' >"$dir/t/src/main.c"
    echo 'S = src/base/mem.c src/store/json.c src/deck/deck_table.c src/main.c src/comm/new.c src/train/new.c src/base/new.c' \
        'src/store/new.c src/other/new.c src/deck/new.h tests/unit/new.c src/dev/new.cu src/comm/new.cu src/train/new.cu' \
        'src/store/new.cu src/kern/new.cu src/kern/new.c tests/unit/new.cu' >"$dir/t/src/module.am"
}

# expect FILE:LINE RULE: the tree has this fault and no other
expect() {
    local out rc
    out=$(bash "$here/lint.sh" "$dir/t") && rc=0 || rc=$?
    if [ "$rc" = 1 ] && grep -q "^$1: $2: " <<<"$out" && grep -qx 'lint: 1 faults' <<<"$out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'not found: %s: %s (exit %s)\n%s\n' "$1" "$2" "$rc" "$out"
    fi
    fresh
}

# bad FILE LINE RULE: as expect, with the text of FILE on standard input
bad() {
    mkdir -p "$dir/t/${1%/*}"
    cat >"$dir/t/$1"
    expect "$1:$2" "$3"
}

# line FILE RULE CODE: a source whose third line is CODE
line() {
    printf '/* New. */\n#include <config.h>\n%s\n' "$3" | bad "$1" 3 "$2"
}

fresh
if out=$(bash "$here/lint.sh" "$dir/t"); then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'a tree without faults fails:\n%s\n' "$out"
fi
fresh

line src/comm/new.c order '#include "train/train.h"'
line src/base/new.c order '#include "deck/deck.h"'
line src/train/new.c order '#include "nowhere/x.h"'
bad src/other/new.c 1 order <<<'#include <config.h>'
line src/train/new.c private '#include "deck/deck_priv.h"'
line src/train/new.c include '#include "train.h"'
line src/train/new.c include '#include "train/step.c"'
for pair in train:mpi.h train:hdf5.h train:jansson.h train:cblas.h train:yaml.h train:pcre2.h train:utf8proc.h \
    train:xxhash.h store:mpi.h comm:cblas.h deck/new.h:jansson.h; do
    file=src/${pair%%:*}
    [ "${file%.h}" != "$file" ] || file=$file/new.c
    if [ "${file%.h}" != "$file" ]; then
        printf '/* New. */\n\n#include <%s>\n' "${pair##*:}" | bad "$file" 3 fence
    else
        line "$file" fence "#include <${pair##*:}>"
    fi
done
line src/train/new.c fence 'int x = MPI_Barrier(c);'
line src/train/new.c fence 'int x = cblas_sgemm(c);'
for call in 'malloc(1)' 'calloc(1, 2)' 'realloc(p, 2)' 'aligned_alloc(64, 64)' 'strdup(s)' 'free(p)' 'f(/* x */ malloc(1))'; do
    line src/train/new.c alloc "void *x = $call;"
done
line src/store/new.c alloc 'void *x = malloc(1);'
line src/train/new.c exit 'int x = exit(1);'
line src/train/new.c exit 'int x = _exit(1);'
line src/store/new.c exit 'int x = abort();'
printf '/* New. */\n#include <stdio.h>\n#include <config.h>\n' | bad src/train/new.c 2 config
printf '/* New. */\nint x;\n' | bad src/train/new.c 1 config
printf '/* New. */\n#include <stdio.h>\n#include <config.h>\n' | bad tests/unit/new.c 2 config
{ printf '/* New. */\n#include <config.h>\n'; yes 'int x;' | head -599; } | bad src/train/new.c 601 length
{ printf '/* New. Length: it must. */\n#include <config.h>\n'; yes 'int x;' | head -999; } | bad src/train/new.c 1001 length
{ printf '/* New. */\n#include <config.h>\n/* Length: not in the head. */\n'; yes 'int x;' | head -700; } |
    bad src/train/new.c 703 length
for pair in dev:nccl.h dev:cublas_v2.h comm:cublas_v2.h train:cuda_runtime.h store:cuda_runtime.h dev:cuda_bf16.h dev:cuda.h; do
    printf '/* New. */\n\n#include <%s>\n' "${pair##*:}" | bad "src/${pair%%:*}/new.cu" 3 fence
done
line src/kern/new.c fence '#include <cuda_runtime.h>' # in a .cu file only
line src/train/new.c fence 'int x = cudaMalloc(p, 1);'
printf '/* New. */\n\nint x = ncclGetVersion(p);\n' | bad src/dev/new.cu 3 fence
printf '/* New. */\n\nint x = cublasCreate(p);\n' | bad src/dev/new.cu 3 fence
printf '/* New. */\n\nvoid *x = malloc(1);\n' | bad src/dev/new.cu 3 alloc
for text in '#ifdef CUEMU' '// cuemu' '#if __CUDA_ARCH__ >= 900' '#line 7' '#ifdef __NVCC__' '#ifdef __CUDACC__'; do
    printf '/* New. */\n%s\n' "$text" | bad src/kern/new.cu 2 stand-in
done
printf '/* New. */\nint x; // %0100d\n' 7 | bad src/kern/new.cu 2 format
printf '/* New. */\nint x; \n' | bad src/kern/new.cu 2 format
printf '/* New. */\n\tint x;\n' | bad tests/unit/new.cu 2 format
{ printf '/* New. */\n'; yes 'int x;' | head -600; } | bad src/kern/new.cu 601 length
bad src/kern/unlisted.cu 1 listed <<<'/* New. */'
for word in 'TO''DO: later' '../sha''red/x'; do
    printf '/* New. */\n\n/* %s */\n' "$word" | bad src/kern/new.cu 3 words
    printf '/* New. */\n\n/* %s */\n' "$word" | bad tests/cuemu/new.cxx 3 words
done
bad src/train/unlisted.c 1 listed <<<'#include <config.h>'
for word in 'TO''DO: later' 'FIX''ME' '../sha''red/x'; do
    line src/train/new.c words "/* $word */"
    printf 'Text\n\n%s\n' "$word" | bad doc/new.md 3 words
done
printf '/* Keys. */\n#include <config.h>\n\nconst az_key az_keys[] = {\n    {.name = "lora.r"},\n    {.name = "lora.new"},\n};\n' |
    bad src/deck/deck_table.c 6 keys
if [ "$(clang-format --version 2>/dev/null | sed -E 's/.*version ([0-9]+).*/\1/')" = 14 ]; then
    line src/train/new.c format 'int   x;'
fi

echo "lint selftest: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
